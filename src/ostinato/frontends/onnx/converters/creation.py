"""Ops that create tensors: constants, fills, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.data_sizes import bound_sizes, open_bound
from ostinato.frontends.onnx.known import Ratio, Strings, as_known, boxed
from ostinato.frontends.onnx.tensors import (
    ELEMENT_TYPES,
    STRING,
    element_name,
    read_strings,
    read_tensor,
)
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]

#: Longer ranges are counted at run time.
_LONGEST_RANGE = 2**16


def convert_constant(call: Call) -> Result:
    proto = call.tensor("value")
    if proto is not None and proto.data_type == STRING:
        return Strings(read_strings(proto))
    texts = call.text_list("value_strings", None)
    if texts is not None:
        return Strings(boxed(texts, (len(texts),)))
    if "value_string" in call.attributes:
        return Strings(boxed([call.text("value_string", "")], ()))
    return as_known(_constant(call), call.outputs[0])


def _constant(call: Call) -> np.ndarray[Any, Any]:
    proto = call.tensor("value")
    if proto is not None:
        if proto.data_type not in ELEMENT_TYPES:
            call.unsupported(f"it holds {element_name(proto.data_type)} elements")
        return read_tensor(proto, call.external)
    for found, dtype in (
        (call.integer("value_int", None), np.int64),
        (call.integer_list("value_ints", None), np.int64),
        (call.real("value_float", None), np.float32),
        (call.real_list("value_floats", None), np.float32),
    ):
        if found is not None:
            return np.asarray(found, dtype)
    if not call.attributes:
        call.malformed("it has no value")
    return call.unsupported(f"it holds {', '.join(call.attributes)}")


def convert_constant_of_shape(call: Call) -> Result:
    shape = bound_sizes(call, 0)
    proto = call.tensor("value")
    if proto is None:
        fill = np.zeros((), np.float32)
    elif proto.data_type not in ELEMENT_TYPES:
        call.unsupported(f"it holds {element_name(proto.data_type)} elements")
    else:
        array = read_tensor(proto, call.external)
        if array.size != 1:
            call.malformed(f"its value has {array.size} elements, not one")
        fill = array.reshape(())
    if not all(isinstance(dim, int) for dim in shape):
        return call.g.broadcast_to(call.g.constant(fill), shape)
    sizes = call.integers(0, "shape")
    if any(size < 0 for size in sizes) or prod(sizes) * fill.itemsize > 2**62:  # type: ignore[operator]
        call.malformed(f"impossible shape {list(sizes)}")
    return as_known(np.broadcast_to(fill, sizes), call.outputs[0])


def convert_range(call: Call) -> Result:
    types = [call.type(i) for i in range(3)]
    if len({type_.dtype for type_ in types}) > 1:
        call.malformed(f"its operands {', '.join(map(str, types))} have different types")
    start, limit, delta = (call.known(i) for i in range(3))
    if start is None or limit is None or delta is None:
        return _counted_range(call)
    if start.symbolic or limit.symbolic:
        step = call.scalar(2, "step")
        ends = [start.dims()[0], limit.dims()[0]]
        broken = any(isinstance(e, Ratio) or (isinstance(e, float) and e != int(e)) for e in ends)
        if broken or step != int(step):
            sizes = (*start.sizes(), *limit.sizes())
            call.needs_number("its length is of open size, and its bounds are no integers", *sizes)
        first, last = (int(end) if isinstance(end, float) else end for end in ends)
        return call.g.arange(first, last, int(step), dtype=start.dtype)
    low, high, stride = (call.scalar(i, "bound") for i in range(3))
    if stride == 0:
        call.malformed("a step of 0")
    count = max(int(np.ceil((high - low) / stride)), 0)
    if count > _LONGEST_RANGE:
        counter = call.g.cast(call.g.iota((count,)), start.dtype)
        return call.g.add(call.g.multiply(counter, stride), low)
    dtype = start.dtype.numpy
    steps = np.arange(count).astype(dtype)
    return as_known((start.array.reshape(()) + delta.array.reshape(()) * steps).astype(dtype))


def _counted_range(call: Call) -> Result:
    """Convert a ``Range`` whose bounds the model computes."""
    first, last, step = (call.value(i) for i in range(3))
    return call.g.counted_range(first, last, step, open_bound([None]))


def convert_eye_like(call: Call) -> Result:
    shape = call.shape(0)
    if len(shape) != 2:
        call.malformed(f"expected a matrix, got {call.type(0)}")
    number = call.integer("dtype", None)
    if number is not None and number not in ELEMENT_TYPES:
        call.unsupported(f"it makes {element_name(number)} elements")
    dtype = call.dtype(0) if number is None else ELEMENT_TYPES[number]
    g = call.g
    rows = g.add(g.iota((shape[0], 1), 0, INT64), call.integer("k", 0))
    return g.cast(g.equal(rows, g.iota((1, shape[1]), 1, INT64)), dtype)


CONVERTERS: Mapping[str, Converter] = {
    "Constant": convert_constant,
    "ConstantOfShape": convert_constant_of_shape,
    "EyeLike": convert_eye_like,
    "Range": convert_range,
}
