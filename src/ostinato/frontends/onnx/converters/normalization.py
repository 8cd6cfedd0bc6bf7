"""Normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.base import normalize_axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "EXTENSIONS"]


def convert_batch_norm(call: Call) -> Result:
    if call.flag("training_mode", 0):
        return _trained_batch_norm(call)
    if not call.flag("spatial", 1):
        call.unsupported("its statistics are not per channel (spatial=0)")
    x, scale, bias, mean, variance = (call.value(i) for i in range(5))
    return call.g.batch_norm(x, mean, variance, scale, bias, eps=_eps(call))


def _trained_batch_norm(call: Call) -> Result:
    """Normalisation by the batch's own statistics, which also move the running ones."""
    g, x, momentum = call.g, call.value(0), call.real("momentum", 0.9)
    axes = (0, *range(2, x.ndim))
    mean = g.mean(x, axis=axes)
    variance = g.var(x, axis=axes)
    running = [
        g.add(g.multiply(call.value(index), momentum), g.multiply(g.cast(now, old), 1 - momentum))
        for index, now, old in ((3, mean, call.dtype(3)), (4, variance, call.dtype(4)))
    ]
    scale, bias = call.value(1), call.value(2)
    return [g.batch_norm(x, mean, variance, scale, bias, eps=_eps(call)), *running]


def convert_instance_norm(call: Call) -> Result:
    return call.g.instance_norm(call.value(0), call.value(1), call.value(2), eps=_eps(call))


def convert_group_norm(call: Call) -> Result:
    """Convert ``GroupNormalization``: a weight per group in operator set 18, per channel later."""
    g, x, groups = call.g, call.value(0), call.required("num_groups")
    weight, bias = call.value(1), call.value(2)
    if call.opset < 21:
        channels = x.shape[1]
        if groups < 1 or not isinstance(channels, int) or channels % groups:
            call.malformed(f"{channels} channels do not divide into {groups} groups")
        weight, bias = (
            g.reshape(
                g.broadcast_to(g.reshape(v, (groups, 1)), (groups, channels // groups)),
                (channels,),
            )
            for v in (weight, bias)
        )
    return g.group_norm(x, groups, weight, bias, eps=_eps(call))


def convert_layer_norm(call: Call) -> Result:
    g, x = call.g, call.value(0)
    axis = normalize_axis(call.integer("axis", -1), x.ndim)
    weight, bias = _affine(call, x, axis, 1), _affine(call, x, axis, 2)
    result = g.layer_norm(x, weight, bias, eps=_eps(call), axis=axis)
    if not (call.wants(1) or call.wants(2)):
        return result
    axes = tuple(range(axis, x.ndim))
    mean = g.mean(x, axis=axes, keepdims=True)
    variance = g.mean(g.square(g.subtract(x, mean)), axis=axes, keepdims=True)
    return result, mean, g.rsqrt(g.add(variance, _eps(call)))


def convert_rms_norm(call: Call) -> Result:
    g, x = call.g, call.value(0)
    axis = normalize_axis(call.integer("axis", -1), x.ndim)
    result = g.rms_norm(x, _affine(call, x, axis, 1), eps=_eps(call), axis=axis)
    if not call.wants(1):
        return result
    power = g.mean(g.square(x), axis=tuple(range(axis, x.ndim)), keepdims=True)
    return result, g.rsqrt(g.add(power, _eps(call)))


def convert_skip_norm(call: Call) -> Result:
    """A residual sum and its normalisation; the sum itself is the fourth output."""
    if call.wants(1) or call.wants(2):
        call.unsupported("its statistics have no equivalent")
    g = call.g
    simplified = call.op_type == "SkipSimplifiedLayerNormalization"
    total = g.add(call.value(0), call.value(1))
    extra = call.optional(3 if simplified else 4)
    if extra is not None:
        total = g.add(total, extra)
    eps = call.real("epsilon", 1e-12)
    if simplified:
        result = g.rms_norm(total, call.value(2), eps=eps)
    else:
        result = g.layer_norm(total, call.value(2), call.optional(3), eps=eps)
    return [result, total, total, total]


def convert_local_response_norm(call: Call) -> Result:
    return call.g.local_response_norm(
        call.value(0),
        call.required("size"),
        alpha=call.real("alpha", 1e-4),
        beta=call.real("beta", 0.75),
        k=call.real("bias", 1.0),
    )


def convert_lp_norm(call: Call) -> Result:
    """``x`` over its norm; where the norm is zero, zero."""
    g, x, order = call.g, call.floats(0), call.integer("p", 2)
    if order not in (1, 2):
        call.malformed(f"p should be 1 or 2, got {order}")
    axis = normalize_axis(call.integer("axis", -1), x.ndim)
    if order == 1:
        norm = g.sum(g.abs(x), axis=axis, keepdims=True)
    else:
        norm = g.sqrt(g.sum(g.square(x), axis=axis, keepdims=True))
    return g.divide(x, g.where(g.equal(norm, 0.0), 1.0, norm))


def _eps(call: Call) -> float:
    return call.real("epsilon", 1e-5)


def _affine(call: Call, x: Value, axis: int, index: int) -> Value | None:
    """A weight or bias in the shape of the normalised axes, to which ONNX lets it broadcast."""
    found = call.optional(index)
    if found is None or found.shape == x.shape[axis:]:
        return found
    return call.g.broadcast_to(found, x.shape[axis:])


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": convert_batch_norm,
    "GroupNormalization": convert_group_norm,
    "InstanceNormalization": convert_instance_norm,
    "LRN": convert_local_response_norm,
    "LayerNormalization": convert_layer_norm,
    "LpNormalization": convert_lp_norm,
    "RMSNormalization": convert_rms_norm,
    # In this domain by accident: ONNX Runtime's optimizer puts it there.
    "SimplifiedLayerNormalization": convert_rms_norm,
}

#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "SimplifiedLayerNormalization": convert_rms_norm,
    "SkipLayerNormalization": convert_skip_norm,
    "SkipSimplifiedLayerNormalization": convert_skip_norm,
}
