"""``MoE`` of the domain ``com.microsoft``: grouped matmuls over the experts of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

__all__ = ["EXTENSIONS"]

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


def convert_moe(call: Call) -> Result:
    """Convert ``MoE``: probabilities of all experts, the ``k`` greatest, and their weighted sum."""
    g, x, k = call.g, call.value(0), call.integer("k", 1)
    if call.flag("use_sparse_mixer", 0):
        call.unsupported("it chooses experts with a sparse mixer (use_sparse_mixer=1)")
    name = call.text("activation_type", "relu")
    if name not in _ACTIVATIONS:
        call.malformed(f"activation_type should be one of {', '.join(_ACTIVATIONS)}, got {name!r}")
    tokens, depth = prod(x.shape[:-1]), x.shape[-1]
    flat = g.reshape(x, (tokens, depth))
    probabilities = g.softmax(call.value(1), axis=1)
    chosen, experts = g.topk(probabilities, k, axis=1)
    if call.flag("normalize_routing_weights", 0):
        chosen = g.divide(chosen, g.sum(chosen, axis=1, keepdims=True))
    ids = g.reshape(experts, (tokens * k,))
    rows = g.reshape(
        g.broadcast_to(g.expand_dims(flat, 1), (tokens, k, depth)), (tokens * k, depth)
    )
    first = _expert_rows(call, rows, ids, 2)
    if name == "swiglu":
        hidden = _swiglu(call, first, rows, ids)
    else:
        hidden = _activated(call, name, first)
        if call.has(6):
            hidden = g.multiply(hidden, _expert_rows(call, rows, ids, 6))
    results = g.reshape(_expert_rows(call, hidden, ids, 4), (tokens, k, depth))
    weights = g.expand_dims(g.cast(chosen, x.dtype), 2)
    return g.reshape(g.sum(g.multiply(results, weights), axis=1), x.shape)


def _expert_rows(call: Call, rows: Value, ids: Value, index: int) -> Value:
    """Each row times the matrix ``[out, in]`` of its expert, plus that expert's bias."""
    g = call.g
    result = g.grouped_matmul(rows, g.permute_dims(call.value(index), (0, 2, 1)), ids)
    if not call.has(index + 1):
        return result
    return g.add(result, g.take(call.value(index + 1), ids, axis=0))


def _activated(call: Call, name: str, x: Value) -> Value:
    g = call.g
    if name == "gelu":
        return g.gelu(x, approximate=True)  # as in ONNX Runtime
    return x if name == "identity" else {"relu": g.relu, "silu": g.silu}[name](x)


def _swiglu(call: Call, first: Value, rows: Value, ids: Value) -> Value:
    """``gate * sigmoid(alpha * gate) * (linear + beta)``, both limited where a limit is given."""
    g, fusion = call.g, call.integer("swiglu_fusion", 0)
    if fusion == 0:
        gate, linear = first, _expert_rows(call, rows, ids, 6)
    else:
        count, size = first.shape
        if not isinstance(size, int) or size % 2:
            call.malformed(f"{call.type(2)} does not divide into gates and linear parts")
        shape = (count, size // 2, 2) if fusion == 1 else (count, 2, size // 2)
        split, axis = g.reshape(first, shape), 2 if fusion == 1 else 1
        gate, linear = (
            g.reshape(g.slice(split, [i], [i + 1], axes=[axis]), (count, size // 2)) for i in (0, 1)
        )
    limit = call.real("swiglu_limit", None)
    if limit is not None:
        gate, linear = g.clip(gate, None, limit), g.clip(linear, -limit, limit)
    alpha, beta = call.real("activation_alpha", 1.0), call.real("activation_beta", 0.0)
    opened = g.multiply(gate, g.sigmoid(g.multiply(gate, alpha)))
    return g.multiply(opened, g.add(linear, beta))


#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {"MoE": convert_moe}
