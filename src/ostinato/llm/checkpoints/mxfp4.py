"""Matrices of safetensors files as MXFP4: blocks of 32 elements of 4 bits, with an exponent each.

A matrix ``NAME [experts, inputs, outputs]`` is two tensors of bytes: ``NAME_blocks [experts,
outputs, inputs / 32, 16]``, the first element of a pair in the low half of a byte, and
``NAME_scales [experts, outputs, inputs / 32]``, exponents with a bias of 127.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import BFLOAT16, UINT8
from ostinato.errors import ModelFormatError
from ostinato.ir.stored import StoredTensor
from ostinato.llm.weights import FileTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["joined_blocks"]

_BLOCKS, _SCALES = "_blocks", "_scales"

#: The elements by their bits: a sign, two bits of exponent, one of fraction.
_ELEMENTS: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

_BIAS: Final = 127


def joined_blocks(tensors: Mapping[str, FileTensor], source: str) -> dict[str, FileTensor]:
    """The tensors with matrices in blocks as matrices of bfloat16, which has all their elements.

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
        matrix = _Widened(blocks.source, scales.source)
        found[stem] = FileTensor(name=stem, source=matrix, shape=matrix.shape)
    return found


class _Widened(StoredTensor):
    """The elements of blocks, as matrices of bfloat16 ``[experts, inputs, outputs]``."""

    def __init__(self, blocks: StoredTensor, scales: StoredTensor) -> None:
        experts, outputs, count, _ = blocks.shape
        self._blocks, self._scales = blocks, scales
        self.shape = (experts, 32 * count, outputs)
        self.dtype = BFLOAT16

    def read(self) -> Any:
        whole = np.empty(self.shape, self.dtype.numpy)
        blocks, scales = self._blocks.read(), self._scales.read()
        for expert, (octets, exponents) in enumerate(zip(blocks, scales, strict=True)):
            codes = np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], 32)
            values = np.where(codes & 8, -_ELEMENTS[codes & 7], _ELEMENTS[codes & 7])
            shifts = exponents.astype(np.int32) - _BIAS
            values = np.ldexp(values, shifts[..., np.newaxis]).reshape(len(octets), -1)
            whole[expert] = convert(values.T, BFLOAT16)
        return whole
