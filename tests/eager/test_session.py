"""Sessions without a compiled graph: both modes, when things run, and what is refused."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import op_compiler
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from ostinato.plan.buffer import Buffer, HostMemory, Storage
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

Array = np.ndarray[Any, Any]
Begin = Callable[[], ost.GraphSession]


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=2).context)


@pytest.fixture(params=["begin", "begin_recorded"])
def begin(request: pytest.FixtureRequest, ex: ost.GraphExecutor) -> Begin:
    method: Begin = getattr(ex, request.param)
    return method


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sentinel(ex: ost.GraphExecutor, *shape: int) -> Buffer:
    return ex.buffer(np.full(shape, -77, np.float32))


# -- what runs, and when ---------------------------------------------------------------------------


def test_the_example_of_the_contract(ex: ost.GraphExecutor) -> None:
    x, w, v = ex.buffer(numbers(4, 8)), ex.buffer(numbers(8, seed=1)), ex.buffer(numbers(8, 3))
    with ex.begin() as s:
        h = s.rms_norm(x, w, eps=1e-6)
        y = s.matmul(h, v)
    rows = x.copyout() / np.sqrt((x.copyout() ** 2).mean(-1, keepdims=True) + 1e-6) * w.copyout()
    np.testing.assert_allclose(h.copyout(), rows, rtol=1e-5)
    np.testing.assert_allclose(y.copyout(), rows @ v.copyout(), rtol=1e-4, atol=1e-5)
    assert (s.stats.dispatches, s.stats.barriers, s.stats.submissions, s.stats.waits) == (
        2,
        1,
        1,
        1,
    )
    assert s.stats.encode_ns > 0
    assert s.stats.device_ns > 0


def chain(s: ost.GraphSession, x: Buffer, w: Buffer, outs: list[Buffer]) -> None:
    """120 ops, every tenth into a buffer of the user's."""
    h = x
    for i in range(120):
        target = outs[i // 10] if i % 10 == 9 else None
        op = (s.add, s.multiply, s.maximum, s.subtract)[i % 4]
        h = s.softmax(h, out=target) if i % 7 == 6 else op(h, w, out=target)


def test_both_modes_give_the_same_bits_in_one_submission(ex: ost.GraphExecutor) -> None:
    x, w = ex.buffer(numbers(6, 33)), ex.buffer(numbers(33, seed=1))
    results = []
    for start, options in (
        (ex.begin, {}),
        (ex.begin_recorded, {}),
        (ex.begin_recorded, {"fuse": True, "reorder": True}),
    ):
        outs = [sentinel(ex, 6, 33) for _ in range(12)]
        s = start()
        chain(s, x, w, outs)
        assert all((out.copyout() == -77).all() for out in outs)
        assert (s.stats.dispatches, s.stats.submissions, s.stats.waits) == (120, 0, 0)
        stats = s.finish(**options)
        assert stats == s.stats
        assert (stats.submissions, stats.waits) == (1, 1)
        assert stats.dispatches + stats.fused == 120
        assert not any((out.copyout() == -77).any() for out in outs)
        results.append([out.copyout().tobytes() for out in outs])
    assert results[0] == results[1] == results[2]


def test_a_result_is_not_read_before_its_session_is_finished(begin: Begin) -> None:
    s = begin()
    h = s.exp(numbers(4))
    with pytest.raises(ost.SessionStateError, match="not been finished"):
        h.copyout()
    with pytest.raises(ost.SessionStateError, match="not been finished"):
        begin().neg(h)
    s.finish()
    np.testing.assert_allclose(h.copyout(), np.exp(numbers(4)), rtol=1e-6)
    with begin() as other:
        y = other.neg(h)
    np.testing.assert_array_equal(y.copyout(), -h.copyout())


def test_commit_returns_a_pending(ex: ost.GraphExecutor, begin: Begin) -> None:
    x = ex.buffer(numbers(300, 300))
    s = begin()
    h = x
    for _ in range(20):
        h = s.tanh(s.matmul(h, x))
    pending = s.commit()
    assert (s.stats.submissions, s.stats.waits) == (1, 0)
    stats = pending.wait()
    assert pending.done
    assert stats == pending.wait() == s.stats
    assert (stats.waits, stats.dispatches) == (1, 40)
    assert stats.device_ns > 0
    assert np.isfinite(h.copyout()).all()


def test_reading_waits_for_what_was_committed(ex: ost.GraphExecutor, begin: Begin) -> None:
    x = ex.buffer(numbers(200, 200))
    s = begin()
    h = x
    for _ in range(30):
        h = s.tanh(s.matmul(h, x))
    s.commit()
    early = h.copyout()
    with begin() as other:  # behind the first
        copy = other.add(h, 0.0)
    assert early.tobytes() == h.copyout().tobytes() == copy.copyout().tobytes()


def test_a_failure_of_the_device_is_raised_by_wait(
    ex: ost.GraphExecutor, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the device is on fire")

    s = begin()
    s.exp(numbers(3))
    monkeypatch.setattr("ostinato.backends.common.context._timed", fail)
    pending = s.commit()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on fire"):
            pending.wait()
    monkeypatch.undo()
    with begin() as s:
        s.exp(numbers(3))
    assert s.stats.waits == 1


def test_sessions_without_ops(begin: Begin) -> None:
    with begin() as s:
        pass
    assert s.stats == ost.SessionStats(encode_ns=s.stats.encode_ns)
    assert begin().commit().wait().submissions == 0


def test_only_recorded_sessions_keep_a_graph(ex: ost.GraphExecutor) -> None:
    with ex.begin() as s:
        s.exp(numbers(3))
    with pytest.raises(ost.SessionStateError, match="begin_recorded"):
        _ = s.graph
    s = ex.begin_recorded()
    s.exp(numbers(3))
    assert [node.name for node in s.graph.nodes] == ["exp"]
    s.neg(numbers(3))
    assert len(s.graph) == 2
    s.finish()
    assert len(s.graph) == 2


# -- operands --------------------------------------------------------------------------------------


def test_numbers_take_the_dtype_that_they_meet(ex: ost.GraphExecutor) -> None:
    half, whole = ex.buffer(np.ones(3, np.float16)), ex.buffer(np.arange(3, dtype=np.int32))
    with ex.begin() as s:
        results = [
            s.mul(half, 0.1), s.mul(whole, 2), s.mul(whole, 0.5), s.add(whole, True), s.add(1, 2.0),
            s.mul(half, 0), s.mul(half, -0.0), s.add(np.float64(1), np.int8(1)),
        ]  # fmt: skip
    dtypes = ["float16", "int32", "float32", "int32", "float32", "float16", "float16", "float64"]
    assert [r.dtype.name for r in results] == dtypes
    assert results[0].copyout()[0] == np.float16(0.1)
    assert not np.signbit(results[5].copyout()).any()
    assert np.signbit(results[6].copyout()).all()


def test_attributes_that_only_look_alike(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.array([-1.0, 1.0], np.float32))
    with ex.begin() as s:
        results = [s.pad(x, [(1, 0)], value=v) for v in (0.0, -0.0, float("nan"), float("nan"))]
    first = [r.copyout()[0] for r in results]
    assert [bool(np.signbit(v)) for v in first[:2]] == [False, True]
    assert np.isnan(first[2:]).all()


def test_arrays_are_copied_at_the_call(begin: Begin) -> None:
    array = numbers(5)
    with begin() as s:
        y = s.neg(array)
        array[:] = 0
    np.testing.assert_array_equal(y.copyout(), -numbers(5))


def test_every_shape_of_a_buffer(ex: ost.GraphExecutor) -> None:
    with ex.begin() as s:
        scalar = s.exp(ex.buffer(np.float32(0)))
        nothing = s.exp(ex.empty((0, 4)))
        total = s.sum(nothing)
    assert scalar.copyout() == 1
    assert nothing.copyout().shape == (0, 4)
    assert total.copyout() == 0
    assert ex.empty(3).shape == (3,)
    assert ex.empty((2,), "int8").dtype.name == "int8"


def test_states_and_outputs_of_plans_are_operands(ex: ost.GraphExecutor, device: str) -> None:
    session = open_session(device, threads=2)
    graph = ost.Graph()
    x = graph.input("x", (4,))
    graph.set_outputs({"y": x * graph.param("w", (4,), value=numbers(4))})
    plan = session.prepare(graph)
    plan.inputs["x"].copyin(numbers(4, seed=1))
    plan.execute()
    shared = ost.GraphExecutor(session.context)
    result = plan.output_buffer()
    assert result is not None
    with shared.begin() as s:
        y = s.neg(result)
    np.testing.assert_array_equal(y.copyout(), -(numbers(4) * numbers(4, seed=1)))


def test_buffers_of_another_context_are_waited_for(ex: ost.GraphExecutor, device: str) -> None:
    other = ost.GraphExecutor(open_session(device, threads=1).context)
    x = ex.buffer(numbers(200, 200))
    s = ex.begin()
    h = x
    for _ in range(30):
        h = s.tanh(s.matmul(h, x))
    s.commit()
    s = other.begin()
    s.add(h, 1.0, out=x)
    s.commit()
    np.testing.assert_array_equal(x.copyout(), h.copyout() + 1)


# -- compiled once ---------------------------------------------------------------------------------


@pytest.mark.needs("llvm")
def test_the_same_op_is_compiled_once(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    ex = ost.GraphExecutor(open_session(device, threads=1).context)
    compiled: list[str] = []
    original = op_compiler.compile_op
    monkeypatch.setattr(
        op_compiler, "compile_op", lambda f, u: compiled.append(f.name) or original(f, u)
    )
    for scale in (0.1, 0.2):
        for begin in (ex.begin, ex.begin_recorded):
            with begin() as s:
                x = s.mul(numbers(7), scale)
                s.mul(x, scale)
                s.softmax(x)
    other = ost.GraphExecutor(ex.context)
    with other.begin() as s:
        s.softmax(numbers(7))
    assert compiled == ["multiply", "softmax"]
    with ex.begin() as s:
        s.mul(numbers(8), 0.1)
    assert compiled == ["multiply", "softmax", "multiply"]


# -- mistakes --------------------------------------------------------------------------------------


def foreign() -> Buffer:
    storage = Storage(ost.Device.parse("tpu"), 16, lambda n: HostMemory(bytearray(n)))
    return Buffer(storage, 0, TensorType(FLOAT32, (4,)))


def released(ex: ost.GraphExecutor) -> Buffer:
    buffer = ex.buffer(numbers(4))
    buffer.release()
    return buffer


def test_mistakes_at_the_call_leave_the_session_as_it_was(
    ex: ost.GraphExecutor, begin: Begin
) -> None:
    x, out = ex.buffer(numbers(4)), sentinel(ex, 4)
    n = ost.Variable("n", 1, 4)
    value = ost.Graph().input("x", (4,))
    wrong: list[tuple[type[Exception], str, Callable[[ost.GraphSession], object]]] = [
        (ost.GraphError, r"add\(f32\[4\], float32\[3\]\): shapes", lambda s: s.add(x, numbers(3))),
        (ost.GraphError, r"matmul\(", lambda s: s.matmul(x, ex.empty((3, 3)), out=out)),
        (ost.GraphError, "axis 7", lambda s: s.softmax(x, axis=7)),
        (ost.GraphError, "exp", lambda s: s.exp(None)),
        (ost.GraphError, "exp", lambda s: s.exp("x")),
        (ost.GraphError, "exp", lambda s: s.exp(value)),
        (ost.GraphError, "exp", lambda s: s.exp(np.array([object()]))),
        (ost.GraphError, "arange", lambda s: s.arange(0, 5, 0)),
        (ost.InputError, "TPU", lambda s: s.exp(foreign())),
        (ost.InputError, "TPU", lambda s: s.exp(x, out=foreign())),
        (ost.PlanError, "released", lambda s: s.exp(released(ex))),
        (ost.PlanError, "released", lambda s: s.exp(x, out=released(ex))),
        (ost.VariableError, "'n'", lambda s: s.broadcast_to(ex.empty((1,)), (n,))),
        (TypeError, "argument", lambda s: s.exp(x, x)),
        (AttributeError, "no_such_op", lambda s: s.no_such_op(x)),  # type: ignore[attr-defined]
    ]  # fmt: skip
    with begin() as s:
        s.neg(x, out=out)
        for error, message, call in wrong:
            with pytest.raises(error, match=message):
                call(s)
        assert s.stats.dispatches == 1
        assert (out.copyout() == -77).all()
    np.testing.assert_array_equal(out.copyout(), -numbers(4))


def test_errors_name_the_line(ex: ost.GraphExecutor) -> None:
    s = ex.begin()
    with pytest.raises(ost.GraphError, match=r"test_session\.py:\d+"):
        s.add(numbers(4), numbers(3))
    with pytest.raises(ost.GraphError, match=r"neg.*out.*test_session\.py:\d+"):
        s.neg(numbers(4), out=numbers(4))


@pytest.mark.parametrize("end", ["finish", "commit", "leave", "raise"])
def test_nothing_is_used_after_the_end(ex: ost.GraphExecutor, begin: Begin, end: str) -> None:
    s = begin()
    if end in ("finish", "commit"):
        getattr(s, end)()
    elif end == "leave":
        with s:
            pass
    else:
        with pytest.raises(ZeroDivisionError), s:
            1 / 0  # noqa: B018
    uses: list[Callable[[], object]] = [
        lambda: s.exp(numbers(3)),
        lambda: s.exp(None),
        s.finish,
        s.commit,
        s.__enter__,
        lambda: s.reshape(numbers(4), (2, 2)),
    ]
    for use in uses:
        with pytest.raises(ost.SessionStateError, match="begin"):
            use()


def test_methods_show_their_arguments() -> None:
    shown = str(inspect.signature(ost.GraphSession.layer_norm))
    assert "eps: 'float' = 1e-05" in shown
    assert "out: Any = None" in shown
    assert ost.GraphSession.exp.__doc__ == ost.Graph.exp.__doc__


def test_executors_refuse(ex: ost.GraphExecutor, device: str) -> None:
    with pytest.raises(ost.DeviceUnavailableError):
        ost.GraphExecutor("no such device")
    with pytest.raises(ost.InputError, match="threads"):
        ost.GraphExecutor(open_session(device, threads=0).context)
    with pytest.raises(ost.InputError, match="threads"):
        ost.GraphExecutor(ex.context, threads=2)
    with pytest.raises(ost.InputError):
        ex.buffer("text")
    with pytest.raises(ost.InputError, match="fixed"):
        ex.empty((ost.Variable("n", 1, 4),))
    for shape in ((-1,), ("a",), (True,)):
        with pytest.raises(ost.GraphError):
            ex.empty(shape)
    with pytest.raises(ost.GraphError):
        ex.empty((2,), "float7")
    assert ex.device == ex.context.device == ost.Device.parse(device)


def test_sessions_of_several_threads(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(64))
    results: dict[int, Array] = {}

    def work(number: int) -> None:
        for _ in range(10):
            with ex.begin() as s:
                h = x
                for _ in range(number + 1):
                    h = s.add(h, 1.0)
            results[number] = h.copyout()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        np.testing.assert_allclose(result, numbers(64) + number + 1, rtol=1e-5, atol=1e-5)
