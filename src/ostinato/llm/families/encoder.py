"""Encoders: layers in which all tokens of a text attend to each other, and heads of rerankers.

Weights by logical name, beside those of decoders: ``segments.weight``; of heads, ``pool.weight``,
``pool_norm.weight`` and ``classifier.weight``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32
from ostinato.llm.families.decoder import norm_shapes
from ostinato.llm.families.feed_forward import activated
from ostinato.llm.families.parts import FEED_FORWARDS, MIXERS

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import ModelConfig
    from ostinato.llm.families.builder import Block, Builder

__all__ = ["hidden", "logits", "shapes"]


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, by logical name."""
    width = config.width
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocabulary, width)}
    if config.positions:
        found["positions.weight"] = (config.positions, width)
    if config.segments:
        found["segments.weight"] = (config.segments, width)
    found |= norm_shapes(config, "embedding_norm")
    for i, layer in enumerate(config.layers):
        for name in ("mixer_norm", "hidden_norm"):
            if i or name == "hidden_norm" or not config.pre_norm:
                found |= norm_shapes(config, f"{i}.{name}")
        for part in (MIXERS[layer.mixer], FEED_FORWARDS[layer.feed_forward]):
            found |= {f"{i}.{name}": shape for name, shape in part.weights(config, layer).items()}
    if config.final_norm:
        found |= norm_shapes(config, "norm")
    if config.labels:
        found["pool.weight"] = (width, width)
        if config.head_bias:
            found["pool.bias"] = (width,)
        if config.pre_norm:
            found |= norm_shapes(config, "pool_norm")
        found["classifier.weight"] = (config.labels, width)
        found["classifier.bias"] = (config.labels,)
    return found


def hidden(builder: Builder, tokens: Value) -> Value:
    """The rows after the last layer, float32 ``[N, width]``, of tokens, int32 ``[N]``."""
    g, config = builder.g, builder.config
    x = builder.lookup(tokens, "embedding")
    if config.segments:
        x = x + builder.lookup(builder.given("segment"), "segments")
    if config.positions:
        reserved = config.positions - config.context
        x = x + builder.lookup(builder.tokens.position + reserved, "positions")
    x = builder.norm(x, "embedding_norm")
    for i in range(len(config.layers)):
        x = _layer(builder.block(i), x)
    if config.final_norm:
        x = builder.norm(x, "norm")
    return g.cast(x, FLOAT32)


def _layer(block: Block, x: Value) -> Value:
    mixer, feed_forward = MIXERS[block.layer.mixer], FEED_FORWARDS[block.layer.feed_forward]
    if not block.config.pre_norm:
        x = block.norm(x + mixer.build(block, x), "mixer_norm")
        return block.norm(x + feed_forward.build(block, x), "hidden_norm")
    first = x if block.index == 0 else block.norm(x, "mixer_norm")
    x = x + mixer.build(block, first)
    return x + feed_forward.build(block, block.norm(x, "hidden_norm"))


def logits(builder: Builder, rows: Value) -> Value:
    """The classes of pooled rows ``[R, width]``: float32 ``[R, labels]``."""
    g, config = builder.g, builder.config
    pooled = builder.linear(rows, "pool", bias=config.head_bias)
    if config.pre_norm:
        pooled = builder.norm(activated(g, pooled, config.activation), "pool_norm")
    else:
        pooled = g.tanh(pooled)
    return builder.linear(pooled, "classifier", bias=True)
