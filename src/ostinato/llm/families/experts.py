"""Mixtures of experts: the feed-forward that sends each token through a few of many networks.

Matrices of experts are ``[experts, inputs, outputs]``, as the ops take them; packed ones are the
bytes of rows, ``[experts, outputs, bytes]``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ostinato.dtypes import FLOAT32
from ostinato.llm.families.family import Part
from ostinato.llm.families.feed_forward import activated

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import Experts, Layer, ModelConfig
    from ostinato.llm.families.builder import Block
    from ostinato.ops.builder import Graph

__all__ = ["EXPERTS", "chosen_experts"]

#: Steepness of the sigmoid of ``swiglu_limited``.
_STEEPNESS: Final = 1.702

#: Added to a sum of sigmoids before it divides.
_LEAST_SUM: Final = 1e-20


def _sizes(config: ModelConfig) -> Experts:
    assert config.experts is not None, "a layer of experts needs their sizes"
    return config.experts


def _weights(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    experts, width = _sizes(config), config.width
    count, hidden = experts.count, experts.hidden
    shapes: dict[str, tuple[int, ...]] = {"router.weight": (count, width)}
    if experts.bias:
        shapes["router.bias"] = (count,)
    if experts.correction:
        shapes["correction"] = (count,)
    for name in ("gate", "up"):
        shapes[f"experts.{name}.weight"] = (count, width, hidden)
        if experts.bias:
            shapes[f"experts.{name}.bias"] = (count, hidden)
    shapes["experts.down.weight"] = (count, hidden, width)
    if experts.bias:
        shapes["experts.down.bias"] = (count, width)
    if shared := experts.shared_hidden:
        shapes["shared.gate.weight"] = shapes["shared.up.weight"] = (shared, width)
        shapes["shared.down.weight"] = (width, shared)
        if experts.shared_gate:
            shapes["shared_gate.weight"] = (1, width)
    return shapes


def _build(block: Block, x: Value) -> Value:
    experts, config = _sizes(block.config), block.config
    router = block.linear(x, "router", bias=experts.bias)
    correction = block.param("correction") if experts.correction else None
    ids, weights = chosen_experts(block.g, router, experts, correction)
    parts = ("gate", "up", "down")
    packed = any(block.format(f"experts.{part}.weight") is not None for part in parts)
    if packed or config.activation == "swiglu_limited" or experts.bias:
        result = _by_matmuls(block, x, ids, weights)
    else:
        gate, up, down = (block.param(f"experts.{part}.weight") for part in parts)
        activation = config.activation
        result = block.g.expert_mlp(x, ids, weights, gate, up, down, activation=activation)
    if experts.shared_hidden:
        result = result + _shared(block, x)
    return result


def chosen_experts(
    g: Graph, router: Value, experts: Experts, correction: Value | None
) -> tuple[Value, Value]:
    """The experts of each token and their weights, ``[N, chosen]`` each.

    Args:
        g: the graph.
        router: its results, float32 ``[N, count]``.
        experts: the sizes, and the way of choosing.
        correction: added to the scores for the choice alone, float32 ``[count]``.
    """
    if experts.softmax_chosen:
        greatest, ids = g.topk(router, experts.chosen, axis=1)
        return ids, g.softmax(greatest, axis=1) * experts.scale
    sigmoid = experts.scores == "sigmoid"
    scores = g.sigmoid(router) if sigmoid else g.softmax(router, axis=1)
    choice = scores if correction is None else scores + correction
    if experts.groups > 1:
        choice = _within_groups(g, choice, experts)
    _, ids = g.topk(choice, experts.chosen, axis=1)
    weights = g.take_along_axis(scores, ids, axis=1)
    if experts.normalized:
        total = g.sum(weights, axis=1, keepdims=True)
        weights = weights / (total + _LEAST_SUM if sigmoid else total)
    return ids, weights * experts.scale if experts.scale != 1 else weights


def _within_groups(g: Graph, choice: Value, experts: Experts) -> Value:
    """The scores of experts in the best groups, by the sum of their best two; others are lost."""
    rows, groups = choice.shape[0], experts.groups
    size = experts.count // groups
    apart = g.reshape(choice, (rows, groups, size))
    best, _ = g.topk(apart, min(2, size), axis=2)
    _, kept = g.topk(g.sum(best, axis=2), experts.chosen_groups, axis=1)
    every = g.reshape(g.iota((groups,)), (1, 1, groups))
    inside = g.any(g.equal(g.expand_dims(kept, 2), every), axis=1)
    limited = g.where(g.expand_dims(inside, 2), apart, -math.inf)
    return g.reshape(limited, (rows, experts.count))


def _by_matmuls(block: Block, x: Value, ids: Value, weights: Value) -> Value:
    """Experts with biases or packed matrices, matmul by matmul."""
    g, config, experts = block.g, block.config, _sizes(block.config)
    rows, width, chosen = block.tokens.count, config.width, experts.chosen
    pairs = rows * chosen
    repeated = g.broadcast_to(g.reshape(x, (rows, 1, width)), (rows, chosen, width))
    flat, own = g.reshape(repeated, (pairs, width)), g.reshape(ids, (pairs,))

    def linear(inner: Value, name: str) -> Value:
        weight = f"experts.{name}.weight"
        matrices, form = block.param(weight), block.format(weight)
        if form is None:
            result = g.grouped_matmul(inner, matrices, own)
        else:
            result = g.packed_grouped_matmul(inner, matrices, own, form)
        if experts.bias:
            bias = g.cast(block.param(f"experts.{name}.bias"), FLOAT32)
            result = result + g.take(bias, own, axis=0)
        return result

    gate, up = linear(flat, "gate"), linear(flat, "up")
    if config.activation == "swiglu_limited":
        if experts.limit is not None:
            gate = g.minimum(gate, experts.limit)
            up = g.maximum(g.minimum(up, experts.limit), -experts.limit)
        hidden = gate * g.sigmoid(gate * _STEEPNESS) * (up + 1.0)
    else:
        hidden = activated(g, gate, config.activation) * up
    results = g.reshape(linear(hidden, "down"), (rows, chosen, width))
    return g.sum(results * g.expand_dims(weights, 2), axis=1)


def _shared(block: Block, x: Value) -> Value:
    """The expert that every token takes."""
    g = block.g
    gate = activated(g, block.linear(x, "shared.gate"), block.config.activation)
    result = block.linear(gate * block.linear(x, "shared.up"), "shared.down")
    if _sizes(block.config).shared_gate:
        result = result * g.sigmoid(block.linear(x, "shared_gate"))
    return result


#: ``router`` and ``experts``; with ``correction``, ``shared`` and ``shared_gate`` where models have
#: them.
EXPERTS = Part(weights=_weights, build=_build)
