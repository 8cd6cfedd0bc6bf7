"""Quantisation of files: the matrices of a GGUF file in another format, tensor by tensor."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.errors import InputError, ModelFormatError
from ostinato.frontends.gguf.file import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry, encoded_value
from ostinato.ops.packed.encoding import encode
from ostinato.records import dataclass

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.frontends.gguf import GGUFTensor
    from ostinato.frontends.gguf.tensor_types import TensorType

__all__ = ["Quantized", "QuantizedFormat", "QuantizedTensor", "quantize_file"]

#: The formats that :func:`quantize_file` writes.
QuantizedFormat: TypeAlias = Literal[
    "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "int8", "int4", "bfloat16"
]

#: By format: the number of the type of its tensors, and that of ``general.file_type``.
_FORMATS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "q4_0": (2, 2),
        "q4_1": (3, 3),
        "q8_0": (8, 7),
        "q5_0": (6, 8),
        "q5_1": (7, 9),
        "int8": (8, 7),
        "int4": (2, 2),
        "bfloat16": (30, 32),
    }
)

#: Matrices that choose experts, which rounding changes, and the biases of experts: both are small.
_KEPT: Final = ("*ffn_gate_inp*", "*.bias")

_QUANTIZATION_VERSION = 2

#: Elements that are converted at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of a file that was written.

    Attributes:
        name: in both files.
        sizes: of its elements.
        source, target: its type before and after, such as ``"f16"`` and ``"q4_0"``.
        nbytes: in the new file.
    """

    name: str
    sizes: tuple[int, ...]
    source: str
    target: str
    nbytes: int


@dataclass(frozen=True)
class Quantized:
    """A file that was written.

    Attributes:
        path: of the file.
        tensors: of the file, in its order.
        source_bytes, target_bytes: the sizes of both files.
    """

    path: Path
    tensors: tuple[QuantizedTensor, ...]
    source_bytes: int
    target_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of the new file's tensors, by element."""
        elements = sum(prod(tensor.sizes) for tensor in self.tensors)
        return 8 * sum(tensor.nbytes for tensor in self.tensors) / max(1, elements)

    def __str__(self) -> str:
        changed = sum(tensor.source != tensor.target for tensor in self.tensors)
        return (
            f"{self.path.name}: {changed} of {len(self.tensors)} tensors converted, "
            f"{self.source_bytes:,} to {self.target_bytes:,} bytes, "
            f"{self.bits_per_weight:.2f} bits a weight"
        )


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: QuantizedFormat,
    *,
    skip: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Quantized:
    """Write a GGUF file again, with its matrices in another format.

    Tensors with at least two axes are converted where their rows are whole blocks; others, and
    those that choose experts, stay as they are. Blocks of another format are decoded first. The
    metadata is kept, but for the description of the format. Some rows are in memory at a time.

    Args:
        source: a GGUF file.
        target: the new one. It appears when it is whole, in the place of one that exists.
        to: the format; ``"int8"`` is ``"q8_0"``, ``"int4"`` is ``"q4_0"``.
        skip: patterns of names that stay as they are, such as ``"token_embd*"``.
        progress: called with ``("quantize", done, total)``, in bytes of the source's tensors.

    Raises:
        InputError: there is no such format, or a tensor has elements that are not finite.
        ModelFormatError: the source is no GGUF file, damaged, or one of several parts.
        OSError: a file can not be read or written.
    """
    if to not in get_args(QuantizedFormat):
        known = ", ".join(get_args(QuantizedFormat))
        raise InputError(f"files are quantised to {known}, not to {to!r:.80}")
    if isinstance(skip, str):
        raise InputError(f"skip is a sequence of patterns, got the string {skip!r:.80}")
    if Path(source).is_dir():
        raise InputError(
            f"{str(source)!r} is a folder, and GGUF files are quantised; "
            f"load it with weights='int8', 'int4' or 'bfloat16' instead"
        )
    file = GGUFFile(source)
    if file.metadata.get("split.count", 1) != 1:
        raise ModelFormatError(f"{file.name!r} is one of several parts, which are not quantised")
    kind = TENSOR_TYPES[_FORMATS[to][0]]
    kept = (*_KEPT, *skip)
    entries = [
        TensorEntry(name, tensor.sizes, _target_type(tensor, kind, kept))
        for name, tensor in file.tensors.items()
    ]
    total, done = sum(tensor.nbytes for tensor in file.tensors.values()), 0
    with GGUFWriter(target, _metadata(file, to), entries) as writer:
        for entry, tensor in zip(entries, file.tensors.values(), strict=True):
            _write(writer, tensor, entry)
            tensor.release()
            done += tensor.nbytes
            if progress is not None:
                progress("quantize", done, total)
    path = Path(target)
    tensors = tuple(
        QuantizedTensor(e.name, e.sizes, file.tensors[e.name].type.name, e.type.name, e.nbytes)
        for e in entries
    )
    return Quantized(path, tensors, file.nbytes, path.stat().st_size)


def _target_type(tensor: GGUFTensor, kind: TensorType, kept: Sequence[str]) -> TensorType:
    matrix = len(tensor.sizes) > 1 and tensor.sizes[-1] % kind.size == 0
    floats = tensor.type.format is not None or tensor.type.dtype.is_float
    stays = any(fnmatchcase(tensor.name, pattern) for pattern in kept)
    return kind if matrix and floats and not stays else tensor.type


def _metadata(file: GGUFFile, to: QuantizedFormat) -> dict[str, bytes]:
    found = {key: file.encoded_value(key) for key in file.metadata}
    found["general.file_type"] = encoded_value(_FORMATS[to][1])
    found["general.quantization_version"] = encoded_value(_QUANTIZATION_VERSION)
    return found


def _write(writer: GGUFWriter, tensor: GGUFTensor, entry: TensorEntry) -> None:
    if entry.type == tensor.type:
        writer.write(tensor.stored)
        return
    elements = tensor.widened()
    rows, step = prod(tensor.sizes[:-1]), max(1, _CHUNK // max(1, tensor.sizes[-1]))
    for begin in range(0, rows, step):
        part = elements.rows(begin, min(rows, begin + step)).read()
        try:
            writer.write(_converted(part, entry.type))
        except InputError as error:
            raise InputError(f"tensor {tensor.name!r:.80}: {error}") from None


def _converted(part: np.ndarray[Any, Any], kind: TensorType) -> np.ndarray[Any, Any]:
    if kind.format is None:
        return np.ascontiguousarray(convert(part, BFLOAT16))
    return encode(convert(part, FLOAT32), kind.format)
