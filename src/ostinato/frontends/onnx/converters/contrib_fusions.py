"""Fused ops of the domain ``com.microsoft``, spelled out: the compiler fuses them its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT32
from ostinato.frontends.onnx.converters.contraction import convert_conv, convert_gemm
from ostinato.frontends.onnx.converters.sampling import convert_grid_sample
from ostinato.ops.base import normalize_axis
from ostinato.records import replace
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["EXTENSIONS"]


# -- matmuls and convolutions ----------------------------------------------------------------------


def convert_fused_matmul(call: Call) -> Result:
    g = call.g
    a, b = (_transposed(call, call.value(i), side) for i, side in enumerate("AB"))
    product = g.matmul(a, b)
    alpha = call.real("alpha", 1.0)
    product = product if alpha == 1.0 else g.multiply(product, alpha)
    return _activated(call, product, _parameters(call))


def _transposed(call: Call, x: Value, side: str) -> Value:
    """An operand as its flags have it: batches first, then the last two axes."""
    g = call.g
    if call.flag(f"transBatch{side}", 0) and x.ndim > 2:
        x = g.permute_dims(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    if call.flag(f"trans{side}", 0) and x.ndim > 1:
        x = g.swapaxes(x, -1, -2)
    return x


def convert_fused_gemm(call: Call) -> Result:
    result = convert_gemm(call)
    assert not isinstance(result, tuple | list)
    return _activated(call, result, _parameters(call))  # type: ignore[arg-type]


def convert_fused_conv(call: Call) -> Result:
    """Convert ``FusedConv``: a convolution, a sum, an activation."""
    result = convert_conv(replace(call, operands=call.operands[:3]))
    if call.has(3):
        result = call.g.add(result, call.value(3))
    return _activated(call, result, call.real_list("activation_params", ()))  # type: ignore[arg-type]


def convert_nhwc_conv(call: Call) -> Result:
    """A convolution of images with channels last, their weights as always."""
    g = call.g
    x = g.moveaxis(call.value(0), -1, 1)
    result = convert_conv(replace(call, operands=(x, *call.operands[1:3])))
    if call.has(3):
        result = g.add(result, g.moveaxis(call.value(3), -1, 1))
    params = call.real_list("activation_params", ())
    return g.moveaxis(_activated(call, result, params), 1, -1)  # type: ignore[arg-type]


def _parameters(call: Call) -> Sequence[float]:
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    found = [call.real(name, None) for name in names]
    return [value for value in found if value is not None]


def _activated(call: Call, x: Value, params: Sequence[float]) -> Value:
    """``x`` after the activation that the node names, if it does."""
    g, name = call.g, call.text("activation", "")
    simple = {
        "": lambda: x,
        "Relu": lambda: g.relu(x),
        "Tanh": lambda: g.tanh(x),
        "Sigmoid": lambda: g.sigmoid(x),
        "Softplus": lambda: g.softplus(x),
        "Softsign": lambda: g.softsign(x),
        "Gelu": lambda: g.gelu(x),
        "HardSwish": lambda: g.hard_swish(x),
        "LeakyRelu": lambda: g.leaky_relu(x, alpha=params[0] if params else 0.01),
        "Elu": lambda: g.elu(x, alpha=params[0] if params else 1.0),
    }
    if name in simple:
        return simple[name]()
    if name == "HardSigmoid":
        alpha, beta = (*params, 0.2, 0.5)[:2] if len(params) == 2 else (0.2, 0.5)
        return g.hard_sigmoid(x, alpha=alpha, beta=beta)
    if name == "Clip" and len(params) == 2:
        return g.clip(x, *params)
    return call.unsupported(f"activation {name!r} with {len(params)} parameters")


# -- biases and activations ------------------------------------------------------------------------


def convert_gemm_fast_gelu(call: Call) -> Result:
    g = call.g
    product = g.matmul(call.value(0), call.value(1))
    product = g.add(product, call.value(2)) if call.has(2) else product
    return g.gelu(product, approximate=True)


def convert_bias_split_gelu(call: Call) -> Result:
    g, x = call.g, call.g.add(call.value(0), call.value(1))
    size = x.shape[-1]
    if not isinstance(size, int) or size % 2:
        call.malformed(f"{x.type} does not divide into halves")
    left = g.slice(x, [0], [size // 2], axes=[-1])
    right = g.slice(x, [size // 2], [size], axes=[-1])
    return g.multiply(left, g.gelu(right))


def convert_bias_add(call: Call) -> Result:
    g = call.g
    return g.add(g.add(call.value(0), call.value(1)), call.value(2))


def convert_bias_softmax(call: Call) -> Result:
    """Softmax over the axes from ``axis`` on; the bias broadcasts from inside or from outside."""
    g, x, bias = call.g, call.value(0), call.value(1)
    axis = normalize_axis(call.integer("axis", 1), x.ndim)
    if not call.flag("is_inner_broadcast", 1) and bias.ndim < x.ndim:
        bias = g.reshape(
            bias, (*bias.shape[:axis], *(1,) * (x.ndim - bias.ndim), *bias.shape[axis:])
        )
    total = g.add(x, bias)
    matrix = g.reshape(total, (*x.shape[:axis], prod(x.shape[axis:])))
    return g.reshape(g.softmax(matrix, axis=axis), x.shape)


# -- embeddings and norms --------------------------------------------------------------------------


def convert_embed_layer_norm(call: Call) -> Result:
    """Convert ``EmbedLayerNormalization``: rows of three tables, summed and normalised."""
    g, ids = call.g, call.value(0)
    batch, length = ids.shape
    if call.has(8):
        position = g.take(call.value(3), call.value(8), axis=0)
    else:
        position = g.slice(call.value(3), [0], [length], axes=[0])
    total = g.add(g.take(call.value(2), ids, axis=0), position)
    if call.has(1) and call.has(4):
        total = g.add(total, g.take(call.value(4), call.value(1), axis=0))
    result = g.layer_norm(total, call.value(5), call.value(6), eps=call.real("epsilon", 1e-12))
    if call.has(7):
        count = g.sum(g.cast(g.equal(call.value(7), 1), INT32), axis=1)
    else:
        count = g.zeros((batch,), INT32)
    return [result, g.cast(count, INT32), total]


def convert_channels_last_group_norm(call: Call) -> Result:
    """Convert ``GroupNorm`` and ``SkipGroupNorm``, of images with channels last."""
    g, x = call.g, call.value(0)
    if call.has(3):
        skip = call.value(3)
        if skip.ndim == 2:
            skip = g.reshape(skip, (skip.shape[0], 1, 1, skip.shape[1]))
        x = g.add(x, skip)
        x = g.add(x, call.value(4)) if call.has(4) else x
    last = call.flag("channels_last", 1)
    image = g.moveaxis(x, -1, 1) if last else x
    weight, bias = call.value(1), call.value(2)
    groups, eps = call.required("groups"), call.real("epsilon", 1e-5)
    weight, bias = g.cast(weight, image.dtype), g.cast(bias, image.dtype)
    result = g.group_norm(image, groups, weight, bias, eps=eps)
    if call.integer("activation", 0):
        result = g.silu(result)
    result = g.moveaxis(result, 1, -1) if last else result
    return [result, x] if call.has(3) else result


#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "BiasAdd": convert_bias_add,
    "BiasSoftmax": convert_bias_softmax,
    "BiasSplitGelu": convert_bias_split_gelu,
    "EmbedLayerNormalization": convert_embed_layer_norm,
    "FusedConv": convert_fused_conv,
    "FusedGemm": convert_fused_gemm,
    "FusedMatMul": convert_fused_matmul,
    "FusedMatMulActivation": convert_fused_matmul,
    "GemmFastGelu": convert_gemm_fast_gelu,
    "GridSample": convert_grid_sample,
    "GroupNorm": convert_channels_last_group_norm,
    "NhwcConv": convert_nhwc_conv,
    "NhwcFusedConv": convert_nhwc_conv,
    "SkipGroupNorm": convert_channels_last_group_norm,
    "TransposeMatMul": convert_fused_matmul,
}
