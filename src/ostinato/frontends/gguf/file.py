"""A GGUF file: its metadata and tensors, each checked when the file is opened.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
little-endian.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError
from ostinato.frontends.gguf.sources import GGUFTensor, MappedFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.values import Cursor, Damaged, read_value
from ostinato.ir.files import OpenFile
from ostinato.moe.safetensors import TensorRange

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["GGUFFile"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)

#: Bytes of the shortest entry of metadata (an empty key, a type, a byte), and of a tensor.
_LEAST_ENTRY, _LEAST_TENSOR = 13, 24

_MOST_DIMS = 8
_LONGEST_KEY = (1 << 16) - 1

#: Elements of a tensor, empty dimensions aside, that addresses surely can count.
_MOST_ELEMENTS = 1 << 56

_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_ALIGNMENTS: Final = frozenset(1 << power for power in range(21))


class GGUFFile:
    """The metadata and the tensors of a file, which is mapped into memory and stays open.

    The file must not be truncated while it is in use: a read of what is gone ends the process.
    Reads that detect that it was written raise :class:`ModelFormatError`.

    Args:
        path: of the file.

    Attributes:
        name: of the file, without its folder.
        version: of the format.
        metadata: values by key. Numbers are Python's, an array of numbers is a NumPy array, any
            other array a list.
        tensors: by name, in the order of the file; each is a source of a param.

    Raises:
        ModelFormatError: it is no such file, damaged, or has a tensor of an unknown type; the
            message says where.
        OSError: it can not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = OpenFile(Path(path))
        self.name = file.name
        self._mapped = mapped = MappedFile(file)
        with memoryview(mapped.data) as data:
            cursor = Cursor(data)
            try:
                self.version = _version(cursor)
                tensors = cursor.count(_LEAST_TENSOR, "tensors")
                entries = cursor.count(_LEAST_ENTRY, "entries of metadata")
                values, self._encoded = _metadata(cursor, entries)
                self.metadata: Mapping[str, Any] = MappingProxyType(values)
                found = [_tensor(cursor, mapped) for _ in range(tensors)]
                alignment = _alignment(cursor, self.metadata)
                self.tensors: Mapping[str, GGUFTensor] = MappingProxyType(
                    _placed(cursor, found, alignment)
                )
            except Damaged as error:
                message = f"{file.name!r} is no GGUF file that can be read: {error}"
                raise ModelFormatError(message) from None

    @property
    def file(self) -> OpenFile:
        """The open file."""
        return self._mapped.file

    @property
    def ranges(self) -> Mapping[str, TensorRange]:
        """The tensors that the file has as they are read, as ranges of it."""
        return {
            name: TensorRange(tensor.dtype, tensor.shape, tensor.offset, tensor.format is not None)
            for name, tensor in self.tensors.items()
            if tensor.in_file is not None
        }

    @property
    def nbytes(self) -> int:
        """The size of the file when it was opened."""
        return self._mapped.file.size

    def encoded_value(self, key: str) -> bytes:
        """A value of the metadata as the file has it, after the number of its type.

        Raises:
            KeyError: there is none of this key.
        """
        return self._mapped.data[self._encoded[key]]

    def __repr__(self) -> str:
        return f"<GGUF file {self.name!r}, {len(self.tensors)} tensors>"


def _version(cursor: Cursor) -> int:
    if cursor.left < len(_MAGIC) or bytes(cursor.take(len(_MAGIC), "the magic")) != _MAGIC:
        raise cursor.damaged("it does not start with 'GGUF'")
    version = cursor.unsigned(4, "the version")
    if version in _VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise cursor.damaged("it is big-endian, which is not read")
    raise cursor.damaged(f"it has version {version}; versions 2 and 3 are read")


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, slice]]:
    """Values by key, and their bytes in the file."""
    found: dict[str, Any] = {}
    encoded: dict[str, slice] = {}
    for _ in range(count):
        key = cursor.name("a key")
        if len(key) > _LONGEST_KEY:
            raise cursor.damaged(f"a key has {len(key):,} characters")
        if key in found:
            raise cursor.damaged(f"the key {key!r:.80} occurs twice")
        start = cursor.position
        found[key] = read_value(cursor, f"{key!r:.80}")
        encoded[key] = slice(start, cursor.position)
    return found, encoded


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    """The bytes of which the offset of each tensor is a multiple."""
    alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if isinstance(alignment, int) and alignment is not True and alignment in _ALIGNMENTS:
        return alignment
    raise cursor.damaged(
        f"{_ALIGNMENT_KEY} is a power of two up to {max(_ALIGNMENTS):,}, got {alignment!r:.80}"
    )


def _tensor(cursor: Cursor, mapped: MappedFile) -> GGUFTensor:
    """The next tensor, its offset still counted from the first one's."""
    name = cursor.name("a tensor's name")
    dims = cursor.unsigned(4, f"the rank of tensor {name!r:.80}")
    if dims > _MOST_DIMS:
        raise cursor.damaged(f"tensor {name!r:.80} has {dims:,} dimensions, more than {_MOST_DIMS}")
    sizes = [cursor.unsigned(8, f"the sizes of tensor {name!r:.80}") for _ in range(dims)]
    number = cursor.unsigned(4, f"the type of tensor {name!r:.80}")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise cursor.damaged(f"tensor {name!r:.80} has the type {number}, which is not known here")
    contiguous = sizes[0] if sizes else 1
    if contiguous % kind.size:
        raise cursor.damaged(
            f"tensor {name!r:.80} has rows of {contiguous:,} elements, which are no blocks of "
            f"{kind.size} as {kind.name} has them"
        )
    if prod(max(size, 1) for size in sizes) > _MOST_ELEMENTS:
        raise cursor.damaged(f"tensor {name!r:.80} has sizes beyond those of any file: {sizes}")
    offset = cursor.unsigned(8, f"the offset of tensor {name!r:.80}")
    return GGUFTensor(name, tuple(reversed(sizes)), kind, offset, mapped)


def _placed(cursor: Cursor, tensors: list[GGUFTensor], alignment: int) -> dict[str, GGUFTensor]:
    """The tensors by name, with their positions in the file."""
    start = -(-cursor.position // alignment) * alignment
    room = cursor.position + cursor.left - start
    found: dict[str, GGUFTensor] = {}
    for tensor in tensors:
        name = tensor.name
        if name in found:
            raise cursor.damaged(f"two tensors are named {name!r:.80}")
        if tensor.offset % alignment:
            raise cursor.damaged(
                f"the offset {tensor.offset:,} of tensor {name!r:.80} is no multiple of {alignment}"
            )
        if tensor.offset + tensor.nbytes > max(room, 0):
            raise cursor.damaged(
                f"tensor {name!r:.80}, {tensor.nbytes:,} bytes at {tensor.offset:,} of the data, "
                f"ends beyond the {max(room, 0):,} bytes that there are"
            )
        at = start + tensor.offset
        found[name] = GGUFTensor(name, tensor.sizes, tensor.type, at, tensor.mapped)
    filled = sorted((t for t in found.values() if t.nbytes), key=lambda tensor: tensor.offset)
    for first, second in pairwise(filled):
        if first.offset + first.nbytes > second.offset:
            raise cursor.damaged(f"tensors {first.name!r:.80} and {second.name!r:.80} overlap")
    return found
