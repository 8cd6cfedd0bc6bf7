"""Attention with keys and values of their own heads: the mixer of most decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.families.family import Part

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import Layer, ModelConfig
    from ostinato.llm.families.builder import Block

__all__ = ["ATTENTION"]


def _weights(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    queries = config.heads * config.head_dim
    keys, values = config.kv_heads * config.head_dim, config.kv_heads * config.value_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for name, features in (("q", queries), ("k", keys), ("v", values)):
        shapes[f"{name}.weight"] = (features, config.width)
        if config.attention_bias:
            shapes[f"{name}.bias"] = (features,)
    shapes["o.weight"] = (config.width, config.heads * config.value_dim)
    if config.output_bias:
        shapes["o.bias"] = (config.width,)
    if config.head_norm == "each":
        shapes |= {"q_norm.weight": (config.head_dim,), "k_norm.weight": (config.head_dim,)}
    elif config.head_norm == "all":
        shapes |= {"q_norm.weight": (queries,), "k_norm.weight": (keys,)}
    if config.sinks:
        shapes["sinks"] = (config.heads,)
    if config.query_gate:
        shapes["query_gate.weight"] = (config.heads * config.value_dim, config.width)
    return shapes


def _build(block: Block, x: Value) -> Value:
    config, bias = block.config, block.config.attention_bias
    q, k, v = (block.linear(x, name, bias=bias) for name in "qkv")
    if config.head_norm == "all":
        q, k = block.norm(q, "q_norm"), block.norm(k, "k_norm")
    q, k = block.heads(q, config.heads), block.heads(k, config.kv_heads)
    if config.head_norm == "each":
        q, k = block.norm(q, "q_norm"), block.norm(k, "k_norm")
    keys = block.cached("keys", block.rotated(k))
    values = block.cached("values", block.heads(v, config.kv_heads))
    sinks = block.param("sinks") if config.sinks else None
    mixed = block.attend(block.rotated(q), keys, values, sinks=sinks)
    rows = block.g.reshape(mixed, (block.tokens.count, config.heads * config.value_dim))
    if config.query_gate:
        rows = rows * block.g.sigmoid(block.linear(x, "query_gate"))
    return block.linear(rows, "o", bias=config.output_bias)


#: ``q``, ``k``, ``v`` and ``o``; with ``q_norm``, ``k_norm``, ``sinks`` and ``query_gate`` where
#: models have them.
ATTENTION = Part(weights=_weights, build=_build)
