"""Powers."""

from __future__ import annotations

import math

from ostinato.backends.cpu.llvm.lanes import Lane, Operand, align, intrinsic, is_nan, where
from ostinato.backends.cpu.llvm.vecmath.exponential import exp2
from ostinato.backends.cpu.llvm.vecmath.formats import DOUBLE_FOR_SINGLE
from ostinato.backends.cpu.llvm.vecmath.libm import each_lane
from ostinato.backends.cpu.llvm.vecmath.logarithm import log2
from ostinato.dtypes import FLOAT32, FLOAT64

__all__ = ["power"]

_MULTIPLIED_UP_TO = 4
"""Integral exponents this small are products, which round at most twice."""


def power(x: Operand, y: Operand) -> Lane:
    """``x ** y`` for operands of any dtype; a constant exponent becomes multiplications."""
    base, exponent = align(x, y)
    if base.dtype.is_bool:
        return base | ~exponent
    if base.dtype.is_integer:
        if isinstance(y, int):
            return base.like(base.integers.power_by_constant(base.value, y))
        return base.like(base.integers.power(base.value, exponent.value))
    if isinstance(y, (int, float)):
        special = _by_constant(base, float(y))
        if special is not None:
            return special
    if base.dtype == FLOAT64:
        return each_lane("pow", base, exponent)
    held = FLOAT32
    result = _float32_power(
        Lane(base.builder, base.value, held, base.lanes),
        Lane(base.builder, exponent.value, held, base.lanes),
    )
    return base.like(result.value)


def _by_constant(x: Lane, exponent: float) -> Lane | None:
    """The power by products or a square root where the exponent allows it."""
    if exponent == 0.5:
        # The square root of -0 is -0, and of minus infinity NaN; the power is 0 and infinity.
        root = abs(intrinsic("sqrt", x))
        return where(x == -math.inf, math.inf, root)
    if exponent == -1.0:
        return 1.0 / x
    if exponent.is_integer() and 0 <= exponent <= _MULTIPLIED_UP_TO:
        return _product(x, int(exponent))
    return None


def _product(x: Lane, count: int) -> Lane:
    if count == 0:
        return x.full(1.0)
    if count == 1:
        return x
    half = _product(x, count // 2)
    return half * half * x if count % 2 else half * half


def _float32_power(x: Lane, y: Lane) -> Lane:
    """C's ``powf``, through float64 logarithm and exponential."""
    magnitude = abs(x)
    logarithm = log2(magnitude.astype(FLOAT64), DOUBLE_FOR_SINGLE)
    size = exp2(logarithm * y.astype(FLOAT64), DOUBLE_FOR_SINGLE).astype(FLOAT32)
    # Zero times infinity above: 1 to an infinite power, and anything to the power 0, are 1.
    size = where((magnitude == 1.0) & ~is_nan(y), 1.0, size)
    whole = intrinsic("trunc", y) == y
    half = y * 0.5
    odd = whole & (intrinsic("trunc", half) != half)
    negative = intrinsic("copysign", x.full(1.0), x) < 0.0
    result = where(negative & odd, -size, size)
    undefined = (x < 0.0) & (x != -math.inf) & (y != math.inf) & (y != -math.inf) & ~whole
    result = where(undefined, math.nan, result)
    return where((x == 1.0) | (y == 0.0), 1.0, result)
