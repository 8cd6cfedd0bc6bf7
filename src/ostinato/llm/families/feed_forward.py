"""The dense feed-forward of a decoder, and activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import InputError
from ostinato.llm.families.family import Part

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import Activation, Layer, ModelConfig
    from ostinato.llm.families.builder import Block
    from ostinato.ops.builder import Graph

__all__ = ["DENSE", "activated"]


def activated(g: Graph, x: Value, activation: Activation) -> Value:
    """An activation, elementwise."""
    match activation:
        case "silu":
            return g.silu(x)
        case "gelu":
            return g.gelu(x)
        case "gelu_tanh":
            return g.gelu(x, approximate=True)
        case "relu":
            return g.relu(x)
    raise InputError(f"the activation {activation!r} is not elementwise")


def _weights(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    names = ("gate", "up") if config.gated else ("up",)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        shapes[f"{name}.weight"] = (config.hidden, config.width)
        if config.hidden_bias:
            shapes[f"{name}.bias"] = (config.hidden,)
    shapes["down.weight"] = (config.width, config.hidden)
    if config.hidden_bias or config.down_bias:
        shapes["down.bias"] = (config.width,)
    return shapes


def _build(block: Block, x: Value) -> Value:
    g, config, bias = block.g, block.config, block.config.hidden_bias
    if config.gated:
        gate = activated(g, block.linear(x, "gate", bias=bias), config.activation)
        inner = gate * block.linear(x, "up", bias=bias)
    else:
        inner = activated(g, block.linear(x, "up", bias=bias), config.activation)
    return block.linear(inner, "down", bias=bias or config.down_bias)


#: ``up`` and ``down``, with ``gate`` where models have it.
DENSE = Part(weights=_weights, build=_build)
