"""Converters of ONNX Runtime's own quantised ops, which its quantiser and optimiser emit.

The elementwise ones, poolings and concatenations compute on the numbers that integers stand for,
in float32, and round once at the end. ONNX Runtime has tables and fixed-point formulas for some of
them, which differ in the last place where a result lies near the middle of two integers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.dtypes import BOOL, FLOAT32, INT32, INT64
from ostinato.frontends.onnx.converters.pooling import convert_average_pool, convert_global_pool
from ostinato.frontends.onnx.converters.quantized import (
    Affine,
    affine_at,
    dynamically_quantized,
    matmul_zero,
    scale_at,
    zero_at,
)
from ostinato.frontends.onnx.converters.recurrent import convert_lstm
from ostinato.ir.graph import Value
from ostinato.ops.base import normalize_axis
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["EXTENSIONS"]


# -- elementwise, by way of float32 ----------------------------------------------------------------


def _read(call: Call, index: int) -> Value:
    """The numbers that the operands ``(q, scale, zero_point)`` from ``index`` on stand for."""
    q = call.value(index)
    return affine_at(call, index + 1, q.dtype).dequantized(call, q)


def _written(call: Call, y: Value, index: int) -> Value:
    """``y`` by the scale at ``index`` and the zero point behind it, in the dtype of operand 0."""
    return affine_at(call, index, call.dtype(0)).quantized(call, y)


def convert_binary(call: Call) -> Result:
    apply = call.g.add if call.op_type == "QLinearAdd" else call.g.multiply
    return _written(call, apply(_read(call, 0), _read(call, 3)), 6)


def convert_leaky_relu(call: Call) -> Result:
    y = call.g.leaky_relu(_read(call, 0), call.real("alpha", 0.01))
    return _written(call, y, 3)


def convert_sigmoid(call: Call) -> Result:
    return _written(call, call.g.sigmoid(_read(call, 0)), 3)


def convert_softmax(call: Call) -> Result:
    """The softmax along an axis, or before operator set 13 over it and all axes behind it."""
    g, x = call.g, _read(call, 0)
    axis = normalize_axis(call.integer("axis", -1), x.ndim)
    if call.integer("opset", 13) >= 13:
        return _written(call, g.softmax(x, axis=axis), 3)
    rows = g.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:])))
    return _written(call, g.reshape(g.softmax(rows, axis=-1), x.shape), 3)


def convert_where(call: Call) -> Result:
    chosen = call.g.where(call.value(0), _read(call, 1), _read(call, 4))
    return affine_at(call, 7, call.dtype(1)).quantized(call, chosen)


def convert_concat(call: Call) -> Result:
    parts = [_read(call, index) for index in range(2, len(call.operands), 3)]
    if not parts:
        call.malformed("expected at least one operand to concatenate")
    joined = call.g.concat(parts, axis=call.required("axis"))
    return affine_at(call, 0, call.dtype(2)).quantized(call, joined)


def convert_reduce_mean(call: Call) -> Result:
    x = _read(call, 0)
    axes = call.integer_list("axes", None)
    mean = call.g.mean(x, axis=axes, keepdims=call.flag("keepdims", 1))
    return _written(call, mean, 3)


def _pool(convert: Callable[[Call], Result]) -> Converter:
    """The converter of a pooling, from that of the same in floats."""

    def convert_pool(call: Call) -> Result:
        x, last = _read(call, 0), call.integer("channels_last", 0)
        if last:
            x = call.g.permute_dims(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))
        name = call.op_type.removeprefix("QLinear")
        pooled = convert(replace(call, operands=(x,), op_type=name))
        assert isinstance(pooled, Value)
        if last:
            pooled = call.g.permute_dims(pooled, (0, *range(2, x.ndim), 1))
        return _written(call, pooled, 3)

    return convert_pool


# -- matmuls ---------------------------------------------------------------------------------------


def convert_qgemm(call: Call) -> Result:
    """``alpha * A @ B + C``: integers where there is a scale for the result, else floats."""
    g = call.g
    a, b = call.value(0), call.value(3)
    a_scale, a_zero = (scale_at(call, i) for i in (1, 2))
    b_scale, b_zero = (scale_at(call, i) for i in (4, 5))
    a = g.permute_dims(a, (1, 0)) if call.flag("transA", 0) else a
    b = g.permute_dims(b, (1, 0)) if call.flag("transB", 0) else b
    zeros = matmul_zero(call, a_zero, a, rows=True), matmul_zero(call, b_zero, b, rows=False)
    sums = g.affine_matmul(a, b, *zeros)
    if call.has(6):
        sums = g.add(sums, scale_at(call, 6))
    scale = _product_scale(call, (a_scale, a), (b_scale, b))
    alpha = call.real("alpha", 1.0)
    scale = scale if alpha == 1.0 else g.multiply(scale, alpha)
    if not call.has(7):
        return g.multiply(g.cast(sums, FLOAT32), scale)
    result = affine_at(call, 7, a.dtype)
    return g.requantize(sums, g.divide(scale, result.scale), result.zero_point)


def convert_matmul_to_float(call: Call) -> Result:
    """``MatMulIntegerToFloat``: ``(A - a_zero) @ (B - b_zero) * a_scale * b_scale + bias``."""
    a, b = call.value(0), call.value(1)
    zeros = [
        matmul_zero(call, zero_at(call, index, x.dtype), x, rows=index == 4)
        for index, x in ((4, a), (5, b))
    ]
    sums = call.g.affine_matmul(a, b, *zeros)
    scale = _product_scale(call, (scale_at(call, 2), a), (scale_at(call, 3), b))
    return _with_bias(call, sums, scale, 6)


def convert_dynamic_matmul(call: Call) -> Result:
    """``DynamicQuantizeMatMul``: floats, rounded to bytes at run time, times bytes."""
    b = call.value(1)
    a, affine = dynamically_quantized(call, call.value(0))
    b_zero = matmul_zero(call, zero_at(call, 3, b.dtype), b, rows=False)
    zeros = affine.zero_point, b_zero
    sums = call.g.affine_matmul(a, b, *zeros)
    scale = _product_scale(call, (affine.scale, a), (scale_at(call, 2), b))
    return _with_bias(call, sums, scale, 4)


def _product_scale(call: Call, left: tuple[Value, Value], right: tuple[Value, Value]) -> Value:
    """The scale of a matmul, from ``(scale, operand)`` of both sides."""
    factors = [
        matmul_zero(call, scale, of, rows=rows)
        for (scale, of), rows in ((left, True), (right, False))
    ]
    return call.g.multiply(*factors)


def _with_bias(call: Call, sums: Value, scale: Value, index: int) -> Value:
    g = call.g
    result = g.multiply(g.cast(sums, FLOAT32), scale)
    return g.add(result, call.value(index)) if call.has(index) else result


# -- layers ----------------------------------------------------------------------------------------


def convert_dynamic_lstm(call: Call) -> Result:
    """``DynamicQuantizeLSTM``: integer weights, inputs rounded to bytes at run time.

    ONNX Runtime rounds the state of every step to bytes too; here it stays as it is.
    """
    g = call.g
    x, _ = call.value(0), call.value(1)
    q, affine = dynamically_quantized(call, x)
    rounded = affine.dequantized(call, q)
    weights = [
        g.permute_dims(_weights(call, index, scales), (0, 2, 1))
        for index, scales in ((1, 8), (2, 10))
    ]
    return convert_lstm(replace(call, operands=(rounded, *weights, *call.operands[3:8])))


def _weights(call: Call, index: int, first: int) -> Value:
    """An LSTM's weights ``[directions, rows, columns]``, a scale for each direction or column."""
    w = call.value(index)
    scale, zero = (_per_direction(call, scale_at(call, i), w) for i in (first, first + 1))
    return Affine(scale, zero).dequantized(call, w)


def _per_direction(call: Call, value: Value, w: Value) -> Value:
    directions, _, columns = w.shape
    shape = (directions, 1, columns) if value.ndim == 2 else (directions, 1, 1)
    if value.ndim == 2 and value.shape[1] == 1:
        shape = (directions, 1, 1)
    return call.g.reshape(value, shape)


def convert_attention(call: Call) -> Result:
    """``QAttention``: one integer matmul for queries, keys and values, attention in floats."""
    g = call.g
    x, w = call.value(0), call.value(1)
    heads = call.required("num_heads")
    x_zero, w_zero = (zero_at(call, i, of.dtype) for i, of in ((6, x), (7, w)))
    columns = matmul_zero(call, w_zero, w, rows=False)
    sums = g.affine_matmul(x, w, matmul_zero(call, x_zero, x, rows=True), columns)
    scale = g.multiply(
        matmul_zero(call, scale_at(call, 3), x, rows=True),
        matmul_zero(call, scale_at(call, 4), w, rows=False),
    )
    joined = _with_bias(call, sums, scale, 2)
    if heads < 1 or not isinstance(joined.shape[2], int) or joined.shape[2] % (3 * heads):
        call.malformed(f"{joined.type} does not divide into {heads} heads of three matrices")
    batch, length, features = joined.shape
    size = features // (3 * heads)
    apart = g.permute_dims(g.reshape(joined, (batch, length, 3, heads, size)), (2, 0, 3, 1, 4))
    q, k, v = (apart[i] for i in range(3))
    present = None
    if call.has(8):
        past = call.value(8)
        k = g.concat([past[0], k], axis=2)
        v = g.concat([past[1], v], axis=2)
    if call.wants(1):
        present = g.stack([k, v], axis=0)
    result = g.attention(
        q, k, v,
        mask=_mask(call, k),
        causal=call.flag("unidirectional", 0),
        scale=call.real("scale", 0.0) or None,
    )  # fmt: skip
    moved = g.reshape(g.permute_dims(result, (0, 2, 1, 3)), (batch, length, heads * size))
    return [moved] if present is None else [moved, present]


def _mask(call: Call, keys: Value) -> Value | None:
    """The mask of ``QAttention`` as a number that is added to the scores."""
    g, mask = call.g, call.optional(5)
    if mask is None:
        return None
    batch, _, length, _ = keys.shape
    if mask.ndim == 1 and mask.shape == (batch,):
        lengths = g.reshape(g.cast(mask, INT64), (batch, 1, 1, 1))
        seen = g.less(g.iota((1, 1, 1, length), 3, INT64), lengths)
    elif mask.ndim in (2, 3):
        shape = (batch, 1, 1, length) if mask.ndim == 2 else (batch, 1, *mask.shape[1:])
        seen = g.not_equal(g.reshape(g.cast(mask, INT32), shape), 0)
    else:
        call.unsupported(f"a mask of the form {mask.type} has no equivalent")
    assert seen.dtype == BOOL
    return g.where(seen, 0.0, call.real("mask_filter_value", -10000.0))


#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "DynamicQuantizeLSTM": convert_dynamic_lstm,
    "DynamicQuantizeMatMul": convert_dynamic_matmul,
    "MatMulIntegerToFloat": convert_matmul_to_float,
    "QAttention": convert_attention,
    "QGemm": convert_qgemm,
    "QLinearAdd": convert_binary,
    "QLinearAveragePool": _pool(convert_average_pool),
    "QLinearConcat": convert_concat,
    "QLinearGlobalAveragePool": _pool(convert_global_pool),
    "QLinearLeakyRelu": convert_leaky_relu,
    "QLinearMul": convert_binary,
    "QLinearReduceMean": convert_reduce_mean,
    "QLinearSigmoid": convert_sigmoid,
    "QLinearSoftmax": convert_softmax,
    "QLinearWhere": convert_where,
}
