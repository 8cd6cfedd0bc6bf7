"""Converters of losses. ``reduction`` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

_NONE, _MEAN = 0, 1

#: The vocabulary's words for reductions.
_REDUCTIONS = ("none", "mean", "sum")


def _squared(call: Call, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    x, t = call.promoted(self, target)
    return call.g.mse_loss(x, t, _REDUCTIONS[reduction])


def _absolute(call: Call, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    x, t = call.promoted(self, target)
    return call.g.l1_loss(x, t, _REDUCTIONS[reduction])


def _smooth_absolute(
    call: Call, self: Value, target: Value, reduction: int = _MEAN, beta: float = 1.0
) -> Value:
    x, t = call.promoted(self, target)
    return call.g.smooth_l1_loss(x, t, _REDUCTIONS[reduction], beta)


def _huber(
    call: Call, self: Value, target: Value, reduction: int = _MEAN, delta: float = 1.0
) -> Value:
    x, t = call.promoted(self, target)
    return call.g.huber_loss(x, t, _REDUCTIONS[reduction], delta)


def _cross_entropy_of_bits(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    p, t = call.promoted(self, target)
    return call.g.binary_cross_entropy(p, t, weight, _REDUCTIONS[reduction])


def _cross_entropy_of_logits(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    x, t = call.promoted(self, target)
    how = _REDUCTIONS[reduction]
    return call.g.binary_cross_entropy_with_logits(x, t, weight, pos_weight, how)


def _divergence(
    call: Call,
    self: Value,
    target: Value,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> Value:
    x, t = call.promoted(self, target)
    return call.g.kl_div(x, t, _REDUCTIONS[reduction], log_target)


# -- classes ----------------------------------------------------------------------------------


def _negative_log(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
) -> Value:
    """The loss of log-probabilities ``[N, C, ...]`` by classes ``[N, ...]``."""
    factors = _wide_weight(call, weight)
    return call.g.nll_loss(self, target, factors, _REDUCTIONS[reduction], ignore_index)


def _negative_log_parts(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Value, Value]:
    """The loss, and the sum of all weights; without a reduction that is zero."""
    g = call.g
    loss = _negative_log(call, self, target, weight, reduction, ignore_index)
    if reduction == _NONE:
        return loss, g.zeros((), call.dtype)
    classes = g.cast(target, INT64)
    counts = g.not_equal(classes, ignore_index)
    factors = g.cast(counts, call.dtype.accumulator)
    if weight is not None:
        by_class = _wide_weight(call, weight)
        factors = g.where(counts, g.take(by_class, g.where(counts, classes, 0), axis=0), 0)
    return loss, call.rounded(g.sum(factors))


def _cross_entropy(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    factors, how = _wide_weight(call, weight), _REDUCTIONS[reduction]
    return call.g.cross_entropy(self, target, factors, how, ignore_index, label_smoothing)


def _wide_weight(call: Call, weight: Value | None) -> Value | None:
    """The weights of classes, in the dtype that losses are computed in."""
    return None if weight is None else call.g.cast(weight, call.dtype.accumulator)


CONVERTERS: dict[str, Converter] = {
    "aten.mse_loss": _squared,
    "aten.l1_loss": _absolute,
    "aten.smooth_l1_loss": _smooth_absolute,
    "aten.huber_loss": _huber,
    "aten.binary_cross_entropy": _cross_entropy_of_bits,
    "aten.binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "aten.kl_div": _divergence,
    "aten.nll_loss": _negative_log,
    "aten.nll_loss_nd": _negative_log,
    "aten.nll_loss2d": _negative_log,
    "aten.nll_loss_forward": _negative_log_parts,
    "aten.nll_loss2d_forward": _negative_log_parts,
    "aten.cross_entropy_loss": _cross_entropy,
}
