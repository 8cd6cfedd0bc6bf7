"""Errors of the driver, in words that say what to do; and results after them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.webgpu.code import Rendered
from ostinato.backends.webgpu.driver import WebGpuDevice
from ostinato.backends.webgpu.native import DriverFailure

X = np.arange(4, dtype=np.float32)


#: A bound on buffers that no other test has, and so a device that none of them uses.
ALONE = 1 << 24


@pytest.fixture
def own(bounded: Callable[[int], ost.Session]) -> ost.Session:
    """A session on a device of its own, which may be lost."""
    return bounded(ALONE)


def doubler(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("doubler")
    g.set_outputs({"y": g.multiply(g.input("x", (4,)), 2.0)})
    return session.compile(g, options=ost.CompileOptions(stored_programs=False))


def test_a_kernel_that_the_driver_refuses_is_named(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.backends.webgpu import code

    rendered = code.rendered

    def broken(*given: Any) -> Rendered:
        found = rendered(*given)
        return found._replace(key=found.key + "b", source=found.source + "\nnonsense")

    monkeypatch.setattr(code, "rendered", broken)
    with pytest.raises(ost.DeviceError, match=r"(?s)multiply.*WEBGPU:0: .*nonsense"):
        doubler(session)
    monkeypatch.undo()
    assert doubler(session).run({"x": X})[0].tolist() == (2 * X).tolist()


def test_a_launch_that_the_driver_refuses_is_named(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = doubler(session)
    most = type(session.context.gpu).most_groups
    monkeypatch.setattr(type(session.context.gpu), "most_groups", 1 << 30)
    runner = compiled._execution.executable.program._runner
    runner._groups = [1 << 20 for _ in runner._groups]
    with pytest.raises(ost.DeviceError, match=r"(?s)multiply.*65535"):
        compiled.run({"x": X})
    monkeypatch.setattr(type(session.context.gpu), "most_groups", most)
    runner._groups, runner._counts = [1 for _ in runner._groups], {}
    assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_a_failed_call_is_named_and_the_next_run_works(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = doubler(session)

    def fail(*_: object) -> None:
        raise DriverFailure("writing a buffer: it is broken")

    monkeypatch.setattr(WebGpuDevice, "write", fail)
    with pytest.raises(ost.DeviceError, match="WEBGPU:0: writing a buffer: it is broken"):
        compiled.run({"x": X})
    monkeypatch.undo()
    assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_memory_that_is_not_there_is_described(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, nbytes: int) -> None:
        raise DriverFailure(f"making a buffer of {nbytes:,} bytes", out_of_memory=True)

    monkeypatch.setattr(WebGpuDevice, "storage_buffer", fail)
    with pytest.raises(MemoryError, match=r"no 16 bytes for .*; close other graphs"):
        doubler(session).run({"x": X})


def test_a_lost_device_says_so_from_then_on_and_another_opens(
    own: ost.Session, bounded: Callable[[int], ost.Session]
) -> None:
    compiled, other = doubler(own), doubler(own)
    compiled.run({"x": X})
    own.context.gpu.driver._device.destroy()
    for later in (compiled, other, compiled):
        with pytest.raises(ost.DeviceError, match=r"(?s)was lost.*open a new session"):
            later.run({"x": X})
    assert doubler(bounded(ALONE)).run({"x": X})[0].tolist() == (2 * X).tolist()


def test_loops_that_the_adapter_ends_early_are_refused(session: ost.Session) -> None:
    """Mesa's software adapter ends loops without an error; others compute what the CPU does."""
    g = ost.Graph("long loops")
    x = g.input("x", (ost.Variable("steps", 1, 400), 1, 8))
    w, r = g.param("w", (1, 4 * 128, 8)), g.param("r", (1, 4 * 128, 128))
    g.set_outputs([g.lstm(x, w, r)[0]])
    rng = np.random.default_rng(0)
    params = {n: 0.1 * rng.standard_normal(p.shape, dtype=np.float32) for n, p in g.params.items()}
    compiled, expected = (s.compile(g, params) for s in (session, ost.Session("cpu")))
    for steps in (8, 400, 9):
        feeds = {"x": rng.standard_normal((steps, 1, 8), dtype=np.float32)}
        if steps == 400 and session.context.gpu.target.iterations is not None:
            with pytest.raises(ost.DeviceError, match=r"(?s)recurrent_scan.*ends loops after"):
                compiled.run(feeds)
        else:
            np.testing.assert_allclose(compiled.run(feeds)[0], expected.run(feeds)[0], atol=1e-5)


def test_arrays_of_another_device_are_refused(session: ost.Session, own: ost.Session) -> None:
    there, here = doubler(own), doubler(session)
    array = there._execution.executable.resident(X)
    with pytest.raises(ost.InputError, match="before that was lost"):
        here.run({"x": array})
    assert here.run({"x": here._execution.executable.resident(X)})[0].tolist() == [0, 2, 4, 6]
    with pytest.raises(ost.InputError, match="does not read"):
        doubler(ost.Session("cpu")).run({"x": array})
    with pytest.raises(BufferError, match="not exported"):
        array.__dlpack__()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("again", [False, True])
def test_a_forked_child_is_refused(session: ost.Session, *, again: bool) -> None:
    """By sessions of the parent, and by new ones: the driver's threads are not in the child."""
    compiled = doubler(session)
    compiled.run({"x": X})
    child = os.fork()
    if child == 0:
        try:
            if again:
                compiled = doubler(ost.Session("webgpu"))
            compiled.run({"x": X})
        except ost.DeviceError as error:
            os._exit(0 if "opened before os.fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_an_interface_of_the_system_is_a_device_of_its_own(session: ost.Session) -> None:
    interface = session.context.gpu.driver.adapter.interface.lower()
    if interface not in ("vulkan", "metal"):
        pytest.skip(f"adapters are reached by {interface} here")
    named = ost.Session(interface)
    assert str(named.device) == f"{interface.upper()}:0"
    assert named.capabilities == session.capabilities
    assert doubler(named).run({"x": X})[0].tolist() == (2 * X).tolist()
    other = {"vulkan": "metal", "metal": "vulkan"}[interface]
    if not ost.is_available(other):
        with pytest.raises(ost.DeviceUnavailableError, match=f"{other.upper()}:0 is not present"):
            ost.Session(other)


def test_names_of_devices() -> None:
    if not ost.is_available("webgpu"):
        pytest.skip("there is no WebGPU adapter, or no package wgpu")
    count = sum(device.kind == "WEBGPU" for device in ost.available_devices())
    assert str(ost.Session("webgpu:0").device) == "WEBGPU:0"
    with pytest.raises(ost.DeviceUnavailableError, match="is not present"):
        ost.Session(f"webgpu:{count}")
