"""Many tiny ops that are replayed by one call; ``bench/replay.py`` has the times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("capture", "single_ops")

COUNT = 500


@pytest.fixture
def executor(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=1).context)


@pytest.mark.parametrize("way", ["graph.replay", "replay_graph"])
def test_a_replay_does_the_work_of_all(executor: ost.GraphExecutor, way: str) -> None:
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

    for times in range(2, 22):
        replay()
        assert (x.copyout() == times * COUNT).all()
    one_by_one()
    assert (x.copyout() == 22 * COUNT).all()
