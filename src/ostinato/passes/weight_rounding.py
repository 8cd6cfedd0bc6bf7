"""Rounding of weights to 8 or 4 bits and scales, for :mod:`ostinato.passes.quantize`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ostinato.dtypes import BFLOAT16, DType
from ostinato.ops.float8 import GREATEST

__all__ = ["float8_columns", "int4_groups", "int8_columns"]

Array = np.ndarray[Any, Any]

_LARGEST: Final = 127
_ZERO_CODE: Final = 8

#: Positions in the range of codes -8..7 that the largest weight of a group may get. A scale that
#: cuts it off a little is often the better one for all the others.
_LARGEST_CODES: Final = (-8.0, -8.5, -9.25, -7.5, -7.0, -6.5)

#: Columns that are rounded together: a few megabytes, which stay in cache.
_CHUNK: Final = 256


def int8_columns(weights: Array) -> tuple[Array, Array]:
    """``(w, scales)``: int8 ``[K, N]`` and float32 ``[N]``, with ``w * scales`` near ``weights``.

    The largest magnitude of each column becomes 127. A column of zeros has the scale zero.
    """
    wide = np.asarray(weights, np.float32)
    scales = np.abs(wide).max(axis=0, initial=0.0) / np.float32(_LARGEST)
    codes = np.rint(wide / np.where(scales > 0, scales, np.float32(1)))
    return np.clip(codes, -_LARGEST, _LARGEST).astype(np.int8), scales


def float8_columns(weights: Array, dtype: DType) -> tuple[Array, Array]:
    """``(w, scales)``: 8-bit floats ``[K, N]``, float32 ``[N]``, ``w * scales`` near ``weights``.

    The largest magnitude of each column becomes the greatest number of ``dtype``. A column of zeros
    has the scale zero.
    """
    wide, greatest = np.asarray(weights, np.float32), np.float32(GREATEST[dtype])
    scales = np.abs(wide).max(axis=0, initial=0.0) / greatest
    numbers = wide / np.where(scales > 0, scales, np.float32(1))
    return np.clip(numbers, -greatest, greatest).astype(dtype.numpy), scales


def int4_groups(weights: Array, group: int, scale_dtype: DType = BFLOAT16) -> tuple[Array, Array]:
    """``(codes, scales)`` as ``int4_matmul`` takes them: uint8 and ``[ceil(K / group), N]``.

    Of a few scales, each group takes the one with the least sum of squared errors. Scales are
    rounded to their dtype before codes are chosen by them.
    """
    depth, columns = weights.shape
    blocks = -(-depth // group)
    codes = np.empty((blocks * group, columns), np.uint8)
    scales = np.empty((blocks, columns), scale_dtype.numpy)
    for first in range(0, columns, _CHUNK):
        part = slice(first, first + _CHUNK)
        padded = np.zeros((blocks * group, min(_CHUNK, columns - first)), np.float32)
        padded[:depth] = weights[:, part]
        rounded, scales[:, part] = _rounded(padded.reshape(blocks, group, -1), scale_dtype)
        codes[:, part] = rounded.reshape(blocks * group, -1)
    pairs = codes[: depth + depth % 2].reshape(-1, 2, columns)
    return pairs[:, 0] | (pairs[:, 1] << 4), scales


def _rounded(blocks: Array, dtype: DType) -> tuple[Array, Array]:
    """The codes of ``blocks [B, group, N]``, and their scales ``[B, N]`` in ``dtype``."""
    farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], 1)[:, 0]
    size = np.where(farthest != 0, np.abs(farthest), np.float32(1))
    shares = blocks / size[:, None]  # squares of the weights themselves might overflow
    best = np.zeros_like(farthest, dtype.numpy)
    least = np.full_like(farthest, np.inf)
    for place in _LARGEST_CODES:
        scales = (farthest / np.float32(place)).astype(dtype.numpy)
        share = scales.astype(np.float32) / size
        error = shares - _whole(shares, share) * share[:, None]
        squares = np.einsum("bgn,bgn->bn", error, error)
        better = squares < least
        best, least = np.where(better, scales, best), np.where(better, squares, least)
    whole = _whole(shares, best.astype(np.float32) / size)
    return (whole + np.float32(_ZERO_CODE)).astype(np.uint8), best


def _whole(blocks: Array, scales: Array) -> Array:
    """``blocks`` in units of ``scales``: floats that are integers within -8..7."""
    units = np.where(scales != 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(blocks / units), -_ZERO_CODE, _ZERO_CODE - 1)
