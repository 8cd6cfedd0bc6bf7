"""Steps of optimisers: ``Adagrad``, ``Adam`` and ``Momentum`` of the training domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

    #: The results of a step for one tensor, of its operands.
    Step = Callable[[Call, tuple[Value, ...]], tuple[Value, ...]]

__all__ = ["TRAINING"]


def _optimizer(step: Step, parts: int) -> Converter:
    """A converter that applies ``step`` to each tensor of a node.

    The operands are the learning rate, the count of updates, and then ``parts`` groups of as many
    tensors each: weights, gradients, and what the optimiser accumulates. The outputs are groups.
    """

    def convert(call: Call) -> Result:
        tensors = len(call.operands) - 2
        if tensors < parts or tensors % parts:
            call.malformed(f"{tensors} tensors do not divide into {parts} groups")
        count = tensors // parts
        results = [
            step(call, tuple(call.value(2 + i + part * count) for part in range(parts)))
            for i in range(count)
        ]
        return [value for group in zip(*results, strict=True) for value in group]

    return convert


def _rate(call: Call, x: Value) -> Value:
    return call.g.cast(call.floats(0), x.dtype)


def _updates(call: Call, x: Value) -> Value:
    return call.g.cast(call.value(1), x.dtype)


def _regularized(call: Call, x: Value, gradient: Value) -> Value:
    """The gradient with that of a norm of the weights."""
    factor = call.real("norm_coefficient", 0.0)
    return gradient if factor == 0 else call.g.add(call.g.multiply(x, factor), gradient)


def _adagrad(call: Call, operands: tuple[Value, ...]) -> tuple[Value, ...]:
    g, (x, gradient, squares) = call.g, operands
    decay = g.add(g.multiply(_updates(call, x), call.real("decay_factor", 0.0)), 1.0)
    gradient = _regularized(call, x, gradient)
    squares = g.add(squares, g.square(gradient))
    scale = g.add(g.sqrt(squares), call.real("epsilon", 0.0))
    moved = g.multiply(g.divide(_rate(call, x), decay), g.divide(gradient, scale))
    return g.subtract(x, moved), squares


def _adam(call: Call, operands: tuple[Value, ...]) -> tuple[Value, ...]:
    g, (x, gradient, mean, squares) = call.g, operands
    alpha, beta = call.real("alpha", 0.9), call.real("beta", 0.999)
    gradient = _regularized(call, x, gradient)
    mean = g.add(g.multiply(mean, alpha), g.multiply(gradient, 1 - alpha))
    squares = g.add(g.multiply(squares, beta), g.multiply(g.square(gradient), 1 - beta))
    rate, updates = _rate(call, x), _updates(call, x)
    unbiased = g.divide(
        g.sqrt(g.subtract(1.0, g.pow(beta, updates))), g.subtract(1.0, g.pow(alpha, updates))
    )
    rate = g.where(g.greater(updates, 0.0), g.multiply(rate, unbiased), rate)
    scale = g.add(g.sqrt(squares), call.real("epsilon", 0.0))
    moved = g.subtract(x, g.divide(g.multiply(rate, mean), scale))
    kept = 1 - call.real("norm_coefficient_post", 0.0)
    return moved if kept == 1 else g.multiply(moved, kept), mean, squares


def _momentum(call: Call, operands: tuple[Value, ...]) -> tuple[Value, ...]:
    g, (x, gradient, velocity) = call.g, operands
    mode, alpha = call.text("mode", "standard"), call.real("alpha", 0.9)
    if mode not in ("standard", "nesterov"):
        call.malformed(f"mode should be standard or nesterov, got {mode!r}")
    gradient = _regularized(call, x, gradient)
    beta = g.where(g.greater(_updates(call, x), 0.0), call.real("beta", 0.0), 1.0)
    velocity = g.add(g.multiply(velocity, alpha), g.multiply(g.cast(beta, x.dtype), gradient))
    step = velocity
    if mode == "nesterov":
        step = g.add(gradient, g.multiply(velocity, alpha))
    return g.subtract(x, g.multiply(_rate(call, x), step)), velocity


#: Ops of the ``ai.onnx.preview.training`` domain.
TRAINING: Mapping[str, Converter] = {
    "Adagrad": _optimizer(_adagrad, 3),
    "Adam": _optimizer(_adam, 4),
    "Momentum": _optimizer(_momentum, 3),
}
