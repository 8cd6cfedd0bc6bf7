"""Pools, the positions of their maxima, and what undoes them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.converters.windows import padding, per_axis, window_padding
from ostinato.ops.windows import dilated, windowed_shape
from ostinato.variables import bounds, maximum, prod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "convert_average_pool", "convert_global_pool"]


def convert_max_pool(call: Call) -> Result:
    result = call.g.max_pool(call.value(0), **_arguments(call))
    return [result, _positions(call)] if call.wants(1) else result


def convert_average_pool(call: Call) -> Result:
    include = call.flag("count_include_pad", 0)
    return call.g.avg_pool(call.value(0), count_include_pad=include, **_arguments(call))


def convert_lp_pool(call: Call) -> Result:
    """The norm of each window: a mean of powers, times their number."""
    g, x, kernel, order = call.g, call.value(0), _kernel(call), call.integer("p", 2)
    if order < 1:
        call.malformed(f"p should be positive, got {order}")
    powers = g.multiply(x, x) if order == 2 else g.pow(g.abs(x), float(order))
    # Windows that hang over the end would count fewer elements: all are given zeros instead.
    widths, _ = _widths(call, kernel)
    means = g.avg_pool(
        g.pad(powers, [(0, 0), (0, 0), *widths]),
        kernel,
        stride=per_axis(call, "strides", len(kernel)),
        dilation=per_axis(call, "dilations", len(kernel)),
    )
    return _root(call, g.multiply(means, float(math.prod(kernel))), order)


def convert_global_lp_pool(call: Call) -> Result:
    g, x, order = call.g, _image(call), call.integer("p", 2)
    powers = g.multiply(x, x) if order == 2 else g.pow(g.abs(x), float(order))
    return _root(call, g.sum(powers, axis=tuple(range(2, x.ndim)), keepdims=True), order)


def _root(call: Call, total: Value, order: int) -> Value:
    if order == 1:
        return total
    return call.g.sqrt(total) if order == 2 else call.g.pow(total, 1 / order)


def convert_global_pool(call: Call) -> Result:
    x = _image(call)
    reduce = call.g.mean if call.op_type == "GlobalAveragePool" else call.g.max
    return reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def convert_max_unpool(call: Call) -> Result:
    """Convert ``MaxUnpool``: positions count the elements of the shape that was pooled, as far as
    strides and padding give it; a larger output gets zeros at its ends.
    """
    g, x, kernel = call.g, call.value(0), _kernel(call)
    strides = per_axis(call, "strides", len(kernel))
    pads = window_padding(call, kernel)
    sizes = [
        (size - 1) * stride - low - high + k
        for size, stride, (low, high), k in zip(x.shape[2:], strides, pads, kernel, strict=True)
    ]
    shape = (*x.shape[:2], *sizes)
    flat = g.scatter(
        g.zeros((prod(shape),), x.dtype),
        g.reshape(call.value(1), (x.type.size,)),
        g.reshape(x, (x.type.size,)),
    )
    result = g.reshape(flat, shape)
    if not call.has(2):
        return result
    wanted = call.dims(2, "output shape")
    if len(wanted) != x.ndim:
        call.malformed(f"its output shape {list(wanted)} does not fit {call.type(0)}")
    missing = [want - size for want, size in zip(wanted, shape, strict=True)]
    if not all(isinstance(n, int) and n >= 0 for n in missing):
        call.malformed(f"its output shape {list(wanted)} is less than {list(shape)}")
    return g.pad(result, [(0, n) for n in missing])  # type: ignore[misc]


# -- the positions of maxima -----------------------------------------------------------------------


def _positions(call: Call) -> Value:
    """The position of each window's maximum in the flattened operand, the first of equal ones."""
    g, x, kernel = call.g, call.value(0), _kernel(call)
    widths, counts = _widths(call, kernel)
    padded = [(0, 0), (0, 0), *widths]
    elements = g.pad(x, padded, value=x.dtype.lowest)
    places = g.pad(_places(call, x), padded, value=-1)
    best: Value | None = None
    place: Value | None = None
    for seen, at in zip(
        _taps(call, elements, kernel, counts), _taps(call, places, kernel, counts), strict=True
    ):
        if best is None or place is None:
            best, place = seen, at
            continue
        # Anything beats padding, however small; padding never beats anything.
        better = g.logical_or(g.greater(seen, best), g.less(place, 0))
        better = g.logical_and(better, g.greater_equal(at, 0))
        best, place = g.where(better, seen, best), g.where(better, at, place)
    assert place is not None
    return place


def _places(call: Call, x: Value) -> Value:
    """The number of each element of ``x``, in the order that ``storage_order`` names."""
    g, spatial = call.g, list(range(2, x.ndim))
    order = [0, 1, *(reversed(spatial) if call.flag("storage_order", 0) else spatial)]
    place: Value | None = None
    for axis in order:
        step = g.iota(tuple(n if a == axis else 1 for a, n in enumerate(x.shape)), axis, INT64)
        if place is None:
            place = step
            continue
        size = x.shape[axis]
        factor = size if isinstance(size, int) else g.dim_value(size)
        place = g.add(g.multiply(place, factor), step)
    assert place is not None
    return g.broadcast_to(place, x.shape)


def _taps(
    call: Call, padded: Value, kernel: tuple[int, ...], counts: tuple[Dim, ...]
) -> Iterator[Value]:
    """The elements of all windows at each position of the kernel."""
    ndim = len(kernel)
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    axes = list(range(2, 2 + ndim))
    for position in itertools.product(*map(range, kernel)):
        starts = [p * d for p, d in zip(position, dilations, strict=True)]
        stops = [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(starts, counts, strides, strict=True)
        ]
        yield call.g.slice(padded, starts, stops, strides, axes=axes)


# -- geometry --------------------------------------------------------------------------------------


def _arguments(call: Call) -> dict[str, Any]:
    kernel = _kernel(call)
    ndim = len(kernel)
    return {
        "kernel": kernel,
        "stride": per_axis(call, "strides", ndim),
        "padding": padding(call, ndim),
        "dilation": per_axis(call, "dilations", ndim),
        "ceil_mode": call.flag("ceil_mode", 0),
    }


def _kernel(call: Call) -> tuple[int, ...]:
    ndim, kernel = call.rank(0) - 2, call.integer_list("kernel_shape", ())
    if ndim < 1 or len(kernel) != ndim or any(k < 1 for k in kernel):
        call.malformed(f"kernel_shape {list(kernel)} does not fit {call.type(0)}")
    return kernel


def _widths(call: Call, kernel: tuple[int, ...]) -> tuple[list[tuple[int, int]], tuple[Dim, ...]]:
    """The padding that all windows reach, those that hang over the end too, and their number."""
    ndim = len(kernel)
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    pads, sizes = window_padding(call, kernel), call.shape(0)[2:]
    ceil_mode = call.flag("ceil_mode", 0)
    counts = windowed_shape(sizes, kernel, strides, pads, dilations, ceil_mode)
    widths = []
    for size, count, k, s, d, (low, high) in zip(
        sizes, counts, kernel, strides, dilations, pads, strict=True
    ):
        end = maximum((count - 1) * s + dilated(k, d) - size - low, high)
        if not isinstance(end, int):
            call.unsupported(f"its padding depends on a Variable ({end}); fix it with dims=")
        widths.append((low, end))
    return widths, counts


def _image(call: Call) -> Value:
    x = call.value(0)
    if x.ndim < 3 or any(bounds(dim)[1] == 0 for dim in x.shape[2:]):
        call.malformed(f"expected x [N,C,...], got {x.type}")
    return x


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": convert_average_pool,
    "GlobalAveragePool": convert_global_pool,
    "GlobalLpPool": convert_global_lp_pool,
    "GlobalMaxPool": convert_global_pool,
    "LpPool": convert_lp_pool,
    "MaxPool": convert_max_pool,
    "MaxUnpool": convert_max_unpool,
}
