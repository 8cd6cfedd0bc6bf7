"""Arrays on the device: handles, and tensors of other libraries by DLPack."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.plan.device_array import DeviceArray
from tests.devices.cuda_host.driver import HostDriver

X = np.arange(8, dtype=np.float32)


class Foreign:
    """A tensor of another library, in the memory of a GPU."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array
        self.dtype = array.dtype

    def __dlpack__(self, *, stream: int) -> Any:
        assert stream == 1, "the legacy default stream"
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def adder(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("adder")
    g.set_outputs([g.input("x", (8,)) + g.input("y", (8,))])
    return session.compile(g)


def on_device(session: ost.Session, array: np.ndarray[Any, Any]) -> DeviceArray:
    g = ost.Graph("copy")
    g.set_outputs([g.neg(g.input("x", array.shape, array.dtype.name))])
    found = session.compile(g)._execution.executable.resident(array)
    assert isinstance(found, DeviceArray)
    return found


def test_handles_stay_on_the_device(session: ost.Session, driver: HostDriver) -> None:
    compiled = adder(session)
    compiled.bind_handle("y", X)
    compiled.set_handle_feed("y", 0)
    for step in range(1, 5):
        assert compiled.run({"x": X})[0].tolist() == ((step + 1) * X).tolist()
    assert isinstance(compiled._execution.handles.bound["y"], DeviceArray)
    assert compiled.read_handle("y").tolist() == (5 * X).tolist()
    assert compiled.read_output_row(0, 2) == 10
    twin = compiled.clone()
    compiled.run({"x": X})
    assert twin.read_handle("y").tolist() == (5 * X).tolist()


def test_fed_handles_are_recorded(session: ost.Session) -> None:
    compiled, context = adder(session), session.context
    compiled.bind_handle("y", X)
    compiled.set_handle_feed("y", 0)
    context.begin_graph_capture()
    compiled.commit_no_wait({"x": X})
    context.end_graph_capture(1)
    for _ in range(3):
        assert context.replay_graph(1)
    assert compiled.read_handle("y").tolist() == (4 * X).tolist()


def test_tensors_of_other_libraries_are_read_in_place(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled, tensor = adder(session), Foreign(on_device(session, X))
    for _ in range(3):
        assert compiled.run({"x": tensor, "y": X})[0].tolist() == (2 * X).tolist()
    before = len(driver.events)
    compiled.run({"x": tensor, "y": tensor})
    assert ("copy", X.nbytes) not in driver.events[before:]


def test_results_are_written_to_tensors(session: ost.Session) -> None:
    compiled, target = adder(session), on_device(session, np.zeros(8, np.float32))
    compiled.run({"x": X, "y": X}, out=[Foreign(target)])
    assert target.numpy().tolist() == (2 * X).tolist()
    call = compiled.bind({"x": X, "y": X}, [target])
    call()
    with pytest.raises(ost.InputError, match="overlaps"):
        compiled.run({"x": target, "y": X}, out=[target])


def test_tensors_are_recorded(session: ost.Session) -> None:
    compiled, context = adder(session), session.context
    source, target = on_device(session, X), on_device(session, 0 * X)
    call = compiled.bind({"x": source, "y": target}, [out := np.zeros(8, np.float32)])
    context.begin_graph_capture()
    call()
    context.end_graph_capture(1)
    context.replay_graph(1)
    assert out.tolist() == X.tolist()


def test_a_handle_can_be_bound_to_a_tensor(session: ost.Session) -> None:
    compiled = adder(session)
    compiled.bind_handle("y", Foreign(on_device(session, X)))
    assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_exported_memory_lives_as_long_as_its_consumer(
    session: ost.Session, driver: HostDriver
) -> None:
    array = on_device(session, X)
    gc.collect()
    capsule, gone = array.__dlpack__(), weakref.ref(array)
    del array
    gc.collect()
    assert gone() is not None
    del capsule  # never consumed
    gc.collect()
    assert gone() is None


def test_imported_memory_is_given_back(session: ost.Session) -> None:
    compiled, array = adder(session), on_device(session, X)
    gone = weakref.ref(array)
    compiled.run({"x": Foreign(array), "y": X})
    del array
    gc.collect()
    assert gone() is None


def test_wrong_tensors_are_refused(session: ost.Session) -> None:
    compiled = adder(session)
    with pytest.raises(ost.InputError, match="'x' has shape"):
        compiled.run({"x": on_device(session, X[:4]), "y": X})
    with pytest.raises(ost.InputError, match="'x' is float32, got int32"):
        compiled.run({"x": on_device(session, X.astype(np.int32)), "y": X})
    cpu = adder(ost.Session("cpu", threads=1))
    with pytest.raises(ost.InputError, match="'x': a Foreign is in the memory of a GPU"):
        cpu.run({"x": Foreign(on_device(session, X)), "y": X})


@pytest.mark.parametrize("rows", [3, 1 << 15])
def test_arrays_that_runs_write_to_are_the_callers(session: ost.Session, rows: int) -> None:
    """In runs, bound calls, queued and pipelined runs, and replays; small ones are staged."""
    g = ost.Graph("cache")
    x, at = g.input("x", (1, 4)), g.input("at", (), "int64")
    cache = g.inout("cache", (rows, 4))
    new = g.dynamic_update_slice(cache, g.slice(cache, (0, 0), (1, 4)) + x, (at, 0))
    g.assign(cache, new)
    g.set_outputs([g.sum(new, axis=0)])
    compiled = session.compile(g)
    held, out = np.zeros((rows, 4), np.float32), np.zeros(4, np.float32)
    feed = {"x": np.ones((1, 4), np.float32), "at": np.array(0), "cache": held}
    call, total = compiled.bind(feed, [out]), 0

    def check(runs: int, result: np.ndarray) -> None:
        nonlocal total
        total += runs
        assert held[0].tolist() == [total] * 4
        assert held[1:].sum() == 0
        assert result.tolist() == [total] * 4

    for _ in range(4):
        check(1, compiled.run(feed)[0])
        call()
        check(1, out)
    held[0] += 5  # what the caller writes in between counts
    total += 5
    compiled.commit_no_wait(feed)
    compiled.commit_no_wait(feed)
    compiled.sync_pending()
    check(3, compiled.run(feed)[0])
    check(3, compiled.run_pipelined([feed, feed, feed])[-1][0])
    session.context.begin_graph_capture()
    call()
    call()
    session.context.end_graph_capture(1)
    for _ in range(3):
        assert session.context.replay_graph(1)
        check(2, out)
    device = compiled.zeros((rows, 4), "float32")
    for step in range(1, 4):
        (result,) = compiled.run({**feed, "cache": device})
        assert result.tolist() == device[0].tolist() == [step] * 4
    check(0, out)
