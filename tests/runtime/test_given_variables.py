"""``variables=``: values of Variables that no input's shape gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

LENGTH = 6


def history_graph(name: str = "pos") -> ost.Graph:
    """A state that is written at ``pos``; the outputs are it, and the sum of its first rows."""
    pos = ost.Variable(name, 0, LENGTH - 1)
    g = ost.Graph("history")
    row = g.input("row", (1, 2))
    history = g.state("history", (LENGTH, 2))
    updated = g.dynamic_update_slice(history, row, (pos, 0))
    g.assign(history, updated)
    g.set_outputs({"history": updated * 1, "seen": g.sum(g.slice(updated, (0, 0), (pos, 2)), 0)})
    return g


def row(number: float) -> dict[str, np.ndarray]:
    return {"row": np.full((1, 2), number, np.float32)}


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(history_graph())


def rows(compiled: ost.CompiledGraph) -> list[float]:
    held = compiled.read_handle("history")
    assert held is not None
    return held[:, 0].tolist()


def by_run(c: ost.CompiledGraph, feed: Any, variables: Any) -> None:
    c.run(feed, variables=variables)


def by_bind(c: ost.CompiledGraph, feed: Any, variables: Any) -> None:
    outs = [np.empty(spec.shape, np.float32) for spec in c.outputs.values()]
    c.bind(feed, outs, variables=variables)()


def by_commit(c: ost.CompiledGraph, feed: Any, variables: Any) -> None:
    c.commit_no_wait(feed, variables=variables)
    c.sync_pending()


WAYS: dict[str, Callable[[ost.CompiledGraph, Any, Any], None]] = {
    "run": by_run,
    "run_raw": lambda c, feed, v: c.run_raw(feed, variables=v) and None,
    "run_slots": lambda c, feed, v: c.run_slots(*feed.values(), variables=v) and None,
    "run_read_outputs": lambda c, feed, v: c.run_read_outputs(feed, [1], variables=v) and None,
    "run_pipelined": lambda c, feed, v: c.run_pipelined([feed], variables=v) and None,
    "bind": by_bind,
    "commit_no_wait": by_commit,
}


@pytest.mark.parametrize("way", WAYS)
def test_values_decide_where_a_state_is_written(compiled, way):
    pos = ost.Variable("pos", 0, LENGTH - 1)
    WAYS[way](compiled, row(1), {"pos": 3})
    WAYS[way](compiled, row(2), {"pos": pos.bind(5)})
    WAYS[way](compiled, row(3), [pos.bind(0)])
    WAYS[way](compiled, row(4), {"pos": np.int64(3)})
    assert rows(compiled) == [3, 0, 0, 4, 0, 2]


WRONG: list[tuple[Any, str]] = [
    (None, "variables="),
    ({}, "pos"),
    ({"pos": LENGTH}, "pos"),
    ({"pos": -1}, "pos"),
    ({"pos": 1.0}, "pos"),
    ({"pos": True}, "pos"),
    ({"position": 1}, "position"),
    ({"pos": 1, "other": 2}, "other"),
    ([ost.Variable("pos", 0, 99).bind(2)], "pos"),
    (3, "mapping"),
    ("pos", "mapping"),
]


@pytest.mark.parametrize(("variables", "part"), WRONG)
@pytest.mark.parametrize("way", WAYS)
def test_wrong_values_change_nothing(compiled, way, variables, part):
    compiled.run(row(7), variables={"pos": 1})
    with pytest.raises(ost.VariableError, match=part):
        WAYS[way](compiled, row(9), variables)
    assert rows(compiled) == [0, 7, 0, 0, 0, 0]
    WAYS[way](compiled, row(5), {"pos": 2})
    assert rows(compiled) == [0, 7, 5, 0, 0, 0]


def test_results_have_the_size_that_values_give(session):
    n = ost.Variable("n", 1, 8)
    g = ost.Graph("ones")
    g.set_outputs([g.broadcast_to(g.input("x", ()), (n,))])
    compiled = session.compile(g)
    x = np.array(3, np.float32)
    for size in (1, 5, 8):
        (y,) = compiled.run({"x": x}, variables={"n": size})
        assert y.tolist() == [3] * size
        out = np.zeros(size, np.float32)
        compiled.run({"x": x}, variables={"n": size}, out=[out])
        assert (out == 3).all()
        assert compiled.run_slots(x, variables={"n": size})[0][1] == size
    with pytest.raises(ost.InputError, match="shape"):
        compiled.run({"x": x}, variables={"n": 2}, out=[np.zeros(3, np.float32)])


def test_values_that_a_node_cannot_do_with_are_refused_after_others(session):
    n, m = ost.Variable("n", 0, 8), ost.Variable("m", 0, 8)
    g = ost.Graph("greatest")
    kept = g.broadcast_to(g.input("x", ()), (n, 3))
    g.set_outputs([g.argmax(kept, axis=0) + g.dim_value(m)])
    compiled, x = session.compile(g), {"x": np.array(1, np.float32)}
    for at in range(4):
        assert compiled.run(x, variables={"n": 2, "m": at})[0].tolist() == [at] * 3
    with pytest.raises(ost.VariableError, match="n >= 1, got n = 0"):
        compiled.run(x, variables={"n": 0, "m": 1})
    assert compiled.run(x, variables={"n": 1, "m": 5})[0].tolist() == [5] * 3


def test_values_agree_with_shapes(session):
    n, pos = ost.Variable("n", 1, 8), ost.Variable("pos", 0, 3)
    g = ost.Graph("both")
    x = g.input("x", (n,))
    g.set_outputs([x + g.cast(g.dim_value(pos), "float32")])
    compiled = session.compile(g)
    feed = {"x": np.arange(4, dtype=np.float32)}
    assert compiled.run(feed, variables={"pos": 2})[0].tolist() == [2, 3, 4, 5]
    assert compiled.run(feed, variables={"pos": 1, "n": 4})[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ost.VariableError, match="n = 5"):
        compiled.run(feed, variables={"pos": 1, "n": 5})


def test_values_that_are_new_are_as_those_that_were_checked(session):
    n, m, pos = ost.Variable("n", 1, 4), ost.Variable("m", 1, 4), ost.Variable("pos", 0, 99)
    g = ost.Graph("sizes")
    x = g.input("x", (n + 1,))
    rows = g.broadcast_to(g.cast(g.dim_value(pos), "float32"), (m,))
    g.set_outputs([x * 2.0, rows, g.sum(x) + g.cast(g.dim_value(pos + n), "float32")])
    compiled, rng = session.compile(g), np.random.default_rng(0)
    signature = compiled._execution.signature
    for _ in range(60):
        feed = {"x": rng.standard_normal(int(rng.integers(2, 6))).astype(np.float32)}
        values = {"pos": int(rng.integers(100)), "m": int(rng.integers(1, 5))}
        if rng.random() < 0.3:
            values["n"] = feed["x"].size - 1
        _, thorough = signature.check_inputs(feed, variables=values)
        known = signature.recognise_sizes(feed, variables=values)
        assert known is not None
        assert known[1].variables == thorough.variables
        assert known[1].outputs == thorough.outputs
        assert known[1].values == thorough.values
        x, rows, total = compiled.run(feed, variables=values)
        np.testing.assert_array_equal(x, 2 * feed["x"])
        assert rows.tolist() == [values["pos"]] * values["m"]
        wanted = feed["x"].sum() + values["pos"] + feed["x"].size - 1
        np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-4)
    for wrong in ({"pos": 1}, {"pos": 100, "m": 1}, {"pos": 1, "m": 1, "n": 4}, {"m": 1, "o": 2}):
        assert signature.recognise_sizes({"x": feed["x"][:2]}, variables=wrong) is None


def test_steps_with_values_that_no_size_depends_on_are_known_at_once(session, compiled):
    signature = compiled._execution.signature
    signature.recognise_sizes(row(1), variables={"pos": 0})
    known, values = len(signature._known), [*range(LENGTH)] * 2
    for at in values:
        _, live = signature.recognise_sizes(row(at), variables={"pos": at})
        assert live.variables == (at,)
        compiled.run(row(at), variables={"pos": at})
    assert len(signature._known) == known
    assert rows(compiled) == [*range(LENGTH)]


def test_bound_calls_keep_their_values(compiled):
    outs = [np.empty(spec.shape, np.float32) for spec in compiled.outputs.values()]
    feed = row(1)
    calls = [compiled.bind(feed, outs, variables={"pos": at}) for at in (4, 1)]
    for call in calls:
        call()
        feed["row"] += 1
    assert rows(compiled) == [0, 2, 0, 0, 1, 0]


@pytest.mark.needs("capture")
def test_recorded_runs_keep_their_values(session, compiled):
    feed = row(1)
    session.context.begin_graph_capture()
    compiled.commit_no_wait(feed, variables={"pos": 2})
    with pytest.raises(ost.VariableError):
        compiled.commit_no_wait(feed, variables={"pos": 99})
    session.context.end_graph_capture(1)
    feed["row"][:] = 8
    assert session.context.replay_graph(1)
    assert rows(compiled) == [0, 0, 8, 0, 0, 0]


@pytest.mark.needs("capture")
def test_the_variable_block_comes_first(session):
    compiled = session.compile(history_graph("position"))
    compiled.run(row(1), variables={"position": 4})
    session.context.set_dev_state_mode(True)
    session.context.set_decode_state(0, 2)
    with pytest.raises(ost.VariableError, match="set_decode_state"):
        compiled.run(row(2), variables={"position": 1})
    compiled.run(row(2))
    assert rows(compiled) == [0, 0, 2, 0, 1, 0]


def test_handles_and_values_together(session):
    pos = ost.Variable("pos", 0, 3)
    g = ost.Graph("fed")
    x = g.input("x", (2,))
    g.set_outputs({"next": x + g.cast(g.dim_value(pos), "float32")})
    compiled = session.compile(g)
    compiled.bind_handle("x", np.zeros(2, np.float32))
    for at in (1, 2, 3):
        compiled.run_feed_handle({}, "x", 0, variables={"pos": at})
    held = compiled.read_handle("x")
    assert held is not None
    assert held.tolist() == [6, 6]
