"""Converters of activation functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _plain(method: str) -> Converter:
    """An activation without parameters."""

    def convert(call: Call, self: Value) -> Value:
        return getattr(call.g, method)(self)  # type: ignore[no-any-return]

    return convert


def _relu(call: Call, self: Value) -> Value:
    return self if self.dtype.is_bool else call.g.relu(self)


def _relu6(call: Call, self: Value) -> Value:
    return call.g.clip(self, 0, 6)


def _gelu(call: Call, self: Value, *, approximate: str = "none") -> Value:
    return call.g.gelu(self, approximate=approximate == "tanh")


def _leaky_relu(call: Call, self: Value, negative_slope: Any = 0.01) -> Value:
    return call.g.leaky_relu(self, call.known(negative_slope, "slope"))


def _elu(call: Call, self: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """``scale * x`` above zero, ``scale * alpha * (exp(input_scale * x) - 1)`` below."""
    g = call.g
    if scale == 1 and input_scale == 1:
        return g.elu(self, float(alpha))
    (x,) = call.widened(self)
    below = g.multiply(g.expm1(g.multiply(x, float(input_scale))), float(alpha * scale))
    above = g.multiply(x, float(scale))
    return call.rounded(g.where(g.greater(x, 0), above, below))


def _celu(call: Call, self: Value, alpha: Any = 1.0) -> Value:
    alpha = float(alpha)
    if alpha > 0:
        return call.g.celu(self, alpha)
    g = call.g
    (x,) = call.widened(self)
    below = g.multiply(g.expm1(g.divide(x, alpha)), alpha)
    return call.rounded(g.where(g.greater(x, 0), x, below))


def _softplus(call: Call, self: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    """``log(1 + exp(beta x)) / beta``, and ``x`` where ``beta x`` exceeds the threshold."""
    g = call.g
    (x,) = call.widened(self)
    steep = x if beta == 1 else g.multiply(x, float(beta))
    smooth = g.softplus(steep)
    if beta != 1:
        smooth = g.divide(smooth, float(beta))
    return call.rounded(g.where(g.greater(steep, float(threshold)), x, smooth))


def _hard_tanh(call: Call, self: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    if self.dtype.is_float:
        return call.g.clip(self, float(min_val), float(max_val))
    return call.g.clip(self, int(min_val), int(max_val))


def _hard_sigmoid(call: Call, self: Value) -> Value:
    return call.g.hard_sigmoid(self, 1 / 6, 0.5)


def _hard_shrink(call: Call, self: Value, lambd: Any = 0.5) -> Value:
    g = call.g
    inside = g.logical_and(g.greater_equal(self, -float(lambd)), g.less_equal(self, float(lambd)))
    return g.where(inside, 0, self)


def _soft_shrink(call: Call, self: Value, lambd: Any = 0.5) -> Value:
    g = call.g
    (x,) = call.widened(self)
    width = float(lambd)
    low = g.where(g.less(x, -width), g.add(x, width), g.multiply(x, 0))
    return call.rounded(g.where(g.greater(x, width), g.subtract(x, width), low))


def _threshold(call: Call, self: Value, threshold: Any, value: Any) -> Value:
    """``x`` above the threshold, else ``value``; NaN stays."""
    g = call.g
    return g.where(
        g.less_equal(self, call.value(threshold, self.dtype)),
        call.value(value, self.dtype),
        self,
    )


def _prelu(call: Call, self: Value, weight: Value) -> Value:
    """``weight`` is one slope, or one for each channel (axis 1)."""
    slope = weight
    if self.ndim > 2 or (self.ndim == 2 and weight.ndim == 1):
        slope = call.g.reshape(weight, (-1, *(1,) * (self.ndim - 2)))
    elif self.ndim == 0:
        slope = call.g.reshape(weight, ())
    return call.g.prelu(self, slope)


def _prelu_kernel(call: Call, self: Value, weight: Value) -> Value:
    return call.g.prelu(self, weight)


def _glu(call: Call, self: Value, dim: int = -1) -> Value:
    axis = call.axis(dim, self.ndim)
    gate, gated = call.g.split(self, 2, axis)
    a, b = call.widened(gate, gated)
    return call.rounded(call.g.multiply(a, call.g.sigmoid(b)))


def _randomised_leaky_relu(
    call: Call,
    self: Value,
    lower: Any = 0.125,
    upper: Any = 0.3333333333333333,
    training: bool = False,
    generator: None = None,
) -> Value:
    if training:
        call.unsupported("its slopes are random in training")
    return call.g.leaky_relu(self, (lower + upper) / 2)


def _log_sigmoid_forward(call: Call, self: Value) -> tuple[Value, Value]:
    """The function, and the buffer of its backward on the CPU: ``exp(-|x|)``."""
    g = call.g
    return g.log_sigmoid(self), g.exp(g.neg(g.abs(self)))


CONVERTERS: dict[str, Converter] = {
    "aten.relu": _relu,
    "aten.relu6": _relu6,
    "aten.gelu": _gelu,
    "aten.silu": _plain("silu"),
    "aten.mish": _plain("mish"),
    "aten.selu": _plain("selu"),
    "aten.log_sigmoid": _plain("log_sigmoid"),
    "aten.log_sigmoid_forward": _log_sigmoid_forward,
    "aten.hardswish": _plain("hard_swish"),
    "aten.hardsigmoid": _hard_sigmoid,
    "aten.hardtanh": _hard_tanh,
    "aten.hardshrink": _hard_shrink,
    "aten.softshrink": _soft_shrink,
    "aten.leaky_relu": _leaky_relu,
    "aten.elu": _elu,
    "aten.celu": _celu,
    "aten.softplus": _softplus,
    "aten.threshold": _threshold,
    "aten.prelu": _prelu,
    "aten._prelu_kernel": _prelu_kernel,
    "aten.glu": _glu,
    "aten.rrelu": _randomised_leaky_relu,
}
