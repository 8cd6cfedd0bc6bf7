"""Activation functions, each one rule over the primitives of the array namespace.

The forms are chosen for float32: no intermediate overflows to NaN where the result is finite, and
nothing is subtracted from 1 where the difference is the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from ostinato.ir.op import Attr

__all__ = ["FAMILY"]

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)

# The fixed point of self-normalising networks (Klambauer et al., 2017, arXiv:1706.02515).
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _softplus(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(xp: Any, x: Any) -> Any:
    # exp overflows to inf far below zero, and 1 / inf is the right 0.
    return 1.0 / (1.0 + xp.exp(-x))


def _elu(xp: Any, x: Any, alpha: float) -> Any:
    # The minimum keeps the branch not taken from overflowing.
    return xp.where(x > 0.0, x, alpha * xp.expm1(xp.minimum(x, 0.0)))


class Activation(Elementwise):
    """A function of one float; ``cost`` counts the primitives of the rule."""

    domain = "numeric"
    result = "float"


class Relu(Elementwise):
    """``max(x, 0)``, of integers too."""

    name = "relu"
    short = True
    domain = "numeric"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.maximum(operands[0], 0)


class Relu6(Activation):
    """``min(max(x, 0), 6)``."""

    name = "relu6"
    cost = 2

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.minimum(xp.maximum(operands[0], 0.0), 6.0)


class LeakyRelu(Activation):
    """``x`` above zero, ``alpha * x`` below."""

    name = "leaky_relu"
    short = True
    parameters = ("alpha",)
    cost = 2

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return xp.where(x > 0.0, x, attrs["alpha"] * x)


class Prelu(Activation):
    """``leaky_relu`` whose slope is a second operand, broadcast against the first."""

    name = "prelu"
    arity = 2
    cost = 2

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, slope = operands
        return xp.where(x > 0.0, x, slope * x)


class ThresholdedRelu(Activation):
    """``x`` above ``alpha``, else 0."""

    name = "thresholded_relu"
    parameters = ("alpha",)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        # NaN passes through, as it does through every other activation.
        return xp.where(x <= attrs["alpha"], 0.0, x)


class Elu(Activation):
    """``x`` above zero, ``alpha * (exp(x) - 1)`` below."""

    name = "elu"
    parameters = ("alpha",)
    cost = 4

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _elu(xp, operands[0], attrs["alpha"])


class Selu(Activation):
    """``elu``, scaled so that zero mean and unit variance are a fixed point."""

    name = "selu"
    cost = 5

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _SELU_SCALE * _elu(xp, operands[0], _SELU_ALPHA)


class Celu(Activation):
    """``x`` above zero, ``alpha * (exp(x / alpha) - 1)`` below; its slope is continuous."""

    name = "celu"
    parameters = ("alpha",)
    cost = 5

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        alpha = attrs["alpha"]
        return xp.where(x > 0.0, x, alpha * xp.expm1(xp.minimum(x / alpha, 0.0)))

    def check_attrs(self, **attrs: Attr) -> None:
        super().check_attrs(**attrs)
        self.expect(attrs["alpha"] > 0, f"alpha is above zero, got {attrs['alpha']!r}")


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    name = "sigmoid"
    cost = 4

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _sigmoid(xp, operands[0])


class LogSigmoid(Activation):
    """``log(sigmoid(x))`` without underflow."""

    name = "log_sigmoid"
    cost = 6

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


class HardSigmoid(Activation):
    """``alpha * x + beta`` limited to 0..1."""

    name = "hard_sigmoid"
    parameters = ("alpha", "beta")
    cost = 4

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        line = attrs["alpha"] * operands[0] + attrs["beta"]
        return xp.minimum(xp.maximum(line, 0.0), 1.0)


class Silu(Activation):
    """``x * sigmoid(x)``, also called swish."""

    name = "silu"
    cost = 5

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.silu(operands[0])


class HardSwish(Activation):
    """``x * relu6(x + 3) / 6``."""

    name = "hard_swish"
    cost = 5

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return x * (xp.minimum(xp.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0))


class HardTanh(Activation):
    """``x`` limited to ``min..max``."""

    name = "hard_tanh"
    parameters = ("min", "max")
    cost = 2

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.minimum(xp.maximum(operands[0], attrs["min"]), attrs["max"])


class Softplus(Activation):
    """``log(1 + exp(x))``."""

    name = "softplus"
    cost = 6

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _softplus(xp, operands[0])


class Softsign(Activation):
    """``x / (1 + abs(x))``."""

    name = "softsign"
    cost = 3

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return x / (1.0 + xp.abs(x))


class Mish(Activation):
    """``x * tanh(softplus(x))``."""

    name = "mish"
    cost = 8

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return x * xp.tanh(_softplus(xp, x))


class Gelu(Activation):
    """``x`` times the normal distribution's cumulative at ``x``.

    Exactly, or with ``approximate`` through ``tanh`` (arXiv:1606.08415).
    """

    name = "gelu"
    parameters = ("approximate",)
    cost = 5

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        if attrs["approximate"]:
            bent = _SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
            return 0.5 * x * (1.0 + xp.tanh(bent))
        return x * xp.normal_cdf(x)

    def check_attrs(self, **attrs: Attr) -> None:
        approximate = attrs["approximate"]
        self.expect(isinstance(approximate, bool), f"approximate is a bool, got {approximate!r}")


FAMILY: tuple[Elementwise, ...] = (
    Relu(),
    Relu6(),
    LeakyRelu(),
    Prelu(),
    ThresholdedRelu(),
    Elu(),
    Selu(),
    Celu(),
    Sigmoid(),
    LogSigmoid(),
    HardSigmoid(),
    Silu(),
    HardSwish(),
    HardTanh(),
    Softplus(),
    Softsign(),
    Mish(),
    Gelu(),
)
