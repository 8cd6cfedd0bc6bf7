"""Linear attention by the gated delta rule, after a short convolution (arXiv 2412.06464).

A sequence has a matrix for each head and the last inputs of the convolution, whatever its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ostinato.dtypes import FLOAT32
from ostinato.llm.families.family import Part

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.llm.config import Layer, LinearAttention, ModelConfig
    from ostinato.llm.families.builder import Block

__all__ = ["LINEAR_ATTENTION"]

#: Added to the squared norm of queries and keys.
_LEAST_SQUARE: Final = 1e-6


def _sizes(config: ModelConfig) -> LinearAttention:
    assert config.linear is not None, "a layer of linear attention needs its sizes"
    return config.linear


def _weights(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    linear, width = _sizes(config), config.width
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    return {
        "qkv.weight": (2 * keys + values, width),
        "z.weight": (values, width),
        "beta.weight": (linear.value_heads, width),
        "decay.weight": (linear.value_heads, width),
        "decay.bias": (linear.value_heads,),
        "rate": (linear.value_heads,),
        "conv.weight": (2 * keys + values, 1, linear.kernel),
        "gate_norm.weight": (linear.value_dim,),
        "o.weight": (width, values),
    }


def _build(block: Block, x: Value) -> Value:
    g, linear, rows = block.g, _sizes(block.config), block.rows
    count, key_heads, heads = rows.count, linear.key_heads, linear.value_heads
    keys, values = key_heads * linear.key_dim, heads * linear.value_dim
    channels = 2 * keys + values

    weight = g.reshape(g.cast(block.param("conv.weight"), FLOAT32), (channels, linear.kernel))
    window = block.slots("convolution", (channels, linear.kernel - 1))
    mixed, window_after = g.causal_conv_with_state(
        block.linear(x, "qkv"), weight, window, rows.sequence, rows.position, activation="silu"
    )
    g.assign(window, window_after)

    def unit(start: int) -> Value:
        """Queries or keys of norm 1, for each head of values."""
        part = block.heads(mixed[:, start : start + keys], key_heads)
        square = g.sum(part * part, axis=2, keepdims=True)
        part = part * g.rsqrt(square + _LEAST_SQUARE)
        shape = (count, key_heads, heads // key_heads, linear.key_dim)
        spread = g.broadcast_to(g.expand_dims(part, 2), shape)
        return g.reshape(spread, (count, heads, linear.key_dim))

    q, k = unit(0), unit(keys)
    v = block.heads(mixed[:, 2 * keys :], heads)
    beta = g.sigmoid(block.linear(x, "beta"))
    rate = g.neg(g.exp(block.param("rate")))
    decay = rate * g.softplus(block.linear(x, "decay", bias=True))
    state = block.slots("matrix", (heads, linear.key_dim, linear.value_dim))
    found, state_after = g.linear_attention(
        q, k, v, state, rows.sequence, rows.position, decay, beta, update_rule="gated_delta"
    )
    g.assign(state, state_after)

    z = block.heads(block.linear(x, "z"), heads)
    gated = block.norm(found, "gate_norm") * g.silu(z)
    return block.linear(g.reshape(gated, (count, values)), "o")


#: ``qkv``, ``z``, ``beta`` and ``decay``; ``conv``, ``rate``, ``gate_norm`` and ``o``.
LINEAR_ATTENTION = Part(weights=_weights, build=_build)
