"""Converters of quantised ops: the default domain's, and what those of others share with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.frontends.onnx.converters.casts import saturated_cast
from ostinato.frontends.onnx.converters.contraction import window_arguments
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from ostinato.ir.leaves import CONSTANT
from ostinato.ops.affine import is_zero
from ostinato.ops.base import normalize_axis
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = [
    "CONVERTERS",
    "EXTENSIONS",
    "Affine",
    "affine_at",
    "dynamically_quantized",
    "matmul_zero",
    "scale_at",
    "zero_at",
]

#: Scales of more elements than this are params, as all large weights are.
_MOST_SCALES = 1 << 16

_BYTE_RANGE = 255.0

#: Integers that are stored and converted only.
_INTEGER_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}


@dataclass(frozen=True)
class Affine:
    """A scale and a zero point that broadcast against a tensor."""

    scale: Value
    zero_point: Value

    def dequantized(self, call: Call, q: Value) -> Value:
        """``(q - zero_point) * scale``, also of narrow floats."""
        g = call.g
        if q.dtype.is_integer:
            return g.dequantize(q, self.scale, self.zero_point)
        wide = g.cast(q, FLOAT32)
        if not is_zero(self.zero_point):
            wide = wide - g.cast(self.zero_point, FLOAT32)
        return g.cast(wide * g.cast(self.scale, FLOAT32), self.scale.dtype)

    def quantized(self, call: Call, x: Value) -> Value:
        """``saturate(round(x / scale) + zero_point)``; a narrow float is rounded to its digits."""
        g = call.g
        x = x if x.dtype.is_float else g.cast(x, FLOAT32)
        if self.zero_point.dtype.is_integer:
            return g.quantize(x, self.scale, self.zero_point)
        codes, target = g.cast(x, FLOAT32) / g.cast(self.scale, FLOAT32), self.zero_point.dtype
        bits = _INTEGER_BITS.get(target.name)
        if bits is not None:
            codes = g.round(codes)
        if not is_zero(self.zero_point):
            codes = codes + g.cast(self.zero_point, FLOAT32)
        if bits is None:
            return saturated_cast(call, codes, target)
        least = 0 if target.name.startswith("u") else -(1 << (bits - 1))
        return g.cast(g.cast(g.clip(codes, least, least + (1 << bits) - 1), INT8), target)


def scale_at(call: Call, index: int) -> Value:
    """A scale: a constant where the file has it, so that the compiler can compute with it."""
    known = call.known(index)
    if known is None or known.symbolic or known.size > _MOST_SCALES:
        return call.value(index)
    return call.g.constant(known.array)


def affine_at(call: Call, index: int, dtype: DType) -> Affine:
    """The scale at ``index`` and the zero point behind it, of a whole tensor of ``dtype``."""
    scale, zero_point = scale_at(call, index), zero_at(call, index + 1, dtype)
    return Affine(_scalar(call, scale), _scalar(call, zero_point))


def zero_at(call: Call, index: int, dtype: DType) -> Value:
    """A zero point: 0 where it is left out."""
    if not call.has(index):
        return call.g.constant(0, dtype)
    return scale_at(call, index)


def _scalar(call: Call, value: Value) -> Value:
    """A scale or a zero point of a whole tensor."""
    if value.ndim and any(dim != 1 for dim in value.shape):
        call.malformed(f"a scale or zero point of a whole tensor is a number, got {value.type}")
    return _reshaped(call, value, ())


def _reshaped(call: Call, value: Value, shape: tuple[int, ...]) -> Value:
    """A scale or zero point in another shape: a constant where it is one."""
    if value.node.op is CONSTANT:
        return call.g.constant(value.node.attrs["array"].reshape(shape))
    return call.g.reshape(value, shape)


# -- QuantizeLinear, DequantizeLinear --------------------------------------------------------------


def convert_quantize(call: Call) -> Result:
    x = call.value(0)
    number = call.integer("output_dtype", 0)
    if number and number not in ELEMENT_TYPES:
        call.unsupported(f"there is no element type {number}")
    dtype = ELEMENT_TYPES[number] if number else UINT8
    return _along_axis(call, x, dtype).quantized(call, x)


def convert_dequantize(call: Call) -> Result:
    x = call.value(0)
    result = _along_axis(call, x, x.dtype).dequantized(call, x)
    number = call.integer("output_dtype", 0)
    return call.g.cast(result, ELEMENT_TYPES[number]) if number in ELEMENT_TYPES else result


def _along_axis(call: Call, x: Value, dtype: DType) -> Affine:
    """Operands 1 and 2 in a form that broadcasts against ``x``: by tensor, axis or block."""
    scale, zero_point = scale_at(call, 1), zero_at(call, 2, dtype)
    found = [_broadcastable(call, x, value) for value in (scale, zero_point)]
    return Affine(*found)


def _broadcastable(call: Call, x: Value, value: Value) -> Value:
    g = call.g
    if all(dim == 1 for dim in value.shape) and value.ndim <= 1:
        return _reshaped(call, value, ())
    axis = normalize_axis(call.integer("axis", 1), x.ndim)
    block = call.integer("block_size", 0)
    if not block:
        if value.shape != (x.shape[axis],):
            call.malformed(f"{value.type} is no scale or zero point along axis {axis} of {x.type}")
        return _reshaped(call, value, (*(1,) * axis, -1, *(1,) * (x.ndim - axis - 1)))
    if value.ndim != x.ndim:
        call.malformed(f"{value.type} has no element for each block of {x.type}")
    before, count, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
    repeated = g.broadcast_to(
        g.reshape(value, (*before, count, 1, *after)), (*before, count, block, *after)
    )
    whole = g.reshape(repeated, (*before, count * block, *after))
    if whole.shape == x.shape:
        return whole
    return g.slice(whole, (0,) * x.ndim, x.shape)


def convert_dynamic_quantize(call: Call) -> Result:
    q, affine = dynamically_quantized(call, call.value(0))
    return [q, affine.scale, affine.zero_point]


def dynamically_quantized(call: Call, x: Value) -> tuple[Value, Affine]:
    """``x`` as uint8 between its extremes, 0 included (``DynamicQuantizeLinear``)."""
    g = call.g
    low, high = g.minimum(g.min(x), 0.0), g.maximum(g.max(x), 0.0)
    distance = high - low
    scale = g.where(g.equal(distance, 0.0), 1.0, distance / _BYTE_RANGE)
    zero_point = g.cast(g.round(g.clip(-low / scale, 0.0, _BYTE_RANGE)), UINT8)
    affine = Affine(scale, zero_point)
    return affine.quantized(call, x), affine


# -- matmuls ---------------------------------------------------------------------------------------


def matmul_zero(call: Call, zero_point: Value, of: Value, *, rows: bool) -> Value:
    """A matmul's scale or zero point, which stands for the rows or columns of ``of``."""
    if all(dim == 1 for dim in zero_point.shape):
        return _reshaped(call, zero_point, ())
    if zero_point.ndim != 1 or of.ndim < 2:
        return zero_point
    shape = (-1, 1) if rows else (1, -1)
    return _reshaped(call, zero_point, (*(1,) * (of.ndim - 2), *shape))


def convert_matmul_integer(call: Call) -> Result:
    a, b = call.value(0), call.value(1)
    zeros = [
        matmul_zero(call, zero_at(call, index + 2, x.dtype), x, rows=index == 0)
        for index, x in enumerate((a, b))
    ]
    return call.g.affine_matmul(a, b, *zeros)


def convert_qlinear_matmul(call: Call) -> Result:
    g = call.g
    a, b = call.value(0), call.value(3)
    a_scale, a_zero = (matmul_zero(call, scale_at(call, i), a, rows=True) for i in (1, 2))
    b_scale, b_zero = (matmul_zero(call, scale_at(call, i), b, rows=False) for i in (4, 5))
    result = affine_at(call, 6, a.dtype)
    sums = g.affine_matmul(a, b, a_zero, b_zero)
    if sums.ndim < 2:
        a_scale, b_scale = (g.reshape(s, s.shape[-1:]) if s.ndim else s for s in (a_scale, b_scale))
    return g.requantize(sums, _combined(call, a_scale, b_scale, result), result.zero_point)


def _combined(call: Call, left: Value, right: Value, result: Affine) -> Value:
    """The factor of requantisation: ``left * right / result.scale`` in float32."""
    g = call.g
    left, right, over = (g.cast(scale, FLOAT32) for scale in (left, right, result.scale))
    return g.divide(g.multiply(left, right), over)


# -- convolutions ----------------------------------------------------------------------------------


def convert_conv_integer(call: Call) -> Result:
    x, w = call.value(0), call.value(1)
    return _sums(call, x, w, zero_at(call, 2, x.dtype), zero_at(call, 3, w.dtype))


def convert_qlinear_conv(call: Call) -> Result:
    g = call.g
    x, w = call.value(0), call.value(3)
    source, result = affine_at(call, 1, x.dtype), affine_at(call, 6, x.dtype)
    w_scale, w_zero = scale_at(call, 4), zero_at(call, 5, w.dtype)
    sums = _sums(call, x, w, source.zero_point, w_zero)
    by_filter = (1, -1, *(1,) * (x.ndim - 2))
    if call.has(8):
        sums = g.add(sums, g.reshape(g.cast(scale_at(call, 8), INT32), by_filter))
    factor = _combined(call, source.scale, w_scale, result)
    factor = g.reshape(factor, by_filter if factor.shape not in ((), (1,)) else ())
    return g.requantize(sums, factor, result.zero_point)


def _sums(call: Call, x: Value, w: Value, x_zero: Value, w_zero: Value) -> Value:
    arguments = window_arguments(replace(call, operands=(x, w)))
    w_zero = call.g.reshape(w_zero, () if w_zero.shape == (1,) else w_zero.shape)
    return call.g.affine_conv(x, w, _scalar(call, x_zero), w_zero, **arguments)


CONVERTERS: Mapping[str, Converter] = {
    "ConvInteger": convert_conv_integer,
    "DequantizeLinear": convert_dequantize,
    "DynamicQuantizeLinear": convert_dynamic_quantize,
    "MatMulInteger": convert_matmul_integer,
    "QLinearConv": convert_qlinear_conv,
    "QLinearMatMul": convert_qlinear_matmul,
    "QuantizeLinear": convert_quantize,
}

#: Ops of the ``com.microsoft`` domain that are those of the default one.
EXTENSIONS: Mapping[str, Converter] = {
    "DequantizeLinear": convert_dequantize,
    "QuantizeLinear": convert_quantize,
}
