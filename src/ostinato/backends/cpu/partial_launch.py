"""Launching a program on the first rows alone: how far each of its kernels runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.lower.extent import RowwiseCalls
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.lower.program import Program

__all__ = ["Cut", "LeadingRows"]


@dataclass(frozen=True)
class Cut:
    """The part of a kernel that runs.

    Attributes:
        extent: steps of its parallel range.
        idle: what its :attr:`~ostinato.backends.cpu.rules.gemm.Gemm.idle` is to hold.
    """

    extent: int
    idle: int


class LeadingRows:
    """The launches of one program for one number of rows.

    Args:
        program: see :class:`~ostinato.lower.extent.RowwiseCalls`.
        upper: how many rows it was compiled for.
    """

    def __init__(self, program: Program, upper: int) -> None:
        self._kernels = [call.kernel for call in program.calls]
        self._rowwise = RowwiseCalls(program, upper)

    def cuts(self, actual: int) -> list[Cut | None]:
        """For each call, how far it must run to give ``actual`` rows; ``None``: in full."""
        found: list[Cut | None] = []
        for kernel, steps in zip(self._kernels, self._rowwise.steps(actual), strict=True):
            if steps is None:
                found.append(None)
                continue
            wanted, size = steps
            assert isinstance(kernel, CpuKernel)
            extent = kernel.extent_for(wanted)
            assert isinstance(extent, int)
            found.append(Cut(extent, size - wanted))
        return found
