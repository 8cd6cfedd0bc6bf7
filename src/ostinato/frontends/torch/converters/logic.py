"""Converters of comparisons, of logic, and of ops on bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL
from ostinato.frontends.torch.element_types import result_type

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "close"]


def _comparison(method: str) -> Converter:
    """A comparison, in the dtype that both operands promote to."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.compared(self, other)
        return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]

    return convert


def _logical(method: str) -> Converter:
    """An op of truth values: what is not zero is true."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        return getattr(call.g, method)(call.truth(self), call.truth(other))  # type: ignore[no-any-return]

    return convert


def _logical_not(call: Call, self: Value) -> Value:
    return call.g.logical_not(call.truth(self))


def _bitwise(method: str) -> Converter:
    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.promoted(self, other)
        return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]

    return convert


def _bitwise_not(call: Call, self: Value) -> Value:
    return call.g.bitwise_invert(self)


def _shift(left: bool) -> Converter:
    """A shift of bits; of floats, a multiplication with a power of 2."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        g = call.g
        a, b = call.promoted(self, other)
        if a.dtype.is_float:
            power = g.pow(call.value(2, a.dtype), b)
            return g.multiply(a, power) if left else g.divide(a, power)
        # A negative distance shifts every bit out, as one beyond the width does.
        far = g.logical_or(g.less(b, 0), g.greater_equal(b, a.dtype.bits))
        distance = g.where(far, a.dtype.bits - 1, b)
        if left:
            return g.where(far, 0, g.bitwise_left_shift(a, distance))
        shifted = g.bitwise_right_shift(a, distance)
        return shifted if a.dtype.is_signed else g.where(far, 0, shifted)

    return convert


def _classified(method: str, of_others: bool) -> Converter:
    """A class of floats; integers and bools are all in it or none is."""

    def convert(call: Call, self: Value) -> Value:
        if not self.dtype.is_float:
            return call.g.full(self.shape, of_others)
        return getattr(call.g, method)(self)  # type: ignore[no-any-return]

    return convert


def _infinite(sign: float) -> Converter:
    def convert(call: Call, self: Value) -> Value:
        if not self.dtype.is_float:
            return call.g.full(self.shape, False)
        return call.g.equal(self, sign * math.inf)

    return convert


def _is_real(call: Call, self: Value) -> Value:
    return call.g.full(self.shape, True)


def close(call: Call, a: Value, b: Value, rtol: float, atol: float, equal_nan: bool) -> Value:
    """Whether ``|a - b| <= atol + rtol |b|``, or both are equal."""
    g = call.g
    same = g.equal(a, b)
    if equal_nan and a.dtype.is_float:
        same = g.logical_or(same, g.logical_and(g.isnan(a), g.isnan(b)))
    if (rtol == 0 and atol == 0) or a.dtype.is_bool:
        return same
    dtype = a.dtype.accumulator if a.dtype.is_float else result_type([a, 1.0])
    x, y = g.cast(a, dtype), g.cast(b, dtype)
    allowed = g.add(g.abs(g.multiply(y, rtol)), atol)
    distance = g.abs(g.subtract(g.cast(a, dtype), y)) if a.dtype.is_float else _distance(call, a, b)
    near = g.less_equal(g.cast(distance, dtype), allowed)
    finite = g.isfinite(g.subtract(x, y))
    return g.logical_or(same, g.logical_and(finite, near))


def _distance(call: Call, a: Value, b: Value) -> Value:
    return call.g.abs(call.g.subtract(a, b))


def _is_close(
    call: Call,
    self: Value,
    other: Value,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Value:
    return close(call, self, other, rtol, atol, equal_nan)


def _in_list(
    call: Call,
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Value:
    g = call.g
    a, b = call.compared(elements, test_elements)
    column = g.reshape(a, (*a.shape, 1))
    found = g.any(g.equal(column, g.reshape(b, (-1,))), axis=-1) if b.type.size != 0 else None
    if found is None:
        return g.full(a.shape, invert)
    return g.logical_not(found) if invert else found


def _equal_tensors(call: Call, self: Value, other: Value) -> Value:
    if self.shape != other.shape:
        return call.g.constant(False, BOOL)
    a, b = call.compared(self, other)
    return call.g.all(call.g.equal(a, b))


#: Comparisons, by PyTorch's names.
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "not_equal": "not_equal",
    "lt": "less",
    "less": "less",
    "le": "less_equal",
    "less_equal": "less_equal",
    "gt": "greater",
    "greater": "greater",
    "ge": "greater_equal",
    "greater_equal": "greater_equal",
}

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _comparison(method) for name, method in _COMPARISONS.items()},
    "aten.logical_not": _logical_not,
    "aten.logical_and": _logical("logical_and"),
    "aten.logical_or": _logical("logical_or"),
    "aten.logical_xor": _logical("logical_xor"),
    "aten.bitwise_not": _bitwise_not,
    "aten.bitwise_and": _bitwise("bitwise_and"),
    "aten.bitwise_or": _bitwise("bitwise_or"),
    "aten.bitwise_xor": _bitwise("bitwise_xor"),
    "aten.__and__": _bitwise("bitwise_and"),
    "aten.__or__": _bitwise("bitwise_or"),
    "aten.__xor__": _bitwise("bitwise_xor"),
    "aten.bitwise_left_shift": _shift(True),
    "aten.bitwise_right_shift": _shift(False),
    "aten.__lshift__": _shift(True),
    "aten.__rshift__": _shift(False),
    "aten.isnan": _classified("isnan", False),
    "aten.isinf": _classified("isinf", False),
    "aten.isfinite": _classified("isfinite", True),
    "aten.isposinf": _infinite(1.0),
    "aten.isneginf": _infinite(-1.0),
    "aten.isreal": _is_real,
    "aten.isclose": _is_close,
    "aten.isin": _in_list,
    "aten.equal": _equal_tensors,
}
