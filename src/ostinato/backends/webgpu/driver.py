"""The calls of WebGPU that the runtime makes, on the library ``wgpu``.

Objects that are made once come from the library's Python interface. What every run does (encoding,
submitting, mapping) calls the native library below it, some ten times as fast. Errors are those of
the native library, found where they occur.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ostinato.backends.webgpu.commands import Commands, Launch
from ostinato.backends.webgpu.native import (
    DriverFailure,
    failures,
    library,
    native_api,
    new_map_callback,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Adapter", "WebGpuDevice", "adapters"]

#: Kinds of adapters, the fastest first, by the library's names.
_KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")

#: Interfaces of the system, the preferred one first: a GPU is listed once for each.
_INTERFACES = ("Metal", "D3D12", "Vulkan")

#: Features that a device is opened with, where its adapter has them, by the library's names.
_FEATURES = ("subgroup", "shader-f16", "timestamp-query")

#: Usages of buffers, by the standard's numbers.
_MAP_READ, _COPY_SRC, _COPY_DST, _UNIFORM, _STORAGE, _QUERY = 1, 4, 8, 64, 128, 512

#: The stage of compute shaders, by the standard's number.
_COMPUTE = 4

#: Runs that may be under way before a submission waits for the oldest of them.
_MOST_IN_FLIGHT = 16

#: Bytes that are written before what the driver holds of them is given back.
_MOST_WRITTEN = 16 << 20


class Adapter:
    """A GPU, or an implementation in software, that a device can be opened on.

    Args:
        found: the library's object.
    """

    def __init__(self, found: Any) -> None:
        self._found = found
        self.info: Mapping[str, Any] = found.info

    @property
    def interface(self) -> str:
        """The system's interface: ``"Vulkan"``, ``"Metal"`` and so on."""
        return str(self.info["backend_type"])

    @property
    def kind(self) -> str:
        """``"DiscreteGPU"``, ``"IntegratedGPU"``, ``"CPU"``, or ``"Unknown"``."""
        return str(self.info["adapter_type"])

    @property
    def name(self) -> str:
        """Its name, with the interface."""
        return f"{self.info['device']} ({self.interface})"

    def open(self) -> WebGpuDevice:
        """Open a device with all limits of the adapter, and the features that kernels use.

        Raises:
            DriverFailure: the adapter refuses.
        """
        wanted = [name for name in _FEATURES if name in self._found.features]
        with failures("opening the device"):
            device = self._found.request_device_sync(label="ostinato", required_features=wanted)
        return WebGpuDevice(device, self)


def adapters(interface: str = "") -> list[Adapter]:
    """The adapters of this machine, each once, the fastest kind first.

    Args:
        interface: those of this interface of the system (``"Vulkan"``, ``"Metal"``) alone.

    Raises:
        DeviceUnavailableError: the package is missing or broken.
    """
    found = [Adapter(a) for a in library().gpu.enumerate_adapters_sync()]
    present = {a.interface for a in found}
    preferred = interface or next((name for name in _INTERFACES if name in present), "")
    listed = [a for a in found if a.interface == preferred]
    return sorted(listed, key=lambda a: _KINDS.index(a.kind) if a.kind in _KINDS else 2)


class WebGpuDevice:
    """An opened device and its queue. It may be used from many threads.

    Args:
        device: the library's object.
        adapter: the adapter that it was opened on.

    Attributes:
        adapter: see above.
        limits: by the standard's names, in lower case and with hyphens.
        features: those that it was opened with.
    """

    def __init__(self, device: Any, adapter: Adapter) -> None:
        self._device = device
        self.adapter = adapter
        self.limits: Mapping[str, int] = dict(device.limits)
        self.features = frozenset(device.features)
        self._handle, self._queue = device._internal, device.queue._internal
        self._in_flight: deque[int] = deque()
        self._written = 0
        self._guard = threading.Lock()
        self._mapped = new_map_callback()  # kept: the library has its address only
        self._layouts: dict[tuple[bool, ...], tuple[Any, Any]] = {}
        self._uniform_layout = self._layout(
            [{"type": "uniform", "has_dynamic_offset": True}, {"type": "uniform"}]
        )

    # -- objects that are made once ----------------------------------------------------------------

    def storage_buffer(self, nbytes: int) -> Any:
        """A zeroed buffer that kernels read and write.

        Raises:
            DriverFailure: there is not enough memory.
        """
        return self._buffer(nbytes, _STORAGE | _COPY_SRC | _COPY_DST)

    def uniform_buffer(self, nbytes: int) -> Any:
        """A zeroed buffer for :meth:`uniforms`."""
        return self._buffer(nbytes, _UNIFORM | _COPY_DST)

    def staging_buffer(self, nbytes: int) -> Any:
        """A buffer that the host reads."""
        return self._buffer(nbytes, _MAP_READ | _COPY_DST)

    def query_buffer(self, nbytes: int) -> Any:
        """A buffer that times are resolved to."""
        return self._buffer(nbytes, _QUERY | _COPY_SRC)

    def time_queries(self, count: int) -> Any:
        """A set of as many times."""
        with failures("making a query set"):
            return self._device.create_query_set(type="timestamp", count=count)

    def _buffer(self, nbytes: int, usage: int) -> Any:
        with failures(f"making a buffer of {nbytes:,} bytes"):
            return self._device.create_buffer(size=nbytes, usage=usage)

    def pipeline(self, label: str, source: str, entry: str, writable: tuple[bool, ...]) -> Any:
        """Compile a kernel.

        Args:
            label: names it in the driver's messages.
            source: WGSL.
            entry: its entry point.
            writable: by storage buffer, whether it is written.

        Raises:
            DriverFailure: the driver refuses it.
        """
        with failures(label):
            module = self._device.create_shader_module(label=label, code=source)
            return self._device.create_compute_pipeline(
                label=label,
                layout=self._layouts_of(writable)[1],
                compute={"module": module, "entry_point": entry},
            )

    def group(self, buffers: Sequence[Any], writable: tuple[bool, ...]) -> Any:
        """A bind group of storage buffers."""
        return self._group(self._layouts_of(writable)[0], [(b, b.size) for b in buffers])

    def uniforms(self, offsets: Any, window: int, variables: Any) -> Any:
        """The bind group of offsets and Variables.

        Args:
            offsets: the buffer of all launches' offsets.
            window: bytes of it that one launch sees.
            variables: the buffer of Variables.
        """
        bound = [(offsets, window), (variables, variables.size)]
        return self._group(self._uniform_layout, bound)

    def _group(self, layout: Any, bound: Sequence[tuple[Any, int]]) -> Any:
        entries = [
            {"binding": number, "resource": {"buffer": buffer, "offset": 0, "size": nbytes}}
            for number, (buffer, nbytes) in enumerate(bound)
        ]
        with failures("making a bind group"):
            return self._device.create_bind_group(layout=layout, entries=entries)

    def _layouts_of(self, writable: tuple[bool, ...]) -> tuple[Any, Any]:
        """The layouts of a bind group of storage buffers, and of pipelines on it."""
        with self._guard:
            found = self._layouts.get(writable)
            if found is None:
                kinds = ["storage" if written else "read-only-storage" for written in writable]
                layout = self._layout([{"type": kind} for kind in kinds])
                with failures("making a pipeline layout"):
                    whole = self._device.create_pipeline_layout(
                        bind_group_layouts=[layout, self._uniform_layout]
                    )
                found = self._layouts[writable] = layout, whole
            return found

    def _layout(self, buffers: Sequence[Mapping[str, Any]]) -> Any:
        entries = [
            {"binding": number, "visibility": _COMPUTE, "buffer": buffer}
            for number, buffer in enumerate(buffers)
        ]
        with failures("making a bind group layout"):
            return self._device.create_bind_group_layout(entries=entries)

    def launch(self, pipeline: Any, buffers: Any, uniforms: Any, offset: int) -> Launch:
        """A launch of a pipeline on bind groups, which live at least as long.

        Args:
            pipeline, buffers, uniforms: see :class:`Launch`.
            offset: of the launch's part of the buffer of offsets.
        """
        dynamic = native_api().ffi.new("uint32_t[1]", [offset])
        return Launch(pipeline._internal, buffers._internal, uniforms._internal, dynamic)

    @property
    def tick_seconds(self) -> float:
        """The unit of times."""
        return 1e-9 * float(native_api().lib.wgpuQueueGetTimestampPeriod(self._queue))

    # -- what every run does -----------------------------------------------------------------------

    def write(self, buffer: Any, offset: int, address: int, nbytes: int) -> None:
        """Copy bytes of the host into a buffer, before all that is submitted from now on.

        Offset and size are multiples of 4.
        """
        native = native_api()
        while nbytes:
            held = min(nbytes, _MOST_WRITTEN)
            with failures("writing a buffer"):
                data = native.ffi.cast("uint8_t *", address)
                native.lib.wgpuQueueWriteBuffer(self._queue, buffer._internal, offset, data, held)
            self._written += held  # a hint: threads may count past each other
            if self._written >= _MOST_WRITTEN:
                with self.commands() as commands:
                    pass
                self.wait(commands.index)
            offset, address, nbytes = offset + held, address + held, nbytes - held

    @contextmanager
    def commands(self) -> Iterator[Commands]:
        """Encode commands, which are submitted at the end of the ``with``.

        Raises:
            DriverFailure: the driver refuses a command; nothing has been submitted.
        """
        native = native_api()
        lib = native.lib
        with failures("encoding commands"):
            encoder = lib.wgpuDeviceCreateCommandEncoder(self._handle, native.ffi.NULL)
        commands = Commands(native, encoder)
        buffer = None
        try:
            with failures("encoding commands"):
                yield commands
            with failures("encoding commands"):
                buffer = lib.wgpuCommandEncoderFinish(encoder, native.ffi.NULL)
            with failures("submitting commands"):
                handles = native.ffi.new("WGPUCommandBuffer[1]", [buffer])
                commands.index = lib.wgpuQueueSubmitForIndex(self._queue, 1, handles)
                self._written = 0
        finally:
            if buffer is not None:
                lib.wgpuCommandBufferRelease(buffer)
            lib.wgpuCommandEncoderRelease(encoder)
        self._limit(commands.index)

    def check(self, launch: Launch, count: tuple[int, int]) -> None:
        """Encode a launch without submitting it.

        Raises:
            DriverFailure: the driver refuses it.
        """
        native = native_api()
        lib = native.lib
        with failures("encoding commands"):
            encoder = lib.wgpuDeviceCreateCommandEncoder(self._handle, native.ffi.NULL)
            Commands(native, encoder).launch([launch], [count])
            lib.wgpuCommandBufferRelease(lib.wgpuCommandEncoderFinish(encoder, native.ffi.NULL))
            lib.wgpuCommandEncoderRelease(encoder)

    def wait(self, index: int) -> None:
        """Wait until a submission is done."""
        native = native_api()
        with failures("waiting"):
            native.lib.wgpuDevicePoll(
                self._handle, True, native.ffi.new("WGPUSubmissionIndex *", index)
            )

    @contextmanager
    def mapped(self, staging: Any, nbytes: int, index: int) -> Iterator[int]:
        """Map a staging buffer, for the length of a ``with``; the address of its first byte.

        Args:
            staging: the buffer.
            nbytes: a multiple of 4.
            index: the submission that writes it last, which is waited for.
        """
        native = native_api()
        lib, ffi = native.lib, native.ffi
        outcome: list[int] = []
        keep = ffi.new_handle(outcome)
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode, info.callback = lib.WGPUCallbackMode_AllowSpontaneous, self._mapped
        info.userdata1 = keep
        with failures("mapping a buffer"):
            lib.wgpuBufferMapAsync(staging._internal, lib.WGPUMapMode_Read, 0, nbytes, info[0])
        self.wait(index)
        while not outcome:  # another thread has polled, and is about to call back
            self.wait(index)
        if outcome[0] != lib.WGPUMapAsyncStatus_Success:
            raise DriverFailure("mapping a buffer failed: the device is lost", lost=True)
        try:
            with failures("mapping a buffer"):
                found = lib.wgpuBufferGetConstMappedRange(staging._internal, 0, nbytes)
            yield int(ffi.cast("uintptr_t", found))
        finally:
            lib.wgpuBufferUnmap(staging._internal)

    def _limit(self, index: int) -> None:
        """Wait for old submissions: what they hold is given back as they are waited for."""
        with self._guard:
            self._in_flight.append(index)
            oldest = self._in_flight.popleft() if len(self._in_flight) > _MOST_IN_FLIGHT else None
        if oldest is not None:
            self.wait(oldest)
