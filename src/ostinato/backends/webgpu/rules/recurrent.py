"""The rule of ``recurrent_scan``: one kernel for all steps, a workgroup for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render import recurrent
from ostinato.lower.rules.recurrence import Recurrence, lower_recurrence
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["RecurrentKernel", "lower_recurrent"]


@dataclass(frozen=True, eq=False)
class RecurrentKernel(Recurrence, WebGpuKernel):
    """A recurrence whose sequences are computed by a workgroup each."""

    prefix: ClassVar[str] = "recurrent"

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return recurrent.shader(self, target, bindings)


def lower_recurrent(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``recurrent_scan`` node."""
    lower_recurrence(lowering, region, root, RecurrentKernel)
