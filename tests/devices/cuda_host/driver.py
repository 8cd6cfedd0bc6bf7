"""A CUDA driver in this process: memory of the host, and streams that work late.

Work waits in its stream until something waits for it, so a wait that is missing shows: results are
not there, or memory that was given back is used. Every access is checked against the memory that
was handed out.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.driver import DeviceProperties, DriverFailure
from ostinato.backends.cuda.quick_calls import EntryPoints

__all__ = ["HostDriver", "HostFunction", "Span"]

#: Behind and before every allocation: accesses beyond it hit no other.
_APART = 4096

#: Linux: no memory is set aside; the module ``mmap`` has no name for it before Python 3.13.
_NO_RESERVE = 0x4000

#: The size of a page of device memory.
_PAGE = mmap.PAGESIZE

_FREED = 0xDB

Work = Callable[[], None]


class Span(NamedTuple):
    """An allocation."""

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.start + self.nbytes


class HostFunction(Protocol):
    """A kernel of the host."""

    def __call__(
        self, launch: Launch, addresses: Sequence[int], memory: Callable[[int], Span]
    ) -> None:
        """Run a launch; ``memory`` returns the allocation that an address is in."""


class HostDriver:
    """See :class:`~ostinato.backends.cuda.driver.Driver`.

    Args:
        loader: the kernels of an image, by name.
        devices: how many GPUs there are.
        total_bytes: the memory of each.

    Attributes:
        events: names of calls and what they were about, in order.
        fail_next: the result that the next call of this name has, once.
        prompt: whether graphs are done when they are launched.
    """

    def __init__(
        self,
        loader: Callable[[bytes], Mapping[str, HostFunction]],
        *,
        devices: int = 1,
        total_bytes: int = 1 << 34,
    ) -> None:
        self.events: list[tuple[str, object]] = []
        self.fail_next: dict[str, str] = {}
        self.prompt = False
        self._loader = loader
        self._devices = devices
        self._total = total_bytes
        self._free = total_bytes
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._current = threading.local()
        self._memory: dict[int, tuple[Span, object]] = {}
        self._host: dict[int, tuple[Span, object]] = {}
        self._starts: list[int] = []
        self._reserved: dict[int, mmap.mmap] = {}
        self._streams: dict[int, list[Work]] = {}
        self._capturing: set[int] = set()
        self._graphs: dict[int, list[Work]] = {}
        self._happened: dict[int, float] = {}
        self._recorded: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._clock = itertools.count()
        self._libraries: dict[int, Mapping[str, HostFunction]] = {}
        self._functions: dict[int, HostFunction] = {}
        self._sticky: DriverFailure | None = None
        self._failures: list[Exception] = []

    def _enter(self, call: str, about: object = None, *, context: bool = True) -> None:
        if self._sticky is not None:
            raise self._sticky
        if context and not getattr(self._current, "stack", None):
            raise DriverFailure(call, "CUDA_ERROR_INVALID_CONTEXT", "no context is current")
        self.events.append((call, about))
        if call in self.fail_next:
            error = DriverFailure(call, self.fail_next.pop(call), "injected by a test")
            if error.sticky:
                self._sticky = error
            raise error

    def count_of(self, call: str) -> int:
        """The number of times that a call was made."""
        return sum(name == call for name, _ in self.events)

    @property
    def allocated(self) -> int:
        """Bytes of device memory that are taken."""
        return self._total - self._free

    def version(self) -> tuple[int, int]:
        return 13, 0

    def count(self) -> int:
        return self._devices

    def properties(self, index: int) -> DeviceProperties:
        return DeviceProperties("host", (9, 0), 2, 99 << 10, 1024, self._total)

    # -- contexts ----------------------------------------------------------------------------------

    def retain(self, index: int) -> int:
        self._enter("retain", index, context=False)
        return 1000 + index

    def push(self, context: int) -> None:
        stack = getattr(self._current, "stack", None)
        if stack is None:
            stack = self._current.stack = []
        stack.append(context)

    def pop(self) -> None:
        self._current.stack.pop()

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        self._enter("allocate", nbytes)
        with self._lock:
            if nbytes > self._free:
                raise DriverFailure("cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
            self._free -= nbytes
            address = self._take(self._memory, nbytes)
        ctypes.memset(address, 0xA5, nbytes)  # memory is as it was left
        return address

    def _take(self, kind: dict[int, tuple[Span, object]], nbytes: int) -> int:
        room = ctypes.create_string_buffer(nbytes + 2 * _APART)
        address = -(-(ctypes.addressof(room) + 1) // _APART) * _APART
        kind[address] = (Span(address, nbytes), room)
        if kind is self._memory:
            self._starts.insert(bisect_right(self._starts, address), address)
        return address

    def free(self, address: int, stream: int) -> None:
        self._enter("free", address)

        def work() -> None:
            with self._lock:
                span, _ = self._memory.pop(address)
                self._starts.remove(address)
                self._free += span.nbytes
            ctypes.memset(address, _FREED, span.nbytes)

        self._do(stream, work)
        self.synchronize(stream)

    def memory_info(self) -> tuple[int, int]:
        return self._free, self._total

    def page_bytes(self, index: int) -> int:
        self._enter("page_bytes", index)
        return _PAGE

    def reserve(self, nbytes: int) -> int:
        self._enter("reserve", nbytes)
        room = mmap.mmap(-1, nbytes + _APART, mmap.MAP_PRIVATE | _NO_RESERVE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        with self._lock:
            self._reserved[address] = room
        return address

    def map_pages(self, index: int, address: int, nbytes: int) -> None:
        self._enter("map_pages", nbytes)
        assert address % _PAGE == nbytes % _PAGE == 0
        with self._lock:
            if nbytes > self._free:
                raise DriverFailure("cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
            self._free -= nbytes
            # Kernels see pages that follow one another as one allocation.
            start, end = address, address + nbytes
            for at in [*self._starts]:
                span, room = self._memory[at]
                if room is None and (span.end == start or span.start == end):
                    start, end = min(start, span.start), max(end, span.end)
                    del self._memory[at]
                    self._starts.remove(at)
            self._memory[start] = Span(start, end - start), None
            self._starts.insert(bisect_right(self._starts, start), start)
        ctypes.memset(address, 0xA5, nbytes)

    def release_pages(self, address: int, nbytes: int, mapped: Sequence[tuple[int, int]]) -> None:
        self._enter("release_pages", address)
        with self._lock:
            for at in [at for at in self._starts if address <= at < address + nbytes]:
                self._free += self._memory.pop(at)[0].nbytes
                self._starts.remove(at)
            del self._reserved[address]

    def allocate_host(self, nbytes: int) -> int:
        self._enter("allocate_host", nbytes)
        with self._lock:
            return self._take(self._host, nbytes)

    def free_host(self, address: int) -> None:
        self._enter("free_host", address)
        with self._lock:
            self._host.pop(address)

    def span(self, address: int) -> Span:
        """The allocation that an address is in.

        Raises:
            DriverFailure: it is in none.
        """
        with self._lock:
            position = bisect_right(self._starts, address) - 1
            if position >= 0:
                span, _ = self._memory[self._starts[position]]
                if address < span.end or (address == span.end and not span.nbytes):
                    return span
        raise self._fault(f"{address:#x} is no address of the device")

    def _reachable(self, address: int) -> Span:
        """The allocation that an address of a kernel is in, of the device or page-locked."""
        with self._lock:
            pinned = (s for s, _ in self._host.values() if s.start <= address < s.end)
            found = next(pinned, None)
        return self.span(address) if found is None else found

    def _fault(self, meaning: str) -> DriverFailure:
        self._sticky = DriverFailure("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", meaning)
        return self._sticky

    def _checked(self, address: int, nbytes: int) -> None:
        span = self.span(address)
        if address + nbytes > span.end:
            raise self._fault(f"{nbytes} bytes at {address:#x} are not within {span}")

    def _is_device(self, address: int) -> bool:
        with self._lock:
            position = bisect_right(self._starts, address) - 1
            return position >= 0 and address < self._memory[self._starts[position]][0].end

    def _is_pinned(self, address: int) -> bool:
        with self._lock:
            return any(s.start <= address < s.end for s, _ in self._host.values())

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter("copy", nbytes)
        to_device, from_device = self._is_device(target), self._is_device(source)
        if not to_device and not from_device:
            raise DriverFailure("cuMemcpyAsync", "CUDA_ERROR_INVALID_VALUE", "host to host")
        pageable = not (
            (to_device or self._is_pinned(target)) and (from_device or self._is_pinned(source))
        )
        if pageable and stream in self._capturing:
            raise DriverFailure(
                "cuMemcpyAsync", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "pageable memory"
            )
        staged = ctypes.string_at(source, nbytes) if pageable and not from_device else None

        def work() -> None:
            if to_device:
                self._checked(target, nbytes)
            if from_device:
                self._checked(source, nbytes)
            ctypes.memmove(target, source if staged is None else staged, nbytes)

        self._do(stream, work)
        if pageable and from_device:
            self._drain(stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        self._enter("fill", nbytes)

        def work() -> None:
            self._checked(target, nbytes)
            ctypes.memset(target, value, nbytes)

        self._do(stream, work)

    # -- streams and events ------------------------------------------------------------------------

    def _do(self, stream: int, work: Work) -> None:
        with self._lock:
            self._streams[stream].append(work)

    def _drain(self, stream: int) -> None:
        with self._lock:
            while self._streams[stream]:
                self._streams[stream].pop(0)()

    def create_stream(self) -> int:
        self._enter("create_stream")
        number = next(self._numbers)
        self._streams[number] = []
        return number

    def destroy_stream(self, stream: int) -> None:
        self._enter("destroy_stream", stream)
        self._drain(stream)
        del self._streams[stream]

    def synchronize(self, stream: int) -> None:
        self._enter("synchronize", stream)
        if stream in self._capturing:
            raise DriverFailure(
                "cuStreamSynchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "it records"
            )
        self._drain(stream)

    def create_event(self, *, timed: bool) -> int:
        self._enter("create_event")
        return next(self._numbers)

    def destroy_event(self, event: int) -> None:
        self._happened.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        self._enter("record", event)
        self._recorded[event] = number = self._recorded.get(event, 0) + 1

        def work() -> None:
            self._happened[event] = float(next(self._clock))
            self._reached[event] = number

        self._do(stream, work)

    def wait(self, stream: int, event: int) -> None:
        self._enter("wait", event)
        number = self._recorded.get(event, 0)  # of the last record so far

        def work() -> None:
            for other in list(self._streams):
                if self._reached.get(event, 0) < number and other != stream:
                    self._drain(other)

        self._do(stream, work)

    def elapsed(self, start: int, end: int) -> float:
        return (self._happened[end] - self._happened[start]) * 1e-6

    # -- code --------------------------------------------------------------------------------------

    def load(self, image: bytes) -> int:
        self._enter("load", len(image))
        number = next(self._numbers)
        self._libraries[number] = self._loader(image)
        return number

    def unload(self, library: int) -> None:
        self._enter("unload", library)
        del self._libraries[library]

    def function(self, library: int, name: str, shared_bytes: int) -> int:
        self._enter("function", name)
        number = next(self._numbers)
        self._functions[number] = self._libraries[library][name]
        return number

    def launch(self, function: int, launch: Launch, arguments: Sequence[int], stream: int) -> None:
        self._enter("launch", function)
        code, addresses = self._functions[function], tuple(arguments)
        self._do(stream, lambda: code(launch, addresses, self._reachable))

    def enqueue(self, call: str, about: object, work: Work, stream: int) -> None:
        """Add work of a library to a stream."""
        self._enter(call, about)
        self._do(stream, work)

    # -- graphs ------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        self._enter("begin_capture", stream)
        self._drain(stream)
        self._capturing.add(stream)

    def end_capture(self, stream: int, *, keep: bool = True) -> int:
        self._enter("end_capture", stream)
        self._capturing.remove(stream)
        work, self._streams[stream] = self._streams[stream], []
        if not keep:
            return 0
        number = next(self._numbers)
        self._graphs[number] = work
        return number

    def launch_graph(self, graph: int, stream: int) -> None:
        self._enter("launch_graph", graph)
        for work in self._graphs[graph]:
            self._do(stream, work)
        if self.prompt:
            self._drain(stream)

    @cached_property
    def entry_points(self) -> EntryPoints:
        """The calls as native code makes them."""
        handle, place = ctypes.c_void_p, ctypes.c_void_p
        self._native = (
            ctypes.CFUNCTYPE(ctypes.c_int, handle)(self._status(self.push)),
            ctypes.CFUNCTYPE(ctypes.c_int, place)(self._status(lambda _: self.pop())),
            ctypes.CFUNCTYPE(ctypes.c_int, handle, handle)(self._status(self.launch_graph)),
            ctypes.CFUNCTYPE(ctypes.c_int, handle)(self._status(self.synchronize)),
        )
        return EntryPoints(*(ctypes.cast(f, handle).value or 0 for f in self._native))

    def _status(self, call: Callable[..., None]) -> Callable[..., int]:
        """A call that returns a status; its failure is kept for :meth:`refuse`."""

        def made(*arguments: int) -> int:
            try:
                call(*arguments)
            except Exception as error:
                self._failures.append(error)
                return -1
            return 0

        return made

    def refuse(self, name: str, status: int) -> None:
        failures, self._failures = self._failures, []
        raise failures[0]

    def destroy_graph(self, graph: int) -> None:
        self._enter("destroy_graph", graph)
        del self._graphs[graph]
