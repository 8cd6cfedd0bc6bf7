"""The attention kernel: blocks of query rows against all keys, with an online softmax.

The query heads that share a key head are stacked, one below the other, into ``rows``: so keys and
values are brought into panels once for all of them. A work item is one block of those rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.backends.cpu.rules.tiles import RegisterFile, tile_choices, tile_for
from ostinato.lower.loopir.builder import Outputs, cast, symbols_of
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.nodes import Accumulator, Load, Scalar, Store, extent_of, max_extent
from ostinato.lower.loopir.views import Indices, broadcast_index, linear_index, unravel
from ostinato.lower.rules.matmul_spec import separable
from ostinato.records import dataclass
from ostinato.variables import (
    Dim,
    Symbol,
    axis,
    bounds,
    ceil_div,
    coefficient,
    floor_div,
    minimum,
    prod,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["AttentionKernel", "AttentionTiles", "lower_attention"]

#: Rows of an item: many enough that packing a panel of keys costs little next to its matmuls.
_BLOCK_ROWS = 64

#: The same where there are so many rows that threads still find enough blocks: 3% faster with 512
#: keys, 5% with 1024.
_LARGE_BLOCK_ROWS, _MANY_ROWS = 128, 8192

#: Keys between two corrections of the sums: weights and values of so many stay in the second-level
#: cache.
_BLOCK_KEYS = 256

#: Rows up to which packing a panel of keys costs more than it saves.
_FEW_ROWS = 4

#: About 5 µs of one core's work.
_CHUNK_FLOPS = 500_000


@dataclass(frozen=True)
class AttentionTiles:
    """The tile sizes of the two matmuls of an attention kernel.

    Attributes:
        scores: rows and keys of the register tile of ``q @ k^T``.
        values: rows and features of the register tile of ``weights @ v``.
        block: rows of a work item.
        keys: keys whose scores are held at a time, a multiple of the scores' panel.
    """

    scores: tuple[int, int]
    values: tuple[int, int]
    block: int
    keys: int


@dataclass(frozen=True, eq=False)
class AttentionKernel(CpuKernel):
    """``softmax(masked(scale · q kᵀ)) v``.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: outer axes, outermost first: of the batch, of the key heads.
        m: the axis of query rows: every query head of the group, one below the other.
        key: the axis of keys.
        depth: the axis that scores sum over.
        column: the axis of the values' features.
        q: the element of the queries at ``batch``, ``m`` and ``depth``: affine in ``depth``.
        k: the element of the keys at ``batch``, ``key`` and ``depth``.
        v: the element of the values at ``batch``, ``key`` and ``column``.
        mask: at ``batch``, ``m`` and ``key``, true where a row attends to a key, or a number to
            add to the score; ``None`` where there is none.
        scale: a factor on the scores.
        softcap: see the op.
        length: positions of a query head: row ``m`` stands at ``m % length``.
        causal, window: see the op.
        store: over ``batch``, ``m`` and ``column``; ``Accumulator`` is the result.
        tiles: the tile sizes of the two matmuls.
        acc: the dtype of scores, weights and sums.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    batch: tuple[Symbol, ...]
    m: Symbol
    key: Symbol
    depth: Symbol
    column: Symbol
    q: Load
    k: Scalar
    v: Scalar
    mask: Scalar | None
    scale: float
    softcap: float | None
    length: Dim
    causal: bool
    window: int | None
    store: Store
    tiles: AttentionTiles
    acc: DType
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "attention"

    # -- text and accesses --------------------------------------------------------------------

    def describe(self, text: KernelText) -> None:
        text.line(0, "attention")
        text.head(self.args)
        for symbol in self.batch:
            text.line(1, f"for {text.axis(symbol)}")
        text.line(1, f"rows {text.axis(self.m)}, heads of {text.dim(self.length)}")
        text.line(1, f"keys {text.axis(self.key)}")
        text.line(1, f"sum over {text.axis(self.depth)}")
        text.line(1, f"columns {text.axis(self.column)}")
        text.line(1, f"{self.tiles}")
        text.named("q", [self.q])
        text.named("k", [self.k])
        text.named("v", [self.v])
        if self.mask is not None:
            text.named("mask", [self.mask])
        text.line(1, f"accumulate {self.acc.short}, scale={self.scale!r}")
        options = f"softcap={self.softcap!r}, causal={self.causal}, window={self.window}"
        text.line(1, options)
        text.statement(self.store)

    def accesses(self) -> Iterator[Access]:
        operands = (self.q, self.k, self.v, self.mask)
        yield from accesses_of_scalars(scalar for scalar in operands if scalar is not None)
        yield from accesses_of_statements((self.store,))

    @property
    def row_axis(self) -> Symbol | None:
        known = all(isinstance(extent_of(symbol), int) for symbol in self.batch)
        return self.batch[0] if self.batch and known and isinstance(self.extent, int) else None

    # -- how the work is cut ------------------------------------------------------------------

    @property
    def blocks(self) -> Dim:
        """Blocks of rows of one batch point."""
        return ceil_div(extent_of(self.m), self.tiles.block)

    @property
    def extent(self) -> Dim:
        """The parallel range: batch points x blocks of rows."""
        return prod(extent_of(symbol) for symbol in self.batch) * self.blocks

    @property
    def grain(self) -> int:
        """The number of consecutive items that are worth handing out together."""
        features = max_extent(self.depth) + max_extent(self.column)
        rows = min(self.tiles.block, max_extent(self.m))
        return max(1, _CHUNK_FLOPS // max(1, 2 * rows * max_extent(self.key) * features))

    @cached_property
    def score_gemm(self) -> Gemm:
        """The GEMM of query rows and one panel of keys, for its register tiles."""
        rows, panel = self.tiles.scores
        return self._gemm(self.m, self.depth, self.q.dtype, self.q.index, rows, panel)

    @cached_property
    def value_gemm(self) -> Gemm:
        """The GEMM of rows of weights and one panel of values, over the keys at hand."""
        rows, panel = self.tiles.values
        row, key = axis("row", self.tiles.block), axis("k", self.key_count)
        row_symbol, key_symbol = symbols_of((row, key))
        index = row * self.weight_pitch + key
        return self._gemm(row_symbol, key_symbol, self.acc, index, rows, panel)

    @cached_property
    def key_count(self) -> Dim:
        """Keys whose scores are held at a time: a number, or a symbol for what the code knows."""
        keys = extent_of(self.key)
        if isinstance(keys, int) and not self.causal and self.window is None:
            if keys <= self.tiles.keys:
                return keys
            if keys % self.tiles.keys == 0:
                return self.tiles.keys
        return axis("keys", self.tiles.keys + 1)

    @property
    def single(self) -> bool:
        """Whether the scores of all keys are held at once: nothing is corrected later."""
        return max_extent(self.key) <= self.tiles.keys

    @cached_property
    def key_strides(self) -> tuple[Dim, Dim] | None:
        """The offset of key 0 and the stride from key to key, if features are side by side."""
        if not isinstance(self.k, Load) or self.k.bindings:
            return None
        by_depth = coefficient(self.k.index, self.depth)
        if by_depth is None or by_depth[0] != 1:
            return None
        by_key = coefficient(by_depth[1], self.key)
        if by_key is None or by_key[0] == 1:
            return None
        axes = {self.key, self.depth, *self.batch}
        return None if symbols(by_key[0]) & axes else (by_key[1], by_key[0])

    @property
    def by_dot_products(self) -> bool:
        """Whether each score is a dot product along vectors of features, without packed panels.

        For a few rows at a time, as when tokens are generated, packing would cost more.
        """
        side_by_side = coefficient(self.q.index, self.depth)
        few = self.tiles.block <= _FEW_ROWS and self.key_strides is not None
        return few and side_by_side is not None and side_by_side[0] == 1

    @cached_property
    def value_pitch(self) -> int | None:
        """Elements from one key's values to the next, if register tiles read them in place.

        Copied to panels, values are near one another however often tiles go over them; tiles that
        go over them once or twice gain nothing by that.
        """
        rows, panel = self.tiles.values
        if not isinstance(self.v, Load) or self.v.bindings or self.v.dtype != self.acc:
            return None
        if self.features % panel or self.tiles.block > 2 * rows:
            return None
        by_column, by_key = (coefficient(self.v.index, axis_) for axis_ in (self.column, self.key))
        if by_column is None or by_key is None or by_column[0] != 1:
            return None
        return by_key[0] if isinstance(by_key[0], int) and by_key[0] > 0 else None

    def heights(self, rows: int) -> tuple[int, ...]:
        """Heights of register tiles of up to ``rows`` rows, greatest first, for any block's rows.

        Two of one height cover any number of rows between it and the next.
        """
        m = extent_of(self.m)
        if isinstance(m, int):
            counts = {min(m, self.tiles.block), m % self.tiles.block}
            found = {min(count, rows) for count in counts}
        else:
            found = {rows, *(1 << bit for bit in range(rows.bit_length()))}
        return tuple(sorted(found - {0}, reverse=True)) or (rows,)

    def _gemm(
        self, row: Symbol, inner: Symbol, dtype: DType, index: Dim, rows: int, panel: int
    ) -> Gemm:
        return Gemm(
            args=(),
            batch=(),
            m=row,
            n=self.column,
            k=(inner,),
            a=0,
            a_dtype=dtype,
            a_index=index,
            b=0,
            b_group=0,
            panel=panel,
            rows=rows,
            acc=self.acc,
            epilogue=(),
        )

    # -- scratch memory -----------------------------------------------------------------------

    @property
    def value_panels(self) -> int:
        """Panels of the values' features."""
        return -(-self.features // self.tiles.values[1])

    @property
    def features(self) -> int:
        """The values' features."""
        extent = extent_of(self.column)
        assert isinstance(extent, int)
        return extent

    @property
    def weight_pitch(self) -> int:
        """Elements from one row of weights to the next: no power of two, for the cache's sake."""
        return self.tiles.keys + self.tiles.scores[1]

    @cached_property
    def scratch_layout(self) -> dict[str, int]:
        """Offsets in scratch memory, in bytes; ``end`` is its size.

        By row: ``offsets`` of the queries, the ``greatest`` score so far in each lane, the
        ``shift`` that was taken off the scores last, the ``total`` of the weights, and the
        ``correction`` of sums made with the shift before. Then a packed panel of ``keys``, its
        ``scores``, the ``weights`` of all keys at hand, a packed panel of ``values``, the ``sums``
        of each panel, and those of the ``last`` keys.
        """
        tiles, item = self.tiles, self.acc.itemsize
        parts = {
            "offsets": tiles.block * 8,
            "greatest": tiles.block * 64,
            "shift": tiles.block * item,
            "total": tiles.block * item,
            "correction": tiles.block * item,
            "keys": max_extent(self.depth) * tiles.scores[1] * item,
            "scores": tiles.block * tiles.scores[1] * item,
            "weights": tiles.block * self.weight_pitch * item,
            "values": tiles.keys * tiles.values[1] * item,
            "sums": self.value_panels * tiles.block * tiles.values[1] * item,
            "last": tiles.block * tiles.values[1] * item,
        }
        layout, offset = {}, 0
        for name, size in parts.items():
            layout[name] = offset
            offset += -(-size // 64) * 64
        return layout | {"end": offset}

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.scratch_layout["end"]


def _attention_tiles(node: Node, registers: RegisterFile) -> AttentionTiles:
    """The tile sizes of an ``attention`` node's matmuls."""
    q, k, v = node.inputs[:3]
    acc = q.dtype.accumulator
    group = floor_div(q.shape[1], k.shape[1])
    most = bounds(group * q.shape[2])[1]
    all_rows = bounds(q.shape[0] * k.shape[1])[1] * most
    high = _LARGE_BLOCK_ROWS if all_rows >= _MANY_ROWS else _BLOCK_ROWS
    even = -(-most // max(1, -(-most // high)))
    rows = minimum(group * q.shape[2], even)
    keys = minimum(k.shape[2], _BLOCK_KEYS)
    scores = tile_for(registers.vector_bytes, registers.count, acc, rows, keys)
    values = _value_tile(registers, acc, rows, v.shape[3])
    panels = max(1, -(-bounds(keys)[1] // scores[1]))
    return AttentionTiles(scores, values, max(1, even), panels * scores[1])


def _value_tile(registers: RegisterFile, acc: DType, rows: Dim, features: Dim) -> tuple[int, int]:
    """The tile for the values: a fast one that leaves no features over, so that none are copied."""
    every = tile_choices(registers.vector_bytes, registers.count, acc, rows, features)
    choices = every[:8]
    even = (tile for tile in choices if isinstance(features, int) and features % tile[1] == 0)
    return next(even, choices[0])


class _Queries:
    """The axes of an ``attention`` node's kernel, and how it reads the queries."""

    def __init__(self, build: KernelBuilder, node: Node) -> None:
        q, k = node.inputs[:2]
        self.group = floor_div(q.shape[1], k.shape[1])
        self.length = q.shape[2]
        self.batch = build.axes((q.shape[0], k.shape[1]))
        self.m, self.depth = axis("m", self.group * self.length), axis("d", q.shape[3])
        self.element = build.at(q, (*self.place, self.depth))

    @property
    def place(self) -> Indices:
        """The batch, the query head and the position of a row."""
        image, key_head = self.batch
        head, position = unravel((self.group, self.length), self.m)
        return image, key_head * self.group + head, position

    @property
    def in_place(self) -> bool:
        """Whether the queries are in memory in a form that the kernel can walk."""
        element = self.element
        if not isinstance(element, Load) or element.bindings:
            return False
        return separable(element.index, symbols_of([self.depth]))


def _attention_kernel(
    build: KernelBuilder,
    node: Node,
    tiles: AttentionTiles,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
) -> AttentionKernel:
    """The kernel of an ``attention`` node whose queries are :attr:`_Queries.in_place`.

    Args:
        outputs: what to store: the node's result, or a transpose of it.
    """
    q, k, v, *mask = node.inputs
    acc, attrs = q.dtype.accumulator, node.attrs
    queries = _Queries(build, node)
    element = queries.element
    assert isinstance(element, Load)
    key, column = axis("key", k.shape[2]), axis("n", v.shape[3])
    ((result, buffer),) = outputs
    at: Indices = (*queries.place, column)
    if result.node is not node:
        at = tuple(at[axis_] for axis_ in result.node.attrs["axes"])
    target = build.argument(buffer, writes=True)
    m_symbol, key_symbol, depth_symbol, column_symbol = symbols_of(
        (queries.m, key, queries.depth, column)
    )
    depth = q.shape[3]
    assert isinstance(depth, int)
    scale = 1.0 / math.sqrt(depth) if attrs["scale"] is None else float(attrs["scale"])
    k_element = build.at(k, (*queries.batch, key, queries.depth))
    v_element = build.at(v, (*queries.batch, key, column))
    mask_element = _mask(build, mask[0], (*queries.place, key), acc) if mask else None
    return AttentionKernel(
        build.args,
        symbols_of(queries.batch),
        m_symbol,
        key_symbol,
        depth_symbol,
        column_symbol,
        element,
        k_element,
        v_element,
        mask_element,
        scale,
        attrs["softcap"],
        queries.length,
        attrs["causal"],
        attrs["window"],
        Store(target, linear_index(result.shape, at), Accumulator(acc)),
        tiles,
        acc,
        variables,
    )


def _mask(build: KernelBuilder, mask: Value, at: Indices, acc: DType) -> Scalar:
    element = build.at(mask, broadcast_index(mask.shape, at))
    return element if mask.dtype.is_bool else cast(element, acc)


def lower_attention(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around an ``attention`` node."""
    if not _Queries(lowering.builder(region), root).in_place:
        lowering.copy(root.inputs[0])
    tiles = _attention_tiles(root, registers)
    build = lowering.builder(region)
    result = _only_view(lowering, root.outputs[0])
    outputs = [(result, lowering.placement.target(result))]
    kernel = _attention_kernel(build, root, tiles, outputs, lowering.variables)
    lowering.call(region, build, kernel, outputs)


def _only_view(lowering: ProgramBuilder, value: Value) -> Value:
    """The transpose of ``value`` that is all that anything reads of it, else ``value``.

    Stored in its place, it is in the order in which the next kernel goes over it.
    """
    readers = {node for node in lowering.nodes if value in node.inputs}
    if len(readers) == 1 and value not in lowering.graph.results():
        (reader,) = readers
        if reader.op.name == "permute_dims":
            return reader.outputs[0]
    return value
