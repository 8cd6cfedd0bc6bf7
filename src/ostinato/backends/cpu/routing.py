"""The experts that a run has called, read from the lists that its kernels leave in the arena."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.cpu.submission import copy_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.program_image import RoutingLocation
    from ostinato.backends.cpu import _core

__all__ = ["RoutingLog"]

Array = np.ndarray[Any, Any]

#: A number of parts that no run writes: the mark of a list that was read or cleared.
_READ = np.full(1, -1, np.int64)


class RoutingLog:
    """The lists of rows by expert that runs leave in the arena, to be read once each.

    Args:
        routings: the lists, in order.
        arena: the arena.
        native: makes a program of steps on slots that excludes runs while it runs.
    """

    def __init__(
        self,
        routings: Sequence[RoutingLocation],
        arena: _core.Arena,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        self._routings = routings
        sizes = [routing.nbytes for routing in routings]
        starts = np.cumsum([0, *sizes]).tolist()
        self._bounds = [(start // 8, end // 8) for start, end in pairwise(starts)]
        self._nbytes = starts[-1]
        at = [(0, routing.offset) for routing in routings]
        reads = [
            copy_step((1, start), place, size)
            for start, place, size in zip(starts, at, sizes, strict=False)
        ]
        marks = [copy_step(place, (2, 0), _READ.nbytes) for place in at]
        slots: list[_core.Slot] = [arena, (self._nbytes, True), (_READ.nbytes, False)]
        self._take = native([*reads, *marks], slots)
        self._mark = native(marks, slots)
        self.clear()

    def clear(self) -> None:
        """Clear the lists; to be called when the arena is new or discarded."""
        self._mark.run([np.empty(self._nbytes, np.uint8), _READ])

    def take(self) -> list[Array] | None:
        """The experts of each routing in the last run; ``None`` if they were taken, or cleared.

        For a run with an active extent, those of the active rows.
        """
        copied = np.empty(self._nbytes // 8, np.int64)
        self._take.run([copied, _READ])
        if any(copied[start] < 0 for start, _ in self._bounds):
            return None
        return [
            _experts(routing, copied[start:end])
            for routing, (start, end) in zip(self._routings, self._bounds, strict=True)
        ]

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, reading raises ``error``."""
        self._take.stop(error)
        self._mark.stop(error)


def _experts(routing: RoutingLocation, numbers: Array) -> Array:
    """The expert of each row, in the shape of the expert ids."""
    parts = numbers[1 : 1 + 3 * int(numbers[0])].reshape(-1, 3)
    experts = np.repeat(parts[:, 0], parts[:, 2])
    listed = numbers[routing.first_row : routing.first_row + len(experts)]
    ids = np.empty_like(experts)
    ids[listed] = experts
    by_token = ids.reshape(-1, *routing.per_token)
    return by_token[: _live(len(by_token), *numbers[-2:].tolist())]


def _live(tokens: int, masked_tail: int, parts: int) -> int:
    """The number of leading tokens without the last ``masked_tail`` of ``parts`` parts.

    Tokens that do not divide into so many parts are not rows of the padded axis: none is masked.
    """
    return tokens - tokens // parts * masked_tail if parts and tokens % parts == 0 else tokens
