"""States against plain NumPy, with readers that must not see an update in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 5, 3


def starting(name: str) -> Array:
    seed = sum(map(ord, name))
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)


class Model:
    """A graph with two states, and the same in NumPy.

    ``build`` and ``step`` give the new states and the outputs from the old states, a row and a
    position: ``build`` as values of a graph, ``step`` as arrays.
    """

    def __init__(self, build: Callable[..., Any], step: Callable[..., Any]) -> None:
        self.build, self.step = build, step

    def graph(self) -> ost.Graph:
        g = ost.Graph("states")
        row, at = g.input("row", (1, WIDTH)), g.input("at", (), "int64")
        a = g.state("a", (ROWS, WIDTH), init=starting("a"))
        b = g.state("b", (ROWS, WIDTH), init=starting("b"))
        new_a, new_b, outputs = self.build(g, a, b, row, at)
        g.assign(a, new_a)
        g.assign(b, new_b)
        g.set_outputs(outputs)
        return g


def put(a: Array, row: Array, at: int) -> Array:
    """``dynamic_update_slice`` of rows."""
    at = max(0, min(at, len(a) - len(row)))
    return np.concatenate([a[:at], row, a[at + len(row) :]])


def gput(g: ost.Graph, a: Any, row: Any, at: Any) -> Any:
    return g.dynamic_update_slice(a, row, (at, 0))


MODELS = {
    "append": Model(
        lambda g, a, b, row, at: (gput(g, a, row, at), b, [g.sum(gput(g, a, row, at))]),
        lambda a, b, row, at: (put(a, row, at), b, [put(a, row, at).sum()]),
    ),
    "append, and read what was there": Model(
        lambda g, a, b, row, at: (gput(g, a, row, at), b, [a * 2, g.sum(a, axis=0)]),
        lambda a, b, row, at: (put(a, row, at), b, [a * 2, a.sum(0)]),
    ),
    "the old value as an output": Model(
        lambda g, a, b, row, at: (gput(g, a, row, at), b, [a]),
        lambda a, b, row, at: (put(a, row, at), b, [a]),
    ),
    "the new value as an output": Model(
        lambda g, a, b, row, at: ((n := gput(g, a, row, at)), b, [n, n + 1]),
        lambda a, b, row, at: ((n := put(a, row, at)), b, [n, n + 1]),
    ),
    "a row made of the cache itself": Model(
        lambda g, a, b, row, at: (
            gput(g, a, g.sum(a, axis=0, keepdims=True) + row, at), b, [g.max(a)]
        ),
        lambda a, b, row, at: (put(a, a.sum(0, keepdims=True) + row, at), b, [a.max()]),
    ),
    "rows moved within the cache": Model(
        lambda g, a, b, row, at: (
            g.dynamic_update_slice(a, g.slice(a, (0, 0), (ROWS - 1, WIDTH)), (1, 0)), b, [row]
        ),
        lambda a, b, row, at: (np.concatenate([a[:1], a[:-1]]), b, [row]),
    ),
    "two updates in a row": Model(
        lambda g, a, b, row, at: (gput(g, gput(g, a, row, at), row * 2, 0), b, [at + 0]),
        lambda a, b, row, at: (put(put(a, row, at), row * 2, 0), b, [np.array(at)]),
    ),
    "two updates, read in between": Model(
        lambda g, a, b, row, at: (
            gput(g, (first := gput(g, a, row, at)), row * 2, 0), b, [g.sum(first, axis=1)]
        ),
        lambda a, b, row, at: (
            put((first := put(a, row, at)), row * 2, 0), b, [first.sum(1)]
        ),
    ),
    "two different updates of one state": Model(
        lambda g, a, b, row, at: (gput(g, a, row, at), b, [g.sum(gput(g, a, row * 3, 0), axis=1)]),
        lambda a, b, row, at: (put(a, row, at), b, [put(a, row * 3, 0).sum(1)]),
    ),
    "states swapped": Model(
        lambda g, a, b, row, at: (b, a, [a + b]),
        lambda a, b, row, at: (b, a, [a + b]),
    ),
    "states swapped and written": Model(
        lambda g, a, b, row, at: (gput(g, b, row, at), gput(g, a, row, 0), [a - b]),
        lambda a, b, row, at: (put(b, row, at), put(a, row, 0), [a - b]),
    ),
    "one update for both": Model(
        lambda g, a, b, row, at: ((n := gput(g, a, row, at)), n, [b * 1]),
        lambda a, b, row, at: ((n := put(a, row, at)), n, [b * 1]),
    ),
    "upside down": Model(
        lambda g, a, b, row, at: (g.flip(a, axis=0), g.flip(b, axis=1) + a, [g.sum(a)]),
        lambda a, b, row, at: (a[::-1], b[:, ::-1] + a, [a.sum()]),
    ),
    "elementwise": Model(
        lambda g, a, b, row, at: (a * 0.5 + row, b + a, [a + b]),
        lambda a, b, row, at: (a * 0.5 + row, b + a, [a + b]),
    ),
    "the other's new value": Model(
        lambda g, a, b, row, at: ((n := a + row), b + n, [n * b]),
        lambda a, b, row, at: ((n := a + row), b + n, [n * b]),
    ),
    "scatter of rows": Model(
        lambda g, a, b, row, at: (
            g.scatter_nd(a, g.reshape(at, (1, 1)), row), b, [g.sum(a, axis=1)]
        ),
        lambda a, b, row, at: (put(a, row, at), b, [a.sum(1)]),
    ),
    "scatter that adds": Model(
        lambda g, a, b, row, at: (
            g.scatter_nd(a, g.reshape(at, (1, 1)), row, mode="add"), b, [a[0]]
        ),
        lambda a, b, row, at: (put(a, a[at : at + 1] + row, at), b, [a[0]]),
    ),
    "a constant": Model(
        lambda g, a, b, row, at: (g.constant(np.ones((ROWS, WIDTH), "f4")), b, [a * 1]),
        lambda a, b, row, at: (np.ones((ROWS, WIDTH), "f4"), b, [a * 1]),
    ),
    "itself": Model(
        lambda g, a, b, row, at: (a, b, [a + b]),
        lambda a, b, row, at: (a, b, [a + b]),
    ),
    "a row taken from one put into the other": Model(
        lambda g, a, b, row, at: (
            gput(g, a, g.dynamic_slice(b, (at, 0), (1, WIDTH)), 0),
            gput(g, b, g.dynamic_slice(a, (0, 0), (1, WIDTH)), at),
            [row],
        ),
        lambda a, b, row, at: (put(a, b[at : at + 1], 0), put(b, a[:1], at), [row]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_states_hold_what_was_assigned(session, name, optimize):
    model = MODELS[name]
    options = ost.CompileOptions(optimize=optimize)
    compiled = session.compile(model.graph(), options=options)
    a, b = starting("a"), starting("b")
    rng = np.random.default_rng(7)
    for at in (0, 3, 1, 4):
        row = rng.standard_normal((1, WIDTH)).astype(np.float32)
        got = compiled.run({"row": row, "at": np.array(at, np.int64)})
        a, b, outputs = model.step(a, b, row, at)
        for one, expected in zip(got, outputs, strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(compiled.read_handle("a"), a, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(compiled.read_handle("b"), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_clones_and_raw_runs_agree(session, name):
    compiled = session.compile(MODELS[name].graph())
    twin = compiled.clone()
    feed = {"row": np.ones((1, WIDTH), np.float32), "at": np.array(2, np.int64)}
    for _ in range(3):
        expected = [array.tobytes() for array in compiled.run(feed)]
        assert [array.tobytes() for array in twin.run_raw(feed)] == expected
    for state in "ab":
        assert twin.read_handle(state).tobytes() == compiled.read_handle(state).tobytes()


def test_empty_states_params_and_constants_beside_others(session):
    """Each is an array of its own, although it takes no memory."""
    g = ost.Graph("empty")
    x = g.input("x", (3,))
    sums = []
    for name in ("first", "second"):
        none, state = g.state(f"{name}.none", (0, 2)), g.state(name, (3,))
        nothing = g.param(f"{name}.nothing", (0,), "int32", value=np.zeros(0, np.int32))
        weight = g.param(f"{name}.weight", (3,), value=np.arange(3, dtype=np.float32))
        total = state + x * weight + g.constant(np.arange(3, dtype=np.float32))
        g.assign(state, total)
        g.assign(none, none + 1)
        sums += [total, none * 2, nothing + 1]
    g.set_outputs(sums)
    compiled = session.compile(g)
    for _ in range(2):
        found = compiled.run({"x": np.ones(3, np.float32)})
    for first in (0, 3):
        np.testing.assert_array_equal(found[first], [0, 4, 8])
        assert found[first + 1].shape == (0, 2)
        assert found[first + 2].dtype == np.int32
