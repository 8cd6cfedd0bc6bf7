"""The loop nest as a kernel of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.dtypes import FLOAT64
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.rules.gpu_nest import GpuLoopNest
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.render import mapping, nests
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.nest import LoopNest
else:
    mapping = LazyModule("ostinato.backends.webgpu.render.mapping")
    nests = LazyModule("ostinato.backends.webgpu.render.nests")

__all__ = ["WebGpuLoopNest", "has_float64"]

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class WebGpuLoopNest(GpuLoopNest, WebGpuKernel):
    """A loop nest, its points mapped to the threads of workgroups, which are the groups."""

    prefix: ClassVar[str] = "loops"

    @staticmethod
    def of(nest: LoopNest) -> WebGpuLoopNest:
        """``nest`` as the device runs it."""
        groups = 0 if has_float64(nest) else mapping.scratch_groups(nest)
        return WebGpuLoopNest.with_groups(nest, groups)

    @property
    def scratch_bytes(self) -> int:
        groups = self.scratch_groups
        return 4 * groups * mapping.temp_words(self.temps) if groups else 0

    def obstacle(self, target: WebGpuTarget) -> str:
        if has_float64(self):
            return "float64"
        if bounds(self.extent)[0] > _INT32_MAX:
            return "more points than a 32-bit integer counts"
        return ""

    def groups_for(self, wanted: int, target: WebGpuTarget) -> int | None:
        return nests.leading_groups(self, target, self.scratch_groups, wanted)

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return nests.shader(self, target, bindings, self.scratch_groups)


def has_float64(nest: LoopNest) -> bool:
    """Whether a nest reads, writes or computes with float64."""
    dtypes = [arg.dtype for arg in nest.args] + [temp.dtype for temp in nest.temps]
    if FLOAT64 in dtypes:
        return True
    starts = (root for stage in nest.stages for s in stage.statements for root in roots(s))
    return any(getattr(scalar, "dtype", None) == FLOAT64 for scalar in reached(starts))
