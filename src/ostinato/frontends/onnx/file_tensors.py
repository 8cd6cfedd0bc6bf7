"""Weights that stay in the model's file, or in a file beside it, until they are used.

The model's file is walked field by field, as protocol buffers are laid out: all but the bytes of
large tensors is parsed as a model, and of those bytes only the position is kept. So a model of many
gigabytes is never in memory twice, and what only passes through on its way to another layout is
never in memory whole.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ostinato.errors import ModelFormatError
from ostinato.frontends.onnx.tensors import array_from_bytes
from ostinato.ir.files import FileRange, OpenFile
from ostinato.ir.stored import StoredTensor
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ostinato.dtypes import DType
    from ostinato.ir.stored import Array

__all__ = ["LARGE", "FileTensor", "PartedFile", "without_large_tensors"]

#: Tensors of at least so many bytes stay in the file.
LARGE = 1 << 17

_GRAPH = 7  # of ModelProto
_INITIALIZER = 5  # of GraphProto
_RAW_DATA = 9  # of TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields
_HEADER = 20  # bytes that a field's tag and length take at most


class _OtherLayout(Exception):
    """The file is not laid out as expected: the parser of the format decides what is wrong."""


class FileTensor(StoredTensor):
    """A tensor whose elements are a range of a file.

    Args:
        name: for messages.
        dtype, shape: of the tensor.
        range: its bytes; as many as it has.
    """

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], range: FileRange) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.range = range

    def read(self) -> Array:
        file = self.range.file
        data = file.read(self.range.offset, self.range.nbytes)
        if not file.unchanged:
            raise ModelFormatError(
                f"tensor {self.name!r}: the file {file.name!r} was written after the model was "
                "loaded; load it again"
            )
        return array_from_bytes(self.name, data, self.dtype, self.shape)


@dataclass(frozen=True)
class PartedFile:
    """A model's file in two parts.

    Attributes:
        file: the file.
        rest: the bytes of a model whose large initializers hold no data.
        ranges: by the position of such an initializer in the model's graph, where its data is.
    """

    file: OpenFile
    rest: bytes
    ranges: dict[int, FileRange]


def without_large_tensors(path: Path) -> PartedFile | None:
    """A model's bytes without those of large initializers, and where these are.

    Returns:
        ``None`` where the file has another layout, or is damaged.

    Raises:
        OSError: the file cannot be read.
    """
    walk = _Walk(OpenFile(path))
    with contextlib.suppress(_OtherLayout):
        return PartedFile(walk.file, walk.model(), walk.ranges)
    return None


@dataclass(frozen=True)
class _Field:
    """A field of a message: where it starts, where its contents do, and where both end."""

    number: int
    kind: int
    start: int
    content: int
    end: int


@dataclass
class _Walk:
    file: OpenFile
    ranges: dict[int, FileRange] = field(default_factory=dict)
    initializers: int = 0

    def model(self) -> bytes:
        parts, graphs = [], 0
        for found in self._fields(0, self.file.size):
            if found.number == _GRAPH and found.kind == _BYTES:
                graphs += 1
                parts.append(_message(_GRAPH, self._graph(found)))
            else:
                parts.append(self._bytes(found.start, found.end))
        if graphs != 1:  # several would be merged
            raise _OtherLayout
        return b"".join(parts)

    def _graph(self, graph: _Field) -> bytes:
        parts: list[bytes] = []
        kept = graph.content  # from here on, nothing was copied yet
        for found in self._fields(graph.content, graph.end):
            if found.number != _INITIALIZER or found.kind != _BYTES:
                continue
            if found.end - found.content >= LARGE:
                parts.append(self._bytes(kept, found.start))
                parts.append(_message(_INITIALIZER, self._tensor(found)))
                kept = found.end
            self.initializers += 1
        parts.append(self._bytes(kept, graph.end))
        return b"".join(parts)

    def _tensor(self, tensor: _Field) -> bytes:
        parts = []
        for found in self._fields(tensor.content, tensor.end):
            if found.number == _RAW_DATA and found.kind == _BYTES:
                if self.initializers in self.ranges:
                    raise _OtherLayout
                nbytes = found.end - found.content
                self.ranges[self.initializers] = FileRange(self.file, found.content, nbytes)
            else:
                parts.append(self._bytes(found.start, found.end))
        return b"".join(parts)

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        while start < end:
            header = self.file.read(start, min(_HEADER, end - start))
            tag, used = _varint(header, 0)
            kind, content = tag & 7, start + used
            if kind == _BYTES:
                length, after = _varint(header, used)
                content, stop = start + after, start + after + length
            elif kind == _VARINT:
                stop = start + _varint(header, used)[1]
            elif kind in (_FIXED64, _FIXED32):
                stop = content + (8 if kind == _FIXED64 else 4)
            else:
                raise _OtherLayout
            if stop > end:
                raise _OtherLayout
            yield _Field(tag >> 3, kind, start, content, stop)
            start = stop

    def _bytes(self, start: int, end: int) -> bytes:
        data = self.file.read(start, end - start)
        if len(data) != end - start:
            raise _OtherLayout
        return data


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """A number of seven bits a byte, least first, and where it ends."""
    value = 0
    for position in range(start, min(start + 10, len(data))):
        value |= (data[position] & 0x7F) << 7 * (position - start)
        if data[position] < 0x80:
            return value, position + 1
    raise _OtherLayout


def _message(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))
