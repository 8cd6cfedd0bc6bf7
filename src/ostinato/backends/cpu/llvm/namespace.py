"""The array namespace ``xp`` that op rules receive when they emit LLVM instructions.

float32 ``sin``, ``cos`` and ``tan`` add basic blocks: keep no reference to the builder's block
across an op rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ostinato.backends.common.namespace import ElementNamespace, as_float
from ostinato.backends.cpu.llvm.lanes import (
    Lane,
    Operand,
    align,
    align_numeric,
    intrinsic,
    is_nan,
    where,
)
from ostinato.backends.cpu.llvm.types import constant
from ostinato.dtypes import BOOL, FLOAT32, FLOAT64
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.backends.common.elements import Number
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

#: The module that computes a function of floats, by the name that both have.
_MODULES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(["exp", "exp2", "expm1", "sinh", "cosh", "tanh"], exponential),
    **dict.fromkeys(["log", "log2", "log10", "log1p"], logarithm),
    **dict.fromkeys(["sin", "cos", "tan", "asin", "acos", "atan"], trigonometric),
    **dict.fromkeys(["asinh", "acosh", "atanh"], hyperbolic),
    **dict.fromkeys(["erf", "normal_cdf"], error_function),
}


class LaneNamespace(ElementNamespace[Lane]):
    """``xp`` over lanes."""

    def align(self, x: Operand, y: Operand) -> tuple[Lane, Lane]:
        return align(x, y)

    def operand(self, x: Operand, y: Operand) -> Lane:
        return x if isinstance(x, Lane) else align(x, y)[0]

    def mathematics(self, name: str, x: Lane) -> Lane:
        if name == "sqrt":
            return intrinsic("sqrt", x)
        function: Callable[[Lane], Lane] = getattr(_MODULES[name], name)
        return function(x) if x.dtype in (FLOAT32, FLOAT64) else x.like(function(_held(x)).value)

    def rounded(self, name: str, x: Lane) -> Lane:
        return intrinsic("rint" if name == "round" else name, x)

    def flag(self, like: Lane, value: Number) -> Lane:
        return Lane(like.builder, constant(BOOL, value, like.lanes), BOOL, like.lanes)

    def where(self, condition: Lane, x: Operand, y: Operand) -> Lane:
        return where(condition, x, y)

    def fmod(self, x: Operand, y: Operand) -> Lane:
        left, right = align_numeric(x, y)
        if left.dtype.is_float:
            return left.like(left.builder.frem(left.value, right.value))
        return left.like(left.integers.remainder_truncated(left.value, right.value))

    def pow(self, x: Operand, y: Operand) -> Lane:
        return power.power(x, y)

    def reciprocal(self, x: Lane) -> Lane:
        if x.dtype.is_integer:
            return x.like(x.integers.divide_truncated(x.full(1).value, x.value))
        return 1.0 / x

    def sign(self, x: Lane) -> Lane:
        if x.dtype.is_bool:
            return x
        positive = where(x > 0, x.full(1), where(x == 0, x.full(0), x))
        return where(x < 0, x.full(-1), positive) if x.dtype.is_signed else positive

    def copysign(self, x: Operand, y: Operand) -> Lane:
        return intrinsic("copysign", *align(x, y))

    def maximum(self, x: Operand, y: Operand) -> Lane:
        return _extremum("max", x, y)

    def minimum(self, x: Operand, y: Operand) -> Lane:
        return _extremum("min", x, y)

    def atan2(self, y: Operand, x: Operand) -> Lane:
        rise, run = align(y, x)
        rise, run = as_float(rise), as_float(run)
        if rise.dtype == FLOAT64:
            return trigonometric.atan2(rise, run)
        return rise.like(trigonometric.atan2(_held(rise), _held(run)).value)

    def isnan(self, x: Lane) -> Lane:
        return is_nan(x)


def _held(x: Lane) -> Lane:
    """A float of at most 32 bits as the float32 that its register holds."""
    return Lane(x.builder, x.value, FLOAT32, x.lanes)


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
