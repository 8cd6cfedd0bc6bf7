"""Compiled graphs on many Python threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ostinato as ost

from .graphs import FED, B, W, X, sized_inputs, tiny, tiny_graph


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """``work(i)`` on that many threads at once; raises what they raise."""
    barrier = threading.Barrier(count)

    def start(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(start, range(count)))


def chain(width: int = 32, depth: int = 6) -> ost.Graph:
    """Several kernels with intermediate values in the arena."""
    g = ost.Graph("chain")
    x = g.input("x", (width, width))
    for i in range(depth):
        w = g.param(f"w{i}", (width, width))
        x = g.softmax(g.matmul(x, w) + x, axis=-1) + g.layer_norm(
            x, g.constant(np.ones(width, np.float32)), g.constant(np.zeros(width, np.float32))
        )
    g.set_outputs([x, g.sum(x, axis=0)])
    return g


@pytest.fixture(scope="module")
def chained(session):
    g = chain()
    rng = np.random.default_rng(0)
    params = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in g.params.items()}
    return session.compile(g, params)


def test_runs_on_many_threads_are_right(chained):
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.standard_normal((32, 32)).astype(np.float32)} for _ in range(6)]
    alone = [[a.tobytes() for a in chained.run(feed)] for feed in feeds]

    def work(index: int) -> None:
        feed = feeds[index]
        out = [np.empty((32, 32), np.float32), np.empty(32, np.float32)]
        bound = chained.bind(feed, out)
        for turn in range(60):
            if turn % 3 == 0:
                results = chained.run(feed)
            elif turn % 3 == 1:
                results = chained.run(feed, out=out)
            else:
                bound()
                results = out
            assert [a.tobytes() for a in results] == alone[index]

    together(6, work)


def test_sizes_on_many_threads_do_not_mix(sized):
    alone = {n: [a.tobytes() for a in sized.run(sized_inputs(n))] for n in range(1, 17)}

    def work(index: int) -> None:
        for turn in range(150):
            n = (7 * turn + index) % 16 + 1
            assert [a.tobytes() for a in sized.run(sized_inputs(n))] == alone[n]

    together(6, work)


def test_bad_calls_beside_good_ones(compiled):
    expected = compiled.run(FED)[0].tobytes()

    def work(index: int) -> None:
        for _ in range(200):
            if index % 2:
                assert compiled.run(FED)[0].tobytes() == expected
            else:
                with pytest.raises(ost.InputError):
                    compiled.run({"x": X[:1]})

    together(4, work)


def test_graphs_of_one_session_and_of_several(session):
    def work(index: int) -> None:
        mine = session if index % 2 else ost.Session("cpu", threads=2)
        compiled = mine.compile(tiny_graph(), {"w": W + index, "b": B})
        expected = tiny(X, W + index)
        for _ in range(100):
            np.testing.assert_allclose(compiled.run(FED)[0], expected, rtol=1e-5, atol=1e-5)

    together(6, work)


def test_many_graphs_in_one_session(session):
    graphs = []
    for i in range(40):
        g = ost.Graph(f"g{i}")
        x = g.input("x", (i + 1,))
        g.set_outputs([x * float(i), g.sum(x)])
        graphs.append(session.compile(g))
    for _ in range(2):
        for i, compiled in enumerate(graphs):
            scaled, total = compiled.run({"x": np.ones(i + 1, np.float32)})
            assert scaled.tolist() == [i] * (i + 1)
            assert total == i + 1


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_thread_counts_agree(threads):
    g = chain(48, 3)
    rng = np.random.default_rng(2)
    params = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in g.params.items()}
    x = {"x": rng.standard_normal((48, 48)).astype(np.float32)}
    one = ost.Session("cpu", threads=1).compile(g, params).run(x)
    several = ost.Session("cpu", threads=threads).compile(g, params).run(x)
    for a, b in zip(one, several, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
