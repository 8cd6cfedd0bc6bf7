"""Losses: the negative log-likelihood of classes, and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64

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
    g, reduction = call.g, call.text("reduction", "mean")
    if reduction not in _REDUCTIONS:
        call.malformed(f"reduction should be none, sum or mean, got {reduction!r}")
    shape = log_probabilities.shape
    if len(shape) < 2 or call.shape(1) != (shape[0], *shape[2:]):
        call.malformed(f"its classes {call.type(1)} do not fit {log_probabilities.type}")
    classes = g.cast(call.value(1), INT64)
    ignored = call.integer("ignore_index", None)
    counts = None if ignored is None else g.not_equal(classes, ignored)
    if counts is not None:
        classes = g.where(counts, classes, 0)
    column = g.reshape(classes, (shape[0], 1, *shape[2:]))
    loss = g.neg(g.reshape(g.take_along_axis(log_probabilities, column, axis=1), classes.shape))
    weights = _weights(call, classes, counts, loss)
    if weights is not None:
        # Selected rather than multiplied: an ignored infinity has no part in the sum.
        loss = g.multiply(loss, weights)
        loss = loss if counts is None else g.where(counts, loss, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return g.sum(loss)
    return g.mean(loss) if weights is None else g.divide(g.sum(loss), g.sum(weights))


def _weights(call: Call, classes: Value, counts: Value | None, loss: Value) -> Value | None:
    """The weight of each loss; ``None`` where all have the same."""
    g = call.g
    weights = g.take(call.value(2), classes, axis=0) if call.has(2) else None
    if counts is None:
        return weights
    return g.cast(counts, loss.dtype) if weights is None else g.where(counts, weights, 0.0)


CONVERTERS: Mapping[str, Converter] = {
    "NegativeLogLikelihoodLoss": convert_nll_loss,
    "SoftmaxCrossEntropyLoss": convert_cross_entropy,
}
