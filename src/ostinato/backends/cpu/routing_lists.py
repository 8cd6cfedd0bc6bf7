"""The lists of rows by expert in the arena of a program of the native core."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.cpu.submission import copy_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.program_image import RoutingLocation
    from ostinato.backends.cpu import _core

__all__ = ["ArenaLists"]

Array = np.ndarray[Any, Any]

#: Bytes of a mark, which is one number.
_MARK_BYTES = 8


class ArenaLists:
    """See :class:`~ostinato.backends.common.routing_log.RoutingLists`.

    Args:
        routings: the places of the lists.
        arena: the arena.
        native: makes a program of steps on slots that excludes runs while it runs.
    """

    def __init__(
        self,
        routings: Sequence[RoutingLocation],
        arena: _core.Arena,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        sizes = [routing.nbytes for routing in routings]
        starts = accumulate(sizes, initial=0)
        at = [(0, routing.offset) for routing in routings]
        reads = [
            copy_step((1, start), place, size)
            for start, place, size in zip(starts, at, sizes, strict=False)
        ]
        marks = [copy_step(place, (2, 0), _MARK_BYTES) for place in at]
        self._nbytes = sum(sizes)
        slots: list[_core.Slot] = [arena, (self._nbytes, True), (_MARK_BYTES, False)]
        self._take = native([*reads, *marks], slots)
        self._mark = native(marks, slots)

    def take(self, copies: Array, mark: Array) -> None:
        self._take.run([copies, mark])

    def mark(self, mark: Array) -> None:
        self._mark.run([np.empty(self._nbytes, np.uint8), mark])

    def close(self, error: Exception) -> None:
        self._take.stop(error)
        self._mark.stop(error)
