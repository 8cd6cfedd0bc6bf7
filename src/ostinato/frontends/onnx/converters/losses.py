"""Losses: the negative log-likelihood of classes, and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

_REDUCTIONS = ("none", "sum", "mean")


def convert_nll_loss(call: Call) -> Result:
    return _loss(call, call.value(0))


def convert_cross_entropy(call: Call) -> Result:
    """Convert ``SoftmaxCrossEntropyLoss``; its second output is the logarithm of the softmax."""
    log_probabilities = call.g.log_softmax(call.value(0), axis=1)
    return _loss(call, log_probabilities), log_probabilities


def _loss(call: Call, log_probabilities: Value) -> Value:
    """The loss of log-probabilities ``[N, C, ...]`` for the classes ``[N, ...]``."""
    reduction = call.text("reduction", "mean")
    if reduction not in _REDUCTIONS:
        call.malformed(f"reduction should be none, sum or mean, got {reduction!r}")
    shape = log_probabilities.shape
    if len(shape) < 2 or call.shape(1) != (shape[0], *shape[2:]):
        call.malformed(f"its classes {call.type(1)} do not fit {log_probabilities.type}")
    weight = call.value(2) if call.has(2) else None
    ignored = call.integer("ignore_index", None)
    return call.g.nll_loss(log_probabilities, call.value(1), weight, reduction, ignored)


CONVERTERS: Mapping[str, Converter] = {
    "NegativeLogLikelihoodLoss": convert_nll_loss,
    "SoftmaxCrossEntropyLoss": convert_cross_entropy,
}
