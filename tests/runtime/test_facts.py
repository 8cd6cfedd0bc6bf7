"""Runs whose sizes an op cannot do with: refused in every way to run, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

N = ost.Variable("n", 0, 8)

#: The node, the axis, and what to do about it.
MESSAGE = r"argmax '.*': f32\[n,3\] has no elements along axis 0.*n >= 1, got n = 0"


def greatest(rows=N) -> ost.Graph:
    """The greatest row of each column, and how often it ran."""
    g = ost.Graph("greatest")
    count = g.state("count", (), "int64")
    g.assign(count, count + 1)
    x = g.input("x", (rows, 3))
    g.set_outputs({"rows": g.argmax(x, axis=0), "y": x * 2})
    return g


def rows(count: int) -> np.ndarray:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(greatest())


def outputs(count: int) -> list[np.ndarray]:
    return [np.full(3, -7, np.int64), np.full((count, 3), -7, np.float32)]


def refused(compiled: ost.CompiledGraph, call) -> None:
    before = compiled.read_handle("count")
    with pytest.raises(ost.VariableError, match=MESSAGE):
        call()
    assert compiled.read_handle("count") == before, "nothing has run"
    assert compiled.run({"x": rows(4)})[0].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda c, x: c.run(x),
        lambda c, x: c.run_raw(x),
        lambda c, x: c.run_read_outputs(x, [0]),
        lambda c, x: c.run_slots(x["x"]),
        lambda c, x: c.run_pipelined([{"x": rows(2)}, x]),
        lambda c, x: c.run_typed([("x", x["x"].tobytes(), "f32")]),
        lambda c, x: c.bind(x, outputs(0)),
        lambda c, x: (c.commit_no_wait(x), c.sync_pending()),
        lambda c, x: c.clone().run(x),
    ],
)
def test_every_way_to_run(compiled, call):
    for _ in range(2):
        refused(compiled, lambda: call(compiled, {"x": rows(0)}))


def test_outputs_are_left_alone(compiled):
    out = outputs(0)
    refused(compiled, lambda: compiled.run({"x": rows(0)}, out=out))
    assert (out[0] == -7).all()


def test_handles_count_as_inputs(compiled):
    compiled.bind_handle("x", rows(0))
    with pytest.raises(ost.VariableError, match=MESSAGE):
        compiled.run()
    assert compiled.run({"x": rows(2)})[0].tolist() == [1, 1, 1]


def test_plans(session, compiled):
    plan = compiled.plan
    for call in (plan.execute_with_vars, plan.execute_with_vars_profiled, plan.set_variables):
        refused(compiled, lambda call=call: call({"n": 0}))
        refused(compiled, lambda call=call: call([N.bind(0)]))
    plan.execute_with_vars({"n": 2})
    plan.execute()
    assert plan.output_buffer_at(1).shape == (2, 3)
    with pytest.raises(ost.VariableError, match=MESSAGE):
        session.prepare(greatest(), variables={"n": 0})


@pytest.mark.needs("capture")
def test_recorded_runs(session, compiled):
    context = session.context
    context.begin_graph_capture()
    try:
        with pytest.raises(ost.VariableError, match=MESSAGE):
            compiled.commit_no_wait({"x": rows(0)})
    finally:
        context.end_graph_capture(77)
        context.reset_graph(77)


def test_bucketed_runs(session):
    """A size that the bucket does not fix."""

    def build(upper):
        g = ost.Graph("bucket")
        x, other = g.input("x", (upper, 2)), g.input("other", (N, 3))
        g.set_outputs([x + 1, g.argmax(other, axis=0)])
        return g

    cache = ost.BucketedCompileCache(session, [(1, 5)])
    feeds = {"x": np.ones((2, 2), np.float32), "other": rows(0)}
    with pytest.raises(ost.VariableError, match=MESSAGE):
        cache.run_padded(2, 2, build, feeds)
    _, (y, where) = cache.run_padded(2, 2, build, {**feeds, "other": rows(3)})
    assert (y.shape, where.tolist()) == ((2, 2), [2, 2, 2])


def test_rows_are_not_taken_of_nothing(session):
    g = ost.Graph("first")
    x = g.input("x", (N, 3))
    g.set_outputs([x[0], g.take(x, [0], axis=0)])
    compiled = session.compile(g)
    with pytest.raises(ost.VariableError, match=r"slice 'slice_1'.*axis 0.*got n = 0"):
        compiled.run({"x": rows(0)})
    assert compiled.run({"x": rows(1)})[0].tolist() == [0, 1, 2]


@pytest.mark.needs("capture")
def test_sizes_from_the_variable_block(session):
    """A bound call reads them when it runs; so do recordings."""
    position = ost.Variable("position", 0, 8)
    g = ost.Graph("decode")
    x = g.input("x", (position, 3))
    g.set_outputs({"rows": g.argmax(x, axis=0)})
    compiled, context = session.compile(g), session.context
    context.set_dev_state_mode(True)
    try:
        context.set_decode_state(1, 2)
        out = np.full(3, -7, np.int64)
        call = compiled.bind({"x": rows(8)}, [out])
        call()
        assert out.tolist() == [1, 1, 1]
        context.begin_graph_capture()
        call()
        context.end_graph_capture(78)
        out[:] = -7
        context.set_decode_state(1, 0)
        for run in (call, lambda: context.replay_graph(78)):
            with pytest.raises(ost.VariableError, match=r"'position' is bounded by 1\.\.8.* 0"):
                run()
        with pytest.raises(ost.VariableError, match="position >= 1"):
            compiled.bind({"x": rows(8)}, [out])
        assert (out == -7).all()
    finally:
        context.reset_graph(78)
        context.set_dev_state_mode(False)


@pytest.mark.needs("capture", "single_ops")
def test_sessions_on_sizes_from_the_variable_block(device):
    position = ost.Variable("position", 0, 8)
    ex = ost.GraphExecutor(open_session(device).context)
    x, out = ex.buffer(rows(8)), ex.buffer(np.full(3, -7, np.int64))
    ex.context.set_dev_state_mode(True)
    ex.context.set_decode_state(1, 2)
    with ex.begin_recorded() as s:
        s.argmax(s.getitem(x, slice(position)), 0, out=out)
    assert out.copyout().tolist() == [1, 1, 1]
    ex.context.set_decode_state(1, 0)
    with pytest.raises(ost.VariableError, match=r"'position' is bounded by 1\.\.8.* 0"):
        s.graph.replay()
    assert out.copyout().tolist() == [1, 1, 1]
    ex.context.set_decode_state(1, 4)
    s.graph.replay()
    assert out.copyout().tolist() == [3, 3, 3]
