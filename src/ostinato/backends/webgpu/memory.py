"""Blocks of device memory, and their copies from and to the host."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.common.program_memory import BlockKind
from ostinato.backends.common.regions import host_address
from ostinato.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.webgpu.commands import Commands
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.plan.buffer import Storage

__all__ = ["Blocks", "DeviceBlock", "device_block"]

#: Bytes of the host that fill a larger part of a block, and the most that is read at a time.
_PART = 1 << 20
_READ_AT_ONCE = 64 << 20

#: Copies between buffers are of whole words.
_WORD = 4


class _Addresses:
    """Addresses for the order of submissions, which is the process's: no two blocks share any.

    They are beyond those of the host's memory, and none is given out twice.
    """

    def __init__(self) -> None:
        self._guard = Mutex()
        self._next = 1 << 60

    def take(self, nbytes: int) -> int:
        """The first of as many addresses."""
        with self._guard:
            start = self._next
            self._next += max(nbytes, 1)
        return start


#: The only instance, as there is only one order of submissions.
_ADDRESSES = _Addresses()


class DeviceBlock:
    """A block of device memory, zeroed, taken at its first use: a plan's ``Memory``.

    It is one buffer, or several of :attr:`WebGpuTarget.part_bytes` bytes and a last one. It is
    given back with the last reference; the driver keeps buffers until submitted work is done.

    Args:
        gpu: the device.
        nbytes: its size.
        purpose: its use, for messages.

    Attributes:
        gpu, nbytes: see above.
        address: a number that stands for the first byte in the order of submissions.
        version: the number of times that its buffers were given back.
    """

    def __init__(self, gpu: Gpu, nbytes: int, purpose: str) -> None:
        self.gpu = gpu
        self.nbytes = nbytes
        self.address = _ADDRESSES.take(nbytes)
        self._purpose = purpose
        self.version = 0
        self._guard = Mutex()
        self._buffers: list[Any] | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """Equal for two looks at the same block with the same buffers."""
        return self.address, self.version

    @property
    def buffers(self) -> list[Any]:
        """The driver's buffers.

        Raises:
            DeviceMemoryError: the device has not enough memory.
        """
        found = self._buffers
        if found is None:
            with self._guard:
                if self._buffers is None:
                    self._buffers = self.gpu.allocate(self.nbytes, self._purpose)
                found = self._buffers
        return found

    def discard(self) -> None:
        """Give the memory back, until the next use; it is zero then."""
        with self._guard:
            self._buffers = None
            self.version += 1

    def parts(self, offset: int, nbytes: int) -> Iterator[tuple[Any, int, int]]:
        """The buffers that some bytes are in, each with the offset and the number of them there."""
        part = self.gpu.target.part_bytes
        while nbytes:
            number, start = divmod(offset, part)
            held = min(nbytes, part - start)
            yield self.buffers[number], start, held
            offset, nbytes = offset + held, nbytes - held

    # -- copies ------------------------------------------------------------------------------------

    def write(self, offset: int, data: memoryview, *, padded: bool = False) -> None:
        """Copy bytes of the host into the block, before all that is submitted from now on.

        Args:
            offset, data: where, and what.
            padded: whether the other bytes of the first and last word are of no account.
        """
        end = offset + data.nbytes
        if not data.nbytes:
            return
        head = -offset % _WORD
        if head:
            self._write_partly(offset, data[:head], padded=padded)
            offset, data = offset + head, data[head:]
        whole = data.nbytes // _WORD * _WORD
        if whole:
            self._write_words(offset, data[:whole])
        if data.nbytes > whole:
            padded = padded or end == self.nbytes
            self._write_partly(offset + whole, data[whole:], padded=padded)

    def _write_partly(self, offset: int, data: memoryview, *, padded: bool) -> None:
        """Write a part of a word."""
        word, start = bytearray(_WORD), offset % _WORD
        if not padded:
            self._read_words(offset - start, memoryview(word))
        word[start : start + data.nbytes] = data
        self._write_words(offset - start, memoryview(word))

    def _write_words(self, offset: int, data: memoryview) -> None:
        address, driver = host_address(data), self.gpu.driver
        with self.gpu.calls():
            for buffer, start, held in self.parts(offset, data.nbytes):
                driver.write(buffer, start, address, held)
                address += held

    def read(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the block to the host, after all that was submitted."""
        nbytes = data.nbytes
        if not nbytes:
            return
        before, after = offset % _WORD, -(offset + nbytes) % _WORD
        if not (before or after):
            self._read_words(offset, data)
            return
        words = memoryview(bytearray(before + nbytes + after))
        self._read_words(offset - before, words)
        data[:] = words[before : before + nbytes]

    def _read_words(self, offset: int, data: memoryview) -> None:
        """The same of whole words."""
        address, driver = host_address(data), self.gpu.driver
        with self.gpu.calls():
            for buffer, begin, held in self.parts(offset, data.nbytes):
                for start in range(begin, begin + held, _READ_AT_ONCE):
                    nbytes = min(_READ_AT_ONCE, begin + held - start)
                    staging = driver.staging_buffer(nbytes)
                    with driver.commands() as commands:
                        commands.copy(staging, 0, buffer, start, nbytes)
                    with driver.mapped(staging, nbytes, commands.index) as found:
                        ctypes.memmove(address, found, nbytes)
                    address += nbytes

    def repeat(self, offset: int, element: bytes, count: int) -> None:
        """Fill bytes of the block with copies of an element; the host has few of them."""
        nbytes = len(element) * count
        part = memoryview(element * max(min(_PART // len(element), count), 1))
        for first in range(0, nbytes, len(part)):
            held = part[: nbytes - first]
            self.write(offset + first, held, padded=first + len(held) == nbytes)

    def clear(self) -> None:
        """Zero the block."""
        if self._buffers is not None:
            with self.gpu.calls(), self.gpu.driver.commands() as commands:
                for buffer in self._buffers:
                    commands.clear(buffer, 0, buffer.size)

    def copy_from(self, other: DeviceBlock) -> None:
        """Copy another block of the same device and size."""
        if self.nbytes:
            with self.gpu.calls(), self.gpu.driver.commands() as commands:
                self.copy_within(commands, 0, other, 0, -(-self.nbytes // _WORD) * _WORD)

    def copy_within(
        self, commands: Commands, offset: int, source: DeviceBlock, start: int, nbytes: int
    ) -> None:
        """Encode a copy of whole words of another block."""
        for target, to, room in self.parts(offset, nbytes):
            at = to
            for buffer, begin, held in source.parts(start, room):
                commands.copy(target, at, buffer, begin, held)
                at += held
            start += room

    def copy(self) -> DeviceBlock:
        """A copy of the block."""
        twin = DeviceBlock(self.gpu, self.nbytes, self._purpose)
        twin.copy_from(self)
        return twin


class Blocks(BlockKind[DeviceBlock]):
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`.

    Args:
        gpu: the device.
        purpose: their use, for messages.
    """

    def __init__(self, gpu: Gpu, purpose: str) -> None:
        self._gpu = gpu
        self._purpose = purpose

    def allocate(self, nbytes: int) -> DeviceBlock:
        return DeviceBlock(self._gpu, nbytes, self._purpose)

    def duplicate(self, block: DeviceBlock) -> DeviceBlock:
        return block.copy()

    def memory(self, block: DeviceBlock) -> DeviceBlock:
        return block


def device_block(storage: Storage) -> DeviceBlock:
    """The block that a storage is, for programs that run on device memory.

    Raises:
        PlanError: it is no memory of such a device, or smaller than the storage.
    """
    memory = storage.memory
    if not isinstance(memory, DeviceBlock):
        kind = type(memory).__name__
        raise PlanError(f"{storage.device} cannot run on memory of the kind {kind}")
    if memory.nbytes < storage.nbytes:
        raise PlanError(f"a storage of {storage.nbytes} bytes was given only {memory.nbytes}")
    return memory
