"""Converters of losses. ``reduction`` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

_MEAN, _SUM = 1, 2

#: The vocabulary's words for them.
_REDUCTIONS = ("none", "mean", "sum")


def _total(call: Call, losses: Value, reduction: int) -> Value:
    """The losses as asked for, in the result's dtype."""
    g = call.g
    if reduction == _MEAN:
        losses = g.mean(losses)
    elif reduction == _SUM:
        losses = g.sum(losses)
    return call.rounded(losses)


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
    return _negative_log_parts(call, self, target, weight, reduction, ignore_index)[0]


def _negative_log_parts(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Value, Value]:
    """The loss of log-probabilities ``[N, C, ...]`` by classes ``[N, ...]``; and all weights."""
    g = call.g
    (x,) = call.widened(self)
    axis = 1 if x.ndim > 1 else 0
    ids = g.cast(target, INT64)
    counts = g.not_equal(ids, ignore_index)
    safe = g.where(counts, ids, 0)
    picked = g.squeeze(g.take_along_axis(x, g.expand_dims(safe, axis), axis=axis), axis)
    weights = g.cast(counts, x.dtype)
    if weight is not None:
        weights = g.where(counts, g.take(g.cast(weight, x.dtype), safe), 0)
    losses = g.where(counts, g.neg(g.multiply(picked, weights)), 0)
    total = g.sum(weights)
    if reduction == _MEAN:
        losses = g.divide(g.sum(losses), total)
    elif reduction == _SUM:
        losses = g.sum(losses)
    return call.rounded(losses), call.rounded(total)


def _cross_entropy(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    g = call.g
    (x,) = call.widened(self)
    axis = 1 if x.ndim > 1 else 0
    logs = g.log_softmax(x, axis)
    if target.dtype.is_float:
        return _soft_cross_entropy(call, logs, target, weight, reduction, label_smoothing)
    if not label_smoothing:
        return _negative_log(call, logs, target, weight, reduction, ignore_index)
    ids = g.cast(target, INT64)
    counts = g.not_equal(ids, ignore_index)
    safe = g.where(counts, ids, 0)
    by_class = None if weight is None else _by_class(call, g.cast(weight, x.dtype), x, axis)
    weighted = logs if by_class is None else g.multiply(logs, by_class)
    smooth = g.where(counts, g.neg(g.sum(weighted, axis=axis)), 0)
    if reduction == _MEAN:
        shares = g.cast(counts, x.dtype)
        if weight is not None:
            shares = g.where(counts, g.take(g.cast(weight, x.dtype), safe), 0)
        smooth = g.divide(g.sum(smooth), g.sum(shares))
    elif reduction == _SUM:
        smooth = g.sum(smooth)
    hard = g.cast(_negative_log(call, logs, target, weight, reduction, ignore_index), x.dtype)
    share = label_smoothing / call.fixed(x.shape[axis], "number of classes")
    mixed = g.add(g.multiply(hard, 1 - label_smoothing), g.multiply(smooth, share))
    return call.rounded(mixed)


def _by_class(call: Call, weight: Value, x: Value, axis: int) -> Value:
    return call.g.reshape(weight, (-1, *(1,) * (x.ndim - axis - 1)))


def _soft_cross_entropy(
    call: Call,
    logs: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    smoothing: float,
) -> Value:
    """The loss by probabilities of classes."""
    g = call.g
    axis = 1 if logs.ndim > 1 else 0
    wanted = g.cast(target, logs.dtype)
    classes = call.fixed(logs.shape[axis], "number of classes")
    if smoothing:
        wanted = g.add(g.multiply(wanted, 1 - smoothing), smoothing / classes)
    losses = g.neg(g.multiply(logs, wanted))
    if weight is not None:
        losses = g.multiply(losses, _by_class(call, g.cast(weight, logs.dtype), logs, axis))
    if reduction == 0:
        return call.rounded(g.sum(losses, axis=axis))
    total = g.sum(losses)
    if reduction == _MEAN:
        items = g.cast(g.dim_value(logs.type.size), total.dtype)
        total = g.divide(total, g.divide(items, float(classes)))
    return call.rounded(total)


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
