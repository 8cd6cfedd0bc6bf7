"""Expert ids, decoded from lists of rows by expert in any device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.backends.common.program_image import RoutingLocation
from ostinato.backends.common.routing_log import RoutingLog

Array = np.ndarray[Any, Any]

#: Rows 0 to 5 of three tokens, two experts each. Parts: expert, a number of no use here, rows.
PARTS = [2, 1, 0, 4, 3, 0, 2]
ROWS = [5, 0, 3, 1, 2, 4]


def listed(idle: int, parts: int) -> Array:
    return np.array([*PARTS, *ROWS, idle, parts], np.int64)


class Lists:
    """Lists in memory of the test's own."""

    def __init__(self, *lists: Array) -> None:
        self.lists = lists
        self.error: Exception | None = None

    def take(self, copies: Array, mark: Array) -> None:
        if self.error is not None:
            raise self.error
        copies[:] = np.concatenate(self.lists)
        self.mark(mark)

    def mark(self, mark: Array) -> None:
        for numbers in self.lists:
            numbers[0] = mark[0]

    def close(self, error: Exception) -> None:
        self.error = error


def log_of(lists: Lists) -> RoutingLog:
    places = [
        RoutingLocation(f"layer {i}", (2,), 4, len(PARTS), 64 * i, numbers.nbytes)
        for i, numbers in enumerate(lists.lists)
    ]
    return RoutingLog(places, lists)


def test_nothing_is_there_before_the_first_run() -> None:
    assert log_of(Lists(listed(0, 0))).take() is None


def test_each_run_is_taken_once() -> None:
    lists = Lists(listed(0, 0), listed(0, 0))
    log = log_of(lists)
    for numbers in lists.lists:
        numbers[:] = listed(0, 0)
    first, second = log.take() or []
    assert first.tolist() == second.tolist() == [[1, 1], [3, 1], [3, 1]]
    assert log.take() is None


def test_masked_rows_are_left_out() -> None:
    lists = Lists(listed(0, 0))
    log = log_of(lists)
    lists.lists[0][:] = listed(2, 3)
    (ids,) = log.take() or []
    assert ids.tolist() == [[1, 1]]


def test_a_list_that_was_cleared_is_not_taken() -> None:
    lists = Lists(listed(0, 0))
    log = log_of(lists)
    lists.lists[0][:] = listed(0, 0)
    log.clear()
    assert log.take() is None


def test_a_closed_log_raises() -> None:
    log = log_of(Lists(listed(0, 0)))
    log.close(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        log.take()
