"""Pools, the positions of their maxima, and what undoes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.converters.windows import padding, per_axis, window_padding
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "convert_average_pool", "convert_global_pool"]


def convert_max_pool(call: Call) -> Result:
    g, x, arguments = call.g, call.value(0), _arguments(call)
    if not call.wants(1):
        return g.max_pool(x, **arguments, return_indices=False)
    result, positions = g.max_pool(x, **arguments, return_indices=True)
    return [result, _in_tensor(call, positions)]


def convert_average_pool(call: Call) -> Result:
    include = call.flag("count_include_pad", 0)
    return call.g.avg_pool(call.value(0), count_include_pad=include, **_arguments(call))


def convert_lp_pool(call: Call) -> Result:
    order = call.integer("p", 2)
    if order < 1:
        call.malformed(f"p should be positive, got {order}")
    return call.g.lp_pool(call.value(0), **_arguments(call), p=order)


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
    count = x.type.size
    result = g.max_unpool(
        g.reshape(x, (1, 1, count)), g.reshape(call.value(1), (1, 1, count)), (prod(shape),)
    )
    result = g.reshape(result, shape)
    if not call.has(2):
        return result
    wanted = call.dims(2, "output shape")
    if len(wanted) != x.ndim:
        call.malformed(f"its output shape {list(wanted)} does not fit {call.type(0)}")
    missing = [want - size for want, size in zip(wanted, shape, strict=True)]
    if not all(isinstance(n, int) and n >= 0 for n in missing):
        call.malformed(f"its output shape {list(wanted)} is less than {list(shape)}")
    return g.pad(result, [(0, n) for n in missing])  # type: ignore[misc]


def _in_tensor(call: Call, positions: Value) -> Value:
    """Positions in planes as positions in the flattened operand; in each plane, in the order that
    ``storage_order`` names.
    """
    g, shape = call.g, call.shape(0)
    if call.flag("storage_order", 0):
        rest, positions = positions, g.constant(0, INT64)
        for size in map(g.dim_value, reversed(shape[2:])):
            positions = g.add(g.multiply(positions, size), g.remainder(rest, size))
            rest = g.floor_divide(rest, size)
    images = g.add(
        g.multiply(g.iota((shape[0], 1), 0), g.dim_value(shape[1])), g.iota((1, shape[1]), 1)
    )
    starts = g.multiply(images, g.dim_value(prod(shape[2:])))
    return g.add(positions, g.reshape(starts, (*shape[:2], *(1,) * (len(shape) - 2))))


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
