"""Reductions, scans, and the positions of extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph

    Reduce = Callable[[Graph, Value, "tuple[int, ...] | None", bool], Value]

__all__ = ["CONVERTERS"]


def reduction(reduce: Reduce, before: Callable[[Graph, Value], Value] | None = None) -> Converter:
    """A converter that maps ``before`` over the elements, then reduces over ``axes``.

    With no axes and ``noop_with_empty_axes`` set, only the mapping is done.
    """

    def convert(call: Call) -> Result:
        x, axes = call.value(0), call.axes()
        mapped = x if before is None else before(call.g, x)
        if not axes and call.flag("noop_with_empty_axes", 0):
            return _FINISHED[reduce](call.g, x) if reduce in _FINISHED else mapped
        keepdims = call.flag("keepdims", 1)
        return reduce(call.g, mapped, axes or None, keepdims)

    return convert


def _sum(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    return g.cast(g.sum(x, axis=axes, keepdims=keepdims), x.dtype)


def _prod(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    return g.cast(g.prod(x, axis=axes, keepdims=keepdims), x.dtype)


def _mean(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    return g.cast(g.mean(x, axis=axes, keepdims=keepdims), x.dtype)


def _min(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    if x.dtype.is_bool:
        return g.all(x, axis=axes, keepdims=keepdims)
    if x.type.size == 0:
        return _of_nothing(g, x, axes, keepdims, x.dtype.highest)
    return g.min(x, axis=axes, keepdims=keepdims)


def _max(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    if x.dtype.is_bool:
        return g.any(x, axis=axes, keepdims=keepdims)
    if x.type.size == 0:
        return _of_nothing(g, x, axes, keepdims, x.dtype.lowest)
    return g.max(x, axis=axes, keepdims=keepdims)


def _of_nothing(
    g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool, extreme: float
) -> Value:
    """The extreme of no elements, by the standard the dtype's own, in the shape of a sum."""
    shape = g.sum(x, axis=axes, keepdims=keepdims).shape
    return g.full(shape, extreme, x.dtype)


def _l2(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    squares = g.sum(g.multiply(x, x), axis=axes, keepdims=keepdims)
    return g.cast(g.sqrt(squares), x.dtype)


def _log_sum(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    return g.cast(g.log(g.sum(x, axis=axes, keepdims=keepdims)), x.dtype)


def _log_sum_exp(g: Graph, x: Value, axes: tuple[int, ...] | None, keepdims: bool) -> Value:
    return g.cast(g.logsumexp(x, axis=axes, keepdims=keepdims), x.dtype)


def _square(g: Graph, x: Value) -> Value:
    return g.multiply(x, x)


#: The rest of a reduction over no axes: the step after its sum.
_FINISHED: dict[Reduce, Callable[[Graph, Value], Value]] = {
    _l2: lambda g, x: g.abs(x),
    _log_sum: lambda g, x: g.log(x),
}


def convert_extreme_position(call: Call) -> Result:
    """ArgMax and ArgMin. The last of equal elements is the first of the flipped axis."""
    g, x = call.g, call.value(0)
    method = g.argmax if call.op_type == "ArgMax" else g.argmin
    axis = call.integer("axis", 0)
    keepdims = call.flag("keepdims", 1)
    if not call.flag("select_last_index", 0):
        return method(x, axis=axis, keepdims=keepdims)
    from_end = method(g.flip(x, axis=axis), axis=axis, keepdims=keepdims)
    return g.subtract(g.dim_value(x.shape[axis] - 1), from_end)


def convert_scan(call: Call) -> Result:
    """CumSum and CumProd."""
    method = call.g.cumsum if call.op_type == "CumSum" else call.g.cumprod
    axis = call.single(1, "axis")
    return method(
        call.value(0),
        axis=axis,
        exclusive=call.flag("exclusive", 0),
        reverse=call.flag("reverse", 0),
    )


CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": convert_extreme_position,
    "ArgMin": convert_extreme_position,
    "CumProd": convert_scan,
    "CumSum": convert_scan,
    "ReduceL1": reduction(_sum, lambda g, x: g.abs(x)),
    "ReduceL2": reduction(_l2),
    "ReduceLogSum": reduction(_log_sum),
    "ReduceLogSumExp": reduction(_log_sum_exp),
    "ReduceMax": reduction(_max),
    "ReduceMean": reduction(_mean),
    "ReduceMin": reduction(_min),
    "ReduceProd": reduction(_prod),
    "ReduceSum": reduction(_sum),
    "ReduceSumSquare": reduction(_sum, _square),
}
