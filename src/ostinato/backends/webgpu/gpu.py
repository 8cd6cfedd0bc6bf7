"""An opened device: its limits, its compiled kernels, and what has become of it."""

from __future__ import annotations

import os
import weakref
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.webgpu.driver import adapters
from ostinato.backends.webgpu.kernel import ENTRY_POINT
from ostinato.backends.webgpu.native import DriverFailure
from ostinato.backends.webgpu.target import WebGpuTarget
from ostinato.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.device import Device
    from ostinato.backends.webgpu.driver import WebGpuDevice

__all__ = ["INTERFACES", "Gpu", "Pipeline"]

#: By kind of device, the interface of the system that its adapters are reached by; of the others,
#: the preferred one.
INTERFACES = {"METAL": "Metal", "VULKAN": "Vulkan"}

#: Sizes of buffers, and offsets between tensors in different buffers, are multiples of this.
_ALIGNMENT = 256


#: Iterations of an invocation's loops, all together, after which Mesa's software adapter ends them.
_MESA_ITERATIONS = (1 << 16) - 1


class Gpu:
    """A device that this process uses; see :meth:`opened`.

    Args:
        device: its name; its number counts :func:`~ostinato.backends.webgpu.driver.adapters`.
        most_part_bytes: a bound on the size of one buffer, besides those of the adapter.

    Attributes:
        device: see above.

    Raises:
        DeviceError: the adapter refuses to open.
    """

    def __init__(self, device: Device, most_part_bytes: int | None = None) -> None:
        self.device = device
        self._process = os.getpid()
        self._lost = ""
        self._most_part_bytes = most_part_bytes
        self._guard = Mutex()
        self._pipelines: weakref.WeakValueDictionary[tuple[str, tuple[bool, ...]], Pipeline] = (
            weakref.WeakValueDictionary()
        )
        with self.calls():
            self._driver = adapters(INTERFACES.get(device.kind, ""))[device.index].open()

    @staticmethod
    def opened(device: Device, most_part_bytes: int | None = None) -> Gpu:
        """The device, opened once for all sessions that use it at a time: they share its memory."""
        return _OPENED.get(device, most_part_bytes)

    @property
    def lost(self) -> bool:
        """Whether it cannot be used any more."""
        return bool(self._lost) or self._process != os.getpid()

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self._driver.adapter.name

    @property
    def times_kernels(self) -> bool:
        """Whether it takes the times of its kernels."""
        return "timestamp-query" in self._driver.features

    @cached_property
    def target(self) -> WebGpuTarget:
        """The device as code generation sees it."""
        limits, features = self._driver.limits, self._driver.features
        part = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        if self._most_part_bytes is not None:
            part = min(part, self._most_part_bytes)
        return WebGpuTarget(
            subgroups="subgroup" in features,
            halves="shader-f16" in features,
            threads=limits["max-compute-invocations-per-workgroup"],
            shared_bytes=limits["max-compute-workgroup-storage-size"],
            bindings=limits["max-storage-buffers-per-shader-stage"],
            part_bytes=part // _ALIGNMENT * _ALIGNMENT,
            iterations=_MESA_ITERATIONS if "llvmpipe" in self.name else None,
        )

    @property
    def offset_alignment(self) -> int:
        """The alignment of dynamic offsets into uniform buffers."""
        return self._driver.limits["min-uniform-buffer-offset-alignment"]

    @property
    def most_groups(self) -> int:
        """The most workgroups of a launch in one dimension."""
        return self._driver.limits["max-compute-workgroups-per-dimension"]

    @property
    def driver(self) -> WebGpuDevice:
        """The opened device; its calls are made within :meth:`calls`."""
        return self._driver

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Call the driver within a ``with``: its failures become errors.

        Raises:
            DeviceError: a call failed; or the device was lost earlier, or the process was forked.
        """
        self.check()
        try:
            yield
        except DriverFailure as error:
            raise self._explained(error) from error

    def check(self) -> None:
        """Check that the device can be used.

        Raises:
            DeviceError: it was lost, or the process was forked.
        """
        if self._lost:
            raise DeviceError(self._lost)
        if self._process != os.getpid():
            raise _after_fork(self.device)

    def _explained(self, error: DriverFailure) -> DeviceError:
        """The error for a call that failed; the device may be lost from now on."""
        if error.out_of_memory:
            return DeviceMemoryError(f"{self.device} has not enough memory: {error}")
        if error.lost:
            self._lost = (
                f"{self.device} was lost, with all that was in its memory: {error}; open a new "
                "session and compile again"
            )
            return DeviceError(self._lost)
        return DeviceError(f"{self.device}: {error}")

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, purpose: str) -> list[Any]:
        """Zeroed buffers for a block of memory: parts of one size, and a last one.

        Raises:
            DeviceMemoryError: there is not enough memory.
        """
        part = self.target.part_bytes
        sizes = [part] * (nbytes // part)
        if nbytes % part or not sizes:
            sizes.append(_aligned(max(nbytes % part, 1)))
        with self.calls():
            try:
                return [self._driver.storage_buffer(size) for size in sizes]
            except DriverFailure as error:
                if not error.out_of_memory:
                    raise
                raise DeviceMemoryError(
                    f"{self.device} has no {nbytes:,} bytes for {purpose}; close other graphs, or "
                    "bound sizes more tightly"
                ) from error

    # -- kernels -----------------------------------------------------------------------------------

    def pipeline(self, key: str, label: str, source: str, writable: tuple[bool, ...]) -> Pipeline:
        """The pipeline of a kernel, compiled once for as long as it is in use.

        Args:
            key: the same for equal sources.
            label: the kernel's name, for messages.
            source: WGSL.
            writable: by storage buffer, whether it is written.

        Raises:
            DeviceError: the driver refuses it, which is a bug of the renderer.
        """
        with self._guard:
            found = self._pipelines.get((key, writable))
            if found is None:
                with self.calls():
                    handle = self._driver.pipeline(label, source, ENTRY_POINT, writable)
                found = self._pipelines[key, writable] = Pipeline(handle, writable)
            return found


class _OpenedDevices:
    """The opened devices of this process. Memory of one is of no use to another."""

    def __init__(self) -> None:
        self._guard = Mutex()
        self._process = 0
        self._found: weakref.WeakValueDictionary[tuple[Device, int | None], Gpu] = (
            weakref.WeakValueDictionary()
        )

    def get(self, device: Device, most_part_bytes: int | None) -> Gpu:
        """The one that is open, or a new one.

        Raises:
            DeviceError: a parent of this process has opened one: the driver's threads are not here.
        """
        with self._guard:
            self._process = self._process or os.getpid()
            if self._process != os.getpid():
                raise _after_fork(device)
            found = self._found.get((device, most_part_bytes))
            if found is None or found.lost:
                found = self._found[device, most_part_bytes] = Gpu(device, most_part_bytes)
            return found


#: The only instance: an adapter is opened once for all sessions.
_OPENED = _OpenedDevices()


def _after_fork(device: Device) -> DeviceError:
    return DeviceError(
        f"{device} was opened before os.fork, and WebGPU does not work in the child: start it with "
        "the method 'spawn', or open no session before the fork"
    )


class Pipeline:
    """A compiled kernel.

    Attributes:
        object: the library's.
        writable: by storage buffer, whether it is written.
    """

    __slots__ = ("__weakref__", "object", "writable")

    def __init__(self, object: Any, writable: tuple[bool, ...]) -> None:
        self.object = object
        self.writable = writable


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
