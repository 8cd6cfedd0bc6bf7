"""Converters of softmax and of the norms of neural networks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.frontends.torch.call import Writes
from ostinato.ops.base import broadcast_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


# -- softmax ----------------------------------------------------------------------------------


def _softmax(method: str) -> Converter:
    def convert(call: Call, self: Value, dim: int, dtype: Any = None) -> Value:
        g = call.g
        x = g.cast(call.value(self), call.dtype)
        if not x.ndim:  # one element: its softmax is 1, unless it is infinite or NaN
            return g.reshape(getattr(g, method)(g.reshape(x, (1,)), 0), ())
        return getattr(g, method)(x, call.axis(dim, x.ndim))  # type: ignore[no-any-return]

    return convert


def _safe_softmax(call: Call, self: Value, dim: int, dtype: Any = None) -> Value:
    """A softmax of zeros where every element is minus infinity."""
    g = call.g
    found = _softmax("softmax")(call, self, dim)
    if not self.ndim:
        return g.where(g.equal(self, -math.inf), 0, found)
    masked = g.all(g.equal(self, -math.inf), axis=call.axis(dim, self.ndim), keepdims=True)
    return g.where(masked, 0, found)


# -- norms over trailing axes -----------------------------------------------------------------


def _in_common_dtype(
    call: Call, x: Value, others: Sequence[Value | None], norm: Callable[..., Value]
) -> Value:
    """``norm`` of ``x`` and weights: in the wider dtype where theirs differ, rounded once."""
    if all(other is None or other.dtype == x.dtype for other in others):
        return norm(x, *others)
    wide = x.dtype.accumulator
    widened = (None if other is None else call.g.cast(other, wide) for other in others)
    return call.g.cast(norm(call.g.cast(x, wide), *widened), x.dtype)


def _layer_norm(
    call: Call,
    input: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    axis = input.ndim - len(normalized_shape)

    def norm(x: Value, w: Value | None, b: Value | None) -> Value:
        if eps < 0:
            return _scaled(call, _standardised(call, x, range(axis, x.ndim), eps), w, b)
        return call.g.layer_norm(x, w, b, eps, axis=axis)

    return _in_common_dtype(call, input, (weight, bias), norm)


def _standardised(call: Call, x: Value, axes: Iterable[int], eps: float) -> Value:
    """``(x - mean) / sqrt(variance + eps)``, with an ``eps`` that may be negative."""
    g = call.g
    over = tuple(axes)
    wide = g.cast(x, x.dtype.accumulator)
    scale = g.rsqrt(g.add(g.var(wide, axis=over, keepdims=True), eps))
    return g.cast(
        g.multiply(g.subtract(wide, g.mean(wide, axis=over, keepdims=True)), scale), x.dtype
    )


def _scaled(call: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    weighted = x if weight is None else call.g.multiply(x, weight)
    return weighted if bias is None else call.g.add(weighted, bias)


def _native_layer_norm(
    call: Call,
    input: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """The norm, the means and the reciprocals of the deviations."""
    result = _layer_norm(call, input, normalized_shape, weight, bias, eps)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    return (result, *_statistics(call, input, axes, eps))


def _statistics(
    call: Call, x: Value, axes: tuple[int, ...], eps: float, result: int = 1
) -> tuple[Value, Value]:
    """Means and reciprocal deviations, in the types of two results."""
    g = call.g
    wide = g.cast(x, x.dtype.accumulator)
    mean = g.mean(wide, axis=axes, keepdims=True)
    scale = g.rsqrt(g.add(g.var(wide, axis=axes, keepdims=True), eps))
    first, second = (
        g.reshape(g.cast(value, call.element_type(call.meta(index).dtype)), call.shape_of(index))
        for index, value in ((result, mean), (result + 1, scale))
    )
    return first, second


def _rms_norm(
    call: Call,
    input: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    if eps is None:
        eps = float(np.finfo(input.dtype.accumulator.numpy).eps)
    axis, epsilon = input.ndim - len(normalized_shape), eps

    def norm(x: Value, w: Value | None) -> Value:
        return call.g.rms_norm(x, w, epsilon, axis=axis)

    return _in_common_dtype(call, input, (weight,), norm)


def _fused_rms_norm(
    call: Call,
    input: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None,
    eps: float | None,
) -> tuple[Value, Value]:
    g = call.g
    epsilon = float(np.finfo(input.dtype.accumulator.numpy).eps) if eps is None else eps
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    wide = g.cast(input, input.dtype.accumulator)
    mean = g.mean(g.square(wide), axis=axes, keepdims=True)
    scale = g.rsqrt(g.add(mean, epsilon))
    result = _rms_norm(call, input, normalized_shape, weight, epsilon)
    return result, g.cast(scale, call.element_type(call.meta(1).dtype))


# -- norms of channels ------------------------------------------------------------------------


def _group_norm(
    call: Call,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    def norm(x: Value, w: Value | None, b: Value | None) -> Value:
        g = call.g
        if eps >= 0:
            return g.group_norm(x, num_groups, w, b, eps)
        batch, channels, *rest = x.shape
        parts = g.reshape(x, (batch, num_groups, channels // num_groups, *rest))
        found = _standardised(call, parts, range(2, parts.ndim), eps)
        per_channel = (channels, *(1,) * len(rest))
        weights = (None if v is None else g.reshape(v, per_channel) for v in (w, b))
        return _scaled(call, g.reshape(found, x.shape), *weights)

    return _in_common_dtype(call, input, (weight, bias), norm)


def _native_group_norm(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    result = _group_norm(call, input, group, weight, bias, eps)
    grouped = call.g.reshape(input, (N, group, C // group * HxW))
    return (result, *_statistics(call, grouped, (2,), eps))


def _batch_norm_with(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    if x.type.size == 0:
        return x

    def norm(x: Value, mean: Value, variance: Value, w: Value | None, b: Value | None) -> Value:
        return call.g.batch_norm(x, mean, variance, w, b, eps)

    return _in_common_dtype(call, x, (mean, variance, weight, bias), norm)


def _batch_statistics(call: Call, x: Value) -> tuple[Value, Value]:
    """The mean and the variance of each channel, in the dtype of accumulation."""
    g = call.g
    axes = (0, *range(2, x.ndim))
    wide = g.cast(x, x.dtype.accumulator)
    return g.mean(wide, axis=axes), g.var(wide, axis=axes)


def _batch_norm(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value | Writes:
    if training or running_mean is None or running_var is None:
        mean, variance = _batch_statistics(call, input)
        result = _batch_norm_with(call, input, weight, bias, mean, variance, eps)
        if running_mean is None or running_var is None:
            return result
        running = (running_mean, running_var)
        new_mean, new_var = _updated(call, input, (mean, variance), running, momentum)
        return Writes(result, {"running_mean": new_mean, "running_var": new_var})
    return _batch_norm_with(call, input, weight, bias, running_mean, running_var, eps)


def _batch_norm_inference(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """The norm; its statistics are empty, as those of the CPU in inference."""
    g = call.g
    result = _batch_norm_with(call, input, weight, bias, running_mean, running_var, eps)
    first, second = (
        g.zeros(call.shape_of(index), call.element_type(call.meta(index).dtype)) for index in (1, 2)
    )
    return result, first, second


def _batch_norm_functional(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """The norm, the batch's statistics, and the running ones after it."""
    g = call.g
    if not training and running_mean is not None and running_var is not None:
        results = _batch_norm_inference(
            call, input, weight, bias, running_mean, running_var, momentum, eps
        )
        return (*results, running_mean, running_var)
    mean, variance = _batch_statistics(call, input)
    result = _batch_norm_with(call, input, weight, bias, mean, variance, eps)
    scale = g.rsqrt(g.add(variance, eps))
    saved = tuple(
        g.cast(value, call.element_type(call.meta(index).dtype))
        for index, value in ((1, mean), (2, scale))
    )
    if running_mean is None or running_var is None:
        return (result, *saved)
    statistics = (mean, variance)
    return (
        result,
        *saved,
        *_updated(call, input, statistics, (running_mean, running_var), momentum),
    )


def _updated(
    call: Call,
    input: Value,
    statistics: tuple[Value, Value],
    running: tuple[Value, Value],
    momentum: float,
) -> tuple[Value, ...]:
    """The running mean and variance after a batch."""
    g = call.g
    mean, variance = statistics
    count = g.cast(g.dim_value(input.type.size), variance.dtype)
    count = g.divide(count, g.cast(g.dim_value(input.shape[1]), variance.dtype))
    unbiased = g.multiply(variance, g.divide(count, g.subtract(count, 1)))
    return tuple(
        g.add(g.multiply(old, 1 - momentum), g.cast(g.multiply(new, momentum), old.dtype))
        for old, new in zip(running, (mean, unbiased), strict=True)
    )


def _batch_norm_without_statistics(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    return _batch_norm_functional(call, input, weight, bias, None, None, training, momentum, eps)


def _instance_norm(
    call: Call,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _batch_norm_with(call, input, weight, bias, running_mean, running_var, eps)
    if running_mean is not None:
        call.unsupported("running statistics that are updated in place")

    def norm(x: Value, w: Value | None, b: Value | None) -> Value:
        return call.g.instance_norm(x, w, b, eps)

    return _in_common_dtype(call, input, (weight, bias), norm)


def _weight_norm(call: Call, v: Value, g: Value, dim: int = 0) -> Value:
    return _weight_norm_parts(call, v, g, dim)[0]


def _weight_norm_parts(call: Call, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """``v * g / |v|``, with norms over all axes but ``dim``; and the norms."""
    graph = call.g
    kept = call.axis(dim, v.ndim) if dim != -1 else None
    axes = tuple(axis for axis in range(v.ndim) if axis != kept)
    norm = graph.norm(graph.cast(v, v.dtype.accumulator), 2.0, axis=axes, keepdims=True)
    scale = graph.divide(graph.cast(g, norm.dtype), norm)
    scaled = graph.multiply(graph.cast(v, norm.dtype), scale)
    return graph.cast(scaled, v.dtype), graph.cast(norm, g.dtype)


def _cosine_similarity(call: Call, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    g = call.g
    a, b = call.promoted(x1, x2)
    shape = broadcast_shapes(a.shape, b.shape) or (1,)
    a, b = g.broadcast_to(a, shape), g.broadcast_to(b, shape)
    return g.cosine_similarity(a, b, call.axis(dim, a.ndim), eps)


CONVERTERS: dict[str, Converter] = {
    "aten.softmax": _softmax("softmax"),
    "aten._softmax": _softmax("softmax"),
    "aten.special_softmax": _softmax("softmax"),
    "aten._safe_softmax": _safe_softmax,
    "aten.log_softmax": _softmax("log_softmax"),
    "aten._log_softmax": _softmax("log_softmax"),
    "aten.special_log_softmax": _softmax("log_softmax"),
    "aten.layer_norm": _layer_norm,
    "aten.native_layer_norm": _native_layer_norm,
    "aten.rms_norm": _rms_norm,
    "aten._fused_rms_norm": _fused_rms_norm,
    "aten.group_norm": _group_norm,
    "aten.native_group_norm": _native_group_norm,
    "aten.batch_norm": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm_inference,
    "aten._native_batch_norm_legit_functional": _batch_norm_functional,
    "aten._native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "aten.instance_norm": _instance_norm,
    "aten._weight_norm": _weight_norm,
    "aten._weight_norm_interface": _weight_norm_parts,
    "aten.cosine_similarity": _cosine_similarity,
}
