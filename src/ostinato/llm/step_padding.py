"""Steps of a few sizes: those of devices whose kernels are much faster for numbers they know.

A step of other sizes is one of the next larger ones, with rows behind its own that change nothing:
they are those of a sequence that has no blocks, so that what they write goes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.llm.step_sizes import StepInputs, StepLimits

__all__ = ["StepPadding", "rounded_up"]

R = TypeVar("R")

Array = np.ndarray[Any, Any]

#: A pick beyond all others: adjustments of it change nothing.
_NO_PICK: Final = (1 << 31) - 1

#: Rows up to which each may be picked; of more, there are all picks or one.
_FEW: Final = 16

#: Rows of the shortest step of more.
_LEAST_ROWS: Final = 64


@dataclass(frozen=True, kw_only=True)
class StepPadding:
    """The sizes of steps, and the rows that fill them.

    Attributes:
        limits: the most that users' steps take.
    """

    limits: StepLimits

    @property
    def padded(self) -> StepLimits:
        """The limits of the graph: with one more sequence, which has no blocks."""
        return replace(self.limits, sequences=self.limits.sequences + 1)

    def tables(self, table: Array, window_table: Array | None) -> None:
        """Leave the last sequence of tables without blocks."""
        table[-1] = self.limits.blocks
        if window_table is not None:
            window_table[-1] = self.limits.window_blocks

    def sizes(self, rows: int, picks: int, adjustments: int) -> tuple[int, int, int]:
        """The sizes of a step that has room for such numbers."""
        limits = self.limits
        if max(rows, picks) <= min(_FEW, limits.picks, limits.rows):
            count = rounded_up(max(rows, picks), min(limits.picks, limits.rows))
            return count, count, _one_or_all(adjustments, limits.adjustments)
        return (
            rounded_up(max(rows, _LEAST_ROWS), limits.rows),
            _one_or_all(picks, limits.picks),
            _one_or_all(adjustments, limits.adjustments),
        )

    def run(
        self,
        call: Callable[[], R],
        inputs: StepInputs,
        used: tuple[int, int, int],
        sizes: tuple[int, int, int],
    ) -> R:
        """Run or start a call with inputs behind those that are used; these are as before then.

        Args:
            call: runs or starts a step of ``sizes``, and has read its inputs then.
            inputs: its arrays.
            used, sizes: rows, picks and adjustments.
        """
        rows, picks, adjustments = (slice(a, b) for a, b in zip(used, sizes, strict=True))
        filled: list[tuple[Array, Any]] = [
            (inputs.tokens[rows], 0),
            (inputs.position[rows], np.arange(sizes[0] - used[0])),
            (inputs.sequence[rows], self.limits.sequences),
            (inputs.pick[picks], 0),
            (inputs.adjust_pick[adjustments], _NO_PICK),
        ]
        kept = [part.copy() for part, _ in filled]
        for part, value in filled:
            part[:] = value
        try:
            return call()
        finally:
            for (part, _), before in zip(filled, kept, strict=True):
                part[:] = before


def rounded_up(count: int, most: int) -> int:
    """The next power of two, or the most."""
    return min(1 << (count - 1).bit_length(), most)


def _one_or_all(count: int, most: int) -> int:
    return 1 if count == 1 else most
