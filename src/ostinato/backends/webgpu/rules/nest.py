"""The loop nest as a kernel of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.dtypes import FLOAT64, UINT8
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Arg, Stage
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.render import mapping, nests
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.loopir.text import KernelText
else:
    mapping = LazyModule("ostinato.backends.webgpu.render.mapping")
    nests = LazyModule("ostinato.backends.webgpu.render.nests")

__all__ = ["WebGpuLoopNest", "has_float64"]

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class WebGpuLoopNest(LoopNest, WebGpuKernel):
    """A loop nest, its points mapped to the threads of workgroups.

    Attributes:
        scratch_groups: the workgroups that have memory for their temps in the last argument; 0:
            temps are in workgroup memory, and the arguments are the nest's alone.
    """

    scratch_groups: int = 0

    prefix: ClassVar[str] = "loops"

    @staticmethod
    def of(nest: LoopNest) -> WebGpuLoopNest:
        """``nest`` as the device runs it."""
        args, stages = nest.args, nest.stages
        groups = 0 if has_float64(nest) else mapping.scratch_groups(nest)
        if groups:
            stages = tuple(_renumbered(stage, len(args)) for stage in stages)
            args = (*args, Arg(UINT8, reads=True, writes=True))
        return WebGpuLoopNest(
            args,
            nest.axes,
            stages,
            nest.temps,
            nest.inner_axis,
            nest.block,
            nest.variables,
            nest.parallel,
            groups,
        )

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the last argument; 0 if it is no memory for temps."""
        groups = self.scratch_groups
        return 4 * groups * mapping.temp_words(self.temps) if groups else 0

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        if self.scratch_groups:
            text.line(1, f"temps of {self.scratch_groups} groups in b{len(self.args) - 1}")

    def obstacle(self, target: WebGpuTarget) -> str:
        if has_float64(self):
            return "float64"
        if bounds(self.extent)[0] > _INT32_MAX:
            return "more points than a 32-bit integer counts"
        return ""

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return nests.shader(self, target, bindings, self.scratch_groups)


def has_float64(nest: LoopNest) -> bool:
    """Whether a nest reads, writes or computes with float64."""
    dtypes = [arg.dtype for arg in nest.args] + [temp.dtype for temp in nest.temps]
    if FLOAT64 in dtypes:
        return True
    starts = (root for stage in nest.stages for s in stage.statements for root in roots(s))
    return any(getattr(scalar, "dtype", None) == FLOAT64 for scalar in reached(starts))


def _renumbered(stage: Stage, first: int) -> Stage:
    """A stage whose temps are numbered after one more argument."""
    rewriter = Rewriter(buffer=lambda number: number + (number >= first))
    return Stage(stage.axes, tuple(map(rewriter.statement, stage.statements)))
