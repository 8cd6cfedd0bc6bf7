"""The pieces that graphs of language models are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import FLOAT32, DType
from ostinato.errors import InputError
from ostinato.llm.families.rope import frequencies, magnitude
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.graph import Value
    from ostinato.llm.config import Layer, ModelConfig, Norm, Rope
    from ostinato.llm.weights import Weight
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["BLOCK_TOKENS", "Block", "Builder", "Rows", "State"]

#: Tokens of a block of keys and values.
BLOCK_TOKENS: Final = 64


@dataclass(frozen=True, kw_only=True)
class State:
    """A state of a model, which the graph updates in the memory of an array.

    Attributes:
        kind: ``block``: ``[blocks, 64, ...]``, with a place for each token; ``slot``:
            ``[sequences, ...]``, a value for each sequence.
        shape: of the whole.
        dtype: of the elements.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The rows of a step.

    Attributes:
        count: how many there are.
        position: of each in its sequence, int32 ``[N]``.
        sequence: of each, int32 ``[N]``.
        table: the blocks of each sequence, int32 ``[S, P]``.
        place: the block of each row and its position there, int32 ``[N, 2]``.
        context: the most tokens of a sequence.
        blocks: in each pool.
        sequences: at most.
        kv_dtype: of keys and values.
    """

    count: Dim
    position: Value
    sequence: Value
    table: Value
    place: Value
    context: int
    blocks: int
    sequences: int
    kv_dtype: DType


class Builder:
    """A graph in the making: its config, the weights as params, and its rows.

    Args:
        g: the graph.
        config: of the model.
        weights: by logical name; those that are used become params.
        rows: of a step; ``None`` for graphs without pools.

    Attributes:
        states: those of the graph, by name.
    """

    def __init__(
        self, g: Graph, config: ModelConfig, weights: Mapping[str, Weight], rows: Rows | None
    ) -> None:
        self.g, self.config = g, config
        self.states: dict[str, State] = {}
        self._weights, self._rows = weights, rows
        self._params: dict[str, Value] = {}
        self._angles: dict[Rope, tuple[Value, Value]] = {}

    @property
    def rows(self) -> Rows:
        """The rows of the step."""
        assert self._rows is not None, "a graph without pools has none"
        return self._rows

    def block(self, index: int) -> Block:
        """The layer at a position."""
        return Block(self, index)

    # -- weights -----------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name."""
        return name in self._weights

    def weight(self, name: str) -> Weight:
        """A weight of the model.

        Raises:
            InputError: there is none of this name.
        """
        if name not in self._weights:
            raise InputError(f"the model {self.config.architecture!r} lacks the weight {name!r}")
        return self._weights[name]

    def param(self, name: str) -> Value:
        """A weight as a param, the same at each call: elements, or the bytes of packed rows."""
        if name not in self._params:
            source = self.weight(name).source
            self._params[name] = self.g.param(name, source.shape, source.dtype, value=source)
        return self._params[name]

    def linear(
        self, x: Value, name: str, *, bias: bool = False, weight: str | None = None
    ) -> Value:
        """``x @ W.T``, with a bias if asked for, in float32.

        Args:
            x: float32 ``[..., inputs]``.
            name: of the weights, without ``.weight`` and ``.bias``.
            bias: whether a bias is added.
            weight: the whole name of the matrix, where it is another's.
        """
        matrix = weight or f"{name}.weight"
        form = self.weight(matrix).format
        w = self.param(matrix)
        if form is not None:
            result = self.g.packed_matmul(x, w, form)
        else:
            result = self.g.cast(self.g.matmul(x, self.g.permute_dims(w, (1, 0))), FLOAT32)
        return result + self.param(f"{name}.bias") if bias else result

    def lookup(self, ids: Value, name: str) -> Value:
        """Rows of a table, in float32."""
        form, w = self.weight(f"{name}.weight").format, self.param(f"{name}.weight")
        if form is not None:
            return self.g.packed_embedding(ids, w, form)
        return self.g.cast(self.g.take(w, ids, axis=0), FLOAT32)

    def norm(self, x: Value, name: str, norm: Norm | None = None) -> Value:
        """Rows normalised over their last axis.

        Args:
            x: float32.
            name: of the weights, without ``.weight`` and ``.bias``.
            norm: the model's unless given.
        """
        kind = norm or self.config.norm
        weight = self.param(f"{name}.weight")
        if kind.kind == "rms":
            return self.g.rms_norm(x, weight, eps=kind.eps)
        bias = self.param(f"{name}.bias") if kind.bias else None
        return self.g.layer_norm(x, weight, bias, eps=kind.eps)

    # -- positions ---------------------------------------------------------------------------------

    def angles(self, rope: Rope) -> tuple[Value, Value]:
        """Cosines and sines for each row and pair of features: float32 ``[N, features / 2]``."""
        if rope not in self._angles:
            g, rows = self.g, self.rows
            speeds = g.constant(frequencies(rope, rows.context))
            position = g.reshape(g.cast(rows.position, FLOAT32), (rows.count, 1))
            angles = position * speeds
            cos, sin = g.cos(angles), g.sin(angles)
            if (scale := magnitude(rope)) != 1:
                cos, sin = cos * scale, sin * scale
            self._angles[rope] = cos, sin
        return self._angles[rope]

    # -- states ------------------------------------------------------------------------------------

    def pool(self, name: str, shape: tuple[int, ...], dtype: DType) -> Value:
        """A state with a place for each token: ``[blocks, 64, *shape]``."""
        whole = (self.rows.blocks, BLOCK_TOKENS, *shape)
        return self._state(name, State(kind="block", shape=whole, dtype=dtype))

    def slots(self, name: str, shape: tuple[int, ...], dtype: DType = FLOAT32) -> Value:
        """A state with a value for each sequence: ``[sequences, *shape]``."""
        whole = (self.rows.sequences, *shape)
        return self._state(name, State(kind="slot", shape=whole, dtype=dtype))

    def _state(self, name: str, state: State) -> Value:
        self.states[name] = state
        return self.g.inout(name, state.shape, state.dtype)


class Block:
    """A layer of a graph in the making.

    Attributes:
        builder: of the graph.
        index: position of the layer.
        config: of the model.
        layer: of the layer.
        g: the graph.
    """

    def __init__(self, builder: Builder, index: int) -> None:
        self.builder, self.index = builder, index
        self.g, self.config = builder.g, builder.config
        self.layer: Layer = builder.config.layers[index]

    @property
    def rows(self) -> Rows:
        """The rows of the step."""
        return self.builder.rows

    def linear(self, x: Value, name: str, *, bias: bool = False) -> Value:
        """See :meth:`Builder.linear`; the name is that within the layer."""
        return self.builder.linear(x, f"{self.index}.{name}", bias=bias)

    def norm(self, x: Value, name: str, norm: Norm | None = None) -> Value:
        """See :meth:`Builder.norm`; the name is that within the layer."""
        return self.builder.norm(x, f"{self.index}.{name}", norm)

    def param(self, name: str) -> Value:
        """See :meth:`Builder.param`; the name is that within the layer."""
        return self.builder.param(f"{self.index}.{name}")

    def heads(self, x: Value, count: int) -> Value:
        """Rows ``[N, count * features]`` as ``[N, count, features]``."""
        features = x.shape[-1]
        assert isinstance(features, int)
        return self.g.reshape(x, (self.rows.count, count, features // count))

    def rotated(self, x: Value, rope: Rope | None = None) -> Value:
        """Heads ``[N, heads, features]`` turned by their positions, if the layer turns them."""
        rope = rope or self.layer.rope
        if rope is None:
            return x
        pairs = (self.rows.count, 1, rope.features // 2)
        cos, sin = (self.g.reshape(t, pairs) for t in self.builder.angles(rope))
        return self.g.rope(x, cos, sin, interleaved=rope.interleaved)

    def cached(self, name: str, new: Value, dtype: DType | None = None) -> Value:
        """A pool ``kv.{layer}.{name}`` with new rows ``[N, heads, features]`` written to it."""
        dims: Any = new.shape[1:]
        kept = dtype or self.rows.kv_dtype
        pool = self.builder.pool(f"kv.{self.index}.{name}", tuple(dims), kept)
        updated = self.g.scatter_nd(pool, self.rows.place, self.g.cast(new, kept))
        self.g.assign(pool, updated)
        return updated

    def slots(self, name: str, shape: tuple[int, ...]) -> Value:
        """A state ``state.{layer}.{name}`` with a value for each sequence, in float32."""
        return self.builder.slots(f"state.{self.index}.{name}", shape)

    def attend(self, q: Value, keys: Value, values: Value, *, sinks: Value | None = None) -> Value:
        """Attention of heads ``[N, heads, features]`` to the tokens of their sequence so far.

        Args:
            q: float32 queries.
            keys, values: pools; see :meth:`cached`.
            sinks: a score of each head that takes weight and adds nothing, float32 ``[heads]``.
        """
        config, rows = self.config, self.rows
        return self.g.paged_attention(
            q,
            keys,
            values,
            rows.table,
            rows.sequence,
            rows.position,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=self.layer.window,
            sinks=sinks,
        )
