"""Writing of GGUF files, tensor by tensor, so that no model is ever in memory as a whole."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self

import numpy as np

from ostinato.errors import InputError
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ostinato.frontends.gguf.tensor_types import TensorType

__all__ = ["GGUFWriter", "TensorEntry", "encoded_value", "type_number"]

_MAGIC, _VERSION = b"GGUF", 3
_DEFAULT_ALIGNMENT: Final = 32
_STRING, _ARRAY = 8, 9

#: The number of the type of Python's values, and of arrays of NumPy's.
_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "uint8": 0,
        "int8": 1,
        "uint16": 2,
        "int16": 3,
        "uint32": 4,
        "int32": 5,
        "float32": 6,
        "bool": 7,
        "uint64": 10,
        "int64": 11,
        "float64": 12,
    }
)


class TensorEntry(NamedTuple):
    """A tensor of a file that is to be written.

    Attributes:
        name: in the file.
        sizes: of its elements, in C order.
        type: of its elements in the file.
    """

    name: str
    sizes: tuple[int, ...]
    type: TensorType

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.sizes) // self.type.size * self.type.nbytes


def type_number(type: TensorType) -> int:
    """The number of a type of tensors in files."""
    return next(number for number, known in TENSOR_TYPES.items() if known == type)


def encoded_value(value: Any) -> bytes:
    """A value of metadata as files have it, after the number of its type.

    Args:
        value: a bool, a string, a NumPy number or array of numbers or bools, a list of strings, or
            a Python number: an int becomes uint32 or, beyond that, int64; a float, float32.

    Raises:
        InputError: anything else.
    """
    match value:
        case np.generic() | np.ndarray() if value.dtype.name in _NUMBERS and value.ndim < 2:
            octets = value.astype(value.dtype.newbyteorder("<")).tobytes()
            number = _uint(_NUMBERS[value.dtype.name], 4)
            return number + octets if value.ndim == 0 else _array(number, value.size, octets)
        case str():
            return _uint(_STRING, 4) + _string(value)
        case list() if all(isinstance(item, str) for item in value):
            items = b"".join(map(_string, value))
            return _uint(_ARRAY, 4) + _uint(_STRING, 4) + _uint(len(value), 8) + items
        case bool():
            return encoded_value(np.bool_(value))
        case int():
            wide = not 0 <= value < 1 << 32
            return encoded_value(np.int64(value) if wide else np.uint32(value))
        case float():
            return encoded_value(np.float32(value))
    raise InputError(f"GGUF files have no values such as {value!r:.80}")


class GGUFWriter:
    """A file that is being written; a context manager.

    The file takes its name when all of its tensors are there, and the block ends without an
    exception: until then, a file of that name stays as it is.

    Args:
        path: of the file.
        metadata: encoded values by key; see :func:`encoded_value`.
        tensors: of the file, in the order in which :meth:`write` takes their bytes.

    Raises:
        InputError: two tensors have one name, or rows are no whole blocks.
        OSError: the file can not be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, bytes],
        tensors: Sequence[TensorEntry],
    ) -> None:
        self._path = Path(path)
        self._entries = tuple(tensors)
        self._alignment = _DEFAULT_ALIGNMENT
        # Files are written with the usual alignment, whichever another file had.
        kept = {key: value for key, value in metadata.items() if key != "general.alignment"}
        header = self._header(kept)
        self._number = -1
        self._left = 0
        name = f".{self._path.name}.{os.urandom(8).hex()}.tmp"
        self._temporary = self._path.with_name(name)
        self._file: BinaryIO = self._temporary.open("xb")
        self._file.write(header)

    def write(self, part: np.ndarray[Any, Any]) -> None:
        """Append bytes of the tensors, in their order; a part belongs to one of them.

        Args:
            part: a C-contiguous array, whose bytes are written.
        """
        octets = part.reshape(-1).view(np.uint8)
        while self._left == 0 and self._number + 1 < len(self._entries):
            self._pad()
            self._number += 1
            self._left = self._entries[self._number].nbytes
        if len(octets) > self._left:
            raise InputError(f"{len(octets):,} bytes are more than the {self._left:,} that remain")
        self._file.write(octets.data)
        self._left -= len(octets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        left = [entry.name for entry in self._entries[self._number + 1 :] if entry.nbytes]
        if self._left or left:
            raise InputError(f"bytes of {left[:8] or 'the last tensor'} were not written")
        self._pad()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)

    def _pad(self) -> None:
        self._file.write(bytes(-self._file.tell() % self._alignment))

    def _header(self, metadata: Mapping[str, bytes]) -> bytes:
        parts = [_MAGIC, _uint(_VERSION, 4), _uint(len(self._entries), 8), _uint(len(metadata), 8)]
        for key, value in metadata.items():
            parts += [_string(key), value]
        offset = 0
        for entry in self._entries:
            self._check(entry)
            parts += [_string(entry.name), _uint(len(entry.sizes), 4)]
            parts += [_uint(size, 8) for size in reversed(entry.sizes)]
            parts += [_uint(type_number(entry.type), 4), _uint(offset, 8)]
            offset += -(-entry.nbytes // self._alignment) * self._alignment
        if len({entry.name for entry in self._entries}) != len(self._entries):
            raise InputError("two tensors have the same name")
        header = b"".join(parts)
        return header + bytes(-len(header) % self._alignment)

    @staticmethod
    def _check(entry: TensorEntry) -> None:
        contiguous = entry.sizes[-1] if entry.sizes else 1
        if contiguous % entry.type.size:
            raise InputError(
                f"tensor {entry.name!r:.80} has rows of {contiguous:,} elements, which are no "
                f"blocks of {entry.type.size} as {entry.type.name} has them"
            )


def _uint(value: int, nbytes: int) -> bytes:
    return value.to_bytes(nbytes, "little")


def _string(text: str) -> bytes:
    octets = text.encode("utf-8", "surrogateescape")
    return _uint(len(octets), 8) + octets


def _array(number: bytes, count: int, octets: bytes) -> bytes:
    return _uint(_ARRAY, 4) + number + _uint(count, 8) + octets
