"""Safetensors files: named tensors at offsets that a header lists.

The format is a header of JSON after its length in 8 bytes, then the tensors' bytes
(https://huggingface.co/docs/safetensors). Every field of a header is validated before use.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.dtypes import DType
from ostinato.errors import InputError, ModelFormatError
from ostinato.ir.files import OpenFile
from ostinato.records import dataclass

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["SafetensorsFile", "TensorRange", "write_safetensors"]

#: The format's name of each element type.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint64": "U64",
        "uint32": "U32",
        "uint16": "U16",
        "uint8": "U8",
        "bool": "BOOL",
    }
)
_DTYPES: Final[Mapping[str, str]] = MappingProxyType({name: d for d, name in _NAMES.items()})

#: The limit of other readers of the format.
_LONGEST_HEADER = 100_000_000

#: Written files start their first tensor on a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorRange:
    """A tensor of a file.

    Attributes:
        dtype, shape: of its elements, which are in C order; or uint8, of the bytes of packed rows.
        offset: of its first byte in the file.
        packed: whether it has packed rows.
    """

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    packed: bool = False


class SafetensorsFile:
    """The header of a file, and the file, kept open.

    Attributes:
        file: the open file.
        tensors, ranges: by name, those of a known dtype.

    Raises:
        ModelFormatError: it is no such file, or damaged.
        OSError: it can not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = OpenFile(Path(path))
        try:
            self.tensors: Mapping[str, TensorRange] = MappingProxyType(_parsed(self.file))
        except _Damaged as error:
            raise ModelFormatError(f"{self.file.name!r} is no safetensors file: {error}") from None
        self.ranges = self.tensors


class _Damaged(Exception):
    """A defect of a file."""


def _parsed(file: OpenFile) -> dict[str, TensorRange]:
    length = int.from_bytes(file.read(0, 8), "little")
    start = 8 + length
    if file.size < 8 or start > file.size or length > _LONGEST_HEADER:
        raise _Damaged(f"its header would be {length:,} bytes of {file.size:,}")
    try:
        header = json.loads(file.read(8, length), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise _Damaged("its header is no object")
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            found = _tensor(name, entry, start, file.size)
            if found is not None:
                tensors[name] = found
    return tensors


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(name: str, entry: Any, start: int, size: int) -> TensorRange | None:
    """An entry of the header; ``None`` for one of an unknown dtype."""
    if not isinstance(entry, dict):
        raise _Damaged(f"tensor {name!r:.80} is no object")
    code: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    ends: Any = entry.get("data_offsets")
    if not _counts(shape) or not _counts(ends) or len(ends) != 2 or not isinstance(code, str):
        raise _Damaged(f"tensor {name!r:.80} lacks a dtype, a shape or two offsets")
    begin, end = ends
    if not begin <= end <= size - start:
        raise _Damaged(f"tensor {name!r:.80} is beyond its end")
    if code not in _DTYPES:
        return None
    dtype = DType.parse(_DTYPES[code])
    if len(shape) > 64 or math.prod(shape) * dtype.itemsize != end - begin:
        raise _Damaged(f"tensor {name!r:.80} has {end - begin:,} bytes for {code}{shape!r:.80}")
    return TensorRange(dtype, tuple(shape), start + begin)


def _counts(value: Any) -> bool:
    """Whether ``value`` is a list of sizes."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Write arrays to a file, in their order, one after the other.

    Args:
        path: of the file; one that exists is overwritten.
        tensors: by name. Each is looked up twice: the mapping may compute them lazily.

    Raises:
        InputError: the format has no name for a dtype, or a name is no string.
        OSError: the file can not be written.
    """
    header, end = {}, 0
    for name, array in tensors.items():
        dtype = DType.parse(array.dtype)
        if dtype.name not in _NAMES or not isinstance(name, str) or name == "__metadata__":
            raise InputError(f"{name!r:.80}: safetensors files have no {dtype} tensors so named")
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _NAMES[dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            _write(file, tensors[name])


def _write(file: Any, array: np.ndarray[Any, Any]) -> None:
    octets: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    file.write(octets)
