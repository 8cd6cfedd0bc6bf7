"""The array namespace ``xp`` that op rules receive when they generate code.

It has the names of the array API standard, and the few more that rules use, over
:class:`~ostinato.backends.cpu.llvm.lanes.Lane` instead of arrays. Functions accept Python scalars
beside lanes as operators do. A 16-bit float is computed on as float32 and not rounded in between;
kernels round once per graph op with :func:`~ostinato.backends.cpu.llvm.lanes.round_to`.

float32 ``sin``, ``cos`` and ``tan`` add basic blocks: keep no reference to the builder's block
across an op rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato import dtypes
from ostinato.backends.cpu.llvm.lanes import (
    Lane,
    Operand,
    align,
    align_numeric,
    intrinsic,
    is_nan,
    where,
)
from ostinato.backends.cpu.llvm.types import Scalar, constant
from ostinato.dtypes import BOOL, FLOAT32, FLOAT64, DType
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ostinato.backends.cpu.llvm.vecmath import (
        error_function,
        exponential,
        hyperbolic,
        logarithm,
        power,
        trigonometric,
    )
else:
    error_function = LazyModule("ostinato.backends.cpu.llvm.vecmath.error_function")
    exponential = LazyModule("ostinato.backends.cpu.llvm.vecmath.exponential")
    hyperbolic = LazyModule("ostinato.backends.cpu.llvm.vecmath.hyperbolic")
    logarithm = LazyModule("ostinato.backends.cpu.llvm.vecmath.logarithm")
    power = LazyModule("ostinato.backends.cpu.llvm.vecmath.power")
    trigonometric = LazyModule("ostinato.backends.cpu.llvm.vecmath.trigonometric")

__all__ = ["LaneNamespace"]


def _as_float(x: Lane) -> Lane:
    """``x`` for a function of floats: bools and integers become float32."""
    return x if x.dtype.is_float else x.astype(FLOAT32)


def _mathematics(module: ModuleType, name: str) -> Callable[[LaneNamespace, Lane], Lane]:
    """A namespace method computing a function of ``module`` in float32 or float64."""

    def method(self: LaneNamespace, x: Lane) -> Lane:
        function: Callable[[Lane], Lane] = getattr(module, name)
        x = _as_float(x)
        if x.dtype in (FLOAT32, FLOAT64):
            return function(x)
        held = Lane(x.builder, x.value, FLOAT32, x.lanes)
        return x.like(function(held).value)

    method.__name__ = method.__qualname__ = name
    return method


def _rounding(name: str, doc: str) -> Callable[[LaneNamespace, Lane], Lane]:
    """A namespace method rounding floats to integral values; integers stay as they are."""

    def method(self: LaneNamespace, x: Lane) -> Lane:
        return intrinsic(name, x) if x.dtype.is_float else x

    method.__doc__ = doc
    return method


class LaneNamespace:
    """``xp`` over lanes. It has no state; one instance serves all kernels."""

    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
    bool = dtypes.BOOL
    int8, int16, int32, int64 = dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64
    uint8, uint16, uint32, uint64 = dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64
    float16, bfloat16 = dtypes.FLOAT16, dtypes.BFLOAT16
    float32, float64 = dtypes.FLOAT32, dtypes.FLOAT64

    exp = _mathematics(exponential, "exp")
    exp2 = _mathematics(exponential, "exp2")
    expm1 = _mathematics(exponential, "expm1")
    sinh = _mathematics(exponential, "sinh")
    cosh = _mathematics(exponential, "cosh")
    tanh = _mathematics(exponential, "tanh")
    log = _mathematics(logarithm, "log")
    log2 = _mathematics(logarithm, "log2")
    log10 = _mathematics(logarithm, "log10")
    log1p = _mathematics(logarithm, "log1p")
    sin = _mathematics(trigonometric, "sin")
    cos = _mathematics(trigonometric, "cos")
    tan = _mathematics(trigonometric, "tan")
    asin = _mathematics(trigonometric, "asin")
    acos = _mathematics(trigonometric, "acos")
    atan = _mathematics(trigonometric, "atan")
    asinh = _mathematics(hyperbolic, "asinh")
    acosh = _mathematics(hyperbolic, "acosh")
    atanh = _mathematics(hyperbolic, "atanh")
    erf = _mathematics(error_function, "erf")
    normal_cdf = _mathematics(error_function, "normal_cdf")

    floor = _rounding("floor", "The largest integral value not above ``x``.")
    ceil = _rounding("ceil", "The smallest integral value not below ``x``.")
    round = _rounding("rint", "The nearest integral value; halves go to the even one.")
    trunc = _rounding("trunc", "``x`` without its fraction.")

    # Arithmetic ------------------------------------------------------------------------------

    def add(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) + y

    def subtract(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) - y

    def multiply(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) * y

    def divide(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) / y

    def floor_divide(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) // y

    def remainder(self, x: Operand, y: Operand) -> Lane:
        """The remainder with the sign of ``y``."""
        return _lane(x, y) % y

    def fmod(self, x: Operand, y: Operand) -> Lane:
        """The remainder with the sign of ``x``, as in C."""
        left, right = align_numeric(x, y)
        if left.dtype.is_float:
            return left.like(left.builder.frem(left.value, right.value))
        return left.like(left.integers.remainder_truncated(left.value, right.value))

    def pow(self, x: Operand, y: Operand) -> Lane:
        return power.power(x, y)

    def neg(self, x: Lane) -> Lane:
        return -x

    def positive(self, x: Lane) -> Lane:
        return x

    def abs(self, x: Lane) -> Lane:
        return abs(x)

    def square(self, x: Lane) -> Lane:
        return x * x

    def reciprocal(self, x: Lane) -> Lane:
        """``1 / x``, in the dtype of ``x``: 0 for integers but for 1 and -1."""
        if x.dtype.is_integer:
            return x.like(x.integers.divide_truncated(x.full(1).value, x.value))
        return 1.0 / x

    def sqrt(self, x: Lane) -> Lane:
        return intrinsic("sqrt", _as_float(x))

    def rsqrt(self, x: Lane) -> Lane:
        return 1.0 / self.sqrt(x)

    def sign(self, x: Lane) -> Lane:
        """-1, 0 or 1; NaN for NaN."""
        if x.dtype.is_bool:
            return x
        positive = where(x > 0, x.full(1), where(x == 0, x.full(0), x))
        return where(x < 0, x.full(-1), positive) if x.dtype.is_signed else positive

    def copysign(self, x: Operand, y: Operand) -> Lane:
        left, right = align(x, y)
        return intrinsic("copysign", left, right)

    def maximum(self, x: Operand, y: Operand) -> Lane:
        """The larger; NaN if either is NaN."""
        return _extremum("max", x, y)

    def minimum(self, x: Operand, y: Operand) -> Lane:
        """The smaller; NaN if either is NaN."""
        return _extremum("min", x, y)

    def clip(self, x: Lane, min: Operand | None = None, max: Operand | None = None) -> Lane:
        """``x`` limited from below, then from above; NaN stays."""
        if min is not None:
            x = self.maximum(x, min)
        return x if max is None else self.minimum(x, max)

    def atan2(self, y: Operand, x: Operand) -> Lane:
        """The angle of the point (x, y)."""
        rise, run = align(y, x)
        rise, run = _as_float(rise), _as_float(run)
        if rise.dtype == FLOAT64:
            return trigonometric.atan2(rise, run)
        held = [Lane(v.builder, v.value, FLOAT32, v.lanes) for v in (rise, run)]
        return rise.like(trigonometric.atan2(*held).value)

    def logaddexp(self, x: Operand, y: Operand) -> Lane:
        """``log(exp(x) + exp(y))`` without overflow."""
        left, right = align(x, y)
        left, right = _as_float(left), _as_float(right)
        larger = self.maximum(left, right)
        result = larger + self.log1p(self.exp(-abs(left - right)))
        # Equal infinities have no difference.
        return where(left == right, left + math.log(2.0), result)

    # Comparison and logic --------------------------------------------------------------------

    def equal(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) == y

    def not_equal(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) != y

    def less(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) < y

    def less_equal(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) <= y

    def greater(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) > y

    def greater_equal(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) >= y

    def logical_not(self, x: Lane) -> Lane:
        return ~x.astype(BOOL)

    def logical_and(self, x: Operand, y: Operand) -> Lane:
        left, right = align(x, y)
        return left.astype(BOOL) & right.astype(BOOL)

    def logical_or(self, x: Operand, y: Operand) -> Lane:
        left, right = align(x, y)
        return left.astype(BOOL) | right.astype(BOOL)

    def logical_xor(self, x: Operand, y: Operand) -> Lane:
        left, right = align(x, y)
        return left.astype(BOOL) ^ right.astype(BOOL)

    def isnan(self, x: Lane) -> Lane:
        return is_nan(x)

    def isinf(self, x: Lane) -> Lane:
        return abs(x) == math.inf if x.dtype.is_float else _never(x)

    def isfinite(self, x: Lane) -> Lane:
        return abs(x) < math.inf if x.dtype.is_float else ~_never(x)

    def signbit(self, x: Lane) -> Lane:
        """Whether the sign is minus; true for -0."""
        if x.dtype.is_float:
            return intrinsic("copysign", x.full(1.0), x) < 0.0
        return x < 0 if x.dtype.is_signed else _never(x)

    def where(self, condition: Lane, x: Operand, y: Operand) -> Lane:
        return where(condition, x, y)

    # Bits ------------------------------------------------------------------------------------

    def bitwise_invert(self, x: Lane) -> Lane:
        return ~x

    def bitwise_and(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) & y

    def bitwise_or(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) | y

    def bitwise_xor(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) ^ y

    def bitwise_left_shift(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) << y

    def bitwise_right_shift(self, x: Operand, y: Operand) -> Lane:
        return _lane(x, y) >> y

    # Types -----------------------------------------------------------------------------------

    def astype(self, x: Lane, dtype: DType | str) -> Lane:
        """``x`` converted; see :func:`ostinato.backends.cpu.llvm.conversion.convert`."""
        return x.astype(DType.parse(dtype))

    def bitcast(self, x: Lane, source: DType, dtype: DType) -> Lane:
        """The bits of ``x``, of ``source``, read as ``dtype``."""
        return x.bitcast(dtype)

    def full_like(self, x: Lane, value: Scalar) -> Lane:
        return x.full(value)

    def zeros_like(self, x: Lane) -> Lane:
        return x.full(0)

    def ones_like(self, x: Lane) -> Lane:
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


def _lane(x: Operand, y: Operand) -> Lane:
    """The first operand as a lane, so that its operators can be used."""
    return align(x, y)[0] if not isinstance(x, Lane) else x


def _never(x: Lane) -> Lane:
    return Lane(x.builder, constant(BOOL, False, x.lanes), BOOL, x.lanes)


def _extremum(which: str, x: Operand, y: Operand) -> Lane:
    left, right = align(x, y)
    if left.dtype.is_bool:
        return left | right if which == "max" else left & right
    if left.dtype.is_integer:
        return left.like(left.integers.extremum(which, left.value, right.value))
    if _is_known_number(x):
        left, right = right, left
    # With the number that cannot be NaN on the right, one instruction that keeps NaN on the left.
    replaced = left < right if which == "max" else left > right
    if _is_known_number(x) or _is_known_number(y):
        return where(replaced, right, left)
    return where(replaced | is_nan(right), right, left)


def _is_known_number(operand: Operand) -> bool:
    return not isinstance(operand, Lane) and not math.isnan(operand)
