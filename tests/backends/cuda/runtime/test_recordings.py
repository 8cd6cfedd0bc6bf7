"""Recordings: one launch, whatever calls pass on to each other, and the same bits as the calls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

import ostinato as ost
from tests.devices.cuda_host.driver import HostDriver

ROW = np.ones(4, np.float32)


def doubler(session: ost.Session, **options: bool) -> ost.CompiledGraph:
    g = ost.Graph("doubler")
    g.set_outputs([g.input("x", (4,)) * 2.0])
    return session.compile(g, options=ost.CompileOptions(**options))


def record(session: ost.Session, *calls: object) -> None:
    session.context.begin_graph_capture()
    for call in calls:
        call()  # type: ignore[operator]
    session.context.end_graph_capture(1)


def test_a_chain_of_calls_is_one_launch(session: ost.Session, driver: HostDriver) -> None:
    compiled = doubler(session)
    arrays = [np.zeros(4, np.float32) for _ in range(4)]
    calls = [compiled.bind({"x": a}, [b]) for a, b in pairwise(arrays)]
    record(session, *calls)
    for start in (1, 5):
        arrays[0][:] = start
        before = driver.count_of("launch_graph")
        assert session.context.replay_graph(1)
        assert driver.count_of("launch_graph") - before == 1
        assert [float(a[0]) for a in arrays] == [start * 2**i for i in range(4)]
    assert driver.count_of("launch") == 4  # of the capture; the last one shows the end


def test_later_replays_launch_the_graph_and_nothing_else(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled = doubler(session)
    arrays = [np.zeros(4, np.float32) for _ in range(4)]
    record(session, *(compiled.bind({"x": a}, [b]) for a, b in pairwise(arrays)))
    driver.prompt = True
    for step in range(5):
        arrays[0][:] = step
        if step == 1:
            driver.events.clear()
        assert session.context.replay_graph(1)
        assert [float(a[0]) for a in arrays] == [step * 2**i for i in range(4)]
    assert {name for name, _ in driver.events} == {"launch_graph"}


def test_replays_read_weights_that_were_written(session: ost.Session) -> None:
    g = ost.Graph("adder")
    g.set_outputs([g.input("x", (4,)) + g.param("w", (4,))])
    compiled, x, y = session.compile(g, {"w": ROW}), ROW.copy(), np.zeros(4, np.float32)
    call, twin = compiled.bind({"x": x}, [y]), compiled.clone()
    for weight in (1, 5, 6):
        if weight > 1:
            twin.set_param("w", ROW * 9)
            compiled.set_param("w", ROW * weight)  # at first, its memory is exchanged
        if not session.context.replay_graph(1):
            record(session, call)
        for step in range(3):
            x[:] = step
            assert session.context.replay_graph(1)
            assert y.tolist() == [weight + step] * 4


def test_a_replay_that_the_driver_refuses_changes_nothing(
    session: ost.Session, driver: HostDriver
) -> None:
    x, y = ROW.copy(), np.zeros(4, np.float32)
    record(session, doubler(session).bind({"x": x}, [y]))
    for _ in range(3):
        assert session.context.replay_graph(1)
    x[:] = 3
    driver.fail_next["launch_graph"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="INVALID_VALUE"):
        session.context.replay_graph(1)
    assert y.tolist() == [2] * 4
    assert session.context.replay_graph(1)
    assert y.tolist() == [6] * 4


def test_parts_of_one_array_are_passed_on(session: ost.Session) -> None:
    compiled, block = doubler(session), np.ones(12, np.float32)
    first = compiled.bind({"x": block[:4]}, [block[4:8]])
    second = compiled.bind({"x": block[4:8]}, [block[8:]])
    record(session, first, second)
    block[:4] = 3
    session.context.replay_graph(1)
    assert block.tolist() == [3] * 4 + [6] * 4 + [12] * 4


def test_arrays_that_kernels_cannot_use_in_place_are_replayed_call_by_call(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled, block = doubler(session), np.ones(12, np.float32)
    whole = compiled.bind({"x": block[:4]}, [block[4:8]])
    inside = compiled.bind({"x": block[1:5]}, [block[8:]])  # 4 bytes into the region
    record(session, whole, inside)
    session.context.replay_graph(1)
    assert block.tolist() == [1] * 4 + [2] * 4 + [2, 2, 2, 4]


def test_large_arrays_are_copied_once(session: ost.Session, driver: HostDriver) -> None:
    g = ost.Graph("large")
    g.set_outputs([g.neg(g.input("x", (1 << 16,)))])
    compiled = session.compile(g)
    x, y, z = (np.ones(1 << 16, np.float32) for _ in range(3))
    record(session, compiled.bind({"x": x}, [y]), compiled.bind({"x": y}, [z]))
    session.context.replay_graph(1)
    before = len(driver.events)
    x[:] = 2
    session.context.replay_graph(1)
    copies = [size for name, size in driver.events[before:] if name == "copy"]
    assert copies.count(x.nbytes) == 3  # x in, y and z out; y never comes in
    assert z[0] == 2 and y[0] == -2


def test_a_recording_without_graphs_runs_call_by_call(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled, out = doubler(session, launch_graphs=False), np.zeros(4, np.float32)
    record(session, compiled.bind({"x": ROW}, [out]))
    assert session.context.replay_graph(1)
    assert out.tolist() == [2] * 4
    assert driver.count_of("launch_graph") == 0


def test_sessions_are_recorded_with_runs(session: ost.Session) -> None:
    ex = ost.GraphExecutor(session.context)
    x = ex.buffer(ROW)
    with ex.begin() as s:
        y = s.exp(x)
    np.testing.assert_allclose(y.copyout(), np.exp(ROW), rtol=1e-6)


def test_the_variable_block_is_read_by_each_replay(session: ost.Session) -> None:
    kv_len = ost.Variable("kv_len", 1, 8)
    g = ost.Graph("rows")
    g.set_outputs([g.input("x", (kv_len, 2)) + 1.0])
    compiled, context = session.compile(g), session.context
    x, out = np.zeros((8, 2), np.float32), np.full((8, 2), -1, np.float32)
    context.set_dev_state_mode(True)
    context.set_decode_state(0, 7)
    record(session, compiled.bind({"x": x}, [out]))
    for step in (2, 4):
        out[:] = -1
        context.set_decode_state(0, step)
        assert context.replay_graph(1)
        assert out[:, 0].tolist() == [1] * (step + 1) + [-1] * (7 - step)
    context.set_dev_state_mode(False)


def test_replays_of_known_sizes_take_the_block_natively(
    session: ost.Session, driver: HostDriver
) -> None:
    position = ost.Variable("position", 0, 8)
    g = ost.Graph("place")
    rows, context = g.input("x", (9, 2)), session.context
    g.set_outputs([g.slice(rows, [position, 0], [position + 1, 2])])
    plain = ost.Graph("plain")
    plain.set_outputs([plain.input("x", (9, 2)) * 2.0])
    x, twice = np.arange(18, dtype=np.float32).reshape(9, 2), np.zeros((9, 2), np.float32)
    first, out = np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
    context.set_dev_state_mode(True)
    context.set_decode_state(0, 0)
    placed, doubled = session.compile(g), session.compile(plain)
    record(
        session,
        placed.bind({"x": x}, [first]),
        doubled.bind({"x": x}, [twice]),
        placed.bind({"x": twice}, [out]),
    )
    for step in (3, 0, 8, 5):
        context.set_decode_state(0, step)
        driver.events.clear()
        assert context.replay_graph(1)
        np.testing.assert_array_equal(first[0], x[step])
        np.testing.assert_array_equal(out[0], 2 * x[step])
    assert {name for name, _ in driver.events} == {"launch_graph", "synchronize"}
    with pytest.raises(ost.VariableError):
        context.set_decode_state(0, 9)
        context.replay_graph(1)
    np.testing.assert_array_equal(out[0], 2 * x[5])
    context.set_dev_state_mode(False)


def test_recordings_of_one_context_are_replayed_by_several_threads(
    session: ost.Session, driver: HostDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one makes its graph, the stream takes no work of another."""
    begin = driver.begin_capture

    def slow_begin(stream: int) -> None:
        begin(stream)
        time.sleep(0.02)

    monkeypatch.setattr(driver, "begin_capture", slow_begin)
    outs = [np.zeros(4, np.float32) for _ in range(4)]
    context = session.context
    for key, out in enumerate(outs):
        call = doubler(session).bind({"x": ROW * key}, [out])
        context.begin_graph_capture()
        call()
        context.end_graph_capture(key)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(context.replay_graph, range(4)))
    assert [out[0] for out in outs] == [0, 2, 4, 6]


def test_a_closed_graph_cannot_be_recorded(session: ost.Session) -> None:
    compiled, out = doubler(session), np.zeros(4, np.float32)
    call = compiled.bind({"x": ROW}, [out])
    compiled.plan.release_all_buffers()
    session.context.begin_graph_capture()
    with pytest.raises(ost.PlanError, match="released"):
        call()
    session.context.cancel_graph_capture()
