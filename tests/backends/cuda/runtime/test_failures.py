"""Errors of the driver, in words that say what to do; and results after them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda import driver as drivers
from ostinato.backends.cuda.driver import DriverFailure, NvidiaDriver
from ostinato.backends.cuda.quick_calls import QuickCalls
from tests.devices.cuda_host.backend import open_host_driver
from tests.devices.cuda_host.driver import HostDriver

X = np.arange(4, dtype=np.float32)


def doubler(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("doubler")
    g.set_outputs([g.input("x", (4,)) * 2.0])
    return session.compile(g)


def test_a_failed_call_is_named_and_the_next_run_works(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled = doubler(session)
    compiled.run({"x": X})
    driver.fail_next["begin_capture"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="begin_capture failed with CUDA_ERROR_INVALID_VALUE"):
        compiled.run({"x": X})
    for _ in range(3):
        assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_a_capture_that_fails_is_ended(session: ost.Session, driver: HostDriver) -> None:
    compiled = doubler(session)
    compiled.run({"x": X})
    driver.fail_next["launch"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(ost.DeviceError, match="launch failed"):
        compiled.run({"x": X})
    assert driver.count_of("end_capture") == 1
    assert compiled.run({"x": X})[0].tolist() == (2 * X).tolist()


def test_a_lost_device_says_so_from_then_on(session: ost.Session, driver: HostDriver) -> None:
    compiled, other = doubler(session), doubler(session)
    driver.fail_next["synchronize"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(ost.DeviceError, match=r"was lost.*ILLEGAL_ADDRESS"):
        compiled.run({"x": X})
    for later in (compiled, other):
        with pytest.raises(ost.DeviceError, match=r"was lost.*launch_graphs=False"):
            later.run({"x": X})


def test_memory_that_is_not_there_is_described() -> None:
    from ostinato.backends.device import Device
    from tests.devices.cuda_host.backend import CudaHostBackend

    small = open_host_driver(total_bytes=1 << 16)
    backend = CudaHostBackend(Device("CUDAHOST"), driver=small)
    g = ost.Graph("large")
    w = g.param("w", (1 << 16,))
    g.set_outputs([g.input("x", (1,)) + w])
    with pytest.raises(MemoryError, match=r"no 262,144 bytes for a compiled graph: .* are free"):
        backend.compile(g, {"w": np.ones(1 << 16, np.float32)}, ost.CompileOptions())
    assert ("allocate", 1 << 18) not in small.events  # it would take what others may need


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_to_open_its_own(session: ost.Session) -> None:
    compiled = doubler(session)
    compiled.run({"x": X})
    child = os.fork()
    if child == 0:
        try:
            compiled.run({"x": X})
        except ost.DeviceError as error:
            os._exit(0 if "os.fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


class FakeApi:
    """The bindings, as far as opening them goes."""

    CUresult = SimpleNamespace(CUDA_SUCCESS="success")

    def __init__(self, version: int = 13000, init: str = "success") -> None:
        self._version, self._init = version, init

    def cuInit(self, flags: int) -> tuple[Any]:
        if self._init == "missing":
            raise RuntimeError("libcuda not found")
        return (self._init if self._init == "success" else SimpleNamespace(name=self._init),)

    def cuDriverGetVersion(self) -> tuple[Any, int]:
        return "success", self._version

    def cuGetErrorString(self, status: object) -> tuple[Any, bytes]:
        return "success", b"in words"


class FakeLibrary:
    """The library of the driver, whose calls have the same status each."""

    def __init__(self, status: int) -> None:
        for name in (
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
            "cuGraphLaunch",
            "cuStreamSynchronize",
        ):
            setattr(self, name, lambda *_, name=name: self.made.append(name) or status)
        self.made: list[str] = []


class FakeResults:
    CUDA_SUCCESS = "success"

    def __call__(self, status: int) -> object:
        return SimpleNamespace(name={1: "CUDA_ERROR_INVALID_VALUE"}[status])


class FakeApiWithResults(FakeApi):
    CUresult = FakeResults()


def test_calls_of_every_run_are_made_without_the_bindings() -> None:
    library: Any = FakeLibrary(0)
    driver = NvidiaDriver(FakeApiWithResults(), QuickCalls(library, library))
    driver.push(3)
    driver.launch_graph(5, 7)
    driver.synchronize(7)
    driver.pop()
    assert library.made == [
        "cuCtxPushCurrent_v2",
        "cuGraphLaunch",
        "cuStreamSynchronize",
        "cuCtxPopCurrent_v2",
    ]
    broken: Any = FakeLibrary(1)
    driver = NvidiaDriver(FakeApiWithResults(), QuickCalls(broken, broken))
    for call in (
        lambda: driver.push(3),
        lambda: driver.launch_graph(5, 7),
        lambda: driver.synchronize(7),
        driver.pop,
    ):
        with pytest.raises(DriverFailure, match="CUDA_ERROR_INVALID_VALUE: in words"):
            call()


def test_reasons_for_no_driver() -> None:
    assert NvidiaDriver(FakeApi()).version() == (13, 0)
    for api, words in (
        (FakeApi(init="missing"), "no NVIDIA driver: libcuda was not found"),
        (FakeApi(init="CUDA_ERROR_NO_DEVICE"), "finds no GPU"),
        (FakeApi(init="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "does not start: .*MISMATCH"),
        (FakeApi(version=11080), "supports CUDA 11.8, and CUDA 12.1 or newer is needed"),
    ):
        with pytest.raises(ost.DeviceUnavailableError, match=words):
            NvidiaDriver(api)


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(drivers.importlib, "import_module", missing)
    drivers.nvidia_driver.cache_clear()
    with pytest.raises(ost.DeviceUnavailableError, match=r"pip install 'ostinato\[cuda\]'"):
        drivers.nvidia_driver()
    drivers.nvidia_driver.cache_clear()


def test_a_state_that_is_too_large_is_refused_before_its_elements_are_made(
    session: ost.Session,
) -> None:
    """A terabyte: the host could not hold an array of it, either."""
    g = ost.Graph("huge")
    cache = g.state("cache", (1 << 20, 1 << 20), "uint8")
    g.set_outputs([g.cast(cache[:1, :4], "float32")])
    with pytest.raises(ost.DeviceMemoryError, match="no 1,099,511,627,776 bytes for a compiled"):
        session.compile(g)
