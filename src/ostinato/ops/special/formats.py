"""The parts of floats: exponents, fractions, and the numbers next to others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ostinato.dtypes import INT16, INT32, INT64, DType
from ostinato.records import dataclass

__all__ = ["Format", "fraction_and_power", "next_after", "of", "scaled_by_power"]

_BITS = {2: INT16, 4: INT32, 8: INT64}


@dataclass(frozen=True)
class Format:
    """The layout of a float dtype.

    Attributes:
        bits: the integers that are as wide.
        mantissa: the bits of the mantissa, without the hidden one.
        bias: of the exponent.
        greatest: the greatest number.
    """

    bits: DType
    mantissa: int
    bias: int
    greatest: float


@cache
def of(dtype: DType) -> Format:
    """The layout of a float ``dtype``."""
    if dtype.name == "bfloat16":
        return Format(INT16, 7, 127, (2 - 2**-7) * 2.0**127)
    info = np.finfo(dtype.numpy)
    return Format(_BITS[dtype.itemsize], int(info.nmant), int(info.maxexp) - 1, float(info.max))


def next_after(g: Any, x: Any, y: Any) -> Any:
    """The number next to ``x`` towards ``y``; both are floats of one dtype."""
    dtype = g.type_of(x).dtype
    integers = of(dtype).bits
    bits = g.bitcast(x, integers)
    # Magnitudes count up from zero; those of negative numbers have the sign bit besides.
    away = g.equal(g.greater(x, 0), g.less(x, y))
    moved = g.bitcast(g.add(bits, g.where(away, g.constant(1, integers), -1)), dtype)
    least = g.bitcast(g.constant(1, integers), dtype)
    moved = g.where(g.equal(x, 0), g.where(g.greater(y, 0), least, g.neg(least)), moved)
    # Where one is NaN, the sum is.
    unordered = g.logical_or(g.isnan(x), g.isnan(y))
    return g.where(unordered, g.add(x, y), g.where(g.equal(x, y), y, moved))


def scaled_by_power(g: Any, x: Any, n: Any) -> Any:
    """``x * 2**n`` of float32 or float64, rounded once.

    The power is split into three that are floats. The last factor is as much as one can be: only
    its product may be subnormal or infinite, unless the result is 0 or infinite anyway.
    """
    dtype = g.type_of(x).dtype
    limit = of(dtype).bias - 1
    if g.type_of(n).dtype.is_float:
        n = g.cast(n, dtype)
        n = g.cast(g.clip(n, -4.0 * limit, 4.0 * limit), INT32)
    n = g.clip(g.cast(n, INT64), -3 * limit, 3 * limit)
    last = g.clip(n, -limit, limit)
    rest = g.subtract(n, last)
    middle = g.clip(rest, -limit, limit)
    for part in (g.subtract(rest, middle), middle, last):
        x = g.multiply(x, _power(g, part, dtype))
    return x


def fraction_and_power(g: Any, x: Any) -> tuple[Any, Any]:
    """``x`` of float32 or float64 as a fraction from 0.5 to 1 and a power of 2."""
    dtype = g.type_of(x).dtype
    layout = of(dtype)
    ordinary = g.logical_and(g.isfinite(x), g.not_equal(x, 0))
    subnormal = g.less(g.abs(x), 2.0 ** (1 - layout.bias))
    lift = layout.mantissa + 1
    normal = g.where(subnormal, g.multiply(x, 2.0**lift), x)
    bits = g.bitcast(normal, layout.bits)
    field = (1 << (layout.bits.bits - 1 - layout.mantissa)) - 1
    exponent = g.bitwise_and(g.bitwise_right_shift(bits, layout.mantissa), field)
    kept = g.bitwise_and(bits, ~(field << layout.mantissa))
    half = g.bitcast(g.bitwise_or(kept, (layout.bias - 1) << layout.mantissa), dtype)
    power = g.subtract(g.cast(exponent, INT32), layout.bias - 1)
    power = g.where(subnormal, g.subtract(power, lift), power)
    return g.where(ordinary, half, x), g.where(ordinary, power, 0)


def _power(g: Any, n: Any, dtype: DType) -> Any:
    """``2**n`` for integers of which that is a normal number."""
    layout = of(dtype)
    biased = g.cast(g.add(n, layout.bias), layout.bits)
    return g.bitcast(g.bitwise_left_shift(biased, layout.mantissa), dtype)
