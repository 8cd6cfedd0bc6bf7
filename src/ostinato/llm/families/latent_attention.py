"""Latent attention (MLA): keys and values of all heads from one narrow vector for each token.

A pool holds that vector and the rotated features alone. Queries are projected into the space of
the latent vector, and results out of it, so that keys and values are never expanded: attention has
one key head, for prompts and answers alike (arXiv 2405.04434).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32
from ostinato.llm.families.family import Part

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import LatentAttention, Layer, ModelConfig
    from ostinato.llm.families.builder import Block

__all__ = ["LATENT_ATTENTION"]


def _sizes(config: ModelConfig) -> LatentAttention:
    assert config.latent is not None, "a layer of latent attention needs its sizes"
    return config.latent


def _weights(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    latent, heads, width = _sizes(config), config.heads, config.width
    queries = heads * (latent.plain + latent.rotated)
    shapes: dict[str, tuple[int, ...]] = {}
    if latent.query_rank:
        shapes["q_down.weight"] = (latent.query_rank, width)
        if config.attention_bias:
            shapes["q_down.bias"] = (latent.query_rank,)
        shapes["q_down_norm.weight"] = (latent.query_rank,)
        shapes["q_up.weight"] = (queries, latent.query_rank)
    else:
        shapes["q.weight"] = (queries, width)
    shapes["kv_down.weight"] = (latent.rank + latent.rotated, width)
    if config.attention_bias:
        shapes["kv_down.bias"] = (latent.rank + latent.rotated,)
    shapes["kv_down_norm.weight"] = (latent.rank,)
    shapes["k_up.weight"] = (heads, latent.plain, latent.rank)
    shapes["v_up.weight"] = (heads, latent.value, latent.rank)
    shapes["o.weight"] = (width, heads * latent.value)
    if config.output_bias:
        shapes["o.bias"] = (width,)
    return shapes


def _build(block: Block, x: Value) -> Value:
    g, config, latent = block.g, block.config, _sizes(block.config)
    rows, heads = block.tokens.count, config.heads
    bias = config.attention_bias
    if latent.query_rank:
        narrow = block.norm(block.linear(x, "q_down", bias=bias), "q_down_norm")
        q = block.heads(block.linear(narrow, "q_up"), heads)
    else:
        q = block.heads(block.linear(x, "q"), heads)
    plain, turned = q[:, :, : latent.plain], block.rotated(q[:, :, latent.plain :])
    both = block.linear(x, "kv_down", bias=bias)
    narrow = block.norm(both[:, : latent.rank], "kv_down_norm")
    own = g.reshape(narrow, (rows, 1, latent.rank))
    key = block.rotated(g.reshape(both[:, latent.rank :], (rows, 1, latent.rotated)))
    keys = block.cached("keys", g.concat([own, key], axis=2))
    values = keys[..., : latent.rank]

    query = g.concat([_each(block, plain, "k_up"), turned], axis=2)
    mixed = _each(block, block.attend(query, keys, values), "v_up")
    found = g.reshape(mixed, (rows, heads * latent.value))
    return block.linear(found, "o", bias=config.output_bias)


def _each(block: Block, x: Value, name: str) -> Value:
    """Rows of each head, ``[N, heads, inputs]``, times its matrix: ``[N, heads, outputs]``."""
    g, left = block.g, block.g.permute_dims(x, (1, 0, 2))
    matrices, form = block.param(f"{name}.weight"), block.format(f"{name}.weight")
    if form is not None:
        product = g.packed_matmul(left, matrices, form)
    else:
        floats = g.cast(matrices, FLOAT32)
        product = g.matmul(left, floats if name == "k_up" else g.permute_dims(floats, (0, 2, 1)))
    return g.permute_dims(product, (1, 0, 2))


#: ``q_down`` and ``q_up``, or ``q``; ``kv_down``, ``k_up``, ``v_up`` and ``o``.
LATENT_ATTENTION = Part(weights=_weights, build=_build)
