"""A mixture of experts from the public ops, with its experts in a file.

The model is shaped like Mixtral: rope, grouped key heads, RMS norms, a router that sends each token
to two gated experts, caches of keys and values that are states. Its weights are random, and some
experts are called far more often than others, as in real models.

The experts are written to a file and stay there. Some are resident: they have slots in memory,
which ``ResidencyLoop`` gives to those that are called most.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ostinato as ost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Array = np.ndarray[Any, Any]

PROMPT = (1, 5, 2, 9, 3)


@dataclass(frozen=True)
class Config:
    """The sizes of a model; ``key_heads`` divides ``heads``, ``head_dim`` is even."""

    vocabulary: int = 512
    width: int = 128
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 32
    experts: int = 16
    chosen: int = 2  #: experts for each token
    hidden: int = 256  #: of an expert
    length: int = 128  #: the most tokens of a sequence
    skew: float = 1.5  #: how much the logit of an expert falls with its rank
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """The shape of every cache."""
        return (1, self.key_heads, self.length, self.head_dim)

    @property
    def expert_bytes(self) -> int:
        """The size of all experts in a file."""
        return 4 * 3 * self.layers * self.experts * self.width * self.hidden


def random_weights(config: Config, seed: int = 0) -> dict[str, Array]:
    """Weights by name, float32; matrices are ``[inputs, outputs]``, those of experts stacked."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

    def gain() -> Array:
        return rng.uniform(0.5, 1.5, config.width).astype(np.float32)

    c = config
    # Every token has this in common, and the router tells experts' ranks from it.
    common = rng.standard_normal(c.width)
    embedding = rng.standard_normal((c.vocabulary, c.width)) + common
    weights = {
        "embedding": embedding.astype(np.float32),
        "norm": gain(),
        "head": matrix(c.width, c.vocabulary),
    }
    for i in range(c.layers):
        ranks = rng.permutation(c.experts)
        weights |= {
            f"{i}.attention_norm": gain(),
            f"{i}.q": matrix(c.width, c.heads * c.head_dim),
            f"{i}.k": matrix(c.width, c.key_heads * c.head_dim),
            f"{i}.v": matrix(c.width, c.key_heads * c.head_dim),
            f"{i}.o": matrix(c.heads * c.head_dim, c.width),
            f"{i}.mlp_norm": gain(),
            f"{i}.router": matrix(c.width, c.experts)
            - (c.skew * np.outer(common, np.log1p(ranks)) / c.width).astype(np.float32),
            f"{i}.gate": matrix(c.experts, c.width, c.hidden),
            f"{i}.up": matrix(c.experts, c.width, c.hidden),
            f"{i}.down": matrix(c.experts, c.hidden, c.width),
        }
    return weights


def split(weights: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Split weights into those that every token needs, and those of the experts."""
    experts = {name: array for name, array in weights.items() if array.ndim == 3}
    return {name: array for name, array in weights.items() if name not in experts}, experts


def decoder_graph(config: Config, weights: Mapping[str, Array]) -> ost.Graph:
    """A step: ``tokens`` that follow ``position`` others, any number of them, to ``logits``.

    The logits are those of the token after the last one, ``[vocabulary]``. The same graph reads the
    prompt and then, one by one, the tokens that it has generated.
    """
    g = ost.Graph("tiny_mixtral")
    count = ost.Variable("count", 1, config.length)
    tokens, position = g.input("tokens", (count,), "int64"), g.input("position", (), "int64")
    return _Builder(g, config, weights, position, count).build(tokens)


class _Builder:
    def __init__(
        self,
        g: ost.Graph,
        config: Config,
        weights: Mapping[str, Array],
        position: ost.Value,
        count: ost.Variable,
    ) -> None:
        self.g, self.config = g, config
        self.w = {name: g.param(name, array.shape) for name, array in weights.items()}
        self.position, self.count = position, count
        places = g.iota((count,)) + position
        pairs = config.head_dim // 2
        speeds = config.rope_base ** -(np.arange(pairs) / pairs)
        angles = g.cast(g.reshape(places, (count, 1)), "float32") * speeds.astype(np.float32)
        self.cos, self.sin = g.cos(angles), g.sin(angles)
        self.visible = g.iota((count, config.length), axis=1) <= g.reshape(places, (count, 1))

    def build(self, tokens: ost.Value) -> ost.Graph:
        g, c = self.g, self.config
        x = g.embedding(tokens, self.w["embedding"])
        for i in range(c.layers):
            x = x + self._attention(i, self._normed(x, f"{i}.attention_norm"))
            names = ("router", "gate", "up", "down")
            matrices = [self.w[f"{i}.{name}"] for name in names]
            x = x + g.moe(self._normed(x, f"{i}.mlp_norm"), *matrices, k=c.chosen)
        last = g.slice(x, (self.count - 1, 0), (self.count, c.width))
        logits = g.matmul(self._normed(last, "norm"), self.w["head"])
        g.set_outputs({"logits": g.reshape(logits, (c.vocabulary,))})
        return g

    def _normed(self, x: ost.Value, gain: str) -> ost.Value:
        return self.g.rms_norm(x, self.w[gain], eps=self.config.eps)

    def _attention(self, layer: int, h: ost.Value) -> ost.Value:
        g, c = self.g, self.config
        q = g.rope(self._heads(h, f"{layer}.q", c.heads), self.cos, self.sin)
        keys = g.rope(self._heads(h, f"{layer}.k", c.key_heads), self.cos, self.sin)
        values = self._heads(h, f"{layer}.v", c.key_heads)
        seen = [self._cached(f"{layer}.keys", keys), self._cached(f"{layer}.values", values)]
        mixed = g.permute_dims(g.attention(q, *seen, mask=self.visible), (0, 2, 1, 3))
        return g.matmul(g.reshape(mixed, (self.count, c.heads * c.head_dim)), self.w[f"{layer}.o"])

    def _heads(self, h: ost.Value, weight: str, heads: int) -> ost.Value:
        """``[1, heads, tokens, features]``."""
        g = self.g
        projected = g.matmul(h, self.w[weight])
        apart = g.reshape(projected, (1, self.count, heads, self.config.head_dim))
        return g.permute_dims(apart, (0, 2, 1, 3))

    def _cached(self, name: str, rows: ost.Value) -> ost.Value:
        """The state ``name`` with ``rows`` written to it."""
        state = self.g.state(name, self.config.cache_shape)
        updated = self.g.dynamic_update_slice(state, rows, (0, 0, self.position, 0))
        self.g.assign(state, updated)
        return updated


def generate(
    step: Callable[[Mapping[str, Array]], Sequence[Array]], prompt: Sequence[int], count: int
) -> list[int]:
    """The ``count`` tokens that follow ``prompt``, each the most likely one."""
    fed, position = list(prompt), 0
    tokens: list[int] = []
    for _ in range(count):
        inputs = {"tokens": np.array(fed, np.int64), "position": np.array(position, np.int64)}
        (logits,) = step(inputs)
        position += len(fed)
        fed = [int(logits.argmax())]
        tokens += fed
    return tokens


def with_resident_experts(
    session: ost.Session, config: Config, weights: Mapping[str, Array], path: Path, budget: int,
    every: int,
) -> ost.moe.ResidencyLoop:  # fmt: skip
    """The model with its experts in a file, which is written, and a budget of memory for them."""
    shared, experts = split(weights)
    ost.moe.write_safetensors(path, experts)
    compiled = session.compile(
        decoder_graph(config, weights),
        params=shared,
        experts=ost.moe.ExpertFile(path),
        expert_budget=budget,
    )
    pools = [ost.ExpertPool(layer.experts, layer.slots) for layer in compiled.moe_layers]
    return ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=every))
