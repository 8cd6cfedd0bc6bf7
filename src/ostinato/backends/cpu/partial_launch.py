"""Launching a program on the first rows alone: how far each of its kernels runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.backends.common.program_image import Slot
from ostinato.backends.cpu.rules.group_rows import GroupRows
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.lower.extent import RowwiseCalls, buffers_behind
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.image import AnyStep
    from ostinato.lower.program import Program

__all__ = ["LeadingRows", "PartialLaunch"]


@dataclass(frozen=True)
class PartialLaunch:
    """The part of a kernel that runs.

    Attributes:
        extent: steps of its parallel range.
        masked_tail: what its :attr:`~ostinato.backends.cpu.rules.gemm.Gemm.masked_tail` is to hold.
        parts: the second number of a :attr:`~.GroupRows.masked_tail`; 0: it has one.
    """

    extent: int
    masked_tail: int
    parts: int = 0


class LeadingRows:
    """The launches of one program for one number of rows.

    Args:
        program: see :class:`~ostinato.lower.extent.RowwiseCalls`.
        upper: how many rows it was compiled for.
    """

    def __init__(self, program: Program, upper: int) -> None:
        self._kernels = [call.kernel for call in program.calls]
        self._rowwise = RowwiseCalls(program, upper)
        self._listings = _padded_listings(program, upper)
        self._upper = upper

    def launches(self, actual: int) -> list[PartialLaunch | None]:
        """For each call, how far it must run to give ``actual`` rows; ``None``: in full.

        A list of rows is made in full; its kernel takes the extent and stores it with the list.
        """
        found: list[PartialLaunch | None] = []
        steps_of_all = self._rowwise.steps(actual)
        for position, (kernel, steps) in enumerate(zip(self._kernels, steps_of_all, strict=True)):
            if isinstance(kernel, GroupRows) and position in self._listings:
                found.append(PartialLaunch(kernel.extent, self._upper - actual, self._upper))
                continue
            if steps is None:
                found.append(None)
                continue
            wanted, size = steps
            assert isinstance(kernel, CpuKernel)
            extent = kernel.extent_for(wanted)
            assert isinstance(extent, int)
            found.append(PartialLaunch(extent, size - wanted))
        return found

    def limits(self, steps: Sequence[AnyStep], actual: int, tail_bytes: int) -> bytes:
        """The core's form of :meth:`launches`: the extent of each step, then the masked tails.

        Args:
            steps: of the calls.
            actual: number of rows in use.
            tail_bytes: size of the slot of masked tails.
        """
        launches = self.launches(actual)
        limits = np.full(len(launches), np.iinfo(np.int64).max)
        tails = np.zeros(tail_bytes // limits.itemsize, np.int64)
        for position, (step, launch) in enumerate(zip(steps, launches, strict=True)):
            if launch is None:
                continue
            limits[position] = launch.extent
            for slot, offset in step.arguments:
                if slot == Slot.MASKED_TAIL:
                    tails[offset // limits.itemsize] = launch.masked_tail
                    if launch.parts:
                        tails[offset // limits.itemsize + 1] = launch.parts
        return limits.tobytes() + tails.tobytes()


def _padded_listings(program: Program, upper: int) -> set[int]:
    """The calls that list rows which derive, in any way, from inputs of ``upper`` rows."""
    padded = buffers_behind(program, upper)
    return {
        position
        for position, call in enumerate(program.calls)
        if call.kernel.listing is not None and not padded.isdisjoint(call.reads())
    }
