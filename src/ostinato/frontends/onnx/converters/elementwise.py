"""Arithmetic, comparisons, logic, casts, and the choice between tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.frontends.onnx.known import Strings, as_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def unary(method: str) -> Converter:
    """The converter of an op with one operand and a method that means the same."""

    def convert(call: Call) -> Result:
        x = call.value(0)
        result: Value = getattr(call.g, method)(x)
        if result.dtype.is_float and result.dtype != x.dtype:
            call.malformed(f"expected floats, got {x.type}")
        return result

    return convert


def binary(method: str) -> Converter:
    """The converter of an op with two operands and a method that means the same."""

    def convert(call: Call) -> Result:
        call.alike(0, 1)
        return getattr(call.g, method)(call.value(0), call.value(1))  # type: ignore[no-any-return]

    return convert


def variadic(method: str) -> Converter:
    """The converter of an op that combines any number of operands."""

    def convert(call: Call) -> Result:
        call.alike(*range(len(call.operands)))
        result: Value = functools.reduce(getattr(call.g, method), call.values())
        return result

    return convert


def convert_mean(call: Call) -> Result:
    call.alike(*range(len(call.operands)))
    total = functools.reduce(call.g.add, call.values())
    return call.g.divide(total, float(len(call.operands)))


def convert_div(call: Call) -> Result:
    call.alike(0, 1)
    g, a, b = call.g, call.value(0), call.value(1)
    if a.dtype.is_float:
        return g.divide(a, b)
    if not a.dtype.is_signed:
        return g.floor_divide(a, b)
    # Towards zero: without C's remainder, the dividend is a multiple and the division exact.
    return g.floor_divide(g.subtract(a, g.fmod(a, b)), b)


def convert_mod(call: Call) -> Result:
    call.alike(0, 1)
    method = call.g.fmod if call.flag("fmod", 0) else call.g.remainder
    return method(call.value(0), call.value(1))


def convert_pow(call: Call) -> Result:
    g, base, exponent = call.g, call.value(0), call.value(1)
    return _as(call, g.pow(base, exponent), base.dtype)


def convert_equal(call: Call) -> Result:
    if any(isinstance(operand, Strings) for operand in call.operands):
        return as_known(np.asarray(call.strings(0) == call.strings(1), np.bool_))
    call.alike(0, 1)
    return call.g.equal(call.value(0), call.value(1))


def convert_bit_shift(call: Call) -> Result:
    directions = {
        "LEFT": call.g.bitwise_left_shift,
        "RIGHT": call.g.bitwise_right_shift,
    }
    direction = call.text("direction", "")
    if direction not in directions:
        call.malformed(f"direction should be LEFT or RIGHT, got {direction!r}")
    call.alike(0, 1)
    return directions[direction](call.value(0), call.value(1))


def convert_is_inf(call: Call) -> Result:
    g, x = call.g, call.value(0)
    negative = call.integer("detect_negative", 1)
    positive = call.integer("detect_positive", 1)
    if negative and positive:
        return g.isinf(x)
    if negative:
        return g.logical_and(g.isinf(x), g.less(x, 0.0))
    if positive:
        return g.logical_and(g.isinf(x), g.greater(x, 0.0))
    return g.not_equal(x, x) if not x.dtype.is_float else g.logical_and(g.isinf(x), g.isnan(x))


def convert_where(call: Call) -> Result:
    call.alike(1, 2)
    return call.g.where(call.value(0), call.value(1), call.value(2))


def convert_clip(call: Call) -> Result:
    if call.opset < 11:
        if len(call.operands) > 1:
            call.malformed(f"operator set {call.opset} has the limits of Clip as attributes")
        low, high = call.real("min", None), call.real("max", None)
        return call.g.clip(call.value(0), low, high)
    call.alike(0, 1, 2)
    return call.g.clip(call.value(0), _limit(call, 1), _limit(call, 2))


def _limit(call: Call, index: int) -> Any:
    """A limit of ``Clip``: a number where it is known, else a value."""
    known = call.known(index)
    return call.optional(index) if known is None or known.symbolic else call.scalar(index, "limit")


def _as(call: Call, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else call.g.cast(x, dtype)


CONVERTERS: Mapping[str, Converter] = {
    "Abs": unary("abs"),
    "Acos": unary("acos"),
    "Acosh": unary("acosh"),
    "Add": binary("add"),
    "And": binary("logical_and"),
    "Asin": unary("asin"),
    "Asinh": unary("asinh"),
    "Atan": unary("atan"),
    "Atanh": unary("atanh"),
    "BitShift": convert_bit_shift,
    "BitwiseAnd": binary("bitwise_and"),
    "BitwiseNot": unary("bitwise_invert"),
    "BitwiseOr": binary("bitwise_or"),
    "BitwiseXor": binary("bitwise_xor"),
    "Ceil": unary("ceil"),
    "Clip": convert_clip,
    "Cos": unary("cos"),
    "Cosh": unary("cosh"),
    "Div": convert_div,
    "Equal": convert_equal,
    "Erf": unary("erf"),
    "Exp": unary("exp"),
    "Floor": unary("floor"),
    "Greater": binary("greater"),
    "GreaterOrEqual": binary("greater_equal"),
    "IsInf": convert_is_inf,
    "IsNaN": unary("isnan"),
    "Less": binary("less"),
    "LessOrEqual": binary("less_equal"),
    "Log": unary("log"),
    "Max": variadic("maximum"),
    "Mean": convert_mean,
    "Min": variadic("minimum"),
    "Mod": convert_mod,
    "Mul": binary("multiply"),
    "Neg": unary("neg"),
    "Not": unary("logical_not"),
    "Or": binary("logical_or"),
    "Pow": convert_pow,
    "Reciprocal": unary("reciprocal"),
    "Round": unary("round"),
    "Sign": unary("sign"),
    "Sin": unary("sin"),
    "Sinh": unary("sinh"),
    "Sqrt": unary("sqrt"),
    "Sub": binary("subtract"),
    "Sum": variadic("add"),
    "Tan": unary("tan"),
    "Where": convert_where,
    "Xor": binary("logical_xor"),
}
