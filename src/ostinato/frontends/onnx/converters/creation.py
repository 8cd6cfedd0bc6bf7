"""Ops that create tensors: constants, fills, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, INT64
from ostinato.frontends.onnx.data_sizes import bound_sizes, open_bound
from ostinato.frontends.onnx.known import as_known
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, element_name, read_tensor
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]

#: Longer ranges are counted at run time.
_LONGEST_RANGE = 2**16


def convert_constant(call: Call) -> Result:
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
    start, limit, delta = (call.known(i) for i in range(3))
    if start is None or limit is None or delta is None:
        first, last, step = (call.value(i) for i in range(3))
        return call.g.counted_range(first, last, step, open_bound([None]))
    if start.symbolic or limit.symbolic:
        whole = call.scalar(2, "step")
        return call.g.arange(start.dims()[0], limit.dims()[0], whole, dtype=start.dtype)
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


def convert_window(call: Call) -> Result:
    """Hann, Hamming and Blackman windows of a known length."""
    size = int(call.scalar(0, "size"))
    number = call.integer("output_datatype", 1)
    dtype = ELEMENT_TYPES.get(number, FLOAT32)
    if not 0 <= size <= _LONGEST_RANGE:
        call.malformed(f"impossible size {size}")
    angle = np.arange(size) * (2 * np.pi / max(size - (not call.integer("periodic", 1)), 1))
    offset, first, second = _WINDOWS[call.op_type]
    values = offset - first * np.cos(angle) + second * np.cos(2 * angle)
    return as_known(values.astype(dtype.numpy), call.outputs[0])


#: The weights of the constant, of ``cos`` and of ``cos(2·)`` in each window.
_WINDOWS = {
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "HannWindow": (0.5, 0.5, 0.0),
}

CONVERTERS: Mapping[str, Converter] = {
    "BlackmanWindow": convert_window,
    "Constant": convert_constant,
    "ConstantOfShape": convert_constant_of_shape,
    "EyeLike": convert_eye_like,
    "HammingWindow": convert_window,
    "HannWindow": convert_window,
    "Range": convert_range,
}
