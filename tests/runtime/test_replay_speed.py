"""Many tiny ops: a replay is one call, and costs little more than the ops themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost

COUNT = 500


@pytest.fixture
def executor() -> ost.GraphExecutor:
    return ost.GraphExecutor("cpu", threads=1)


def least(call: Callable[[], object], times: int) -> float:
    """Seconds of the quickest of a few calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


@pytest.mark.parametrize("way", ["graph.replay", "replay_graph"])
def test_replaying_tiny_ops_beats_submitting_them(executor: ost.GraphExecutor, way: str) -> None:
    """The project promises 20 times; measured are hundreds and more (``bench/replay.py``)."""
    x, one = executor.buffer(np.zeros(16, np.float32)), executor.buffer(np.ones(16, np.float32))

    def one_by_one() -> None:
        for _ in range(COUNT):
            with executor.begin() as s:
                s.add(x, one, out=x)

    with executor.begin_recorded() as recorded:
        for _ in range(COUNT):
            recorded.add(x, one, out=x)
    assert (x.copyout() == COUNT).all()
    replay: Callable[[], object] = recorded.graph.replay
    if way == "replay_graph":
        executor.context.begin_graph_capture()
        recorded.graph.replay()
        executor.context.end_graph_capture(0)

        def replay() -> None:
            assert executor.context.replay_graph(0)

    submitted, replayed = least(one_by_one, 3), least(replay, 20)
    assert (x.copyout() == 24 * COUNT).all(), "each did all of the work"
    assert submitted > 20 * replayed
