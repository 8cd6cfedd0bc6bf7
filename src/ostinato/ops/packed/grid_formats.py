"""Formats whose codes are numbers of points in a grid, or digits of a base that is no power of two.

An element is a coordinate of a point times a scale and a sign. Matmuls do not take these formats as
they are: their elements are computed when a model is loaded, in float32 and in the order of the
formats' standard.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.ops.packed.grids import grid
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["GRID_FORMATS", "GridFormat"]

Array = np.ndarray[Any, Any]

_SIZE = 256
_BITS: Final = np.arange(8)
_HALF, _QUARTER, _EIGHTH = np.float32(0.5), np.float32(0.25), np.float32(0.125)


@dataclass(frozen=True)
class GridFormat:
    """A format of blocks.

    Attributes:
        name: as ONNX has it.
        size: elements of a block.
        nbytes: bytes of a block.
        decode: the elements of blocks, float32 ``[B, size]`` of uint8 ``[B, nbytes]``.
    """

    name: str
    size: int
    nbytes: int
    decode: Callable[[Array], Array]

    @property
    def computed(self) -> bool:
        """Whether matmuls take it as it is."""
        return False


def _view(blocks: Array, start: int, stop: int, dtype: str) -> Array:
    """Bytes ``start`` to ``stop`` of each block as little-endian numbers."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _scale(blocks: Array, byte: int) -> Array:
    """The float16 at a byte of each block, ``[B, 1]``."""
    return _view(blocks, byte, byte + 2, "<f2").astype(np.float32)


def _nibbles(octets: Array) -> Array:
    """Two 4-bit integers for each byte, the low one first."""
    pairs = octets[:, :, None] >> np.array([0, 4], np.uint8) & 15
    return pairs.reshape(len(octets), -1)


def _signs(bits: Array) -> Array:
    """``-1`` for each bit that is set, the lowest first: ``[..., 8]``."""
    return np.where(bits[..., None] >> _BITS & 1, np.float32(-1), np.float32(1))


def _even_signs(codes: Array) -> Array:
    """Signs of seven bits; the eighth makes the number of negative ones even."""
    parity = np.bitwise_xor.reduce(codes[..., None] >> _BITS[:7] & 1, axis=-1)
    return _signs(codes | parity << 7)


def _signed_points(scales: Array, points: Array, signs: Array) -> Array:
    """``scales [B, parts]`` times ``points [B, n, coordinates]`` times ``signs``."""
    count = len(points)
    shape = (count, scales.shape[1], -1)
    scaled = scales[:, :, None] * points.reshape(shape)
    signed: Array = scaled * signs.reshape(shape)
    return signed.reshape(count, _SIZE)


def _iq2_xxs(blocks: Array) -> Array:
    words = _view(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    low, high = words[..., 0], words[..., 1].astype(np.int64)
    numbers = np.ascontiguousarray(low).view(np.uint8)
    scales = _scale(blocks, 0) * (_HALF + (high >> 28).astype(np.float32)) * _QUARTER
    signs = _even_signs(high[..., None] >> np.array([0, 7, 14, 21]) & 127)
    return _signed_points(scales, grid("iq2_xxs")[numbers], signs)


def _iq2_xs(blocks: Array) -> Array:
    codes = _view(blocks, 2, 66, "<u2").astype(np.int64)
    scales = _sixteenths(blocks, 66)
    return _signed_points(scales, grid("iq2_xs")[codes & 511], _even_signs(codes >> 9))


def _iq2_s(blocks: Array) -> Array:
    high = blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    numbers = blocks[:, 2:34] + (high.reshape(len(blocks), 32).astype(np.int64) << 8)
    scales = _sixteenths(blocks, 74)
    signs = _signs(blocks[:, 34:66].astype(np.int64))
    return _signed_points(scales, grid("iq2_s")[numbers], signs)


def _sixteenths(blocks: Array, byte: int) -> Array:
    """The scales of 16 parts of a block, of which four bits each say how much they count."""
    factors = _nibbles(blocks[:, byte : byte + 8]).astype(np.float32)
    scales: Array = _scale(blocks, 0) * (_HALF + factors) * _QUARTER
    return scales


def _iq3_xxs(blocks: Array) -> Array:
    words = _view(blocks, 66, 98, "<u4").astype(np.int64)
    scales = _scale(blocks, 0) * (_HALF + (words >> 28).astype(np.float32)) * _HALF
    signs = _even_signs(words[..., None] >> np.array([0, 7, 14, 21]) & 127)
    return _signed_points(scales, grid("iq3_xxs")[blocks[:, 2:66]], signs)


def _iq3_s(blocks: Array) -> Array:
    high = blocks[:, 66:74, None] >> np.arange(8, dtype=np.uint8) & 1
    numbers = blocks[:, 2:66] + (high.reshape(len(blocks), 64).astype(np.int64) << 8)
    factors = 1 + 2 * _nibbles(blocks[:, 106:110]).astype(np.float32)
    signs = _signs(blocks[:, 74:106].astype(np.int64))
    return _signed_points(_scale(blocks, 0) * factors, grid("iq3_s")[numbers], signs)


def _iq1_s(blocks: Array) -> Array:
    words = _view(blocks, 34, 50, "<u2").astype(np.int64)
    scales = _scale(blocks, 0) * (2 * (words >> 12 & 7) + 1).astype(np.float32)
    moved = np.where(words & 0x8000, -_EIGHTH, _EIGHTH)
    high = words[..., None] >> np.array([0, 3, 6, 9]) & 7
    numbers = blocks[:, 2:34] + (high.reshape(len(blocks), 32) << 8)
    points = grid("iq1_s")[numbers].reshape(len(blocks), 8, 32) + moved[:, :, None]
    elements: Array = scales[:, :, None] * points
    return elements.reshape(len(blocks), _SIZE)


def _iq1_m(blocks: Array) -> Array:
    words = _view(blocks, 48, 56, "<u2")
    # The scale is spread over the highest four bits of four words.
    parts = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    scale = np.bitwise_or.reduce(parts, axis=1).view(np.float16).astype(np.float32)
    factors = (words.astype(np.int64)[..., None] >> np.array([0, 3, 6, 9]) & 7).reshape(-1, 16)
    scales = scale[:, None] * (2 * factors + 1).astype(np.float32)
    high = _nibbles(blocks[:, 32:48]).astype(np.int64)
    numbers = blocks[:, :32] + ((high & 7) << 8)
    moved = np.where(high & 8, -_EIGHTH, _EIGHTH)
    points = (grid("iq1_s")[numbers] + moved[:, :, None]).reshape(len(blocks), 16, 16)
    elements: Array = scales[:, :, None] * points
    return elements.reshape(len(blocks), _SIZE)


def _tq1_0(blocks: Array) -> Array:
    def digits(octets: Array, count: int) -> Array:
        """Ternary digits, the first one the most significant of a fraction of 256."""
        powers = (3 ** np.arange(count)).astype(np.uint8)[None, :, None]
        fractions = octets[:, None, :] * powers  # what carries out of a byte is gone
        return (fractions.astype(np.int64) * 3 >> 8).reshape(len(octets), -1)

    parts = (digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4))
    numbers = (np.concatenate(parts, axis=1) - 1).astype(np.float32)
    return _scale(blocks, 52) * numbers


#: By name.
GRID_FORMATS: Final[Mapping[str, GridFormat]] = MappingProxyType(
    {
        f"gguf:{name}": GridFormat(f"gguf:{name}", _SIZE, nbytes, decode)
        for name, nbytes, decode in (
            ("iq1_s", 50, _iq1_s),
            ("iq1_m", 56, _iq1_m),
            ("iq2_xxs", 66, _iq2_xxs),
            ("iq2_xs", 74, _iq2_xs),
            ("iq2_s", 82, _iq2_s),
            ("iq3_xxs", 98, _iq3_xxs),
            ("iq3_s", 110, _iq3_s),
            ("tq1_0", 54, _tq1_0),
        )
    }
)
