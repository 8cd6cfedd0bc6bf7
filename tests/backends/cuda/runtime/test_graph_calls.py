"""Bound calls as one native launch each: results, order, recordings, and memory that moves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.plan.order import ORDER
from tests.devices.cuda_host.driver import HostDriver

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def adder(session: ost.Session, **options: bool) -> ost.CompiledGraph:
    g = ost.Graph("adder")
    x, w = g.input("x", (3, 4)), g.param("w", (4,))
    g.set_outputs([x * 2.0 + w])
    return session.compile(g, {"w": np.ones(4, np.float32)}, options=ost.CompileOptions(**options))


def bound(compiled: ost.CompiledGraph) -> tuple:
    x, y = X.copy(), np.zeros_like(X)
    return x, y, compiled.bind({"x": x}, [y])


def test_later_calls_launch_the_graph_and_nothing_else(
    session: ost.Session, driver: HostDriver
) -> None:
    x, y, call = bound(adder(session))
    for step in range(5):
        x[:] = X + step
        if step == 2:
            driver.events.clear()
        call()
        np.testing.assert_array_equal(y, 2 * (X + step) + 1)
    assert {name for name, _ in driver.events} == {"launch_graph", "synchronize"}
    assert driver.count_of("launch_graph") == 3
    with pytest.raises(TypeError):
        call(1)


def test_the_end_of_a_run_is_seen_without_the_driver(
    session: ost.Session, driver: HostDriver
) -> None:
    x, y, call = bound(adder(session))
    driver.prompt = True
    for step in range(6):
        x[:] = X + step
        if step == 2:
            driver.events.clear()
        call()
        np.testing.assert_array_equal(y, 2 * (X + step) + 1)
    assert {name for name, _ in driver.events} == {"launch_graph"}


def test_variables_are_those_of_the_call(session: ost.Session) -> None:
    n = ost.Variable("n", 1, 8)
    g = ost.Graph("rows")
    g.set_outputs([g.sum(g.input("x", (n, 4)), axis=0)])
    compiled = session.compile(g)
    x, short, long = np.ones((8, 4), np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    first, second = compiled.bind({"x": x[:3]}, [short]), compiled.bind({"x": x}, [long])
    for _ in range(4):
        short[:] = long[:] = 0
        first()
        second()
        assert (short == 3).all()
        assert (long == 8).all()


def test_weights_that_are_written_are_seen(session: ost.Session) -> None:
    compiled = adder(session)
    x, y, call = bound(compiled)
    for _ in range(3):
        call()
    twin = compiled.clone()
    tx, ty, other = bound(twin)
    for _ in range(3):
        other()
    compiled.set_param("w", np.full(4, 5, np.float32))  # no longer shared: it moves
    for _ in range(3):
        call()
        other()
        np.testing.assert_array_equal(y, 2 * x + 5)
        np.testing.assert_array_equal(ty, 2 * tx + 1)
    twin.set_param("w", np.full(4, 7, np.float32))
    for _ in range(3):
        call()
        other()
        np.testing.assert_array_equal(y, 2 * x + 5)
        np.testing.assert_array_equal(ty, 2 * tx + 7)


def test_memory_that_is_given_back_is_not_used(session: ost.Session) -> None:
    compiled = adder(session)
    x, y, call = bound(compiled)
    for _ in range(3):
        call()
    compiled.plan.release_intermediate_buffers()
    for _ in range(3):
        y[:] = 0
        call()
        np.testing.assert_array_equal(y, 2 * x + 1)
    compiled.plan.release_all_buffers()
    with pytest.raises(ost.PlanError):
        call()


def test_calls_are_recorded_and_refused_elsewhere(session: ost.Session) -> None:
    x, y, call = bound(adder(session))
    for _ in range(3):
        call()
    context = session.context
    y[:] = 0
    context.begin_graph_capture()
    call()
    context.end_graph_capture(1)
    assert (y == 0).all()
    assert context.replay_graph(1)
    np.testing.assert_array_equal(y, 2 * x + 1)
    for _ in range(2):  # a thread that has recorded before
        y[:] = 0
        call()
        np.testing.assert_array_equal(y, 2 * x + 1)


def test_calls_wait_for_their_turn(session: ost.Session) -> None:
    x, y, call = bound(adder(session))
    for _ in range(3):
        call()
    points: list[str] = []
    ORDER.on_yield = points.append
    try:
        call()
    finally:
        ORDER.on_yield = None
    assert points == ["enter", "begin", "leave"]
    assert ORDER.in_flight == 0
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_failures_have_the_runtimes_words(session: ost.Session, driver: HostDriver) -> None:
    x, y, call = bound(adder(session))
    for _ in range(3):
        call()
    driver.fail_next["launch_graph"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="INVALID_VALUE"):
        call()
    assert ORDER.in_flight == 0
    y[:] = 0
    call()
    np.testing.assert_array_equal(y, 2 * x + 1)
    driver.fail_next["synchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    for _ in range(2):
        with pytest.raises(ost.DeviceError, match="was lost"):
            call()


def test_a_call_that_was_started_is_finished_later(
    session: ost.Session, driver: HostDriver
) -> None:
    x, y, call = bound(adder(session))
    assert not call.start()  # it is no native launch yet
    call.finish()
    for _ in range(3):
        call()
    for step in range(3):
        x[:], y[:] = X + step, 0
        driver.events.clear()
        assert call.start()
        x[:] = -1  # inputs may be written again
        assert {name for name, _ in driver.events} == {"launch_graph"}
        assert (y == 0).all()
        assert ORDER.in_flight == 1
        with pytest.raises(RuntimeError, match="has been started"):
            call.start()
        call.finish()
        call.finish()
        assert ORDER.in_flight == 0
        np.testing.assert_array_equal(y, 2 * (X + step) + 1)
    x[:] = X
    call()
    np.testing.assert_array_equal(y, 2 * X + 1)


def test_others_wait_for_a_call_that_was_started(session: ost.Session) -> None:
    compiled = adder(session)
    _, y, call = bound(compiled)
    other = compiled.bind({"x": X}, [np.zeros_like(y)])
    apart_x, apart_y, apart = bound(adder(session))
    for _ in range(3):
        call()
        other()
        apart()
    assert call.start()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()  # the same program, of the same arena
    apart_x += 1
    apart()  # what shares no memory with it goes on, on this thread, too
    np.testing.assert_array_equal(apart_y, 2 * (X + 1) + 1)
    call.finish()
    thread.join(9)
    assert not thread.is_alive()
    assert ORDER.in_flight == 0


def test_started_calls_that_cannot_be(session: ost.Session, driver: HostDriver) -> None:
    x, y, call = bound(adder(session))
    for _ in range(3):
        call()
    context = session.context
    context.begin_graph_capture()
    assert not call.start()  # a recording takes calls
    context.end_graph_capture(1)
    assert call.start()
    call.finish()
    driver.fail_next["launch_graph"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="INVALID_VALUE"):
        call.start()
    assert ORDER.in_flight == 0
    y[:] = 0
    call()
    np.testing.assert_array_equal(y, 2 * x + 1)
    assert call.start()
    y[:] = 0
    del call  # waits: its memory may go
    assert ORDER.in_flight == 0
    np.testing.assert_array_equal(y, 2 * x + 1)
    x, y, call = bound(adder(session))
    for _ in range(3):
        call()
    assert call.start()
    driver.fail_next["synchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    y[:] = 0
    with pytest.raises(ost.DeviceError, match="was lost"):
        call.finish()
    assert ORDER.in_flight == 0
    assert (y == 0).all()  # results of a run that failed are not copied


def test_without_graphs_calls_take_the_long_way(session: ost.Session, driver: HostDriver) -> None:
    x, y, call = bound(adder(session, launch_graphs=False))
    for _ in range(4):
        y[:] = 0
        call()
        np.testing.assert_array_equal(y, 2 * x + 1)
    assert driver.count_of("launch_graph") == 0


def test_later_runs_are_native_on_whatever_arrays_they_get(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled = adder(session)
    driver.prompt = True
    for step in range(6):
        x, out = X + step, np.zeros_like(X)
        if step == 2:
            driver.events.clear()
        (y,) = compiled.run({"x": x}) if step % 2 else compiled.run({"x": x}, out=[out])
        np.testing.assert_array_equal(y, 2 * x + 1)
        np.testing.assert_array_equal(compiled.read_output_row(0, 2), y[2])
    assert {name for name, _ in driver.events} == {"launch_graph"}
    assert ORDER.in_flight == 0


def test_runs_on_arrays_that_do_not_serve_take_the_long_way(session: ost.Session) -> None:
    compiled = adder(session)
    for _ in range(3):
        compiled.run({"x": X})
    wanted = 2 * X + 1
    np.testing.assert_array_equal(compiled.run({"x": np.asfortranarray(X)})[0], wanted)
    with pytest.raises(ost.InputError, match="overlap"):
        compiled.run({"x": X}, out=[X])
    with pytest.raises(ost.InputError):
        compiled.run({"x": X[:2]})
    frozen = np.zeros_like(X)
    frozen.flags.writeable = False
    with pytest.raises(ost.InputError):
        compiled.run({"x": X}, out=[frozen])
    handle = np.full_like(X, 3)
    compiled.bind_handle("x", handle)
    np.testing.assert_array_equal(compiled.run({})[0], 2 * handle + 1)
    compiled.unbind_handle("x")
    for value in (2, 3):
        compiled.set_param("w", np.full(4, value, np.float32))
        np.testing.assert_array_equal(compiled.run({"x": X})[0], 2 * X + value)
    context = session.context
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError):
        compiled.run({"x": X})
    context.cancel_graph_capture()
    compiled.plan.release_all_buffers()
    with pytest.raises(ost.PlanError):
        compiled.run({"x": X})


def stepper(session: ost.Session, name: str = "step") -> ost.CompiledGraph:
    """A sum that is kept, of inputs times a Variable that no shape gives."""
    step = ost.Variable(name, 0, 9)
    g = ost.Graph("stepper")
    kept = g.state("kept", (3, 4))
    total = kept + g.input("x", (3, 4)) * g.cast(g.dim_value(step), "float32")
    g.assign(kept, total)
    g.set_outputs([total * 1.0])
    return session.compile(g)


def test_later_runs_with_variables_are_native(session: ost.Session, driver: HostDriver) -> None:
    compiled, total = stepper(session), np.zeros_like(X)
    driver.prompt = True
    for step in (3, 0, 7, 9, 1, 7):
        if step == 7:
            driver.events.clear()
        total += X * step
        np.testing.assert_array_equal(compiled.run({"x": X}, variables={"step": step})[0], total)
    assert {name for name, _ in driver.events} == {"launch_graph"}
    for wrong in ({}, None, {"step": 10}, {"step": True}, {"step": 1, "other": 1}, {"x": 1}):
        with pytest.raises(ost.VariableError):
            compiled.run({"x": X}, variables=wrong)
    total += X * 2
    np.testing.assert_array_equal(compiled.run({"x": X}, variables={"step": 2})[0], total)


def test_runs_whose_sizes_follow_from_variables_have_their_own(session: ost.Session) -> None:
    n = ost.Variable("n", 1, 8)
    g = ost.Graph("sized")
    g.set_outputs([g.broadcast_to(g.input("x", ()), (n,))])
    compiled = session.compile(g)
    for size in (8, 8, 8, 3, 8, 1):
        (y,) = compiled.run({"x": np.array(size, np.float32)}, variables={"n": size})
        assert y.tolist() == [size] * size


def test_runs_with_variables_mind_the_variable_block(session: ost.Session) -> None:
    compiled, context = stepper(session, "position"), session.context
    for _ in range(4):
        compiled.run({"x": X}, variables={"position": 1})
    context.set_decode_state(0, 5)
    context.set_dev_state_mode(True)
    with pytest.raises(ost.VariableError, match="set_decode_state"):
        compiled.run({"x": X}, variables={"position": 1})
    np.testing.assert_array_equal(compiled.run({"x": X})[0], 9 * X)
    context.set_dev_state_mode(False)
    np.testing.assert_array_equal(compiled.run({"x": X}, variables={"position": 2})[0], 11 * X)
    with pytest.raises(ost.VariableError):
        compiled.run({"x": X})


def test_later_runs_of_plans_launch_the_graph_and_nothing_else(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled, total = stepper(session), np.zeros_like(X)
    plan = compiled.plan
    plan.inputs["x"].copyin(X)
    driver.prompt = True
    for step in (3, 0, 7, 9, 1):
        if step == 7:
            driver.events.clear()
        plan.execute_with_vars({"step": step})
        total += X * step
    assert {name for name, _ in driver.events} == {"launch_graph"}
    (found,) = plan.outputs.values()
    np.testing.assert_array_equal(found.copyout(), total)
    driver.fail_next["launch_graph"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="INVALID_VALUE"):
        plan.execute()
    plan.execute()
    np.testing.assert_array_equal(compiled.run({"x": X}, variables={"step": 0})[0], total + X)


def test_native_runs_of_plans_are_counted(session: ost.Session, driver: HostDriver) -> None:
    compiled = stepper(session)
    executable: Any = compiled._execution.executable
    counted: list[list[int]] = []
    executable.program.on_run = lambda values: counted.append([*values])
    for step in range(5):
        compiled.plan.execute_with_vars({"step": step})
    assert driver.count_of("launch_graph") == 4
    assert counted == [[step] for step in range(5)]
