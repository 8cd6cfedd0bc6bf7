"""Decoders: layers of a mixer and a feed-forward, and a head.

Weights by logical name: ``embedding.weight``, ``positions.weight``, ``norm.weight`` (of the last
norm), ``head.weight``; of layer 0, ``0.mixer_norm.weight``, ``0.mixer_post_norm.weight``,
``0.hidden_norm.weight``, ``0.hidden_post_norm.weight``, and those of its parts. Norms and linear
layers may have a ``.bias`` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32
from ostinato.llm.families.parts import FEED_FORWARDS, MIXERS

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import ModelConfig
    from ostinato.llm.families.builder import Block, Builder
    from ostinato.llm.families.family import Part

__all__ = ["hidden", "logits", "norm_shapes", "shapes"]


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, by logical name."""
    width = config.width
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocabulary, width)}
    if config.positions:
        found["positions.weight"] = (config.positions, width)
    norms = [f"{n}norm" for n in (("mixer_", "hidden_") if config.pre_norm else ())]
    norms += ["mixer_post_norm", "hidden_post_norm"] if config.post_norm else []
    for i, layer in enumerate(config.layers):
        for name in norms:
            found |= norm_shapes(config, f"{i}.{name}")
        for part in (MIXERS[layer.mixer], FEED_FORWARDS[layer.feed_forward]):
            found |= {f"{i}.{name}": shape for name, shape in part.weights(config, layer).items()}
    if config.embedding_norm:
        found |= norm_shapes(config, "embedding_norm")
    if config.final_norm:
        found |= norm_shapes(config, "norm")
    if not config.tied:
        found["head.weight"] = (config.vocabulary, width)
    if config.head_bias:
        found["head.bias"] = (config.vocabulary,)
    return found


def norm_shapes(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of a norm."""
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": (config.width,)}
    if config.norm.bias:
        found[f"{name}.bias"] = (config.width,)
    return found


def hidden(builder: Builder, tokens: Value) -> Value:
    """The rows after the last layer, float32 ``[N, width]``, of tokens, int32 ``[N]``."""
    g, config = builder.g, builder.config
    x = builder.lookup(tokens, "embedding")
    if config.embedding_scale != 1:
        x = x * config.embedding_scale
    if config.positions:
        x = x + builder.lookup(builder.tokens.position, "positions")
    if config.embedding_norm:
        x = builder.norm(x, "embedding_norm")
    for i in range(len(config.layers)):
        x = _layer(builder.block(i), x)
    return g.cast(x, FLOAT32)


def _layer(block: Block, x: Value) -> Value:
    config = block.config
    mixer, feed_forward = MIXERS[block.layer.mixer], FEED_FORWARDS[block.layer.feed_forward]

    def results(part: Part, rows: Value, name: str) -> Value:
        inner = block.norm(rows, f"{name}_norm") if config.pre_norm else rows
        result = part.build(block, inner)
        if config.post_norm:
            result = block.norm(result, f"{name}_post_norm")
        return result if config.residual_scale == 1 else result * config.residual_scale

    mixed = results(mixer, x, "mixer")
    if config.parallel:
        return x + mixed + results(feed_forward, x, "hidden")
    x = x + mixed
    return x + results(feed_forward, x, "hidden")


def logits(builder: Builder, rows: Value) -> Value:
    """The logits of rows ``[R, width]``: float32 ``[R, vocabulary]``."""
    g, config = builder.g, builder.config
    if config.final_norm:
        rows = builder.norm(rows, "norm")
    matrix = "embedding.weight" if config.tied else "head.weight"
    found = builder.linear(rows, "head", bias=config.head_bias, weight=matrix)
    if config.logit_scale != 1:
        found = found * config.logit_scale
    if (cap := config.logit_softcap) is not None:
        found = g.tanh(found * (1 / cap)) * cap
    return found
