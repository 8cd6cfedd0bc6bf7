"""Converters of arithmetic: each result depends on the operands at its own index alone.

Operands promote to the dtype that PyTorch gives to the result. Bools add by "or" and multiply by
"and".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT64, INT16, INT32, INT64
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ops.builder import Graph

__all__ = ["CONVERTERS", "divide", "scaled", "sign_bit"]

#: By the width of a float, the integer of its bits.
_BITS = {16: INT16, 32: INT32, 64: INT64}


def _unary(method: str) -> Converter:
    """A function of one operand, computed in the result's dtype."""

    def convert(call: Call, self: Any) -> Value:
        (x,) = call.promoted(self)
        return getattr(call.g, method)(x)  # type: ignore[no-any-return]

    return convert


def _binary(method: str, of_bools: str | None = None) -> Converter:
    """A function of two operands, computed in the result's dtype."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.promoted(self, other)
        name = of_bools if of_bools and call.dtype.is_bool else method
        return getattr(call.g, name)(a, b)  # type: ignore[no-any-return]

    return convert


def _arithmetic(call: Call, method: str, self: Any, other: Any) -> Value:
    """A product or quotient; numbers beside 16-bit floats are not rounded before it."""
    compute: Callable[..., Value] = getattr(call.g, method)
    tensors = all(isinstance(operand, Value) and operand.ndim for operand in (self, other))
    if tensors or call.dtype.accumulator == call.dtype:
        return compute(*call.promoted(self, other))
    return call.rounded(compute(*call.widened(self, other)))


def _multiply(call: Call, self: Any, other: Any) -> Value:
    if call.dtype.is_bool:
        return call.g.logical_and(*call.promoted(self, other))
    return _arithmetic(call, "multiply", self, other)


def scaled(call: Call, value: Value, factor: Any) -> Value:
    """``value`` times a number, which is often 1."""
    if isinstance(factor, bool | int | float) and factor == 1:
        return value
    by = call.value(factor, value.dtype)
    return call.g.logical_and(value, by) if value.dtype.is_bool else call.g.multiply(value, by)


def _add(call: Call, self: Any, other: Any, alpha: Any = 1) -> Value:
    if call.dtype.is_bool:
        a, b = call.promoted(self, other)
        return call.g.logical_or(a, scaled(call, b, alpha))
    return _sum(call, "add", self, other, alpha)


def _subtract(call: Call, self: Any, other: Any, alpha: Any = 1) -> Value:
    return _sum(call, "subtract", self, other, alpha)


def _sum(call: Call, method: str, self: Any, other: Any, alpha: Any) -> Value:
    """``self`` and ``alpha`` times ``other``, all in the result's dtype, rounded once."""
    compute: Callable[..., Value] = getattr(call.g, method)
    a, b = call.promoted(self, other)
    if isinstance(alpha, int | float) and alpha == 1:
        return compute(a, b)
    (factor,) = call.promoted(alpha)
    a, b, factor = call.widened(a, b, factor)
    return call.rounded(compute(a, call.g.multiply(b, factor)))


def _subtract_reversed(call: Call, self: Any, other: Any, alpha: Any = 1) -> Value:
    return _subtract(call, other, self, alpha)


def divide(call: Call, self: Any, other: Any, rounding_mode: str | None = None) -> Value:
    """A quotient, rounded by ``"trunc"`` or ``"floor"`` or not."""
    g = call.g
    if rounding_mode is None:
        return _arithmetic(call, "divide", self, other)
    a, b = call.widened(self, other)
    if a.dtype.is_integer:
        # What the remainder leaves is divisible, so that rounding down is exact.
        return g.floor_divide(a if rounding_mode == "floor" else g.subtract(a, g.fmod(a, b)), b)
    if rounding_mode == "trunc":
        return call.rounded(g.trunc(g.divide(a, b)))
    return call.rounded(_floor_quotient(call, a, b))


def _floor_quotient(call: Call, a: Value, b: Value) -> Value:
    """``a / b`` of floats rounded down, by way of the remainder, so that the last bit is right."""
    g = call.g
    rest = g.fmod(a, b)
    exact = g.divide(g.subtract(a, rest), b)
    opposite = g.not_equal(g.less(b, 0), g.less(rest, 0))
    below = g.logical_and(g.not_equal(rest, 0), opposite)
    quotient = g.where(below, g.subtract(exact, 1), exact)
    whole = g.floor(quotient)
    whole = g.where(g.greater(g.subtract(quotient, whole), 0.5), g.add(whole, 1), whole)
    ratio = g.divide(a, b)
    zero = g.multiply(ratio, 0)  # with the sign of the ratio
    whole = g.where(g.equal(quotient, 0), zero, whole)
    return g.where(g.equal(b, 0), ratio, whole)


def _floor_divide(call: Call, self: Any, other: Any) -> Value:
    return divide(call, self, other, "floor")


def _power(call: Call, self: Any, exponent: Any) -> Value:
    g = call.g
    (a,) = call.promoted(self)
    if call.dtype.is_bool:
        (b,) = call.promoted(exponent)
        return g.logical_or(a, g.logical_not(b))
    if isinstance(exponent, int | float) and isinstance(self, Value):
        if exponent == 2:
            return g.square(a)
        if a.dtype.is_float and exponent == 0.5:
            return g.sqrt(a)
        if a.dtype.is_float and exponent == -0.5:
            return g.rsqrt(a)
        if exponent == 1:
            return a
    return g.pow(a, call.value(exponent, a.dtype))


def _float_power(call: Call, self: Any, exponent: Any) -> Value:
    return call.g.pow(call.value(self, FLOAT64), call.value(exponent, FLOAT64))


def sign_bit(call: Call, x: Value) -> Value:
    """Whether a number is negative; of floats, whether the sign is set, of -0.0 and NaN too."""
    g = call.g
    if x.dtype.is_float:
        return g.less(g.bitcast(x, _BITS[x.dtype.bits]), 0)
    if x.dtype.is_bool or not x.dtype.is_signed:
        return g.full(x.shape, False)
    return g.less(x, 0)


def _angle(call: Call, self: Any) -> Value:
    """The angle of a number on the real line: pi below zero; NaN of NaN."""
    g = call.g
    (x,) = call.promoted(self)
    angle = g.where(g.less(x, 0), call.value(math.pi, x.dtype), call.value(0, x.dtype))
    return g.where(g.isnan(x), x, angle)


def _sign_bit(call: Call, self: Value) -> Value:
    return sign_bit(call, self)


def _copy_sign(call: Call, self: Any, other: Any) -> Value:
    g = call.g
    (a,) = call.promoted(self)
    b = call.value(other)
    size = g.abs(a)
    return g.where(sign_bit(call, b), g.neg(size), size)


def _absolute(call: Call, self: Value) -> Value:
    return self if self.dtype.is_bool else call.g.abs(self)


def _sign(call: Call, self: Value) -> Value:
    return self if self.dtype.is_bool else call.g.sign(self)


def _round(call: Call, self: Value, decimals: int = 0) -> Value:
    g = call.g
    if decimals == 0 or not self.dtype.is_float:
        return g.round(self)
    (x,) = call.widened(self)
    ten = 10.0 ** abs(decimals)
    if decimals > 0:
        return call.rounded(g.divide(g.round(g.multiply(x, ten)), ten))
    return call.rounded(g.multiply(g.round(g.divide(x, ten)), ten))


def _fraction(call: Call, self: Value) -> Value:
    return call.g.subtract(self, call.g.trunc(self))


def _logit(call: Call, self: Any, eps: float | None = None) -> Value:
    g = call.g
    (x,) = call.widened(self)
    if eps is not None:
        x = g.minimum(g.maximum(x, eps), 1 - eps)
    return call.rounded(g.log(g.divide(x, g.subtract(1, x))))


def _degrees(factor: float) -> Converter:
    def convert(call: Call, self: Any) -> Value:
        (x,) = call.widened(self)
        return call.rounded(call.g.multiply(x, factor))

    return convert


def _replace_nan(
    call: Call,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    g = call.g
    if not self.dtype.is_float:
        return self
    numpy = self.dtype.numpy
    greatest = float(np.finfo(numpy).max) if numpy.kind == "f" else 3.3895313892515355e38
    high = greatest if posinf is None else posinf
    low = -greatest if neginf is None else neginf
    limited = g.where(g.equal(self, math.inf), call.value(high, self.dtype), self)
    limited = g.where(g.equal(self, -math.inf), call.value(low, self.dtype), limited)
    return g.where(g.isnan(self), call.value(nan or 0.0, self.dtype), limited)


def _step(call: Call, self: Value, values: Value) -> Value:
    g = call.g
    x, at_zero = call.promoted(self, values)
    if call.dtype.is_bool:
        return g.logical_or(x, at_zero)
    return g.where(g.equal(x, 0), at_zero, g.cast(g.greater(x, 0), call.dtype))


def _interpolate(call: Call, self: Value, end: Value, weight: Any) -> Value:
    g = call.g
    a, b, w = call.widened(self, end, weight)
    span = g.subtract(b, a)
    near = g.add(a, g.multiply(w, span))
    far = g.subtract(b, g.multiply(span, g.subtract(1, w)))
    return call.rounded(g.where(g.less(g.abs(w), 0.5), near, far))


def _add_product(call: Call, self: Value, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    g = call.g
    x, a, b = call.widened(self, tensor1, tensor2)
    return call.rounded(g.add(x, g.multiply(scaled(call, a, value), b)))


def _add_quotient(call: Call, self: Value, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    g = call.g
    x, a, b = call.widened(self, tensor1, tensor2)
    return call.rounded(g.add(x, g.divide(scaled(call, a, value), b)))


def _load_exponent(call: Call, self: Any, other: Any) -> Value:
    """``x * 2^n``, where the power is a float of its own."""
    g = call.g
    x, n = call.widened(self, other)
    return call.rounded(g.multiply(x, g.pow(call.value(2, n.dtype), n)))


def _divisor(call: Call, self: Value, other: Value) -> Value:
    """The greatest common divisor, by Euclid's algorithm in all elements at once."""
    a, b = call.promoted(self, other)
    shape = call.shape
    return _common_divisor(call, call.g.broadcast_to(a, shape), call.g.broadcast_to(b, shape))


def _common_divisor(call: Call, a: Value, b: Value) -> Value:
    g = call.g

    def step(body: Graph, iteration: Value, x: Value, y: Value) -> list[Value]:
        rest = body.fmod(x, y)
        x, y = body.where(body.equal(y, 0), x, y), body.where(body.equal(y, 0), 0, rest)
        return [body.any(body.not_equal(y, 0)), x, y]

    found, _ = g.while_loop(step, [a, b], condition=g.any(g.not_equal(b, 0)))
    return found if not a.dtype.is_signed else g.abs(found)


def _multiple(call: Call, self: Value, other: Value) -> Value:
    """The least common multiple; 0 beside 0."""
    g, shape = call.g, call.shape
    a, b = (g.broadcast_to(x, shape) for x in call.promoted(self, other))
    divisor = _common_divisor(call, a, b)
    quotient = g.floor_divide(a, g.where(g.equal(divisor, 0), 1, divisor))
    product = g.multiply(quotient, b)
    return product if not a.dtype.is_signed else g.abs(product)


def _where(call: Call, condition: Value, self: Any, other: Any) -> Value:
    a, b = call.promoted(self, other)
    return call.g.where(call.truth(condition), a, b)


def _clamp(call: Call, self: Value, min: Any = None, max: Any = None) -> Value:
    """``x`` limited from below, then from above."""
    (x,) = call.promoted(self)
    plain = all(v is None or isinstance(v, int | float) for v in (min, max))
    finite = plain and not any(v is not None and math.isnan(v) for v in (min, max))
    if finite and not x.dtype.is_bool and (x.dtype.is_float or not any(map(_float, (min, max)))):
        return call.g.clip(x, min, max)
    if min is not None:
        x = _extreme(call, "maximum", x, call.value(min, call.dtype))
    return x if max is None else _extreme(call, "minimum", x, call.value(max, call.dtype))


def _float(limit: Any) -> bool:
    return isinstance(limit, float)


def _clamp_min(call: Call, self: Value, min: Any) -> Value:
    return _clamp(call, self, min=min)


def _clamp_max(call: Call, self: Value, max: Any) -> Value:
    return _clamp(call, self, max=max)


def _extreme(call: Call, method: str, a: Value, b: Value) -> Value:
    if a.dtype.is_bool:
        method = "logical_or" if method == "maximum" else "logical_and"
    return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]


def _extreme_number(method: str) -> Converter:
    """The greater or lesser of two, of which a NaN does not count."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        g = call.g
        a, b = call.promoted(self, other)
        found = _extreme(call, method, a, b)
        if not a.dtype.is_float:
            return found
        return g.where(g.isnan(a), b, g.where(g.isnan(b), a, found))

    return convert


#: Functions of one number, by PyTorch's names.
_UNARY = {
    "ceil": "ceil",
    "floor": "floor",
    "trunc": "trunc",
    "fix": "trunc",
    "neg": "neg",
    "negative": "neg",
    "reciprocal": "reciprocal",
    "square": "square",
    "exp": "exp",
    "exp2": "exp2",
    "special_exp2": "exp2",
    "expm1": "expm1",
    "special_expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "special_log1p": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "arcsin": "asin",
    "acos": "acos",
    "arccos": "acos",
    "atan": "atan",
    "arctan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "arcsinh": "asinh",
    "acosh": "acosh",
    "arccosh": "acosh",
    "atanh": "atanh",
    "arctanh": "atanh",
    "erf": "erf",
    "special_erf": "erf",
    "sigmoid": "sigmoid",
    "special_expit": "sigmoid",
}

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _unary(method) for name, method in _UNARY.items()},
    "aten.abs": _absolute,
    "aten.absolute": _absolute,
    "aten.sign": _sign,
    "aten.sgn": _sign,
    "aten.angle": _angle,
    "aten.signbit": _sign_bit,
    "aten.copysign": _copy_sign,
    "aten.round": _round,
    "aten.round.decimals": _round,
    "aten.special_round": _round,
    "aten.frac": _fraction,
    "aten.logit": _logit,
    "aten.special_logit": _logit,
    "aten.deg2rad": _degrees(math.pi / 180),
    "aten.rad2deg": _degrees(180 / math.pi),
    "aten.nan_to_num": _replace_nan,
    "aten.add": _add,
    "aten.sub": _subtract,
    "aten.subtract": _subtract,
    "aten.rsub": _subtract_reversed,
    "aten.mul": _multiply,
    "aten.multiply": _multiply,
    "aten.div": divide,
    "aten.divide": divide,
    "aten.true_divide": divide,
    "aten.floor_divide": _floor_divide,
    "aten.remainder": _binary("remainder"),
    "aten.fmod": _binary("fmod"),
    "aten.pow": _power,
    "aten.float_power": _float_power,
    "aten.atan2": _binary("atan2"),
    "aten.arctan2": _binary("atan2"),
    "aten.logaddexp": _binary("logaddexp"),
    "aten.heaviside": _step,
    "aten.lerp": _interpolate,
    "aten.addcmul": _add_product,
    "aten.addcdiv": _add_quotient,
    "aten.ldexp": _load_exponent,
    "aten.gcd": _divisor,
    "aten.lcm": _multiple,
    "aten.where": _where,
    "aten.clamp": _clamp,
    "aten.clip": _clamp,
    "aten.clamp_min": _clamp_min,
    "aten.clamp_max": _clamp_max,
    "aten.maximum": _binary("maximum", "logical_or"),
    "aten.max.other": _binary("maximum", "logical_or"),
    "aten.minimum": _binary("minimum", "logical_and"),
    "aten.min.other": _binary("minimum", "logical_and"),
    "aten.fmax": _extreme_number("maximum"),
    "aten.fmin": _extreme_number("minimum"),
}
