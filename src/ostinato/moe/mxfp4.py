"""MXFP4 of safetensors files: blocks of 32 elements of 4 bits, whose scales are apart from them.

A matrix ``NAME [experts, inputs, outputs]`` is two tensors of bytes: ``NAME_blocks [experts,
outputs, inputs / 32, 16]``, the first element of a pair in the low half of a byte, and
``NAME_scales [experts, outputs, inputs / 32]``, exponents with a bias of 127.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.dtypes import UINT8
from ostinato.ir.files import FileRange
from ostinato.ir.stored import ExpertTensor, MatrixLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BLOCKS", "BLOCK_BYTES", "FORMAT", "SCALES", "block_matrices", "fits", "joined"]

Array = np.ndarray[Any, Any]

#: Endings of the names of a matrix's two tensors.
BLOCKS, SCALES = "_blocks", "_scales"

FORMAT: Final = "gguf:mxfp4"
"""The format of blocks with their scales."""

BLOCK_BYTES: Final = 17
"""Bytes of a block with its scale."""


def fits(blocks: Sequence[int], scales: Sequence[int]) -> bool:
    """Whether tensors of these shapes are blocks and their scales."""
    return len(blocks) == 4 and blocks[3] == 16 and tuple(scales) == tuple(blocks[:3])


def block_matrices(
    name: str, shape: Sequence[int], blocks: FileRange, scales: FileRange
) -> ExpertTensor:
    """The matrices that two tensors hold, as packed rows ``[experts, outputs, bytes]``.

    Args:
        name: for messages.
        shape: of the blocks.
        blocks, scales: the tensors.
    """
    experts, outputs, count, _ = shape
    layout = MatrixLayout((16 * count, count))
    ranges = tuple(
        tuple(
            FileRange(place.file, place.offset + i * outputs * pitch, outputs * pitch)
            for i in range(experts)
        )
        for place, pitch in zip((blocks, scales), layout.pitches, strict=True)
    )
    return _BlockMatrices(name, UINT8, (experts, outputs, BLOCK_BYTES * count), layout, ranges)


class _BlockMatrices(ExpertTensor):
    """Matrices whose blocks and scales are ranges of files."""

    def matrix(self, expert: int) -> Array:
        _, outputs, nbytes = self.shape
        count = nbytes // BLOCK_BYTES
        blocks, scales = (
            np.ndarray((outputs, size), np.uint8, data, strides=(pitch, 1))
            for size, pitch, data in zip(
                (16 * count, count), self.layout.pitches, self.octets(expert), strict=True
            )
        )
        return joined(blocks.reshape(outputs, count, 16), scales)


def joined(blocks: Array, scales: Array) -> Array:
    """The packed rows of a matrix: its blocks ``[rows, count, 16]`` behind their scales."""
    found = np.empty((*scales.shape, BLOCK_BYTES), np.uint8)
    found[..., 0] = scales
    first, second = blocks[..., :8], blocks[..., 8:]
    found[..., 1::2] = (first & 15) | (second << 4)
    found[..., 2::2] = (first >> 4) | (second & 0xF0)
    return found.reshape(len(found), -1)
