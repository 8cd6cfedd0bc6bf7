"""Packing of weights: blocks of the formats that have one obvious way to round.

The scale of a block follows from its extreme elements, and each element becomes the nearest code.
The results are, to the bit, those of the reference implementation of the formats.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import InputError
from ostinato.ops.packed.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ENCODERS", "encode"]

Array = np.ndarray[Any, Any]

#: Elements that are encoded at a time.
_CHUNK = 1 << 18

_FIFTH_BIT = 4


def encode(weights: Array, name: str) -> Array:
    """``weights`` in a packed format: uint8 ``[..., bytes]``.

    Args:
        weights: floats ``[..., elements]``, whole blocks along the last axis.
        name: of the format: one of :data:`ENCODERS`.

    Raises:
        InputError: no such format, the elements are not whole blocks, or not all finite.
    """
    encoder = ENCODERS.get(name)
    if encoder is None:
        raise InputError(f"weights are packed as {', '.join(ENCODERS)}, not as {name!r:.80}")
    form = FORMATS[name]
    if weights.ndim == 0 or weights.shape[-1] % form.size:
        raise InputError(
            f"{name} has blocks of {form.size} elements, got rows of {list(weights.shape)[-1:]}"
        )
    blocks = weights.reshape(-1, form.size)
    result = np.empty((len(blocks), form.nbytes), np.uint8)
    step = _CHUNK // form.size
    for start in range(0, len(blocks), step):
        chunk = np.ascontiguousarray(blocks[start : start + step], np.float32)
        if not np.isfinite(chunk).all():
            raise InputError(f"{name} has no code for infinite elements and NaN")
        # The inverse of a subnormal scale may be infinite, a scale beyond float16, too.
        with np.errstate(all="ignore"):
            result[start : start + step] = encoder(chunk)
    return result.reshape(*weights.shape[:-1], form.row_bytes(weights.shape[-1]))


def _q8_0(blocks: Array) -> Array:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    rounded = np.sign(scaled) * (whole + np.floor(2 * (magnitude - whole)))  # ties away from zero
    return np.concatenate([_float16(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)


def _symmetric(blocks: Array, bits: int) -> tuple[Array, Array]:
    """``(scale, codes)``: the element of the greatest magnitude has the least code."""
    zero = 1 << bits - 1
    place = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, place, axis=1) / np.float32(-zero)
    return scale, _codes(blocks * _inverse(scale) + np.float32(zero + 0.5), bits)


def _with_minimum(blocks: Array, bits: int) -> tuple[Array, Array, Array]:
    """``(scale, minimum, codes)``: from the least element to the greatest."""
    high, low = blocks.max(axis=1, keepdims=True), blocks.min(axis=1, keepdims=True)
    scale = (high - low) / np.float32((1 << bits) - 1)
    return scale, low, _codes((blocks - low) * _inverse(scale) + np.float32(0.5), bits)


def _q4_0(blocks: Array) -> Array:
    scale, codes = _symmetric(blocks, 4)
    return np.concatenate([_float16(scale), _halves(codes)], axis=1)


def _q4_1(blocks: Array) -> Array:
    scale, low, codes = _with_minimum(blocks, 4)
    return np.concatenate([_float16(scale), _float16(low), _halves(codes)], axis=1)


def _q5_0(blocks: Array) -> Array:
    scale, codes = _symmetric(blocks, 5)
    return np.concatenate([_float16(scale), _fifth_bits(codes), _halves(codes)], axis=1)


def _q5_1(blocks: Array) -> Array:
    scale, low, codes = _with_minimum(blocks, 5)
    parts = [_float16(scale), _float16(low), _fifth_bits(codes), _halves(codes)]
    return np.concatenate(parts, axis=1)


def _inverse(scale: Array) -> Array:
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _codes(rounded: Array, bits: int) -> Array:
    """Floats without their fractions, as codes."""
    return np.trunc(rounded).astype(np.uint8).clip(0, (1 << bits) - 1)


def _halves(codes: Array) -> Array:
    """The low four bits of codes, those of the second half of a block above the others."""
    middle = codes.shape[1] // 2
    return codes[:, :middle] & 15 | codes[:, middle:] << 4


def _fifth_bits(codes: Array) -> Array:
    return np.packbits(codes >> _FIFTH_BIT, axis=1, bitorder="little")


def _float16(values: Array) -> Array:
    return values.astype("<f2").view(np.uint8)


#: By the name of the format.
ENCODERS: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType(
    {
        "gguf:q8_0": _q8_0,
        "gguf:q4_0": _q4_0,
        "gguf:q4_1": _q4_1,
        "gguf:q5_0": _q5_0,
        "gguf:q5_1": _q5_1,
    }
)
