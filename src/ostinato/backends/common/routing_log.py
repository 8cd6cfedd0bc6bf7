"""The experts that a run has called, read from the lists that its kernels leave in the arena."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.program_image import RoutingLocation

__all__ = ["RoutingLists", "RoutingLog"]

Array = np.ndarray[Any, Any]

#: A number of parts that no run writes: the mark of a list that was read or cleared.
_READ = np.full(1, -1, np.int64)


class RoutingLists(Protocol):
    """The lists of a program in its device's memory. Each call excludes runs while it runs."""

    def take(self, copies: Array, mark: Array) -> None:
        """Copy all lists, one after another, into ``copies``; then write ``mark`` to each start."""

    def mark(self, mark: Array) -> None:
        """Write ``mark`` to the start of each list."""

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, the other calls raise ``error``."""


class RoutingLog:
    """The lists of rows by expert that runs leave in the arena, to be read once each.

    Args:
        routings: the locations of the lists, in order.
        lists: the lists.
    """

    def __init__(self, routings: Sequence[RoutingLocation], lists: RoutingLists) -> None:
        self._routings = routings
        self._lists = lists
        starts = np.cumsum([0, *(routing.nbytes for routing in routings)]).tolist()
        self._bounds = [(start // 8, end // 8) for start, end in pairwise(starts)]
        self._numbers = starts[-1] // 8
        self.clear()

    def clear(self) -> None:
        """Clear the lists; to be called when the arena is new or discarded."""
        self._lists.mark(_READ)

    def take(self) -> list[Array] | None:
        """The experts of each routing in the last run; ``None`` if they were taken, or cleared.

        For a run with an active extent, those of the active rows.
        """
        copied = np.empty(self._numbers, np.int64)
        self._lists.take(copied, _READ)
        if any(copied[start] < 0 for start, _ in self._bounds):
            return None
        return [
            _experts(routing, copied[start:end])
            for routing, (start, end) in zip(self._routings, self._bounds, strict=True)
        ]

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, reading raises ``error``."""
        self._lists.close(error)


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
