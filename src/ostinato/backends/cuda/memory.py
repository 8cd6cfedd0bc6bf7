"""Memory of the GPU, whole or page by page, and page-locked memory of the host."""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.common.program_memory import BlockKind
from ostinato.backends.common.regions import host_address
from ostinato.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cuda.gpu import Gpu
    from ostinato.plan.buffer import Storage

__all__ = [
    "LARGE",
    "Blocks",
    "DeviceBlock",
    "ForeignBlock",
    "HostBlock",
    "PagedBlock",
    "device_block",
]


#: From as many bytes on, memory whose use depends on Variables is taken page by page.
LARGE = 1 << 26

#: Bytes of the host that fill a larger part of a block.
_PART = 1 << 20


class DeviceBlock:
    """A block of device memory, zeroed, taken at its first use: a plan's ``Memory``.

    It is given back with the last reference.

    Args:
        gpu: the GPU.
        nbytes: its size.
        purpose: its use, for messages.
    """

    def __init__(self, gpu: Gpu, nbytes: int, purpose: str) -> None:
        self.gpu = gpu
        self.nbytes = nbytes
        self._purpose = purpose
        self._guard = Mutex()
        self._address = 0
        self._give_back: Callable[[], object] | None = None

    @property
    def address(self) -> int:
        """The address of the first byte, on the device.

        Raises:
            DeviceMemoryError: the device has not enough memory.
        """
        if not self._address:
            with self._guard:
                if not self._address:
                    self._take()
        return self._address

    def _take(self) -> None:
        gpu = self.gpu
        address = gpu.allocate(self.nbytes, self._purpose)
        finalizer = weakref.finalize(self, gpu.release, "free", address, gpu.memory_stream.handle)
        finalizer.atexit = False
        self._give_back = finalizer
        self._address = address

    def ready(self, offset: int, nbytes: int) -> int:
        """The address of some of its bytes, which have memory from now on.

        Raises:
            DeviceMemoryError: the device has not enough memory.
        """
        return self.address + offset

    def discard(self) -> None:
        """Give the memory back, until the next use; it is zero then. Nothing is using it."""
        with self._guard:
            give_back, self._give_back, self._address = self._give_back, None, 0
        if give_back is not None:
            give_back()

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the host into the block, and wait."""
        self._transfer(offset, data, write=True)

    def repeat(self, offset: int, element: bytes, count: int) -> None:
        """Fill bytes of the block with copies of an element, and wait; the host has few of them."""
        nbytes = len(element) * count
        if not nbytes:
            return
        start = self.ready(offset, nbytes)
        if len({*element}) == 1:
            stream = self.gpu.memory_stream.handle
            with self.gpu.current() as driver:
                driver.fill(start, element[0], nbytes, stream)
                driver.synchronize(stream)
            return
        part = memoryview(element * max(min(_PART // len(element), count), 1))
        for first in range(0, nbytes, len(part)):
            self.write(offset + first, part[: nbytes - first])

    def read(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the block to the host, and wait."""
        self._transfer(offset, data, write=False)

    def copy_from(self, other: DeviceBlock) -> None:
        """Copy another block of the same device and size, and wait."""
        if self.nbytes:
            here, there = self.ready(0, self.nbytes), other.ready(0, self.nbytes)
            self._copy(here, there, self.nbytes)

    def copy(self) -> DeviceBlock:
        """A copy of the block."""
        twin = DeviceBlock(self.gpu, self.nbytes, self._purpose)
        twin.copy_from(self)
        return twin

    def _transfer(self, offset: int, data: memoryview, *, write: bool) -> None:
        if not data.nbytes:
            return
        there, here = self.ready(offset, data.nbytes), host_address(data)
        target, source = (there, here) if write else (here, there)
        self._copy(target, source, data.nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        stream = self.gpu.memory_stream.handle
        with self.gpu.current() as driver:
            driver.copy(target, source, nbytes, stream)
            driver.synchronize(stream)


class PagedBlock(DeviceBlock):
    """A block that has memory only where :meth:`ready` was called for it, by whole pages.

    Its addresses stay the same while it grows.
    """

    _pages: list[tuple[int, int]]  #: what has memory: addresses and sizes, in no order

    def _take(self) -> None:
        gpu = self.gpu
        mapped: list[tuple[int, int]] = []
        nbytes = -(-max(self.nbytes, 1) // gpu.page_bytes) * gpu.page_bytes
        address = gpu.reserve(nbytes, self._purpose)
        finalizer = weakref.finalize(self, gpu.release, "release_pages", address, nbytes, mapped)
        finalizer.atexit = False
        self._give_back = finalizer
        self._pages = mapped
        self._address = address

    def ready(self, offset: int, nbytes: int) -> int:
        start = self.address + offset
        if not nbytes:
            return start
        page = self.gpu.page_bytes
        first, end = start // page * page, -(-(start + nbytes) // page) * page
        with self._guard:
            for low, high in _gaps(self._pages, first, end):
                self.gpu.map_pages(low, high - low, self._purpose)
                self._pages.append((low, high - low))
        return start


def _gaps(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The stretches from ``start`` to ``end`` that are in none of some spans."""
    gaps = []
    for low, size in sorted(spans):
        if start >= end or low >= end:
            break
        if low > start:
            gaps.append((start, low))
        start = max(start, low + size)
    if start < end:
        gaps.append((start, end))
    return gaps


class ForeignBlock(DeviceBlock):
    """A block of device memory that another library owns.

    Args:
        gpu: the GPU.
        address: of the first byte.
        nbytes: its size.
        owner: keeps the memory alive.
    """

    def __init__(self, gpu: Gpu, address: int, nbytes: int, owner: object) -> None:
        super().__init__(gpu, nbytes, "an array")
        self._address = address
        self._owner = owner


class HostBlock:
    """Zeroed, page-locked memory of the host, which the device reads and writes at its own address.

    Args:
        gpu: the GPU.
        nbytes: its size.

    Attributes:
        address: of the first byte, the same for both.
        nbytes: its size.
        view: its bytes, writable.
    """

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.nbytes = nbytes
        with gpu.current() as driver:
            self.address = driver.allocate_host(max(nbytes, 1))
        block = (ctypes.c_char * nbytes).from_address(self.address)
        ctypes.memset(self.address, 0, nbytes)
        # Views keep the ctypes array alive, and that the memory.
        release = partial(gpu.release, "free_host", self.address)
        weakref.finalize(block, release).atexit = False
        self.view = memoryview(block).cast("B")


class Blocks(BlockKind[DeviceBlock]):
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`.

    Args:
        gpu: the GPU.
        purpose: their use, for messages.
        grows: whether runs say what they use of the arena.
    """

    def __init__(self, gpu: Gpu, purpose: str, *, grows: bool = False) -> None:
        self._gpu = gpu
        self._purpose = purpose
        self._grows = grows

    def allocate(self, nbytes: int) -> DeviceBlock:
        return DeviceBlock(self._gpu, nbytes, self._purpose)

    def arena(self, nbytes: int) -> DeviceBlock:
        kind = PagedBlock if self._grows else DeviceBlock
        return kind(self._gpu, nbytes, self._purpose)

    def duplicate(self, block: DeviceBlock) -> DeviceBlock:
        twin = self.allocate(block.nbytes)
        twin.copy_from(block)
        return twin

    def memory(self, block: DeviceBlock) -> DeviceBlock:
        return block


def device_block(storage: Storage) -> DeviceBlock:
    """The block that a storage is, for programs that run on device memory.

    Raises:
        PlanError: it is no memory of a GPU, or smaller than the storage.
    """
    memory = storage.memory
    if not isinstance(memory, DeviceBlock):
        kind = type(memory).__name__
        raise PlanError(f"{storage.device} cannot run on memory of the kind {kind}")
    if memory.nbytes < storage.nbytes:
        raise PlanError(f"a storage of {storage.nbytes} bytes was given only {memory.nbytes}")
    return memory
