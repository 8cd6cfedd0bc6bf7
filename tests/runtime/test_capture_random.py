"""Random steps: recorded and replayed, they leave the same bytes everywhere as run one by one."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .capture import recorded

pytestmark = pytest.mark.needs("capture", "handles")

LENGTH, WIDTH, STEPS = 6, 4, 5


def first_graph() -> ost.Graph:
    """A cache that is written at ``position``, a running mean, and two outputs."""
    position = ost.Variable("position", 0, LENGTH - 1)
    g = ost.Graph("first")
    x = g.input("x", (1, WIDTH))
    w = g.param("w", (WIDTH, WIDTH), value=np.eye(WIDTH, dtype=np.float32) * 0.5)
    cache, mean = g.state("cache", (LENGTH, WIDTH)), g.state("mean", (1, WIDTH))
    filled = g.dynamic_update_slice(cache, x, (position, 0))
    g.assign(cache, filled)
    moved = mean * 0.9 + x * 0.1
    g.assign(mean, moved)
    g.set_outputs({"y": g.tanh(g.matmul(x, w)) + moved, "total": g.sum(filled, axis=0)})
    return g


def second_graph() -> ost.Graph:
    """A graph that feeds itself through a handle, next to an input of the caller's."""
    g = ost.Graph("second")
    h, x = g.input("h", (1, WIDTH)), g.input("x", (1, WIDTH))
    g.set_outputs({"next": g.tanh(h + x), "twice": h * 2})
    return g


class World:
    """Two graphs and the arrays between them; two worlds of one seed begin alike."""

    def __init__(self, device: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.session = open_session(device, threads=1 + seed % 2)
        self.context = self.session.context
        self.context.set_dev_state_mode(True)
        self.first = self.session.compile(first_graph())
        self.second = self.session.compile(second_graph())
        self.second.bind_handle("h", np.full((1, WIDTH), 0.25, np.float32))
        if rng.random() < 0.7:
            self.second.set_handle_feed("h", 0)
        shapes = [(1, WIDTH)] * 3 + [(WIDTH,)]
        self.arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.step = [self._call(rng) for _ in range(rng.integers(1, 8))]

    def _call(self, rng: np.random.Generator):
        """Something to submit, on arrays chosen at random: calls read what others wrote."""
        source, target = rng.permutation(3)[:2]
        x, y, total = self.arrays[source], self.arrays[target], self.arrays[3]
        kind = rng.integers(4)
        if kind == 0:
            return self.first.bind({"x": x}, [y, total])
        if kind == 1:
            return self.second.bind(
                {"h": x, "x": self.arrays[3 - source - target]}, [y, np.empty_like(y)]
            )
        if kind == 2:
            return lambda: self.first.commit_no_wait({"x": x})
        return lambda: self.second.commit_no_wait({"x": x})

    def submit(self) -> None:
        for call in self.step:
            call()
            if not self.context.capturing:  # bound calls do not wait for what is queued
                self.first.sync_pending()
                self.second.sync_pending()

    def contents(self) -> list[bytes]:
        handles = [self.first.read_handle(name) for name in ("cache", "mean")]
        handles.append(self.second.read_handle("h"))
        rows = [g.read_output_row(0, 0) for g in (self.first, self.second)]
        return [b"" if a is None else a.tobytes() for a in (*self.arrays, *handles, *rows)]


@pytest.mark.parametrize("seed", range(40))
def test_replays_leave_what_runs_leave(seed, device):
    eager, replayed = World(device, seed), World(device, seed)
    before = replayed.contents()
    with recorded(replayed.context, seed):
        replayed.submit()
    assert replayed.contents() == before
    for number in range(STEPS):
        for world in (eager, replayed):
            world.context.set_decode_state(0, number)
        eager.submit()
        assert replayed.context.replay_graph(seed)
        assert replayed.contents() == eager.contents(), f"after step {number}"
        weights = np.full((WIDTH, WIDTH), 0.1 * number, np.float32)
        for world in (eager, replayed):
            world.first.set_param("w", weights)
