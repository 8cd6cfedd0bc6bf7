"""Converters of arithmetic with sizes, little of which becomes an op, and of assertions."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT64, INT64
from ostinato.errors import GraphError
from ostinato.frontends.torch.call import SizeCondition
from ostinato.ir.graph import Value
from ostinato.variables import (
    Expr,
    bounds,
    floor_div,
    maximum,
    minimum,
    remainder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


def _arithmetic(
    numbers: Callable[[Any, Any], Any], dims: Callable[[Dim, Dim], Dim] | None, method: str
) -> Converter:
    """Arithmetic with numbers, sizes, or scalars that the graph computes."""

    def convert(call: Call, a: Any, b: Any) -> Any:
        if isinstance(a, Value) or isinstance(b, Value):
            return getattr(call.g, method)(a, b)
        if not (isinstance(a, Expr) or isinstance(b, Expr)):
            return numbers(a, b)
        if dims is None or isinstance(a, float) or isinstance(b, float):
            wide = [call.value(operand, FLOAT64) for operand in (a, b)]
            return getattr(call.g, method)(*wide)
        return dims(a, b)

    return convert


def _negated(call: Call, a: Any) -> Any:
    return call.g.neg(a) if isinstance(a, Value) else -a


def _power(call: Call, a: Any, b: Any) -> Any:
    if isinstance(a, Expr) and isinstance(b, int) and b >= 0:
        result: Dim = 1
        for _ in range(b):
            result = result * a
        return result
    if isinstance(a, Expr | Value) or isinstance(b, Expr | Value):
        return call.g.pow(call.value(a, FLOAT64), call.value(b, FLOAT64))
    return a**b


# -- conditions -------------------------------------------------------------------------------


def _comparison(method: str, excess: Callable[[Any, Any], Dim]) -> Converter:
    """A comparison: decided, a condition on sizes, or computed by the graph.

    Args:
        method: the vocabulary's name.
        excess: a size that is not negative exactly where the comparison of two integers holds.
    """

    def convert(call: Call, a: Any, b: Any) -> Any:
        if isinstance(a, Value) or isinstance(b, Value):
            return getattr(call.g, method)(a, b)
        if not (isinstance(a, Expr) or isinstance(b, Expr)):
            return _COMPARISONS[method](a, b)
        if isinstance(a, float) or isinstance(b, float):
            a, b = (call.value(operand, FLOAT64) for operand in (a, b))
            return getattr(call.g, method)(a, b)
        return _decided(excess(a, b))

    return convert


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _decided(excess: Dim) -> bool | SizeCondition:
    """Whether a size is not negative, as far as its bounds say."""
    least, greatest = bounds(excess)
    if least >= 0:
        return True
    return False if greatest < 0 else SizeCondition(excess)


def _excess(condition: Any) -> Dim:
    """A size that is not negative exactly where a condition on sizes holds."""
    if isinstance(condition, SizeCondition):
        return condition.excess
    return 0 if condition else -1


def _logic(
    method: str, numbers: Callable[[Any, Any], Any], combine: Callable[[Dim, Dim], Dim]
) -> Converter:
    """Both or either of two conditions; of integers, their bits."""

    def convert(call: Call, a: Any, b: Any) -> Any:
        if isinstance(a, Value) or isinstance(b, Value):
            return getattr(call.g, method)(a, b)
        if isinstance(a, SizeCondition) or isinstance(b, SizeCondition):
            return _decided(combine(_excess(a), _excess(b)))
        return numbers(a, b)

    return convert


def _not(call: Call, a: Any) -> Any:
    if isinstance(a, Value):
        return call.g.logical_not(a)
    if isinstance(a, SizeCondition):
        return _decided(-a.excess - 1)
    return not a


def _assert_scalar(call: Call, self: Any, assert_msg: str) -> None:
    if isinstance(self, SizeCondition):
        call.require(self.excess, str(assert_msg))
    elif isinstance(self, Value):  # the run binds a size of 1 where it holds
        held = call.g.size_from(call.g.cast(self, INT64), 1)
        call.require(held - 1, str(assert_msg))
    elif not self:
        raise GraphError(str(assert_msg))


def _assert_type(call: Call, a: Any, *args: Any, **kwargs: Any) -> None:
    """An assertion that importing checks in any case: dtypes are fixed, and sizes typed."""


def _constrain_range(call: Call, size: Any, *, min: Any = None, max: Any = None) -> None:
    if not isinstance(size, Expr):
        return
    for excess in ([] if min is None else [size - min]) + ([] if max is None else [max - size]):
        if _decided(excess) is not True:
            call.require(excess, f"{size} should be from {min} to {max}")


def _check_size(call: Call, size: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(size, Expr) and _decided(size) is not True:
        call.require(size, f"the size {size} is negative")


# -- from tensors to numbers ------------------------------------------------------------------


def _scalar_of(call: Call, self: Value) -> Any:
    """The only element of a tensor: a size if it may be one, else a scalar of the graph."""
    g = call.g
    scalar = g.reshape(self, ())
    bound = call.unbacked_bound
    return scalar if bound is None else g.size_from(scalar, bound)


def _item(call: Call, self: Any, index: int) -> Any:
    return self[index]


def _size(call: Call, self: Any, dim: int) -> Any:
    return self.shape[call.axis(dim, self.ndim)]


def _numel(call: Call, self: Any) -> Any:
    count: Dim = 1
    for size in self.shape:
        count = size * count
    return count


def _rounded(numbers: Callable[[float], int], method: str) -> Converter:
    """A number or scalar rounded to an integer."""

    def convert(call: Call, a: Any, *digits: Any) -> Any:
        if isinstance(a, Expr):
            return a
        if isinstance(a, Value):
            return getattr(call.g, method)(a)
        return numbers(a, *digits)

    return convert


def _unary(numbers: Callable[[float], float], method: str) -> Converter:
    """A function of a number, or of a scalar of the graph."""

    def convert(call: Call, a: Any) -> Any:
        if isinstance(a, Expr | Value):
            return getattr(call.g, method)(call.value(a, FLOAT64))
        return numbers(a)

    return convert


def _choice(call: Call, condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Value):
        return call.g.where(condition, call.value(a), call.value(b))
    if not isinstance(condition, bool):
        call.unsupported("a choice between sizes that is not known before a run")
    return a if condition else b


def _to_float(call: Call, a: Any) -> Any:
    return call.value(a, FLOAT64) if isinstance(a, Expr | Value) else float(a)


_SIZES: dict[str, Converter] = {
    "add": _arithmetic(operator.add, operator.add, "add"),
    "sub": _arithmetic(operator.sub, operator.sub, "subtract"),
    "mul": _arithmetic(operator.mul, operator.mul, "multiply"),
    "floordiv": _arithmetic(operator.floordiv, floor_div, "floor_divide"),
    "mod": _arithmetic(operator.mod, remainder, "remainder"),
    "truediv": _arithmetic(operator.truediv, None, "divide"),
    "pow": _power,
    "neg": _negated,
    "eq": _comparison("equal", lambda a, b: minimum(a - b, b - a)),
    "ne": _comparison("not_equal", lambda a, b: maximum(a - b, b - a) - 1),
    "lt": _comparison("less", lambda a, b: b - a - 1),
    "le": _comparison("less_equal", lambda a, b: b - a),
    "gt": _comparison("greater", lambda a, b: a - b - 1),
    "ge": _comparison("greater_equal", lambda a, b: a - b),
    "and_": _logic("logical_and", operator.and_, minimum),
    "or_": _logic("logical_or", operator.or_, maximum),
    "not_": _not,
    "inv": _not,
}

_MAXIMUM = _arithmetic(max, maximum, "maximum")
_MINIMUM = _arithmetic(min, minimum, "minimum")

CONVERTERS: dict[str, Converter] = {
    "_operator.getitem": _item,
    **{f"_operator.{name}": converter for name, converter in _SIZES.items()},
    "aten.sym_size.int": _size,
    "aten.sym_numel": _numel,
    "aten.item": _scalar_of,
    "aten._local_scalar_dense": _scalar_of,
    "torch.sym_max": _MAXIMUM,
    "torch.sym_min": _MINIMUM,
    "torch.sym_not": _not,
    "torch.sym_float": _to_float,
    "torch.sym_ite": _choice,
    "torch.sym_int": _rounded(int, "trunc"),
    "math.trunc": _rounded(math.trunc, "trunc"),
    "math.floor": _rounded(math.floor, "floor"),
    "math.ceil": _rounded(math.ceil, "ceil"),
    "builtins.round": _rounded(round, "round"),
    "torch._sym_sqrt": _unary(math.sqrt, "sqrt"),
    "aten._assert_scalar": _assert_scalar,
    "aten._assert_tensor_metadata": _assert_type,
    "aten.sym_constrain_range": _constrain_range,
    "aten.sym_constrain_range_for_size": _constrain_range,
    "torch._check_is_size": _check_size,
}
