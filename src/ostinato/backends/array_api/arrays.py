"""Arrays of a framework in the roles that the runtime has for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.program_memory import BlockKind
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from ostinato.backends.array_api.framework import Framework
    from ostinato.dtypes import DType

__all__ = [
    "ArrayBlock",
    "ArrayBlocks",
    "ArrayMemory",
    "BlockMemory",
    "ResidentArray",
    "aligned_bytes",
    "host_view",
]

#: The alignment at which frameworks take memory of the host as it is.
_ALIGNMENT = 64


class ArrayBlock:
    """A slot of a program: arrays by the offsets that the layout gives them.

    Arrays are immutable, so that copies of a block share them.

    Args:
        framework: has the arrays.
        nbytes: of the slot.
    """

    def __init__(self, framework: Framework, nbytes: int) -> None:
        self._framework = framework
        self.nbytes = nbytes
        self.arrays: dict[int, Any] = {}

    def copy_from(self, other: ArrayBlock) -> None:
        """Have copies of another block's arrays, which may be donated apart from those."""
        with self._framework.scope():
            copies = {at: self._framework.copy(array) for at, array in other.arrays.items()}
            self._framework.wait([*copies.values()])
        self.arrays.update(copies)

    def discard(self) -> None:
        """Drop the arrays."""
        self.arrays.clear()


class ArrayBlocks(BlockKind[ArrayBlock]):
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`.

    Args:
        framework: has the arrays.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    def allocate(self, nbytes: int) -> ArrayBlock:
        return ArrayBlock(self._framework, nbytes)

    def duplicate(self, block: ArrayBlock) -> ArrayBlock:
        twin = ArrayBlock(self._framework, block.nbytes)
        twin.arrays = dict(block.arrays)
        return twin

    def memory(self, block: ArrayBlock) -> BlockMemory:
        return BlockMemory(self._framework, block)


class BlockMemory:
    """A block as bytes, for plans; see :class:`~ostinato.plan.buffer.Memory`.

    What no array holds reads as zeros.

    Attributes:
        block: the block.
    """

    def __init__(self, framework: Framework, block: ArrayBlock) -> None:
        self._framework = framework
        self.block = block

    @property
    def address(self) -> int:
        """A number that stands for the block: it has no address of its own."""
        return id(self.block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockMemory) and other.block is self.block

    def __hash__(self) -> int:
        return id(self.block)

    def write(self, offset: int, data: memoryview) -> None:
        """Replace the array that the bytes are within, or begin one of bytes."""
        start = self._start(offset)
        with self._framework.scope():
            if start is None:
                found = np.frombuffer(data, np.uint8).copy()
                start = offset
            else:
                found = np.array(self._framework.to_host(self.block.arrays[start]))
                bytes_of(found)[offset - start : offset - start + len(data)] = data
            self.block.arrays[start] = self._framework.from_host(found, copy=True)

    def read(self, offset: int, data: memoryview) -> None:
        start = self._start(offset)
        if start is None:
            data[:] = bytes(len(data))
            return
        with self._framework.scope():
            found = bytes_of(
                np.ascontiguousarray(self._framework.to_host(self.block.arrays[start]))
            )
            part = found[offset - start : offset - start + len(data)]
            data[: len(part)] = part
            data[len(part) :] = bytes(len(data) - len(part))

    def _start(self, offset: int) -> int | None:
        """The offset of the array that has this byte."""
        starts = [start for start in self.block.arrays if start <= offset]
        if not starts:
            return None
        start = max(starts)
        return (
            start if offset == start or offset < start + _size(self.block.arrays[start]) else None
        )


class ArrayMemory:
    """The memory of a resident array: whichever array of the framework holds it at the time.

    Args:
        framework: has the arrays.
        array: the first.
        nbytes: the size of each of them.
        foreign: whether another library has the first one as well.

    Attributes:
        array: the present one.
        foreign: see above.
    """

    def __init__(
        self, framework: Framework, array: Any, nbytes: int, *, foreign: bool = False
    ) -> None:
        self.foreign = foreign
        self._framework = framework
        self.array = array
        # Never touched: it keeps addresses that no other memory of the process has.
        self._reserved = np.empty(max(nbytes, 1), np.uint8)

    @property
    def address(self) -> int:
        """An address that stands for this memory in the order of submissions."""
        address: int = self._reserved.__array_interface__["data"][0]
        return address

    def read(self, offset: int, data: memoryview) -> None:
        """Copy bytes to the host."""
        with self._framework.scope():
            found = bytes_of(np.ascontiguousarray(self._framework.to_host(self.array)))
            data[:] = found[offset : offset + len(data)]

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the host over part of the array, or all of it."""
        with self._framework.scope():
            whole = np.array(self._framework.to_host(self.array))
            bytes_of(whole)[offset : offset + len(data)] = data
            self.array = self._framework.from_host(whole, copy=True)

    def copy(self) -> ArrayMemory:
        """The same array, which is never written, in memory of another address."""
        with self._framework.scope():
            return ArrayMemory(
                self._framework, self._framework.copy(self.array), self._reserved.nbytes
            )


class ResidentArray(DeviceArray):
    """An array of a framework that a handle keeps; DLPack exports it without a copy."""

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self.memory.array.__dlpack_device__()
        return found

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.array.__dlpack__(**options)


def aligned_bytes(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeroed memory of the host that frameworks can take as it is."""
    whole = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    start = -whole.__array_interface__["data"][0] % _ALIGNMENT
    return whole[start : start + nbytes]


def host_view(block: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array at the start of host memory: of an array, or of what else exports bytes."""
    if isinstance(block, np.ndarray):
        if block.shape == shape and block.dtype == dtype.numpy:
            return block
        flat = block.reshape(-1)
        if flat.dtype == dtype.numpy:
            return flat[: _elements(shape)].reshape(shape)
        octets = flat.view(np.uint8)
    else:
        octets = np.frombuffer(block, np.uint8)
    return octets[: _elements(shape) * dtype.itemsize].view(dtype.numpy).reshape(shape)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _size(array: Any) -> int:
    nbytes: int = array.nbytes
    return nbytes
