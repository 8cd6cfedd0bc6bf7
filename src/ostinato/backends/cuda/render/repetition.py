"""Repetition in a sequence: the layers of a model among the parts of a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["Repetition", "repetition"]

#: Repetitions of which there have to be as many.
_LEAST_COUNT = 3


@dataclass(frozen=True)
class Repetition:
    """Equal runs of elements, one after the other; the last one may end early.

    Attributes:
        begin: the first element.
        end: the element behind the last one.
        length: elements of a run.
    """

    begin: int
    end: int
    length: int

    @property
    def count(self) -> int:
        """The number of runs."""
        return -(-(self.end - self.begin) // self.length)

    @property
    def first(self) -> range:
        """The elements of the first run."""
        return range(self.begin, self.begin + self.length)

    @property
    def last_length(self) -> int:
        """Elements of the last run."""
        return self.end - self.begin - (self.count - 1) * self.length

    def like(self, number: int) -> range:
        """The elements at the place of one of the first run, in all runs that have it."""
        return range(number, self.end, self.length)


def repetition(kinds: Sequence[Hashable]) -> Repetition | None:
    """The repetition that has most of the elements, of these the one of the shortest runs.

    Args:
        kinds: by element, what has to be the same in all runs.
    """
    best: Repetition | None = None
    for length in range(2, len(kinds) // _LEAST_COUNT + 1):
        begin = 0
        for number in range(length, len(kinds) + 1):
            if number < len(kinds) and kinds[number] == kinds[number - length]:
                continue
            covered = number - begin
            if covered >= _LEAST_COUNT * length and (
                best is None or covered > best.end - best.begin
            ):
                best = Repetition(begin, number, length)
            begin = number - length + 1
    return best
