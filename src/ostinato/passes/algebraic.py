"""Algebraic simplification: identities that hold for every float, NaN and -0.0 too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.facts import casts_exactly, never_negative
from ostinato.passes.match import made_by, uniform_of
from ostinato.passes.rewrite import Rewriter, Rule, noted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ir.types import TensorType
    from ostinato.ops.builder import Graph

__all__ = ["Algebraic"]


class Algebraic(Pass):
    """Simplifies arithmetic, elementwise selection and conversions.

    Only what keeps each result to the bit, or within the rounding of the op that is replaced:
    ``x * 0`` stays (NaN), ``x + 0.0`` goes only where ``x`` is known not to be -0.0, ``x ** 0.5``
    becomes a square root only where ``x`` is known not to be negative.
    """

    name: ClassVar[str] = "algebraic"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        return Rewriter(graph).run({op: noted(self, report, rule) for op, rule in _RULES.items()})


def _fit(g: Graph, value: Value, type_: TensorType) -> Value:
    """``value`` converted and broadcast to the type of the node that it replaces."""
    if value.dtype != type_.dtype:
        value = g.cast(value, type_.dtype)
    return value if value.shape == type_.shape else g.broadcast_to(value, type_.shape)


def _is(number: float, expected: float) -> bool:
    """Equality that tells -0.0 from 0.0."""
    return number == expected and math.copysign(1, expected) == math.copysign(1, number)


# -- arithmetic ----------------------------------------------------------------------------------


def _add(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    type_ = node.outputs[0].type
    for x, c in _readings(operands, type_):
        if c == 0 and (not type_.dtype.is_float or _is(c, -0.0) or never_negative(x)):
            return _fit(g, x, type_)
    if type_.dtype.is_float:
        for x, y in (operands, operands[::-1]):
            if (negated := made_by(y, "neg")) and x.dtype == y.dtype:
                return g.subtract(x, negated.inputs[0])
    return None


def _subtract(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, y = operands
    type_ = node.outputs[0].type
    c = uniform_of(y)
    if c is not None and x.dtype == type_.dtype and _is(c, 0.0):
        return _fit(g, x, type_)
    if (negated := made_by(y, "neg")) and x.dtype == y.dtype and y.dtype.is_float:
        return g.add(x, negated.inputs[0])
    return None


def _multiply(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    type_ = node.outputs[0].type
    for x, c in _readings(operands, type_):
        if c == 1:
            return _fit(g, x, type_)
        if c == -1 and type_.dtype.is_float:
            return _fit(g, g.neg(x), type_)
    return None


def _divide(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, y = operands
    type_ = node.outputs[0].type
    c = uniform_of(y)
    if c is None or not x.dtype == y.dtype == type_.dtype:
        return None
    if c == 1:
        return _fit(g, x, type_)
    if c == -1:
        return _fit(g, g.neg(x), type_)
    if _has_exact_reciprocal(float(c), type_.dtype):
        return _fit(g, g.multiply(x, g.constant(1.0 / c, type_.dtype)), type_)
    return None


def _floor_divide(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, y = operands
    type_ = node.outputs[0].type
    exact = type_.dtype.is_integer and x.dtype == type_.dtype and uniform_of(y) == 1
    return _fit(g, x, type_) if exact else None


def _has_exact_reciprocal(c: float, dtype: DType) -> bool:
    """Whether ``c`` is a power of two whose reciprocal is a normal number: then ``x / c`` and
    ``x * (1 / c)`` are the same real number, rounded once."""
    if c == 0 or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return False
    tiny, huge = _NORMAL_RANGE[dtype.name]
    return tiny <= abs(1.0 / c) <= huge


#: Powers of two up to which a reciprocal is neither subnormal nor infinite.
_NORMAL_RANGE = {
    "float16": (2.0**-14, 2.0**14),
    "bfloat16": (2.0**-126, 2.0**126),
    "float32": (2.0**-126, 2.0**126),
    "float64": (2.0**-1022, 2.0**1022),
}


def _pow(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, y = operands
    type_ = node.outputs[0].type
    exponent = uniform_of(y)
    if exponent is None or x.dtype != type_.dtype:
        return None
    result: Value | None = None
    if exponent == 1:
        result = x
    elif exponent == 2:
        result = g.square(x)
    elif exponent == 3 and x.dtype.bits >= 32:  # a 16-bit square would be rounded in between
        result = g.multiply(g.square(x), x)
    elif x.dtype.is_float and exponent == -1:
        result = g.reciprocal(x)
    elif exponent == 0.5 and never_negative(x):
        result = g.sqrt(x)
    elif exponent == -0.5 and never_negative(x):
        result = g.rsqrt(x)
    return None if result is None else _fit(g, result, type_)


def _neg(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    inner = made_by(operands[0], "neg")
    return inner.inputs[0] if inner else None


def _even(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Drop negations and ``abs`` before ``abs`` and ``square``, which do not depend on the sign."""
    (x,) = operands
    inner = made_by(x, "neg", "abs")
    if inner and x.dtype.is_float:
        return g.apply(node.op, inner.inputs, {})[0]
    if node.op.name == "abs" and never_negative(x):
        return x
    return None


# -- selection -----------------------------------------------------------------------------------


def _extremum(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """``max(x, x)`` is ``x``; ``min(max(x, a), b)`` is ``clip(x, a, b)``."""
    x, y = operands
    type_ = node.outputs[0].type
    if x is y:
        return x
    bound, inner_op = ("max", "maximum") if node.op.name == "minimum" else ("min", "minimum")
    for inner, outer_number in _readings(operands, type_):
        found = made_by(inner, inner_op)
        if found is None or not type_.dtype.is_float or inner.shape != type_.shape:
            continue
        for z, inner_number in _readings(found.inputs, inner.type):
            limits = {bound: outer_number, "min" if bound == "max" else "max": inner_number}
            if z.shape == type_.shape and limits["min"] <= limits["max"]:
                return g.clip(z, limits["min"], limits["max"])
    return None


def _clip(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    low, high = node.attrs["min"], node.attrs["max"]
    if low is None and high is None:
        return x
    inner = made_by(x, "clip")
    if inner is None or not x.dtype.is_float:
        return None
    a, b = _limits(inner.attrs["min"], inner.attrs["max"])
    c, d = _limits(low, high)
    if not (a <= b and c <= d):  # NaN, or limits that cross
        return None
    lower, upper = min(max(a, c), d), min(max(b, c), d)
    # An infinite limit limits nothing, unless it was asked for: clip(x, inf, None) is inf.
    return g.clip(
        inner.inputs[0],
        None if lower == -math.inf else lower,
        None if upper == math.inf else upper,
    )


def _limits(low: float | None, high: float | None) -> tuple[float, float]:
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def _where(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    condition, x, y = operands
    type_ = node.outputs[0].type
    chosen = uniform_of(condition)
    if chosen is not None:
        return _fit(g, x if chosen else y, type_)
    if x is y:
        return _fit(g, x, type_)
    inverted = made_by(condition, "logical_not", "bitwise_invert")
    return g.where(inverted.inputs[0], y, x) if inverted else None


def _idempotent(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, y = operands
    if x is y:
        return x
    return None


def _logical(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """``x and True``, ``x or False``, ``x and x``."""
    neutral = node.op.name == "logical_and"
    for x, c in _readings(operands, node.outputs[0].type):
        if bool(c) is neutral:
            return _fit(g, x, node.outputs[0].type)
    return _idempotent(g, node, operands)


def _involution(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    inner = made_by(operands[0], node.op.name)
    return inner.inputs[0] if inner else None


def _cast(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    target = node.outputs[0].dtype
    if x.dtype == target:
        return x
    inner = made_by(x, "cast")
    if inner and casts_exactly(inner.inputs[0].dtype, x.dtype):
        return g.cast(inner.inputs[0], target)
    return None


def _readings(operands: tuple[Value, ...], type_: TensorType) -> list[tuple[Value, float]]:
    """A commutative node's operands as ``(value, number)``, where the value has its dtype."""
    found = []
    for x, other in (operands, operands[::-1]):
        number = uniform_of(other)
        if number is not None and x.dtype == type_.dtype:
            found.append((x, number))
    return found


_RULES: Mapping[str, Rule] = {
    "abs": _even,
    "add": _add,
    "bitwise_and": _idempotent,
    "bitwise_invert": _involution,
    "bitwise_or": _idempotent,
    "cast": _cast,
    "clip": _clip,
    "divide": _divide,
    "floor_divide": _floor_divide,
    "logical_and": _logical,
    "logical_not": _involution,
    "logical_or": _logical,
    "maximum": _extremum,
    "minimum": _extremum,
    "multiply": _multiply,
    "neg": _neg,
    "pow": _pow,
    "square": _even,
    "subtract": _subtract,
    "where": _where,
}
