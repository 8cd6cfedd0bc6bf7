"""Memory of a device: storages, and the buffers that are ranges of them."""

from __future__ import annotations

import math
import operator
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ostinato.dtypes import UINT8
from ostinato.errors import GraphError, InputError, PlanError
from ostinato.ir.binding import check_values, solve_dims
from ostinato.ir.leaves import as_numpy
from ostinato.ir.types import TensorType
from ostinato.plan.order import ORDER, Accesses, Submission
from ostinato.variables import evaluate, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.dtypes import DType

__all__ = [
    "Array",
    "Buffer",
    "DeviceQueue",
    "HostMemory",
    "LentStorage",
    "Memory",
    "Storage",
    "bytes_of",
]

Array = np.ndarray[Any, Any]


class Memory(Protocol):
    """A block of memory as a device hands it out. Offsets and sizes have been checked.

    Two that are one block are equal.
    """

    @property
    def address(self) -> int:
        """The address of the first byte, on the device that it belongs to."""

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the host into the block."""

    def read(self, offset: int, data: memoryview) -> None:
        """Copy bytes of the block to the host."""


class DeviceQueue(Protocol):
    """The part of a device's command queue that memory and plans use."""

    @property
    def resident_values(self) -> Mapping[str, int]:
        """Values of Variables that kernels read on the device, and no run may give."""

    def refuse_while_capturing(self, what: str) -> None:
        """Refuse the operation ``what``, which can not be recorded.

        Raises:
            CaptureError: the calling thread records.
        """


class HostMemory:
    """Memory that the processor reads and writes itself.

    Attributes:
        block: the exporter of the memory as a writable buffer of bytes.
    """

    def __init__(self, block: Any) -> None:
        self.block = block
        self._bytes = memoryview(block).cast("B")

    @cached_property
    def address(self) -> int:
        """See :class:`Memory`."""
        octets = np.frombuffer(self.block, np.uint8) if self._bytes.nbytes else np.empty(0, "u1")
        address: int = octets.__array_interface__["data"][0]
        return address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostMemory) and other.block is self.block

    def __hash__(self) -> int:
        return id(self.block)

    def write(self, offset: int, data: memoryview) -> None:
        self._bytes[offset : offset + len(data)] = data

    def read(self, offset: int, data: memoryview) -> None:
        data[:] = self._bytes[offset : offset + len(data)]


class Storage:
    """One block of device memory, allocated at its first use, and zeroed.

    Its size and the offsets of its buffers are known before it is allocated: a plan that is never
    executed on buffers of its own takes no memory for them.

    Args:
        device: the device of the memory.
        nbytes: its size.
        allocate: takes that many bytes of the device.
        queue: the queue of all submissions that use it; by default, nothing runs asynchronously.
    """

    def __init__(
        self,
        device: Any,
        nbytes: int,
        allocate: Callable[[int], Memory],
        queue: DeviceQueue | None = None,
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.allocations = 0  #: number of allocations so far
        self.queue = queue  #: the queue of all submissions that use it
        self._allocate = allocate
        self._memory: Memory | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def memory(self) -> Memory:
        """The block.

        Raises:
            PlanError: it was given back for good.
        """
        memory = self._memory
        if memory is not None:
            return memory
        with self._lock:
            self.check_open()
            if self._memory is None:
                self._memory = self._allocate(self.nbytes)
                self.allocations += 1
            return self._memory

    @property
    def taken(self) -> bool:
        """Whether it has its block at present."""
        return self._memory is not None

    def span(self, offset: int, nbytes: int, *, written: bool) -> tuple[int, int, bool]:
        """The access of a submission to these bytes; see :class:`Accesses`."""
        return self.memory.address + offset, nbytes, written

    def submission(self, what: str, offset: int, nbytes: int, *, written: bool) -> Submission:
        """The calling thread's position in the order, for ``what`` it does to these bytes.

        Raises:
            CaptureError: inside a recording.
            PlanError: the memory was given back for good.
        """
        if self.queue is not None:
            self.queue.refuse_while_capturing(what)
        return Submission(Accesses([self.span(offset, nbytes, written=written)]))

    def release(self) -> None:
        """Give the memory back for good, once what was submitted is done.

        Raises:
            CaptureError: inside a recording.
        """
        if self.queue is not None:
            self.queue.refuse_while_capturing("release frees memory")
        memory = self._memory
        if memory is None:
            self.close()
            return
        with Submission(Accesses([(memory.address, self.nbytes, True)])):
            self.close()

    def close(self) -> None:
        """Give the memory back for good, and drop all recordings that use it, on any context."""
        with self._lock:
            memory, self._memory = self._memory, None
            self._closed = True
        ORDER.memory_changes(self if memory is None else memory, replaced=True)

    def check_open(self) -> None:
        """Raise what keeps the memory from being used.

        Raises:
            PlanError: it was given back for good.
        """
        if self._closed:
            raise PlanError("this memory was released; prepare the graph again to run it")


class LentStorage(Storage):
    """A block of another owner, which may exchange it: it is looked up at each use.

    Args:
        device: the device of the memory.
        nbytes: its size.
        lend: returns the present block.
        token: an address that represents the owner's memory, whichever block that is: submissions
            of the owner touch it.
        queue: as for :class:`Storage`.
    """

    def __init__(
        self,
        device: Any,
        nbytes: int,
        lend: Callable[[], Memory],
        token: int,
        queue: DeviceQueue | None = None,
    ) -> None:
        super().__init__(device, nbytes, lambda _: lend(), queue)
        self._lend = lend
        self._token = token

    def span(self, offset: int, nbytes: int, *, written: bool) -> tuple[int, int, bool]:
        """See :class:`Storage`; all of the owner's memory counts as one."""
        self.check_open()
        return self._token, 1, written

    def release(self) -> None:
        """Refuse: only the owner gives the memory back.

        Raises:
            PlanError: always.
        """
        raise PlanError(
            "a plan shares this memory with its runs; give all of it back with release_all_buffers"
        )

    @property
    def memory(self) -> Memory:
        """The present block.

        Raises:
            PlanError: it was given back for good.
        """
        self.check_open()
        return self._lend()


class Buffer:
    """A tensor's bytes: a range of a storage, C-ordered.

    If the type has Variables, the range has room for their greatest values, while :attr:`shape` and
    the result of :meth:`copyout` follow the values that the plan last ran with; the elements lie at
    the start of the range, without gaps.

    Args:
        storage: the memory.
        offset: of the first byte in the storage.
        type: dtype and shape.
        sizes: the values of the Variables, which may change; needed only if ``type`` has some.
        read_only: the reason for which the user may not write the buffer, or nothing.
        write: writes the whole buffer in the place of :meth:`copyin`, for buffers whose owner must
            be notified.

    Raises:
        PlanError: the range is not within the storage.
    """

    __slots__ = ("_read_only", "_sizes", "_write", "nbytes", "offset", "storage", "type")

    def __init__(
        self,
        storage: Storage,
        offset: int,
        type: TensorType,
        *,
        sizes: Mapping[str, int] | None = None,
        read_only: str = "",
        write: Callable[[Array], None] | None = None,
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.type = type
        self.nbytes = type.max_bytes
        self._sizes = sizes or {}
        self._read_only = read_only
        self._write = write
        if not 0 <= offset <= offset + self.nbytes <= storage.nbytes:
            raise PlanError(
                f"bytes {offset}..{offset + self.nbytes} are not within the {storage.nbytes} "
                "bytes of their storage"
            )

    @property
    def device(self) -> Any:
        """The device of the memory."""
        return self.storage.device

    @property
    def storage_id(self) -> int:
        """The same for buffers of one storage, different for those of another living one."""
        return id(self.storage)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, at the values of the Variables that the plan last ran with."""
        return tuple(evaluate(dim, self._sizes) for dim in self.type.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.type.shape)

    @property
    def end(self) -> int:
        """The end of the buffer in the storage, in bytes."""
        return self.offset + self.nbytes

    def copyin(self, data: Any) -> None:
        """Write the buffer.

        Args:
            data: an array of the buffer's dtype and shape, or ``bytes``, a ``bytearray`` or a
                ``memoryview`` with as many bytes. Where the shape has Variables, any size that
                some of their values give.

        Raises:
            InputError: dtype, shape or size differs, or the buffer is not the user's to write.
            VariableError: a size is out of its Variable's bounds.
            CaptureError: inside a recording.
            PlanError: the memory was released.
        """
        if self._read_only:
            raise InputError(f"{self!r} is {self._read_only}, which cannot be written")
        raw = isinstance(data, bytes | bytearray | memoryview)
        array = self._from_bytes(data) if raw else self._elements(data)
        with self.submission("copyin writes memory", written=True):
            if self._write is not None:
                self._write(array)
            else:
                self.storage.memory.write(self.offset, bytes_of(array))

    def copyout(self) -> Array:
        """A fresh array with the buffer's contents, of its live shape.

        Raises:
            CaptureError: inside a recording.
            PlanError: the memory was released.
        """
        with self.submission("copyout reads back", written=False):
            array = np.empty(self.shape, self.dtype.numpy)
            self.storage.memory.read(self.offset, bytes_of(array))
        return array

    def submission(self, what: str, *, written: bool) -> Submission:
        """The calling thread's position in the order, for ``what`` it does to the buffer.

        Raises:
            CaptureError: inside a recording.
            PlanError: the memory was released.
        """
        return self.storage.submission(what, self.offset, self.nbytes, written=written)

    def view(self, offset: int, nbytes: int) -> Buffer:
        """A buffer on part of these bytes: one-dimensional.

        It has this buffer's dtype if offset and size are whole elements, else ``uint8``.

        Raises:
            InputError: the part is not within the buffer.
        """
        try:
            start, size = operator.index(offset), operator.index(nbytes)
        except TypeError:
            raise InputError(f"a view takes two ints, got {offset!r} and {nbytes!r}") from None
        if start < 0 or size < 0 or start + size > self.nbytes:
            raise InputError(
                f"{size} bytes from byte {start} are not within the {self.nbytes} of {self!r}"
            )
        read_only = self._read_only or ("only part of what is written whole" if self._write else "")
        return Buffer(
            self.storage,
            self.offset + start,
            _flat_type(self.dtype, start, size),
            read_only=read_only,
        )

    def reshaped(self, type: TensorType) -> Buffer:
        """The same bytes as elements of another type of the same size.

        Raises:
            PlanError: the sizes differ.
        """
        if type.max_bytes != self.nbytes:
            raise PlanError(f"{self!r} cannot be seen as {type}, which has {type.max_bytes} bytes")
        return Buffer(
            self.storage,
            self.offset,
            type,
            sizes=self._sizes,
            read_only=self._read_only,
            write=None if self._write is None else self._write_reshaped,
        )

    def check_target(self) -> None:
        """Check that ops may write the buffer.

        Raises:
            InputError: it is read-only, or its owner must be notified when it is written.
        """
        if self._read_only or self._write is not None:
            why = self._read_only or "a param or state of a compiled graph"
            raise InputError(f"{self!r} is {why}, which cannot be written by an op")

    def release(self) -> None:
        """Give back the memory for good: that of this buffer and of all that share its storage.

        Recordings that use it are dropped. From now on, reading, writing or running on it raises.

        Raises:
            CaptureError: inside a recording.
            PlanError: it is memory that a plan shares with its runs.
        """
        self.storage.release()

    def __repr__(self) -> str:
        return f"<Buffer {self.type} on {self.device}, {self.nbytes} bytes at {self.offset}>"

    # -- writing -----------------------------------------------------------------------------------

    def _write_reshaped(self, array: Array) -> None:
        assert self._write is not None
        self._write(array.reshape(self.shape))

    def _from_bytes(self, data: bytes | bytearray | memoryview) -> Array:
        """The elements in ``data``: as many as are live, or as the buffer has room for."""
        try:
            octets = np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, "u1")
        except (ValueError, BufferError) as error:  # released, or not contiguous
            raise InputError(f"{self!r}: {error}") from None
        live = math.prod(self.shape) * self.dtype.itemsize
        if octets.nbytes not in (live, self.nbytes):
            wanted = f"{live} or {self.nbytes}" if live != self.nbytes else str(live)
            raise InputError(f"{self!r} takes {wanted} bytes, got {octets.nbytes}")
        elements: Array = octets.view(self.dtype.numpy)
        return elements.reshape(self.shape) if octets.nbytes == live else elements

    def _elements(self, data: Any) -> Array:
        try:
            array = as_numpy(data)
        except GraphError as error:
            raise InputError(f"{self!r}: {error}") from None
        if array.dtype != self.dtype.numpy:
            raise InputError(f"{self!r} holds {self.dtype}, got {array.dtype}; cast the array")
        values = solve_dims({"the array": (self.type.shape, array.shape)}, {})
        known = {s.name: s for dim in self.type.shape for s in symbols(dim) if s.name in values}
        check_values(known, values)
        if array.nbytes > self.nbytes:
            raise InputError(f"{self!r} takes at most {self.nbytes} bytes, got {array.nbytes}")
        return array


def _flat_type(dtype: DType, offset: int, nbytes: int) -> TensorType:
    if offset % dtype.itemsize or nbytes % dtype.itemsize:
        dtype = UINT8
    return TensorType(dtype, (nbytes // dtype.itemsize,))


def bytes_of(array: Array) -> memoryview:
    """The bytes of a C-ordered array; NumPy exports some dtypes in no other way."""
    octets: Any = array.reshape(-1).view(np.uint8)
    return memoryview(octets)
