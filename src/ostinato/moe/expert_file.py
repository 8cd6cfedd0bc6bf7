"""Experts that stay in a file: safetensors, or any other whose tensors are ranges of bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Protocol

from ostinato.dtypes import UINT8
from ostinato.errors import InputError
from ostinato.ir.files import FileRange
from ostinato.ir.stored import ExpertSource, ExpertTensor, MatrixLayout
from ostinato.moe.mxfp4 import BLOCK_BYTES, BLOCKS, FORMAT, SCALES, block_matrices, fits
from ostinato.moe.safetensors import SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.files import OpenFile
    from ostinato.ir.types import TensorType
    from ostinato.moe.safetensors import TensorRange

__all__ = ["ExpertFile", "TensorFile"]


class TensorFile(Protocol):
    """An opened file of tensors, such as a :class:`~ostinato.frontends.gguf.GGUFFile`."""

    @property
    def file(self) -> OpenFile:
        """The open file."""

    @property
    def ranges(self) -> Mapping[str, TensorRange]:
        """The tensors that are ranges of the file, by name."""


class ExpertFile(ExpertSource):
    """The matrices of experts in a file, for :meth:`Session.compile`.

    A run reads the matrices of the non-resident experts that it calls. The file must not be written
    meanwhile: runs that detect it raise :class:`ModelFormatError`.

    Args:
        path: of a safetensors file; or an opened GGUF file, whose matrices are ``[out, in]``: they
            are transposed, but for packed ones, which are the bytes ``[experts, out, bytes]`` that
            ``packed_grouped_matmul`` takes.
        tensors: by param, the tensor of all experts' matrices, ``[experts, in, out]``; or a list of
            tensors, one matrix for each expert. By default params are tensors of the same name.
            Where a file has ``NAME_blocks`` and ``NAME_scales``, as gpt_oss folders do, ``NAME``
            are packed matrices in the format ``gguf:mxfp4``.
        transposed: whether matrices of the file are ``[out, in]``, as PyTorch's linear layers have
            them; packed ones are as they are in any case.

    Raises:
        InputError: ``tensors`` is no mapping of names to names, or lists of them.
        ModelFormatError: it is no safetensors file, or damaged.
        OSError: it can not be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | TensorFile,
        tensors: Mapping[str, str | Sequence[str]] | None = None,
        *,
        transposed: bool = False,
    ) -> None:
        opened = SafetensorsFile(path) if isinstance(path, str | os.PathLike) else path
        self._file, self._ranges = opened.file, opened.ranges
        self._named = None if tensors is None else _checked(tensors)
        self._transposed = bool(transposed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the file's tensors."""
        return tuple(self._ranges)

    def tensors(self, params: Mapping[str, TensorType]) -> Mapping[str, ExpertTensor]:
        """See :meth:`~ostinato.ir.stored.ExpertSource.tensors`."""
        named = self._named
        if named is None:
            known = self._ranges.keys() | {n.removesuffix(BLOCKS) for n in self._ranges}
            named = {name: name for name in params if name in known}
        if not named:
            raise InputError(f"{self._file.name!r} has no tensor that is named like a param")
        if unknown := sorted(named.keys() - params.keys()):
            raise InputError(f"the graph has no params {', '.join(unknown)}")
        return {name: self._tensor(name, params[name], given) for name, given in named.items()}

    def _tensor(self, name: str, type_: TensorType, given: str | Sequence[str]) -> ExpertTensor:
        if type_.ndim != 3:
            raise InputError(f"param {name!r} is {type_}: experts are [experts, in, out]")
        experts, rows, columns = (int(size) for size in type_.shape)  # type: ignore[arg-type]
        if isinstance(given, str) and given not in self._ranges and given + BLOCKS in self._ranges:
            return self._blocks(name, type_, given)
        names = (given,) if isinstance(given, str) else given
        whole = isinstance(given, str)
        if not whole and len(given) != experts:
            raise InputError(f"param {name!r} has {experts} experts, got {len(given)} tensors")
        found = [self._found(name, tensor) for tensor in names]
        # Packed matrices are params as the file has them.
        swapped = self._transposed and not any(tensor.packed for tensor in found)
        layout = MatrixLayout((columns * type_.dtype.itemsize,))
        if swapped:
            layout = MatrixLayout((rows * type_.dtype.itemsize,), transposed=True)
        matrix = layout.lines((rows, columns))
        expected = (experts, *matrix) if whole else matrix
        for tensor, place in zip(names, found, strict=True):
            if place.dtype != type_.dtype or place.shape != expected:
                raise InputError(
                    f"param {name!r}: tensor {tensor!r} is {place.dtype}{list(place.shape)}, "
                    f"expected {type_.dtype}{list(expected)}"
                )
        nbytes = rows * columns * type_.dtype.itemsize
        offsets = [place.offset for place in found]
        if whole:
            offsets = [offsets[0] + expert * nbytes for expert in range(experts)]
        places = tuple(FileRange(self._file, offset, nbytes) for offset in offsets)
        return ExpertTensor(name, type_.dtype, (experts, rows, columns), layout, (places,))

    def _blocks(self, name: str, type_: TensorType, stem: str) -> ExpertTensor:
        """Matrices in MXFP4."""
        blocks, scales = (self._found(name, stem + part) for part in (BLOCKS, SCALES))
        whole = fits(blocks.shape, scales.shape)
        shape = (*blocks.shape[:2], BLOCK_BYTES * blocks.shape[2]) if whole else ()
        dtypes = {blocks.dtype, scales.dtype, type_.dtype}
        if dtypes != {UINT8} or type_.shape != shape:
            raise InputError(
                f"param {name!r} is {type_}: tensors {stem + BLOCKS!r} {blocks.dtype}"
                f"{list(blocks.shape)} and {stem + SCALES!r} {scales.dtype}{list(scales.shape)} "
                f"are rows of {FORMAT}, uint8{list(shape)}"
            )
        nbytes = (prod(blocks.shape), prod(scales.shape))
        places = [
            FileRange(self._file, part.offset, size)
            for part, size in zip((blocks, scales), nbytes, strict=True)
        ]
        return block_matrices(name, blocks.shape, *places)

    def _found(self, name: str, tensor: str) -> TensorRange:
        found = self._ranges.get(tensor)
        if found is None:
            raise InputError(f"param {name!r}: {self._file.name!r} has no tensor {tensor!r}")
        return found


def _checked(tensors: object) -> dict[str, str | tuple[str, ...]]:
    """Names of tensors by param.

    Raises:
        InputError: they are something else.
    """
    if not isinstance(tensors, Mapping):
        raise InputError(f"tensors are names by param, got {type(tensors).__name__}")
    found: dict[str, str | tuple[str, ...]] = {}
    for param, names in tensors.items():
        listed = (names,) if isinstance(names, str) else names
        if not isinstance(listed, list | tuple) or not all(isinstance(n, str) for n in listed):
            raise InputError(
                f"param {param!r:.80}: a tensor is named by a string, got {names!r:.80}"
            )
        found[param] = names if isinstance(names, str) else tuple(listed)
    return found
