"""Tensors of a GGUF file as the sources of params."""

from __future__ import annotations

import mmap
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, UINT8
from ostinato.errors import InputError, ModelFormatError
from ostinato.ir.files import FileRange
from ostinato.ir.stored import StoredTensor
from ostinato.ops.packed.decoding import decode, packed_format
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.frontends.gguf.tensor_types import TensorType
    from ostinato.ir.files import OpenFile

__all__ = ["GGUFTensor", "MappedFile"]

Array = np.ndarray[Any, Any]


class MappedFile:
    """A file that is mapped into memory, read-only; its pages are in memory while they are used.

    Raises:
        ModelFormatError: it is empty.
        OSError: it can not be mapped.
    """

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        if file.size == 0:
            raise ModelFormatError(f"{file.name!r} is empty")
        self.data = mmap.mmap(file.fileno(), file.size, access=mmap.ACCESS_READ)

    def array(self, dtype: DType, count: int, offset: int, name: str) -> Array:
        """Elements of the file, not to be written; copied only where they are not aligned.

        Raises:
            ModelFormatError: the file was written since it was opened.
        """
        if not self.file.unchanged:
            raise ModelFormatError(
                f"{name!r}: the file {self.file.name!r} was written since it was opened; "
                "open it again"
            )
        found: Array = np.frombuffer(self.data, UINT8.numpy, count * dtype.itemsize, offset)
        if dtype == UINT8:
            return found
        if offset % dtype.itemsize:
            found = found.copy()
            found.flags.writeable = False
        return found.view(dtype.numpy)

    def release(self, offset: int, nbytes: int) -> None:
        """Give back the pages of a range of the file, which are read again when they are used."""
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        if nbytes > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, begin, offset + nbytes - begin)


@dataclass(frozen=True, eq=False)
class GGUFTensor(StoredTensor):
    """A tensor of a file.

    It is a source of its elements, or, where they are packed in a format that matmuls take as it
    is, of the bytes of its blocks: uint8 with the bytes of a row as the last axis. Formats that
    matmuls do not take are widened to float32 at each read.

    Attributes:
        name: in the file.
        sizes: of its elements, in C order: the last axis is contiguous.
        type: of its elements in the file.
        offset: of its first byte in the file.
        mapped: the file.
        widen: whether packed elements are read as float32 in any case.
    """

    name: str
    sizes: tuple[int, ...]
    type: TensorType
    offset: int
    mapped: MappedFile
    widen: bool = False

    @property
    def format(self) -> str | None:
        """The format of the bytes that are read; ``None``: elements are read."""
        return self._packed if self._stays_packed else None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (*self.sizes[:-1], self._row_bytes) if self._stays_packed else self.sizes

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return FLOAT32 if self._packed is not None and not self._stays_packed else self.type.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.sizes) // self.type.size * self.type.nbytes

    @property
    def in_file(self) -> FileRange | None:
        """The place of what is read in the file; ``None`` of packed elements that are widened."""
        if self._packed is not None and not self._stays_packed:
            return None
        return FileRange(self.mapped.file, self.offset, self.nbytes)

    def widened(self) -> GGUFTensor:
        """The tensor as a source of its elements, packed or not."""
        named = (self.name, self.sizes, self.type, self.offset, self.mapped)
        return GGUFTensor(*named, widen=True)

    def rows(self, begin: int, end: int) -> GGUFTensor:
        """Rows ``begin`` to ``end`` of a tensor that has an axis, as a matrix of all its rows.

        Raises:
            InputError: there are not as many.
        """
        count = prod(self.sizes[:-1])
        if not self.sizes or not 0 <= begin <= end <= count:
            raise InputError(f"{self.name!r} has {count} rows, not those from {begin} to {end}")
        sizes = (end - begin, self.sizes[-1])
        offset = self.offset + begin * self._row_bytes
        return GGUFTensor(self.name, sizes, self.type, offset, self.mapped, self.widen)

    @property
    def stored(self) -> Array:
        """The bytes in the file, not to be written.

        Raises:
            ModelFormatError: the file was written since it was opened.
        """
        return self.mapped.array(UINT8, self.nbytes, self.offset, self.name)

    def read(self) -> Array:
        form, stored = self._packed, self.type.dtype
        count = self.nbytes // stored.itemsize
        found = self.mapped.array(stored, count, self.offset, self.name)
        if form is None or self._stays_packed:
            return found.reshape(self.shape)
        rows = found.reshape(*self.sizes[:-1], self._row_bytes)
        return decode(rows, form)

    @property
    def content_key(self) -> str | None:
        digest = self.mapped.file.digest
        form = "widened" if self.widen else "as stored"
        return digest and f"{digest} {self.offset} {self.sizes} {self.type.name} {form}"

    def release(self) -> None:
        self.mapped.release(self.offset, self.nbytes)

    @property
    def _packed(self) -> str | None:
        return self.type.format

    @property
    def _stays_packed(self) -> bool:
        return self._packed is not None and not self.widen and packed_format(self._packed).computed

    @property
    def _row_bytes(self) -> int:
        return self.sizes[-1] // self.type.size * self.type.nbytes
