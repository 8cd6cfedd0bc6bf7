"""One decoding step of a llama from the public ops, written once for graphs and for sessions.

The serving path of language models is :mod:`ostinato.llm`; this is a step of known ops, to measure
and to test what runs it. Rope, grouped key heads, RMS norms, a gated MLP, and caches of keys and
values that grow by a row a step. The weights are random.

A step reads three Variables, whose names are those of the device's variable block (see
``Context.set_decode_state``): ``token``, the one to go on from; ``position``, its place in the
sequence; ``kv_len``, how many rows of the caches count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

import ostinato as ost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ops.vocabulary import Vocabulary

T = TypeVar("T")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Config:
    """The sizes of a model; ``key_heads`` divides ``heads``, ``head_dim`` is even."""

    vocabulary: int = 512
    width: int = 128
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head_dim: int = 32
    hidden: int = 256
    length: int = 128  #: the most tokens of a sequence
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """The shape of every cache."""
        return (1, self.key_heads, self.length, self.head_dim)

    @property
    def cache_names(self) -> list[str]:
        """Keys and values of every layer."""
        return [f"{i}.{kind}" for i in range(self.layers) for kind in ("keys", "values")]

    @property
    def token(self) -> ost.Variable:
        """The token that the step goes on from."""
        return ost.Variable("token", 0, self.vocabulary - 1)

    @property
    def position(self) -> ost.Variable:
        """The number of tokens before this one."""
        return ost.Variable("position", 0, self.length - 1)

    @property
    def kv_len(self) -> ost.Variable:
        """The number of valid rows of a cache, this step's included."""
        return ost.Variable("kv_len", 1, self.length)


def random_weights(config: Config, seed: int = 0) -> dict[str, Array]:
    """Weights by name, float32; matrices are ``[inputs, outputs]``."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def gain() -> Array:
        return rng.uniform(0.5, 1.5, config.width).astype(np.float32)

    width, hidden = config.width, config.hidden
    queries, keys = (n * config.head_dim for n in (config.heads, config.key_heads))
    weights = {
        "embedding": rng.standard_normal((config.vocabulary, width)).astype(np.float32),
        "norm": gain(),
        "head": matrix(width, config.vocabulary),
    }
    for i in range(config.layers):
        weights |= {
            f"{i}.attention_norm": gain(),
            f"{i}.q": matrix(width, queries),
            f"{i}.k": matrix(width, keys),
            f"{i}.v": matrix(width, keys),
            f"{i}.o": matrix(queries, width),
            f"{i}.mlp_norm": gain(),
            f"{i}.gate": matrix(width, hidden),
            f"{i}.up": matrix(width, hidden),
            f"{i}.down": matrix(hidden, width),
        }
    return weights | _rope_tables(config)


def _rope_tables(config: Config) -> dict[str, Array]:
    """Cosines and sines of the angle of every position and pair of features."""
    pairs = np.arange(config.head_dim // 2) / (config.head_dim // 2)
    angles = np.arange(config.length)[:, None] * config.rope_base**-pairs
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


@dataclass(frozen=True)
class Decoder(Generic[T]):
    """The model over any holder of the vocabulary.

    Attributes:
        v: a ``Graph``, which adds the ops as nodes, or a ``GraphSession``, which encodes them.
        config: the sizes.
        weights: as :func:`random_weights` has them, as operands of ``v``.
        append: ``append(name, row)`` writes ``row``, ``[1, key_heads, 1, head_dim]``, at
            ``config.position`` of a cache, and gives the cache as it is then.
    """

    v: Vocabulary[T]
    config: Config
    weights: Mapping[str, T]
    append: Callable[[str, T], T]

    def step(self, **options: Any) -> T:
        """The most likely token to follow, int64 ``[1]``; ``options`` are those of the last op."""
        v, w = self.v, self.weights
        x = v.embedding(v.reshape(v.dim_value(self.config.token), (1,)), w["embedding"])
        for i in range(self.config.layers):
            x = v.add(x, self._attention(i, self._normed(x, f"{i}.attention_norm")))
            x = v.add(x, self._mlp(i, self._normed(x, f"{i}.mlp_norm")))
        logits = v.matmul(self._normed(x, "norm"), w["head"])
        return v.argmax(logits, axis=1, **options)

    def _normed(self, x: T, gain: str) -> T:
        return self.v.rms_norm(x, self.weights[gain], eps=self.config.eps)

    def _attention(self, layer: int, h: T) -> T:
        v, c, w = self.v, self.config, self.weights
        q = self._turned(self._heads(h, f"{layer}.q", c.heads))
        keys = self._turned(self._heads(h, f"{layer}.k", c.key_heads))
        values = self._heads(h, f"{layer}.v", c.key_heads)
        seen = [
            v.slice(self.append(f"{layer}.{kind}", row), (0,) * 4, self._live_shape)
            for kind, row in (("keys", keys), ("values", values))
        ]
        mixed = v.attention(q, *seen)
        return v.matmul(v.reshape(mixed, (1, c.heads * c.head_dim)), w[f"{layer}.o"])

    def _heads(self, h: T, weight: str, count: int) -> T:
        projected = self.v.matmul(h, self.weights[weight])
        return self.v.reshape(projected, (1, count, 1, self.config.head_dim))

    def _turned(self, x: T) -> T:
        """Rotate ``x`` by its position (rope)."""
        start, size = (self.config.position, 0), (1, self.config.head_dim // 2)
        cos, sin = (self.v.dynamic_slice(self.weights[t], start, size) for t in ("cos", "sin"))
        return self.v.rope(x, cos, sin)

    @property
    def _live_shape(self) -> tuple[Any, ...]:
        """The part of a cache that has been written."""
        batch, heads, _, depth = self.config.cache_shape
        return (batch, heads, self.config.kv_len, depth)

    def _mlp(self, layer: int, h: T) -> T:
        v, w = self.v, self.weights
        gate, up = (v.matmul(h, w[f"{layer}.{name}"]) for name in ("gate", "up"))
        return v.matmul(v.multiply(v.silu(gate), up), w[f"{layer}.down"])


def decoder_graph(config: Config, weights: Mapping[str, Array]) -> ost.Graph:
    """A step as a graph with one output, ``next``; its caches are states."""
    g = ost.Graph("decoder_step")
    caches = {name: g.state(name, config.cache_shape) for name in config.cache_names}
    params = {n: g.param(n, array.shape, value=array) for n, array in weights.items()}

    def append(name: str, row: ost.Value) -> ost.Value:
        updated = g.dynamic_update_slice(caches[name], row, (0, 0, config.position, 0))
        g.assign(caches[name], updated)
        return updated

    g.set_outputs({"next": Decoder(g, config, params, append).step()})
    return g
