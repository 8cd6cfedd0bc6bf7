"""Sessions inside recordings, and Variables whose values are on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("capture", "single_ops")

Array = np.ndarray[Any, Any]

POSITION = ost.Variable("position", 0, 15)
KV_LEN = ost.Variable("kv_len", 1, 16)


@pytest.fixture
def ex(device: str) -> Iterator[ost.GraphExecutor]:
    executor = ost.GraphExecutor(open_session(device, threads=2).context)
    yield executor
    assert not executor.context.capturing


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# -- recordings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("end", ["leave", "finish", "commit"])
def test_a_session_in_a_recording_runs_when_it_is_replayed(
    ex: ost.GraphExecutor, recorded: bool, end: str
) -> None:
    x = ex.buffer(np.ones(8, np.float32))
    ex.context.begin_graph_capture()
    s = ex.begin_recorded() if recorded else ex.begin()
    if end == "leave":
        with s:
            s.add(s.mul(x, 3.0), 1.0, out=x)
    else:
        s.add(s.mul(x, 3.0), 1.0, out=x)
        getattr(s, end)()
    ex.context.end_graph_capture(7)
    assert (x.copyout() == 1).all()
    assert (s.stats.submissions, s.stats.waits, s.stats.device_ns) == (1, 0, 0)
    for expected in (4, 13, 40):
        assert ex.context.replay_graph(7)
        assert (x.copyout() == expected).all()


def test_waiting_is_for_after_the_recording(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.ones(8, np.float32))
    ex.context.begin_graph_capture()
    s = ex.begin()
    s.neg(x, out=x)
    pending = s.commit()
    with pytest.raises(ost.CaptureError, match="wait"):
        pending.wait()
    ex.context.end_graph_capture(0)
    assert pending.wait().dispatches == 1
    assert (x.copyout() == 1).all()


def test_allocations_are_refused_inside(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.ones(8, np.float32))
    ex.context.begin_graph_capture()
    for call in (lambda: ex.empty((3,)), lambda: ex.buffer(numbers(3)), x.copyout):
        with pytest.raises(ost.CaptureError):
            call()
    with ex.begin() as s:
        h = s.neg(x)
        s.exp(h, out=x)
    with pytest.raises(ost.CaptureError):
        h.copyout()
    ex.context.end_graph_capture(0)
    assert ex.context.replay_graph(0)
    assert (h.copyout() == -1).all()
    np.testing.assert_allclose(x.copyout(), np.exp(-1), rtol=1e-6)


def test_graphs_replayed_inside_are_recorded(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.ones(8, np.float32))
    with ex.begin_recorded() as s:
        s.mul(x, 2.0, out=x)
    graph = s.graph.fuse()
    ex.context.begin_graph_capture()
    for _ in range(3):
        graph.replay()
    ex.context.end_graph_capture(0)
    assert (x.copyout() == 2).all()
    assert ex.context.replay_graph(0)
    assert (x.copyout() == 16).all()


def test_sessions_and_compiled_graphs_in_one_recording(device: str) -> None:
    session = open_session(device, threads=2)
    ex = ost.GraphExecutor(session.context)
    graph = ost.Graph()
    x = graph.input("x", (8,))
    graph.set_outputs([x + 1])
    out = np.zeros(8, np.float32)
    fed = np.zeros(8, np.float32)
    bound = session.compile(graph).bind({"x": fed}, [out])
    total = ex.buffer(np.ones(8, np.float32))
    session.context.begin_graph_capture()
    with ex.begin() as s:
        s.mul(total, 2.0, out=total)
    bound()
    with ex.begin() as s:
        s.add(total, 5.0, out=total)
    session.context.end_graph_capture(0)
    assert (out == 0).all()
    fed[:] = 3
    assert session.context.replay_graph(0)
    assert (out == 4).all()
    assert (total.copyout() == 7).all()


def test_released_memory_drops_the_recording(ex: ost.GraphExecutor) -> None:
    x, y = (ex.buffer(np.ones(8, np.float32)) for _ in range(2))
    for key, buffer in enumerate((x, y)):
        ex.context.begin_graph_capture()
        with ex.begin() as s:
            s.neg(buffer, out=buffer)
        ex.context.end_graph_capture(key)
    x.release()
    assert not ex.context.replay_graph(0)
    assert ex.context.replay_graph(1)
    assert (y.copyout() == -1).all()


def test_weights_that_moved_drop_the_recording(device: str) -> None:
    """A write after a clone gives the graph memory of its own: what read the old one is stale."""
    session = open_session(device, threads=1)
    graph = ost.Graph()
    w = graph.param("w", (4,))
    graph.set_outputs([graph.input("x", (4,)) * w])
    compiled = session.compile(graph, {"w": np.ones(4, np.float32)})
    weight = compiled.plan.buffer(w)
    assert weight is not None
    ex = ost.GraphExecutor(session.context)
    out = ex.empty((4,))
    session.context.begin_graph_capture()
    with ex.begin() as s:
        s.neg(weight, out=out)
    session.context.end_graph_capture(0)
    twin = compiled.clone()
    assert session.context.replay_graph(0)
    compiled.set_param("w", np.full(4, 2, np.float32))
    assert not session.context.replay_graph(0)
    assert (out.copyout() == -1).all()
    assert (twin.run({"x": np.ones(4, np.float32)})[0] == 1).all()


def test_a_session_left_by_an_exception_is_not_recorded(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.ones(8, np.float32))
    ex.context.begin_graph_capture()
    with pytest.raises(ZeroDivisionError), ex.begin() as s:
        s.neg(x, out=x)
        1 / 0  # noqa: B018
    with ex.begin() as s:
        s.add(x, 1.0, out=x)
    ex.context.end_graph_capture(0)
    assert ex.context.replay_graph(0)
    assert (x.copyout() == 2).all()


# -- Variables -------------------------------------------------------------------------------------


def step(s: ost.GraphSession, cache: ost.Buffer, row: ost.Buffer, out: ost.Buffer) -> ost.Buffer:
    """Writes a row at the position; gives the sum of those up to it."""
    s.dynamic_update_slice(cache, row, (POSITION, 0), out=cache)
    live = s.slice(cache, [0], [KV_LEN])
    s.sum(live, axis=0, keepdims=True, out=out)
    return live


def test_variables_are_read_from_the_decode_state(ex: ost.GraphExecutor) -> None:
    cache, row, out = ex.empty((16, 4)), ex.empty((1, 4)), ex.empty((1, 4))
    ex.context.set_dev_state_mode(True)
    ex.context.begin_graph_capture()
    with ex.begin() as s:
        step(s, cache, row, out)
    ex.context.end_graph_capture(0)
    rows = numbers(16, 4)
    for position in range(16):
        row.copyin(rows[position : position + 1])
        ex.context.set_decode_state(0, position)
        assert ex.context.replay_graph(0)
        expected = rows[: position + 1].sum(0, keepdims=True)
        np.testing.assert_allclose(out.copyout(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(cache.copyout(), rows)


def test_results_have_their_live_shape(ex: ost.GraphExecutor) -> None:
    cache, row, out = ex.buffer(numbers(16, 4)), ex.empty((1, 4)), ex.empty((1, 4))
    ex.context.set_dev_state_mode(True)
    ex.context.set_decode_state(5, 3)
    with ex.begin_recorded() as s:
        live = step(s, cache, row, out)
        count = s.dim_value(KV_LEN)
        token = s.dim_value(ost.Variable("token", 0, 99))
        twice = s.mul(live, 2.0)
    assert live.shape == (4, 4)
    assert (count.copyout(), token.copyout()) == (4, 5)
    expected = numbers(16, 4)[:4]
    expected[3] = 0
    np.testing.assert_array_equal(live.copyout(), expected)
    np.testing.assert_array_equal(twice.copyout(), 2 * expected)
    ex.context.set_decode_state(6, 7)
    s.graph.fuse().replay()
    assert live.shape == (8, 4)
    assert (count.copyout(), token.copyout()) == (8, 6)


def test_variables_need_dev_state_mode(ex: ost.GraphExecutor) -> None:
    cache, row, out = ex.empty((16, 4)), ex.empty((1, 4)), ex.empty((1, 4))
    s = ex.begin()
    step(s, cache, row, out)
    with pytest.raises(ost.VariableError, match=r"position.*set_dev_state_mode"):
        s.finish()
    ex.context.set_dev_state_mode(True)
    assert s.finish().waits == 1


def test_values_out_of_bounds_run_nothing(ex: ost.GraphExecutor) -> None:
    cache, row, out = ex.empty((16, 4)), ex.buffer(numbers(1, 4)), ex.empty((1, 4))
    ex.context.set_dev_state_mode(True)
    with ex.begin_recorded() as s:
        step(s, cache, row, out)
    before = cache.copyout()
    ex.context.set_decode_state(0, 16)
    with pytest.raises(ost.VariableError):
        s.graph.replay()
    np.testing.assert_array_equal(cache.copyout(), before)
    ex.context.set_decode_state(0, 15)
    s.graph.replay()


def test_bounds_that_disagree(ex: ost.GraphExecutor) -> None:
    ex.context.set_dev_state_mode(True)
    ex.context.set_decode_state(0, 6)
    with ex.begin() as s:
        s.dim_value(ost.Variable("position", 0, 9))
        value = s.dim_value(ost.Variable("position", 5, 20))
    assert value.copyout() == 6
    s = ex.begin()
    s.dim_value(ost.Variable("position", 0, 4))
    s.dim_value(ost.Variable("position", 5, 20))
    with pytest.raises(ost.VariableError, match="bounds"):
        s.finish()
