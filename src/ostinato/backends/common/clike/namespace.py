"""The array namespace ``xp`` that op rules receive when they write C."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import (
    CValue,
    Operand,
    align,
    align_numeric,
    function,
    is_nan,
    where,
)
from ostinato.backends.common.namespace import ElementNamespace, as_float
from ostinato.dtypes import BOOL

if TYPE_CHECKING:
    from ostinato.backends.common.elements import Number

__all__ = ["CNamespace"]

_MULTIPLIED_UP_TO = 4
"""Integral exponents of floats this small are products, which round at most twice."""

#: Functions for which a shorter computation is enough where results have 16 bits.
_SHORT = frozenset({"normal_cdf", "silu"})


class CNamespace(ElementNamespace[CValue]):
    """``xp`` over values in local variables, by functions of the dialect's library."""

    def align(self, x: Operand, y: Operand) -> tuple[CValue, CValue]:
        return align(x, y)

    def operand(self, x: Operand, y: Operand) -> CValue:
        if isinstance(x, CValue):
            return x
        if not isinstance(y, CValue):
            raise TypeError(f"one of {x!r} and {y!r} must be a value")
        return y.of(x)

    def mathematics(self, name: str, x: CValue) -> CValue:
        if name in _SHORT and x.dtype.itemsize == 2:
            name = f"short_{name}"
        return function(name, x)

    def rounded(self, name: str, x: CValue) -> CValue:
        return function(name, x)

    def flag(self, like: CValue, value: Number) -> CValue:
        return like.code.constant(BOOL, value)

    def where(self, condition: CValue, x: Operand, y: Operand) -> CValue:
        return where(condition, x, y)

    def fmod(self, x: Operand, y: Operand) -> CValue:
        return function("remainder_truncated", *align_numeric(x, y))

    def pow(self, x: Operand, y: Operand) -> CValue:
        base, exponent = align(x, y)
        if base.dtype.is_bool:
            return base | ~exponent
        if base.dtype.is_integer:
            return function("power", base, exponent)
        special = None if isinstance(y, CValue) else _power_by_constant(base, float(y))
        return function("float_power", base, exponent) if special is None else special

    def silu(self, x: CValue) -> CValue:
        return self.mathematics("silu", as_float(x))

    def reciprocal(self, x: CValue) -> CValue:
        if x.dtype.is_integer:
            return function("divide_truncated", x.full(1), x)
        return 1.0 / x

    def sign(self, x: CValue) -> CValue:
        return x if x.dtype.is_bool else function("sign", x)

    def copysign(self, x: Operand, y: Operand) -> CValue:
        return function("copysign", *align(x, y))

    def maximum(self, x: Operand, y: Operand) -> CValue:
        return function("maximum", *align(x, y))

    def minimum(self, x: Operand, y: Operand) -> CValue:
        return function("minimum", *align(x, y))

    def atan2(self, y: Operand, x: Operand) -> CValue:
        rise, run = align(y, x)
        return function("atan2", as_float(rise), as_float(run))

    def isnan(self, x: CValue) -> CValue:
        return is_nan(x)


def _power_by_constant(x: CValue, exponent: float) -> CValue | None:
    """The power by products or a square root where the exponent allows it."""
    if exponent == 0.5:
        # The square root of -0 is -0, and of minus infinity NaN; the power is 0 and infinity.
        return where(x == -math.inf, math.inf, abs(function("sqrt", x)))
    if exponent == -1.0:
        return 1.0 / x
    if exponent.is_integer() and 0 <= exponent <= _MULTIPLIED_UP_TO:
        return _product(x, int(exponent))
    return None


def _product(x: CValue, count: int) -> CValue:
    if count == 0:
        return x.full(1.0)
    if count == 1:
        return x
    half = _product(x, count // 2)
    return half * half * x if count % 2 else half * half
