"""Quantisation of files: the matrices of a GGUF file or a folder in another format, as GGUF."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import FLOAT32
from ostinato.errors import InputError, ModelFormatError
from ostinato.frontends.gguf.file import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry, encoded_value
from ostinato.llm.export.folder import export_folder
from ostinato.ops.packed.encoding import encode
from ostinato.records import dataclass

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.frontends.gguf import GGUFTensor
    from ostinato.frontends.gguf.tensor_types import TensorType
    from ostinato.llm.export.tensors import ArrayTensor, ModelTensor

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

#: Tensors that stay floats: routers, biases of experts, norms, tables of positions and of segments,
#: taps of convolutions. All are small, and readers expect them so.
_KEPT: Final = (
    "*ffn_gate_inp*",
    "*.bias",
    "*_norm*",
    "position_embd*",
    "token_types*",
    "*ssm_conv1d*",
)

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
    """Write a GGUF file or a Hugging Face folder as a GGUF file, its matrices in another format.

    Tensors with at least two axes are converted where their rows are whole blocks; others, and
    those that choose experts, stay as they are. Blocks of another format are decoded first. The
    metadata of a file is kept, but for the description of the format; some rows are in memory at a
    time. Configuration, tokenizer, chat templates and sampling parameters of a folder become
    metadata; one tensor is in memory at a time.

    Args:
        source: a GGUF file, or a folder.
        target: the new one. It appears when it is whole, in the place of one that exists.
        to: the format; ``"int8"`` is ``"q8_0"``, ``"int4"`` is ``"q4_0"``.
        skip: patterns of names that stay as they are, such as ``"token_embd*"``.
        progress: called with ``("quantize", done, total)``, in bytes of the source's tensors.

    Raises:
        InputError: there is no such format, a tensor has elements that are not finite, or GGUF
            files have no way to express a part of a folder.
        ModelFormatError: the source is no GGUF file and no folder of a known model, damaged, or one
            of several parts.
        OSError: a file can not be read or written.
    """
    if to not in get_args(QuantizedFormat):
        known = ", ".join(get_args(QuantizedFormat))
        raise InputError(f"files are quantised to {known}, not to {to!r:.80}")
    if isinstance(skip, str):
        raise InputError(f"skip is a sequence of patterns, got the string {skip!r:.80}")
    kind = TENSOR_TYPES[_FORMATS[to][0]]
    kept = (*_KEPT, *skip)
    origin = Path(source)
    if origin.is_dir():
        return _quantize_folder(origin, Path(target), to, kind, kept, progress)
    file = GGUFFile(source)
    if file.metadata.get("split.count", 1) != 1:
        raise ModelFormatError(f"{file.name!r} is one of several parts, which are not quantised")
    entries = [
        TensorEntry(name, tensor.sizes, _target_type(tensor, kind, kept))
        for name, tensor in file.tensors.items()
    ]
    metadata = {key: file.encoded_value(key) for key in file.metadata}
    total, done = sum(tensor.nbytes for tensor in file.tensors.values()), 0
    with GGUFWriter(target, metadata | _description(to), entries) as writer:
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


def _quantize_folder(
    source: Path,
    target: Path,
    to: QuantizedFormat,
    kind: TensorType,
    kept: Sequence[str],
    progress: Callable[[str, int, int], None] | None,
) -> Quantized:
    """Write a Hugging Face folder as a GGUF file."""
    model = export_folder(source)
    stored = {name: _float_type(tensor) for name, tensor in model.tensors.items()}
    entries = [
        TensorEntry(name, tensor.sizes, _converted_type(tensor, stored[name], kind, kept))
        for name, tensor in model.tensors.items()
    ]
    metadata = {key: encoded_value(value) for key, value in model.metadata.items()}
    total, done = sum(tensor.nbytes for tensor in model.tensors.values()), 0
    with GGUFWriter(target, metadata | _description(to), entries) as writer:
        for entry, tensor in zip(entries, model.tensors.values(), strict=True):
            _write_elements(writer, tensor.read(), entry)
            done += tensor.nbytes
            if progress is not None:
                progress("quantize", done, total)
    tensors = tuple(
        QuantizedTensor(e.name, e.sizes, stored[e.name].name, e.type.name, e.nbytes)
        for e in entries
    )
    return Quantized(target, tensors, total, target.stat().st_size)


def _float_type(tensor: ModelTensor | ArrayTensor) -> TensorType:
    """The type of a folder's tensor that is not quantised."""
    exact = any(fnmatchcase(tensor.name, pattern) for pattern in _KEPT)
    wanted = FLOAT32 if exact else tensor.dtype
    return next(t for t in TENSOR_TYPES.values() if t.format is None and t.dtype == wanted)


def _target_type(tensor: GGUFTensor, kind: TensorType, kept: Sequence[str]) -> TensorType:
    floats = tensor.type.format is not None or tensor.type.dtype.is_float
    return _converted_type(tensor, tensor.type, kind, kept) if floats else tensor.type


def _converted_type(
    tensor: GGUFTensor | ModelTensor | ArrayTensor,
    stored: TensorType,
    kind: TensorType,
    kept: Sequence[str],
) -> TensorType:
    """The type of a tensor of floats in the new file."""
    matrix = len(tensor.sizes) > 1 and tensor.sizes[-1] % kind.size == 0
    stays = any(fnmatchcase(tensor.name, pattern) for pattern in kept)
    return kind if matrix and not stays else stored


def _description(to: QuantizedFormat) -> dict[str, bytes]:
    """The metadata that says which format a file is in."""
    return {
        "general.file_type": encoded_value(_FORMATS[to][1]),
        "general.quantization_version": encoded_value(_QUANTIZATION_VERSION),
    }


def _write(writer: GGUFWriter, tensor: GGUFTensor, entry: TensorEntry) -> None:
    if entry.type == tensor.type:
        writer.write(tensor.stored)
        return
    elements = tensor.widened()
    for begin, end in _row_ranges(tensor.sizes):
        _write_rows(writer, elements.rows(begin, end).read(), entry)


def _write_elements(writer: GGUFWriter, elements: np.ndarray[Any, Any], entry: TensorEntry) -> None:
    rows = elements.reshape(prod(entry.sizes[:-1]), entry.sizes[-1])
    for begin, end in _row_ranges(entry.sizes):
        _write_rows(writer, rows[begin:end], entry)


def _row_ranges(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of the rows of a tensor, each of which is converted at once."""
    rows, step = prod(sizes[:-1]), max(1, _CHUNK // max(1, sizes[-1]))
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def _write_rows(writer: GGUFWriter, part: np.ndarray[Any, Any], entry: TensorEntry) -> None:
    try:
        writer.write(_converted(part, entry.type))
    except InputError as error:
        raise InputError(f"tensor {entry.name!r:.80}: {error}") from None


def _converted(part: np.ndarray[Any, Any], kind: TensorType) -> np.ndarray[Any, Any]:
    if kind.format is None:
        return np.ascontiguousarray(convert(part, kind.dtype))
    return encode(convert(part, FLOAT32), kind.format)
