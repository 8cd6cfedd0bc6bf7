"""The pieces that graphs of language models are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ostinato.dtypes import FLOAT32, INT8, INT32, DType
from ostinato.errors import InputError
from ostinato.llm.families.rope import frequencies, magnitude
from ostinato.ops.quant import by_magnitude
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.graph import Value
    from ostinato.llm.config import Layer, ModelConfig, Norm, Rope
    from ostinato.llm.weights import Weight
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = [
    "BLOCK_TOKENS",
    "Block",
    "BlockName",
    "Blocks",
    "Builder",
    "Rows",
    "State",
    "StepRows",
    "TextRows",
]

#: Tokens of a block of keys and values.
BLOCK_TOKENS: Final = 64

BlockName = Literal["block", "window"]
"""A kind of blocks: of all layers, or of those with a window where these have blocks apart."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A state of a model, which the graph updates in the memory of an array.

    Attributes:
        kind: ``block``: ``[blocks, 64, ...]``, with a place for each token; ``window``: the same
            of layers with a window that have blocks of their own; ``slot``: ``[sequences, ...]``, a
            value for each sequence.
        shape: of the whole, whose first size may be a Variable.
        dtype: of the elements.
    """

    kind: str
    shape: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The rows of a run: tokens of several texts, one below the other.

    Attributes:
        count: how many there are.
        position: of each in its text, int32 ``[N]``.
        context: the most tokens of a text.
    """

    count: Dim
    position: Value
    context: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Blocks:
    """The blocks of keys and values of layers that share a table.

    Attributes:
        kind: of the pools; see :class:`State`.
        count: in each pool.
        table: the blocks of each sequence, int32 ``[S, P]``.
        place: the block of each row and its position there, int32 ``[N, 2]``.
    """

    kind: BlockName
    count: Dim
    table: Value
    place: Value


@dataclass(frozen=True, eq=False, kw_only=True)
class StepRows(Rows):
    """The rows of a step, whose sequences go on from step to step.

    Attributes:
        sequence: of each, int32 ``[N]``.
        blocks: of layers without a window.
        window_blocks: of layers with one, which may be the same.
        sequences: at most.
        kv_dtype: of keys and values.
    """

    sequence: Value
    blocks: Blocks
    window_blocks: Blocks
    sequences: Dim
    kv_dtype: DType


@dataclass(frozen=True, eq=False, kw_only=True)
class TextRows(Rows):
    """The rows of whole texts, which attend to each other within a text.

    Attributes:
        texts: how many there are.
        length: tokens of the longest.
        grid: the rows of each text, int32 ``[texts, length]``; any row behind its end.
        size: tokens of each, int32 ``[texts]``.
        place: of each row in the grid, int32 ``[N]``.
    """

    texts: Dim
    length: Dim
    grid: Value
    size: Value
    place: Value


class Builder:
    """A graph in the making: its config, the weights as params, and its rows.

    Args:
        g: the graph.
        config: of the model.
        weights: by logical name; those that are used become params.
        rows: of a run; ``None`` for graphs without tokens.
        inputs: others that a family reads, by name.

    Attributes:
        states: those of the graph, by name.
        scales: by pool of int8, as it is after a write, the pool of its scales.
    """

    def __init__(
        self,
        g: Graph,
        config: ModelConfig,
        weights: Mapping[str, Weight],
        rows: Rows | None,
        inputs: Mapping[str, Value] | None = None,
    ) -> None:
        self.g, self.config = g, config
        self._inputs = inputs or {}
        self.states: dict[str, State] = {}
        self.scales: dict[Value, Value] = {}
        self._weights, self._rows = weights, rows
        self._params: dict[str, Value] = {}
        self._angles: dict[Rope, tuple[Value, Value]] = {}

    @property
    def tokens(self) -> Rows:
        """The rows of the run."""
        assert self._rows is not None, "a graph without tokens has none"
        return self._rows

    @property
    def rows(self) -> StepRows:
        """The rows of the step.

        Raises:
            InputError: the graph is of whole texts, without states.
        """
        if not isinstance(self._rows, StepRows):
            raise InputError(
                f"layers of {self.config.architecture!r} need states: it is no encoder"
            )
        return self._rows

    def given(self, name: str) -> Value:
        """An input of the graph that a family reads, such as the segment of each row."""
        return self._inputs[name]

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
        form, decoded = self.weight(matrix).format, self.weight(matrix).decoded
        w = self.param(matrix)
        if form is not None and decoded is not None:
            elements = self.g.dequantize_packed(w, form, self.weight(matrix).shape, decoded)
            columns = self.g.permute_dims(elements, (1, 0))
            result = self.g.widening_matmul(self.g.cast(x, decoded), columns)
        elif form is not None:
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
            g, rows = self.g, self.tokens
            speeds = g.constant(frequencies(rope, rows.context))
            position = g.reshape(g.cast(rows.position, FLOAT32), (rows.count, 1))
            angles = position * speeds
            cos, sin = g.cos(angles), g.sin(angles)
            if (scale := magnitude(rope)) != 1:
                cos, sin = cos * scale, sin * scale
            self._angles[rope] = cos, sin
        return self._angles[rope]

    # -- states ------------------------------------------------------------------------------------

    def pool(self, name: str, blocks: Blocks, shape: tuple[int, ...], dtype: DType) -> Value:
        """A state with a place for each token: ``[blocks, 64, *shape]``."""
        whole = (blocks.count, BLOCK_TOKENS, *shape)
        return self._state(name, State(kind=blocks.kind, shape=whole, dtype=dtype))

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
    def tokens(self) -> Rows:
        """The rows of the run."""
        return self.builder.tokens

    @property
    def rows(self) -> StepRows:
        """The rows of the step; see :attr:`Builder.rows`."""
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

    def format(self, name: str) -> str | None:
        """The format of a weight of the layer, if it is packed."""
        return self.builder.weight(f"{self.index}.{name}").format

    def heads(self, x: Value, count: int) -> Value:
        """Rows ``[N, count * features]`` as ``[N, count, features]``."""
        features = x.shape[-1]
        assert isinstance(features, int)
        return self.g.reshape(x, (self.tokens.count, count, features // count))

    def rotated(self, x: Value, rope: Rope | None = None) -> Value:
        """Heads ``[N, heads, features]`` turned by their positions, if the layer turns them."""
        rope = rope or self.layer.rope
        if rope is None:
            return x
        pairs = (self.tokens.count, 1, rope.features // 2)
        cos, sin = (self.g.reshape(t, pairs) for t in self.builder.angles(rope))
        return self.g.rope(x, cos, sin, interleaved=rope.interleaved)

    def cached(self, name: str, new: Value, dtype: DType | None = None) -> Value:
        """A pool ``kv.{layer}.{name}`` with new rows ``[N, heads, features]`` written to it.

        Rows of whole texts need no pool: they stay as they are. With pools of int8, each row of a
        head is rounded by its greatest magnitude, and its scale goes to a pool of its own.
        """
        if isinstance(self.tokens, TextRows):
            return new
        kept = dtype or self.rows.kv_dtype
        if kept != INT8:
            return self._written(name, new, kept)
        codes, scale = by_magnitude(self.g, self.g.cast(new, FLOAT32))
        updated = self._written(name, codes, INT8)
        factors = self.g.reshape(scale, tuple(scale.shape[:2]))
        self.builder.scales[updated] = self._written(f"{name}_scales", factors, FLOAT32)
        return updated

    @property
    def _blocks(self) -> Blocks:
        """The blocks of the layer's keys and values."""
        return self.rows.blocks if self.layer.window is None else self.rows.window_blocks

    def _written(self, name: str, new: Value, dtype: DType) -> Value:
        """A pool with new rows written to it."""
        dims: Any = new.shape[1:]
        pool = self.builder.pool(f"kv.{self.index}.{name}", self._blocks, tuple(dims), dtype)
        place = self._blocks.place
        updated = self.g.scatter_nd(pool, place, self.g.cast(new, dtype), unique=True)
        self.g.assign(pool, updated)
        return updated

    def slots(self, name: str, shape: tuple[int, ...]) -> Value:
        """A state ``state.{layer}.{name}`` with a value for each sequence, in float32."""
        return self.builder.slots(f"state.{self.index}.{name}", shape)

    def attend(self, q: Value, keys: Value, values: Value, *, sinks: Value | None = None) -> Value:
        """Attention of heads ``[N, heads, features]`` to the tokens of their sequence so far.

        Args:
            q: float32 queries.
            keys, values: pools; see :meth:`cached`. Values may be a part of the keys.
            sinks: a score of each head that takes weight and adds nothing, float32 ``[heads]``.
        """
        config = self.config
        if isinstance(self.tokens, TextRows):
            return text_attention(self, self.tokens, (q, keys, values), sinks)
        rows, scales = self.rows, self.builder.scales
        factors = scales.get(keys)
        return self.g.paged_attention(
            q,
            keys,
            values,
            self._blocks.table,
            rows.sequence,
            rows.position,
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=self.layer.window,
            sinks=sinks,
            key_scales=factors,
            value_scales=scales.get(values, factors),
        )


def text_attention(
    block: Block, rows: TextRows, heads: tuple[Value, Value, Value], sinks: Value | None
) -> Value:
    """Attention of rows ``[N, heads, features]`` within their texts.

    Texts stand side by side in a grid. What stands behind the end of one has no weight at all, and
    each begins at the front: so a text's sums are the same, whatever stands beside it.

    Args:
        block: the layer.
        rows: of the texts.
        heads: queries, keys and values.
        sinks: see :meth:`Block.attend`.
    """
    g, config, window = block.g, block.config, block.layer.window

    def spread(x: Value) -> Value:
        return g.permute_dims(g.take(x, rows.grid, axis=0), (0, 2, 1, 3))

    number = g.iota((rows.length,), dtype=INT32)
    key = g.reshape(number, (1, 1, 1, rows.length))
    seen = g.less(key, g.reshape(rows.size, (rows.texts, 1, 1, 1)))
    if window is not None or config.causal:
        query = g.reshape(number, (1, 1, rows.length, 1))
        if config.causal:
            seen = g.logical_and(seen, g.less_equal(key, query))
        if window is not None:
            seen = g.logical_and(seen, g.less(g.abs(query - key), window))
    if config.alibi is not None:
        slopes = g.constant(alibi_slopes(config.alibi, config.heads).reshape(1, -1, 1, 1))
        query = g.reshape(number, (1, 1, rows.length, 1))
        fall = g.cast(g.abs(query - key), FLOAT32) * slopes
        seen = g.where(seen, -fall, float("-inf"))
    q, k, v = (spread(x) for x in heads)
    options: dict[str, Any] = {"scale": config.attention_scale, "softcap": config.attention_softcap}
    mixed = g.attention(q, k, v, mask=seen, sinks=sinks, **options)
    count, features = heads[0].shape[1], heads[2].shape[2]
    flat = g.reshape(
        g.permute_dims(mixed, (0, 2, 1, 3)), (rows.texts * rows.length, count, features)
    )
    return g.take(flat, rows.place, axis=0)


def alibi_slopes(exponent: float, heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The factors of distances by which the scores of each head fall: float32 ``[heads]``.

    Of a number of heads that is no power of two, those beyond the last power have factors between
    the others' (ALiBi, arXiv 2108.12409).
    """
    whole = 1 << (heads.bit_length() - 1)
    powers = [-exponent * (head + 1) / whole for head in range(whole)]
    powers += [-exponent / 2 * (2 * head + 1) / whole for head in range(heads - whole)]
    return np.array([2.0**power for power in powers], np.float32)
