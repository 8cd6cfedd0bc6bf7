"""The loops device as users meet it: found by its entry point, with params, states and plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import CaptureError, PlanError

from .registered import TEST_BACKENDS, open_session, registered

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("loops")


def _dense(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("dense")
    w = g.param("w", (2, 2))
    g.set_outputs([g.matmul(g.input("x", (1, 2)), g.cumsum(w, axis=0))])
    return session.compile(g, {"w": np.ones((2, 2), np.float32)})


def _counter(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("counter")
    s = g.state("s", (3, 2))
    g.assign(s, g.dynamic_update_slice(s, g.input("row", (1, 2)), [g.input("i", (), "int64"), 0]))
    g.set_outputs([g.sum(g.input("row2", (1, 2)))])
    return session.compile(g)


ONES = np.ones((1, 2), np.float32)


def test_it_is_listed_beside_the_cpu() -> None:
    with registered(loops=TEST_BACKENDS["loops"]):
        assert {ost.Device.CPU, ost.Device("LOOPS", 0)} <= {*ost.available_devices()}
    assert not ost.is_available("cpu:1")
    assert ost.Device("LOOPS", 0) not in ost.available_devices()


def test_a_written_param_is_prepared_anew(session: ost.Session) -> None:
    compiled = _dense(session)
    assert compiled.plan.preparation
    assert compiled.run({"x": ONES})[0].tolist() == [[3, 3]]
    compiled.set_param("w", np.full((2, 2), 2, np.float32))
    assert compiled.run({"x": ONES})[0].tolist() == [[6, 6]]


def test_a_param_that_was_never_set_is_named(session: ost.Session) -> None:
    g = ost.Graph("unset")
    g.set_outputs([g.input("x", (2,)) * g.param("w", (2,))])
    compiled = session.compile(g)
    with pytest.raises(ost.InputError, match=r"never set: w: f32\[2\]"):
        compiled.run({"x": np.ones(2, np.float32)})
    with pytest.raises(ost.InputError, match="never set: w"):
        compiled.plan.execute()


def test_clones_share_params_until_one_is_written(session: ost.Session) -> None:
    first = _dense(session)
    second = first.clone()
    second.set_param("w", np.full((2, 2), 2, np.float32))
    assert first.run({"x": ONES})[0].tolist() == [[3, 3]]
    assert second.run({"x": ONES})[0].tolist() == [[6, 6]]


def test_a_state_is_updated_where_it_is(session: ost.Session) -> None:
    compiled = _counter(session)
    assert [k.name for k in compiled.plan.kernels].count("copy") == 0
    for row in (0, 2):
        compiled.run({"row": ONES * (row + 1), "i": np.int64(row), "row2": ONES})
    np.testing.assert_array_equal(compiled.read_handle("s"), [[1, 1], [0, 0], [3, 3]])


def test_a_plan_runs_on_buffers_of_its_own(session: ost.Session) -> None:
    plan = _dense(session).plan
    plan.inputs["x"].copyin(ONES)
    (record,) = plan.execute_profiled()
    assert (record.name, record.device) == ("matmul", ost.Device("LOOPS", 0))
    (output,) = plan.outputs.values()
    assert output.copyout().tolist() == [[3, 3]]
    plan.release_all_buffers()
    with pytest.raises(PlanError):
        plan.execute()


def test_a_hint_of_rows_changes_nothing(session: ost.Session) -> None:
    g = ost.Graph("rows")
    g.set_outputs([g.input("x", (4, 2)) * 2.0])
    compiled = session.compile(g)
    with compiled.active_extent(2, 4):
        (actual,) = compiled.run({"x": np.ones((4, 2), np.float32)})
    assert actual.tolist() == [[2, 2]] * 4


def test_it_cannot_record(session: ost.Session) -> None:
    assert not session.capabilities.capture
    with pytest.raises(CaptureError, match="LOOPS:0"):
        session.context.begin_graph_capture()


def test_the_report_says_what_was_rewritten(session: ost.Session) -> None:
    g = ost.Graph("attention")
    q, k, v = (g.input(name, (1, 2, 4, 8)) for name in "qkv")
    g.set_outputs([g.attention(q, k, v)])
    text = session.compile(g).explain()
    assert "on LOOPS:0" in text
    assert "rewritten: 1 nodes" in text


def test_a_non_retained_param_is_shown_by_the_plan(session: ost.Session) -> None:
    g = ost.Graph("non-retained")
    w = g.param("w", (2, 2))
    g.set_outputs([g.matmul(g.input("x", (1, 2)), g.cumsum(w, axis=0))])
    compiled = session.compile(g, {"w": np.ones((2, 2), np.float32)})
    buffer = compiled.plan.buffer(w)
    assert buffer is not None
    assert buffer.copyout().tolist() == [[1, 1], [1, 1]]
    buffer.copyin(np.full((2, 2), 3, np.float32))
    assert buffer.copyout().tolist() == [[3, 3], [3, 3]]
    assert compiled.run({"x": ONES})[0].tolist() == [[9, 9]]


def test_what_is_prepared_from_params_is_not_written(session: ost.Session) -> None:
    g = ost.Graph("prepared")
    sums = g.cumsum(g.param("w", (2, 2)), axis=0)
    g.set_outputs([g.matmul(g.input("x", (1, 2)), sums)])
    buffer = session.compile(g, {"w": np.ones((2, 2), np.float32)}).plan.buffer(sums)
    assert buffer is not None
    assert buffer.copyout().tolist() == [[1, 1], [2, 2]]
    with pytest.raises(ost.InputError, match="prepared from params"):
        buffer.copyin(np.zeros((2, 2), np.float32))


def test_ops_run_one_by_one(session: ost.Session) -> None:
    ex = ost.GraphExecutor(session.context)
    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
    w = np.arange(10, dtype=np.float32).reshape(5, 2)
    a, b = ex.buffer(x), ex.buffer(w)
    with ex.begin() as s:
        y = s.softmax(s.matmul(s.relu(a), b), axis=-1)
    products = np.maximum(x, 0) @ w
    powers = np.exp(products - products.max(-1, keepdims=True))
    np.testing.assert_allclose(y.copyout(), powers / powers.sum(-1, keepdims=True), rtol=1e-6)


def test_an_op_of_another_device_is_refused(session: ost.Session) -> None:
    ex, other = ost.GraphExecutor(session.context), ost.GraphExecutor("cpu", threads=1)
    foreign = other.buffer(ONES)
    with pytest.raises(ost.OstinatoError, match="CPU:0"), ex.begin() as s:
        s.neg(foreign)
