"""The array namespace ``xp`` that op rules receive when they write C.

It has the names of the array API standard, and the few more that rules use, over
:class:`~ostinato.backends.common.clike.values.CValue` instead of arrays. Functions accept Python
scalars beside values as operators do. A 16-bit float is computed on as float32 and not rounded in
between; kernels round once per graph op with
:func:`~ostinato.backends.common.clike.values.round_to`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato import dtypes
from ostinato.backends.common.clike.values import (
    CValue,
    Number,
    Operand,
    align,
    align_numeric,
    function,
    is_nan,
    value_of,
    where,
)
from ostinato.dtypes import BOOL, FLOAT32, DType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CNamespace"]

_MULTIPLIED_UP_TO = 4
"""Integral exponents of floats this small are products, which round at most twice."""


def _as_float(x: CValue) -> CValue:
    """``x`` for a function of floats: bools and integers become float32."""
    return x if x.dtype.is_float else x.astype(FLOAT32)


def _mathematics(name: str) -> Callable[[CNamespace, CValue], CValue]:
    """A namespace method computing a function of the dialect's library in float32 or float64."""

    def method(self: CNamespace, x: CValue) -> CValue:
        return function(name, _as_float(x))

    method.__name__ = method.__qualname__ = name
    return method


def _rounding(name: str, doc: str) -> Callable[[CNamespace, CValue], CValue]:
    """A namespace method rounding floats to integral values; integers stay as they are."""

    def method(self: CNamespace, x: CValue) -> CValue:
        return function(name, x) if x.dtype.is_float else x

    method.__doc__ = doc
    return method


class CNamespace:
    """``xp`` over values in local variables. It has no state; one instance serves all kernels."""

    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
    bool = dtypes.BOOL
    int8, int16, int32, int64 = dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64
    uint8, uint16, uint32, uint64 = dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64
    float16, bfloat16 = dtypes.FLOAT16, dtypes.BFLOAT16
    float32, float64 = dtypes.FLOAT32, dtypes.FLOAT64

    exp = _mathematics("exp")
    exp2 = _mathematics("exp2")
    expm1 = _mathematics("expm1")
    sinh = _mathematics("sinh")
    cosh = _mathematics("cosh")
    tanh = _mathematics("tanh")
    log = _mathematics("log")
    log2 = _mathematics("log2")
    log10 = _mathematics("log10")
    log1p = _mathematics("log1p")
    sin = _mathematics("sin")
    cos = _mathematics("cos")
    tan = _mathematics("tan")
    asin = _mathematics("asin")
    acos = _mathematics("acos")
    atan = _mathematics("atan")
    asinh = _mathematics("asinh")
    acosh = _mathematics("acosh")
    atanh = _mathematics("atanh")
    erf = _mathematics("erf")
    sqrt = _mathematics("sqrt")

    floor = _rounding("floor", "The largest integral value not above ``x``.")
    ceil = _rounding("ceil", "The smallest integral value not below ``x``.")
    round = _rounding("round", "The nearest integral value; halves go to the even one.")
    trunc = _rounding("trunc", "``x`` without its fraction.")

    def normal_cdf(self, x: CValue) -> CValue:
        """The normal distribution's cumulative; a shorter computation is enough for 16 bits."""
        value = _as_float(x)
        return function("short_normal_cdf" if value.dtype.itemsize == 2 else "normal_cdf", value)

    # Arithmetic ------------------------------------------------------------------------------

    def add(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) + y

    def subtract(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) - y

    def multiply(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) * y

    def divide(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) / y

    def floor_divide(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) // y

    def remainder(self, x: Operand, y: Operand) -> CValue:
        """The remainder with the sign of ``y``."""
        return _value(x, y) % y

    def fmod(self, x: Operand, y: Operand) -> CValue:
        """The remainder with the sign of ``x``, as in C."""
        return function("remainder_truncated", *align_numeric(x, y))

    def pow(self, x: Operand, y: Operand) -> CValue:
        """``x ** y``; small constant exponents of floats become multiplications."""
        base, exponent = align(x, y)
        if base.dtype.is_bool:
            return base | ~exponent
        if base.dtype.is_integer:
            return function("power", base, exponent)
        special = None if isinstance(y, CValue) else _power_by_constant(base, float(y))
        return function("float_power", base, exponent) if special is None else special

    def neg(self, x: CValue) -> CValue:
        return -x

    def positive(self, x: CValue) -> CValue:
        return x

    def abs(self, x: CValue) -> CValue:
        return abs(x)

    def square(self, x: CValue) -> CValue:
        return x * x

    def reciprocal(self, x: CValue) -> CValue:
        """``1 / x``, in the dtype of ``x``: 0 for integers but for 1 and -1."""
        if x.dtype.is_integer:
            return function("divide_truncated", x.full(1), x)
        return 1.0 / x

    def rsqrt(self, x: CValue) -> CValue:
        return 1.0 / self.sqrt(x)

    def sign(self, x: CValue) -> CValue:
        """-1, 0 or 1; NaN for NaN."""
        return x if x.dtype.is_bool else function("sign", x)

    def copysign(self, x: Operand, y: Operand) -> CValue:
        return function("copysign", *align(x, y))

    def maximum(self, x: Operand, y: Operand) -> CValue:
        """The larger; NaN if either is NaN."""
        return function("maximum", *align(x, y))

    def minimum(self, x: Operand, y: Operand) -> CValue:
        """The smaller; NaN if either is NaN."""
        return function("minimum", *align(x, y))

    def clip(self, x: CValue, min: Operand | None = None, max: Operand | None = None) -> CValue:
        """``x`` limited from below, then from above; NaN stays."""
        if min is not None:
            x = self.maximum(x, min)
        return x if max is None else self.minimum(x, max)

    def atan2(self, y: Operand, x: Operand) -> CValue:
        """The angle of the point (x, y)."""
        rise, run = align(y, x)
        return function("atan2", _as_float(rise), _as_float(run))

    def logaddexp(self, x: Operand, y: Operand) -> CValue:
        """``log(exp(x) + exp(y))`` without overflow."""
        left, right = align(x, y)
        left, right = _as_float(left), _as_float(right)
        larger = self.maximum(left, right)
        result = larger + self.log1p(self.exp(-abs(left - right)))
        # Equal infinities have no difference.
        return where(left == right, left + math.log(2.0), result)

    # Comparison and logic --------------------------------------------------------------------

    def equal(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) == y

    def not_equal(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) != y

    def less(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) < y

    def less_equal(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) <= y

    def greater(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) > y

    def greater_equal(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) >= y

    def logical_not(self, x: CValue) -> CValue:
        return ~x.astype(BOOL)

    def logical_and(self, x: Operand, y: Operand) -> CValue:
        left, right = align(x, y)
        return left.astype(BOOL) & right.astype(BOOL)

    def logical_or(self, x: Operand, y: Operand) -> CValue:
        left, right = align(x, y)
        return left.astype(BOOL) | right.astype(BOOL)

    def logical_xor(self, x: Operand, y: Operand) -> CValue:
        left, right = align(x, y)
        return left.astype(BOOL) ^ right.astype(BOOL)

    def isnan(self, x: CValue) -> CValue:
        return is_nan(x)

    def isinf(self, x: CValue) -> CValue:
        return abs(x) == math.inf if x.dtype.is_float else _constant(x, False)

    def isfinite(self, x: CValue) -> CValue:
        return abs(x) < math.inf if x.dtype.is_float else _constant(x, True)

    def signbit(self, x: CValue) -> CValue:
        """Whether the sign is minus; true for -0."""
        if x.dtype.is_float:
            return self.copysign(x.full(1.0), x) < 0.0
        return x < 0 if x.dtype.is_signed else _constant(x, False)

    def where(self, condition: CValue, x: Operand, y: Operand) -> CValue:
        return where(condition, x, y)

    # Bits ------------------------------------------------------------------------------------

    def bitwise_invert(self, x: CValue) -> CValue:
        return ~x

    def bitwise_and(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) & y

    def bitwise_or(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) | y

    def bitwise_xor(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) ^ y

    def bitwise_left_shift(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) << y

    def bitwise_right_shift(self, x: Operand, y: Operand) -> CValue:
        return _value(x, y) >> y

    # Types -----------------------------------------------------------------------------------

    def astype(self, x: CValue, dtype: DType | str) -> CValue:
        """``x`` converted by the rule of the op ``cast``."""
        return x.astype(DType.parse(dtype))

    def bitcast(self, x: CValue, source: DType, dtype: DType) -> CValue:
        """The bits of ``x``, of ``source``, read as ``dtype``."""
        return x.bitcast(dtype)

    def full_like(self, x: CValue, value: Number) -> CValue:
        return x.full(value)

    def zeros_like(self, x: CValue) -> CValue:
        return x.full(0)

    def ones_like(self, x: CValue) -> CValue:
        return x.full(1)

    # Other names of the same functions -------------------------------------------------------

    negative = neg
    true_divide = divide
    mod = remainder
    power = pow
    cast = astype
    rint = round
    absolute = abs
    bitwise_not = bitwise_invert
    left_shift = bitwise_left_shift
    right_shift = bitwise_right_shift
    arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
    arcsinh, arccosh, arctanh = asinh, acosh, atanh


def _value(x: Operand, y: Operand) -> CValue:
    """The first operand as a value, so that its operators can be used."""
    if isinstance(x, CValue):
        return x
    if not isinstance(y, CValue):
        raise TypeError(f"one of {x!r} and {y!r} must be a value")
    return value_of(x, y)


def _constant(like: CValue, flag: bool) -> CValue:
    return like.code.constant(BOOL, flag)


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
