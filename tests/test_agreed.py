"""Properties that threads compute at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ostinato.agreed import agreed_property
from ostinato.backends.cpu.backend import CpuBackend, CpuContext
from ostinato.backends.cuda.gpu import Gpu
from ostinato.backends.device import Device
from tests.devices.cuda_host.backend import open_host_driver


def by_two_threads(read: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(read) for _ in range(2)]]


def together(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, whose first two calls are under way at the same time."""
    barrier, waiting = threading.Barrier(2, timeout=30), [True, True]

    def waits(*arguments: Any) -> Any:
        if waiting:
            waiting.pop()
            barrier.wait()
        return make(*arguments)

    return waits


class Owner:
    @agreed_property
    def thing(self) -> object:
        """A thing."""
        return self.make()

    def __init__(self, make: Callable[[], object] = object) -> None:
        self.make = make


def test_threads_that_make_a_value_at_once_agree() -> None:
    owner = Owner(together(object))
    first, second = by_two_threads(lambda: owner.thing)
    assert first is second is owner.thing
    assert Owner().thing is not first
    assert Owner.thing.__doc__ == "A thing."


def test_what_fails_is_tried_again() -> None:
    owner = Owner(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        _ = owner.thing
    owner.make = lambda: 7
    assert owner.thing == 7


def test_a_session_has_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.backends.cpu.backend.CpuContext", together(CpuContext))
    backend = CpuBackend(Device("CPU"), 1)
    first, second = by_two_threads(lambda: backend.context)
    assert first is second is backend.context


def test_a_gpu_has_one_stream_for_memory() -> None:
    """Each thread holds no more than its handle while it takes memory: it must live on."""
    driver = open_host_driver()
    driver.create_stream = together(driver.create_stream)  # type: ignore[method-assign]
    gpu = Gpu(driver, Device("CUDAHOST"))
    first, second = by_two_threads(lambda: gpu.memory_stream.handle)
    gc.collect()
    assert first == second == gpu.memory_stream.handle
    assert gpu.allocate(64, "a test")
