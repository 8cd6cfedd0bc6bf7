"""The rule of ``recurrent_scan``: one kernel for all steps, a block for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render import recurrent
from ostinato.backends.cuda.rules.recurrence import CudaRecurrence
from ostinato.lower.rules.recurrence import lower_recurrence

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["RecurrentKernel", "lower_recurrent"]


class RecurrentKernel(CudaRecurrence):
    """A recurrence whose sequences are computed by a block each."""

    def launch(self, target: CudaTarget) -> Launch:
        return recurrent.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return recurrent.source(self)


def lower_recurrent(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``recurrent_scan`` node."""
    lower_recurrence(lowering, region, root, RecurrentKernel)
