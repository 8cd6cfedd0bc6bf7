"""Matrices of safetensors files as MXFP4: blocks of 32 elements of 4 bits, with an exponent each.

A matrix ``NAME [experts, inputs, outputs]`` is two tensors of bytes: ``NAME_blocks [experts,
outputs, inputs / 32, 16]``, the first element of a pair in the low half of a byte, and
``NAME_scales [experts, outputs, inputs / 32]``, exponents with a bias of 127.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import BFLOAT16, UINT8
from ostinato.errors import ModelFormatError
from ostinato.ir.files import FileRange
from ostinato.ir.stored import ExpertTensor, MatrixLayout, StoredTensor
from ostinato.llm.weights import FileTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["joined_blocks"]

Array = np.ndarray[Any, Any]

_BLOCKS, _SCALES = "_blocks", "_scales"

#: The elements by their bits: a sign, two bits of exponent, one of fraction.
_ELEMENTS: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

_BIAS: Final = 127

_FORMAT: Final = "gguf:mxfp4"

_NBYTES: Final = 17
"""Bytes of a block with its scale."""


def joined_blocks(tensors: Mapping[str, FileTensor], source: str) -> dict[str, FileTensor]:
    """The tensors with scales joined to blocks, as the format ``gguf:mxfp4`` has them.

    Args:
        tensors: of the files, by name.
        source: the files, for messages.

    Raises:
        ModelFormatError: blocks lack scales, or their shapes or dtypes do not fit.
    """
    found = dict(tensors)
    for name in tensors:
        stem = name.removesuffix(_BLOCKS)
        if stem == name or tensors[name].source.dtype != UINT8:
            continue
        blocks, scales = found.pop(name), found.pop(stem + _SCALES, None)
        if scales is None:
            raise ModelFormatError(f"{source!r} lacks the tensor {stem + _SCALES!r:.120}")
        shape = blocks.shape
        fits = len(shape) == 4 and shape[3] == 16 and scales.source.dtype == UINT8
        if not fits or scales.shape != shape[:3]:
            raise ModelFormatError(
                f"{source!r}: tensors {name!r:.120} {shape} and {stem + _SCALES!r:.120} "
                f"{scales.source.dtype}{list(scales.shape)} are no blocks of 16 bytes with a scale"
            )
        widened = partial(_Widened, blocks.source, scales.source)
        experts, outputs, count, _ = shape
        found[stem] = FileTensor(
            name=stem,
            source=_Packed(blocks.source, scales.source),
            shape=(experts, 32 * count, outputs),
            format=_FORMAT,
            widened=widened,
            by_column=True,
        )
    return found


class _Packed(StoredTensor):
    """Blocks with their scales: a byte each, then the first half of elements in the low halves."""

    def __init__(self, blocks: StoredTensor, scales: StoredTensor) -> None:
        experts, outputs, count, _ = blocks.shape
        self._blocks, self._scales = blocks, scales
        self.shape: tuple[int, int, int] = (experts, outputs, _NBYTES * count)
        self.dtype = UINT8

    @property
    def content_key(self) -> str | None:
        blocks, scales = self._blocks.content_key, self._scales.content_key
        return None if blocks is None or scales is None else f"{_FORMAT} of {[blocks, scales]}"

    def matrices(self, name: str) -> ExpertTensor | None:
        places = self._blocks.in_file, self._scales.in_file
        experts, outputs, nbytes = self.shape
        count = nbytes // _NBYTES
        layout = MatrixLayout((16 * count, count))
        ranges = [
            tuple(
                FileRange(place.file, place.offset + i * outputs * pitch, outputs * pitch)
                for i in range(experts)
            )
            for place, pitch in zip(places, layout.pitches, strict=True)
            if place is not None
        ]
        if len(ranges) < len(places):
            return None
        return _FileBlocks(name, UINT8, self.shape, layout, tuple(ranges))

    def release(self) -> None:
        self._blocks.release()
        self._scales.release()

    def read(self) -> Array:
        blocks, scales = self._blocks.read(), self._scales.read()
        whole = np.empty(self.shape, np.uint8)
        for expert, parts in enumerate(zip(blocks, scales, strict=True)):
            whole[expert] = _joined(*parts)
        return whole


class _FileBlocks(ExpertTensor):
    """Blocks whose elements and scales are ranges of files."""

    def matrix(self, expert: int) -> Array:
        _, outputs, nbytes = self.shape
        count = nbytes // _NBYTES
        blocks, scales = (
            np.ndarray((outputs, size), np.uint8, data, strides=(pitch, 1))
            for size, pitch, data in zip(
                (16 * count, count), self.layout.pitches, self.octets(expert), strict=True
            )
        )
        return _joined(blocks.reshape(outputs, count, 16), scales)


def _joined(blocks: Array, scales: Array) -> Array:
    """The rows of a matrix: its blocks ``[rows, count, 16]`` behind their scales."""
    found = np.empty((*scales.shape, _NBYTES), np.uint8)
    found[..., 0] = scales
    first, second = blocks[..., :8], blocks[..., 8:]
    found[..., 1::2] = (first & 15) | (second << 4)
    found[..., 2::2] = (first >> 4) | (second & 0xF0)
    return found.reshape(len(found), -1)


class _Widened(StoredTensor):
    """The elements of blocks, as matrices of bfloat16 ``[experts, inputs, outputs]``."""

    def __init__(self, blocks: StoredTensor, scales: StoredTensor) -> None:
        experts, outputs, count, _ = blocks.shape
        self._blocks, self._scales = blocks, scales
        self.shape = (experts, 32 * count, outputs)
        self.dtype = BFLOAT16

    def read(self) -> Array:
        whole = np.empty(self.shape, self.dtype.numpy)
        blocks, scales = self._blocks.read(), self._scales.read()
        for expert, (octets, exponents) in enumerate(zip(blocks, scales, strict=True)):
            codes = np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], 32)
            values = np.where(codes & 8, -_ELEMENTS[codes & 7], _ELEMENTS[codes & 7])
            shifts = exponents.astype(np.int32) - _BIAS
            values = np.ldexp(values, shifts[..., np.newaxis]).reshape(len(octets), -1)
            whole[expert] = convert(values.T, BFLOAT16)
        return whole
