"""The CUDA driver: the few calls that the runtime makes, on plain ints, with readable errors.

:class:`Driver` is the interface; tests have another implementation of it, on host memory. Handles
and addresses are ints. Every call but those on devices takes place in the calling thread's current
context; see :class:`~ostinato.backends.cuda.gpu.Gpu`.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.backends.cuda.quick_calls import QuickCalls
from ostinato.backends.cuda.tensor_maps import encoded_maps
from ostinato.errors import DeviceUnavailableError, OstinatoError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.quick_calls import EntryPoints

__all__ = ["DeviceProperties", "Driver", "DriverFailure", "NvidiaDriver", "nvidia_driver"]

#: The oldest driver, as CUDA counts versions, 12.1: kernels with tensor maps have more than 4 KiB
#: of parameters.
_OLDEST = 12010

#: Launches whose tensor maps are kept: where graphs are off, each is made again and again.
_KEPT_MAPS = 32

#: Results after which a context is of no use any more: the process can only start anew.
_STICKY = frozenset(
    {
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_UNKNOWN",
    }
)


class DriverFailure(OstinatoError):
    """A call of the driver failed.

    Args:
        call: the call's name.
        result: the name of its result: ``"CUDA_ERROR_INVALID_VALUE"``.
        meaning: the driver's words for it.

    Attributes:
        call, result: see above.
    """

    def __init__(self, call: str, result: str, meaning: str) -> None:
        super().__init__(f"{call} failed with {result}: {meaning}")
        self.call = call
        self.result = result

    @property
    def sticky(self) -> bool:
        """Whether all later calls will fail as well."""
        return self.result in _STICKY

    @property
    def out_of_memory(self) -> bool:
        """Whether there was not enough memory."""
        return self.result == "CUDA_ERROR_OUT_OF_MEMORY"


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of a GPU that decide how code for it is made.

    Attributes:
        name: the product's name.
        capability: its compute capability: ``(9, 0)``.
        multiprocessors: the number of streaming multiprocessors.
        shared_bytes_per_block: the most shared memory that a block may ask for.
        threads_per_multiprocessor: the most resident threads of a multiprocessor.
        total_bytes: its memory.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes_per_block: int
    threads_per_multiprocessor: int
    total_bytes: int

    @property
    def arch(self) -> str:
        """The architecture, in NVRTC's spelling: ``"sm_90"``."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


class Driver(Protocol):
    """The calls of the CUDA driver. Each may raise :class:`DriverFailure`."""

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""

    def count(self) -> int:
        """The number of GPUs."""

    def properties(self, index: int) -> DeviceProperties:
        """The properties of a GPU."""

    # -- contexts ----------------------------------------------------------------------------------

    def retain(self, index: int) -> int:
        """The primary context of a GPU."""

    def push(self, context: int) -> None:
        """Make a context the calling thread's current one, until :meth:`pop`."""

    def pop(self) -> None:
        """Restore the current context before the last :meth:`push`."""

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of memory of the device's default pool, from the stream's next work on."""

    def free(self, address: int, stream: int) -> None:
        """Give memory back to the pool, after the stream's work so far."""

    def memory_info(self) -> tuple[int, int]:
        """The free and the total bytes of the device."""

    def page_bytes(self, index: int) -> int:
        """The size of a page of a GPU's memory; addresses and sizes of pages are multiples."""

    def reserve(self, nbytes: int) -> int:
        """The first of addresses that have no memory yet."""

    def map_pages(self, index: int, address: int, nbytes: int) -> None:
        """Give reserved addresses memory of a GPU."""

    def release_pages(self, address: int, nbytes: int, mapped: Sequence[tuple[int, int]]) -> None:
        """Give reserved addresses back, with the memory of those that have some.

        Args:
            address, nbytes: as reserved.
            mapped: as given to :meth:`map_pages`.
        """

    def allocate_host(self, nbytes: int) -> int:
        """The address of page-locked host memory, the same on the device."""

    def free_host(self, address: int) -> None:
        """Give page-locked host memory back."""

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes between any two addresses, of the host or a device."""

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Set bytes of the device to ``value``."""

    # -- streams and events ------------------------------------------------------------------------

    def create_stream(self) -> int:
        """A stream that does not wait for the legacy default stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream, once its work is done."""

    def synchronize(self, stream: int) -> None:
        """Wait for a stream's work. Other threads of Python run meanwhile."""

    def create_event(self, *, timed: bool) -> int:
        """An event; a ``timed`` one takes part in :meth:`elapsed`."""

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""

    def record(self, event: int, stream: int) -> None:
        """Have the event occur when the stream's work so far is done.

        While the stream records, that is part of the graph.
        """

    def wait(self, stream: int, event: int) -> None:
        """Have the stream's later work wait for the event."""

    def elapsed(self, start: int, end: int) -> float:
        """The seconds between two events that have occurred."""

    # -- code --------------------------------------------------------------------------------------

    def load(self, image: bytes) -> int:
        """A library of compiled kernels."""

    def unload(self, library: int) -> None:
        """Unload a library."""

    def function(self, library: int, name: str, shared_bytes: int) -> int:
        """A kernel that may be launched with as much dynamic shared memory."""

    def launch(self, function: int, launch: Launch, arguments: Sequence[int], stream: int) -> None:
        """Launch a kernel; its arguments are addresses, those of its tensor maps among them."""

    # -- graphs ------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        """Record the stream's work from now on, instead of doing it."""

    def end_capture(self, stream: int, *, keep: bool = True) -> int:
        """An executable graph of the work that was recorded; without ``keep``, 0: it is dropped."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Do the work of a graph."""

    @property
    def entry_points(self) -> EntryPoints | None:
        """The calls of a run that is one graph, for native code; ``None``: it has none of them."""

    def refuse(self, name: str, status: int) -> None:
        """Raise the failure for the status that native code had from one of them."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy an executable graph."""


class NvidiaDriver:
    """See :class:`Driver`: the driver of this machine, through the package ``cuda-bindings``.

    Args:
        api: the module ``cuda.bindings.driver``.
        quick: the calls of every run; by default, they are made through ``api``, too.

    Raises:
        DeviceUnavailableError: the driver is missing, too old, or refuses to start.
    """

    def __init__(self, api: Any, quick: QuickCalls | None = None) -> None:
        self._api = api
        self._quick = quick
        self._success = api.CUresult.CUDA_SUCCESS
        try:
            self._call("cuInit", 0)
            number = self._call("cuDriverGetVersion")
        except DriverFailure as error:
            if error.result == "CUDA_ERROR_NO_DEVICE":
                raise DeviceUnavailableError("the NVIDIA driver finds no GPU") from None
            raise DeviceUnavailableError(f"the NVIDIA driver does not start: {error}") from None
        except Exception as error:  # the bindings raise errors of their own without a driver
            raise DeviceUnavailableError(
                "there is no NVIDIA driver: libcuda was not found; install the display driver, or "
                "give the container access to the GPU"
            ) from error
        if number < _OLDEST:
            raise DeviceUnavailableError(
                f"the NVIDIA driver supports CUDA {_version(number)}, and CUDA "
                f"{_version(_OLDEST)} or newer is needed: update the driver"
            )
        self._number = number
        encode = functools.partial(encoded_maps, api, self._call)
        self._encoded_maps = functools.lru_cache(_KEPT_MAPS)(encode)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; return its result, if there is one."""
        status, *results = getattr(self._api, name)(*arguments)
        if status is not self._success:
            raise self._failure(name, status)
        return results[0] if len(results) == 1 else results

    def _failure(self, name: str, status: Any) -> DriverFailure:
        """The error for a result of a call."""
        _, text = self._api.cuGetErrorString(status)
        return DriverFailure(name, status.name, text.decode() if text else "unknown")

    @property
    def entry_points(self) -> EntryPoints | None:
        return None if self._quick is None else self._quick.entry_points

    def refuse(self, name: str, status: int) -> None:
        raise self._failure(name, self._api.CUresult(status))

    def version(self) -> tuple[int, int]:
        return self._number // 1000, self._number % 1000 // 10

    def count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def properties(self, index: int) -> DeviceProperties:
        device = self._call("cuDeviceGet", index)
        kinds = self._api.CUdevice_attribute

        def attribute(name: str) -> int:
            kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self._call("cuDeviceGetAttribute", kind, device))

        return DeviceProperties(
            self._call("cuDeviceGetName", 256, device).split(b"\0")[0].decode(),
            (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            attribute("MULTIPROCESSOR_COUNT"),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            int(self._call("cuDeviceTotalMem", device)),
        )

    # -- contexts ----------------------------------------------------------------------------------

    def retain(self, index: int) -> int:
        return int(self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", index)))

    def push(self, context: int) -> None:
        if self._quick is None:
            self._call("cuCtxPushCurrent", context)
        elif status := self._quick.push(context):
            self.refuse("cuCtxPushCurrent", status)

    def pop(self) -> None:
        if self._quick is None:
            self._call("cuCtxPopCurrent")
        elif status := self._quick.pop():
            self.refuse("cuCtxPopCurrent", status)

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        return int(self._call("cuMemAllocAsync", nbytes, stream))

    def free(self, address: int, stream: int) -> None:
        self._call("cuMemFreeAsync", address, stream)

    def memory_info(self) -> tuple[int, int]:
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def page_bytes(self, index: int) -> int:
        kinds = self._api.CUmemAllocationGranularity_flags
        least = kinds.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._page_kind(index), least))

    def reserve(self, nbytes: int) -> int:
        return int(self._call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def map_pages(self, index: int, address: int, nbytes: int) -> None:
        kind = self._page_kind(index)
        pages = self._call("cuMemCreate", nbytes, kind, 0)
        try:
            self._call("cuMemMap", address, nbytes, 0, pages, 0)
        finally:  # the memory lives on while it is mapped
            self._call("cuMemRelease", pages)
        access = self._api.CUmemAccessDesc()
        access.location = kind.location
        access.flags = self._api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call("cuMemSetAccess", address, nbytes, [access], 1)

    def release_pages(self, address: int, nbytes: int, mapped: Sequence[tuple[int, int]]) -> None:
        for start, size in mapped:
            self._call("cuMemUnmap", start, size)
        self._call("cuMemAddressFree", address, nbytes)

    def _page_kind(self, index: int) -> Any:
        """The kind of memory that pages of a GPU have."""
        api = self._api
        kind = api.CUmemAllocationProp()
        kind.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        location = api.CUmemLocation()
        location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = index
        kind.location = location
        return kind

    def allocate_host(self, nbytes: int) -> int:
        flags = self._api.CU_MEMHOSTALLOC_PORTABLE | self._api.CU_MEMHOSTALLOC_DEVICEMAP
        return int(self._call("cuMemHostAlloc", nbytes, flags))

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", target, source, nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", target, value, nbytes, stream)

    # -- streams and events ------------------------------------------------------------------------

    def create_stream(self) -> int:
        return int(self._call("cuStreamCreate", self._api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        if self._quick is None:
            self._call("cuStreamSynchronize", stream)
        elif status := self._quick.synchronize(stream):
            self.refuse("cuStreamSynchronize", status)

    def create_event(self, *, timed: bool) -> int:
        kinds = self._api.CUevent_flags
        flags = kinds.CU_EVENT_DEFAULT if timed else kinds.CU_EVENT_DISABLE_TIMING
        return int(self._call("cuEventCreate", flags))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecordWithFlags", event, stream, self._external(stream))

    def _external(self, stream: int) -> int:
        """The flags for recording an event: of work that is captured, at each launch."""
        recording = self._api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        captured = self._call("cuStreamIsCapturing", stream) == recording
        return int(self._api.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL) if captured else 0

    def wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def elapsed(self, start: int, end: int) -> float:
        return float(self._call("cuEventElapsedTime", start, end)) * 1e-3

    # -- code --------------------------------------------------------------------------------------

    def load(self, image: bytes) -> int:
        return int(self._call("cuLibraryLoadData", image, [], [], 0, [], [], 0))

    def unload(self, library: int) -> None:
        self._call("cuLibraryUnload", library)

    def function(self, library: int, name: str, shared_bytes: int) -> int:
        kernel = self._call("cuLibraryGetKernel", library, name.encode())
        function = self._call("cuKernelGetFunction", kernel)
        if shared_bytes:  # with a kernel's own arrays, perhaps more than the driver gives unasked
            kind = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, kind, shared_bytes)
        return int(function)

    def launch(self, function: int, launch: Launch, arguments: Sequence[int], stream: int) -> None:
        import ctypes

        values = (ctypes.c_uint64 * len(arguments))(*arguments)
        start = ctypes.addressof(values)
        given = [*range(start, start + 8 * len(values), 8)]
        if launch.maps:
            maps = self._encoded_maps(launch.maps, tuple(arguments))
            given.append(ctypes.addressof(maps))
        pointers = (ctypes.c_void_p * len(given))(*given)
        params = ctypes.addressof(pointers)
        if launch.programmatic:
            config = self._api.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
            config.sharedMemBytes = launch.shared_bytes
            config.hStream = self._api.CUstream(stream)
            config.attrs, config.numAttrs = [self._programmatic], 1
            self._call("cuLaunchKernelEx", config, function, params, 0)
            return
        shape = (launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes, stream)
        if launch.cooperative:
            self._call("cuLaunchCooperativeKernel", function, *shape, params)
        else:
            self._call("cuLaunchKernel", function, *shape, params, 0)

    @functools.cached_property
    def _programmatic(self) -> Any:
        """The attribute of launches that may start early."""
        attribute = self._api.CUlaunchAttribute()
        kinds = self._api.CUlaunchAttributeID
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        return attribute

    # -- graphs ------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        # Relaxed: finalisers may free other memory on this thread meanwhile.
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int, *, keep: bool = True) -> int:
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return int(self._call("cuGraphInstantiate", graph, 0)) if keep else 0
        finally:
            self._call("cuGraphDestroy", graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        if self._quick is None:
            self._call("cuGraphLaunch", graph, stream)
        elif status := self._quick.launch_graph(graph, stream):
            self.refuse("cuGraphLaunch", status)

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def nvidia_driver() -> NvidiaDriver:
    """The driver of this machine, started once.

    Raises:
        DeviceUnavailableError: the package or the driver is missing, or the driver is too old.
    """
    try:
        api = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceUnavailableError(
            "the package cuda-bindings is missing: pip install 'ostinato[cuda]'"
        ) from error
    return NvidiaDriver(api, QuickCalls.find())
