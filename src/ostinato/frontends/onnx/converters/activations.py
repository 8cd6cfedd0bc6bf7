"""Activations, softmax included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.frontends.onnx.converters.elementwise import binary, unary
from ostinato.ops.base import normalize_axis
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "EXTENSIONS"]

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def convert_elu(call: Call) -> Result:
    return call.g.elu(call.floats(0), alpha=call.real("alpha", 1.0))


def convert_celu(call: Call) -> Result:
    return call.g.celu(call.floats(0), alpha=call.real("alpha", 1.0))


def convert_leaky_relu(call: Call) -> Result:
    return call.g.leaky_relu(call.floats(0), alpha=call.real("alpha", 0.01))


def convert_thresholded_relu(call: Call) -> Result:
    return call.g.thresholded_relu(call.floats(0), alpha=call.real("alpha", 1.0))


def convert_hard_sigmoid(call: Call) -> Result:
    alpha, beta = call.real("alpha", 0.2), call.real("beta", 0.5)
    return call.g.hard_sigmoid(call.floats(0), alpha=alpha, beta=beta)


def convert_selu(call: Call) -> Result:
    g, x = call.g, call.floats(0)
    alpha, gamma = call.real("alpha", _SELU_ALPHA), call.real("gamma", _SELU_GAMMA)
    if abs(alpha - _SELU_ALPHA) < 1e-6 and abs(gamma - _SELU_GAMMA) < 1e-6:
        return g.selu(x)
    return g.multiply(g.elu(x, alpha=alpha), gamma)


def convert_gelu(call: Call) -> Result:
    approximate = call.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        call.malformed(f"approximate should be none or tanh, got {approximate!r}")
    return call.g.gelu(call.floats(0), approximate=approximate == "tanh")


def convert_swish(call: Call) -> Result:
    return _swish(call, call.real("alpha", 1.0))


def convert_quick_gelu(call: Call) -> Result:
    return _swish(call, call.real("alpha", 1.702))


def convert_bias_gelu(call: Call) -> Result:
    return call.g.gelu(call.g.add(call.floats(0), call.value(1)))


def convert_fast_gelu(call: Call) -> Result:
    bias = call.optional(1)
    x = call.floats(0) if bias is None else call.g.add(call.floats(0), bias)
    return call.g.gelu(x, approximate=True)


def convert_softmax(call: Call) -> Result:
    return _along_axis(call, lambda x, axis: call.g.softmax(x, axis=axis))


def convert_log_softmax(call: Call) -> Result:
    return _along_axis(call, lambda x, axis: call.g.log_softmax(x, axis=axis))


def convert_hardmax(call: Call) -> Result:
    def hardmax(x: Value, axis: int) -> Value:
        g, axis = call.g, normalize_axis(axis, max(x.ndim, 1))
        chosen = g.argmax(x, axis=axis, keepdims=True)
        return g.cast(g.equal(g.iota(x.shape, axis, chosen.dtype), chosen), x.dtype)

    return _along_axis(call, hardmax)


def _swish(call: Call, alpha: float) -> Value:
    g, x = call.g, call.floats(0)
    if alpha == 1.0:
        return g.silu(x)
    return g.multiply(x, g.sigmoid(g.multiply(x, alpha)))


def _along_axis(call: Call, apply: Callable[[Value, int], Value]) -> Value:
    """Before operator set 13 such an op treats the input as a matrix split at ``axis``."""
    g, x = call.g, call.value(0)
    if call.opset >= 13:
        return apply(x, call.integer("axis", -1))
    axis = call.integer("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        call.malformed(f"axis {axis} is out of range for {x.ndim} dimensions")
    axis = axis % x.ndim if axis < 0 else axis
    if axis == x.ndim - 1:
        return apply(x, axis)
    matrix = g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return g.reshape(apply(matrix, 1), x.shape)


CONVERTERS: Mapping[str, Converter] = {
    "Celu": convert_celu,
    "Elu": convert_elu,
    "Gelu": convert_gelu,
    "HardSigmoid": convert_hard_sigmoid,
    "HardSwish": unary("hard_swish"),
    "Hardmax": convert_hardmax,
    "LeakyRelu": convert_leaky_relu,
    "LogSoftmax": convert_log_softmax,
    "Mish": unary("mish"),
    "PRelu": binary("prelu"),
    "Relu": unary("relu"),
    "Selu": convert_selu,
    "Sigmoid": unary("sigmoid"),
    "Softmax": convert_softmax,
    "Softplus": unary("softplus"),
    "Softsign": unary("softsign"),
    "Swish": convert_swish,
    "Tanh": unary("tanh"),
    "ThresholdedRelu": convert_thresholded_relu,
}

#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "BiasGelu": convert_bias_gelu,
    "FastGelu": convert_fast_gelu,
    "Gelu": convert_gelu,
    "QuickGelu": convert_quick_gelu,
}
