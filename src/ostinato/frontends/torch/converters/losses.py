"""Converters of losses. ``reduction`` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

_MEAN, _SUM = 1, 2


def _total(call: Call, losses: Value, reduction: int) -> Value:
    """The losses as asked for, in the result's dtype."""
    g = call.g
    if reduction == _MEAN:
        losses = g.mean(losses)
    elif reduction == _SUM:
        losses = g.sum(losses)
    return call.rounded(losses)


def _squared(call: Call, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    a, b = call.widened(self, target)
    return _total(call, call.g.square(call.g.subtract(a, b)), reduction)


def _absolute(call: Call, self: Value, target: Value, reduction: int = _MEAN) -> Value:
    a, b = call.widened(self, target)
    return _total(call, call.g.abs(call.g.subtract(a, b)), reduction)


def _smooth_absolute(
    call: Call, self: Value, target: Value, reduction: int = _MEAN, beta: float = 1.0
) -> Value:
    """Squares below ``beta``, distances above it."""
    g = call.g
    if beta == 0:
        return _absolute(call, self, target, reduction)
    a, b = call.widened(self, target)
    distance = g.abs(g.subtract(a, b))
    near = g.multiply(g.square(distance), 0.5 / beta)
    far = g.subtract(distance, 0.5 * beta)
    return _total(call, g.where(g.less(distance, beta), near, far), reduction)


def _huber(
    call: Call, self: Value, target: Value, reduction: int = _MEAN, delta: float = 1.0
) -> Value:
    g = call.g
    a, b = call.widened(self, target)
    distance = g.abs(g.subtract(a, b))
    near = g.multiply(g.square(distance), 0.5)
    far = g.multiply(g.subtract(distance, 0.5 * delta), delta)
    return _total(call, g.where(g.less_equal(distance, delta), near, far), reduction)


def _cross_entropy_of_bits(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    """``-(t log p + (1 - t) log (1 - p))``, with logarithms of no less than -100."""
    g = call.g
    p, t = call.widened(self, target)
    log_p = g.maximum(g.log(p), -100.0)
    log_q = g.maximum(g.log1p(g.neg(p)), -100.0)
    losses = g.subtract(g.multiply(g.subtract(t, 1), log_q), g.multiply(t, log_p))
    if weight is not None:
        losses = g.multiply(losses, g.cast(weight, losses.dtype))
    return _total(call, losses, reduction)


def _cross_entropy_of_logits(
    call: Call,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    g = call.g
    x, t = call.widened(self, target)
    rest = g.multiply(g.subtract(1, t), x)
    log_p = g.log_sigmoid(x)
    if pos_weight is None:
        losses = g.subtract(rest, log_p)
    else:
        share = g.add(g.multiply(t, g.subtract(g.cast(pos_weight, x.dtype), 1)), 1)
        losses = g.subtract(rest, g.multiply(share, log_p))
    if weight is not None:
        losses = g.multiply(losses, g.cast(weight, losses.dtype))
    return _total(call, losses, reduction)


def _divergence(
    call: Call,
    self: Value,
    target: Value,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> Value:
    g = call.g
    x, t = call.widened(self, target)
    if log_target:
        losses = g.multiply(g.exp(t), g.subtract(t, x))
    else:
        product = g.where(g.equal(t, 0), 0, g.multiply(t, g.log(t)))
        losses = g.subtract(product, g.multiply(t, x))
    return _total(call, losses, reduction)


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
