"""The attention kernel: blocks of query rows against all keys, with an online softmax.

The query heads that share a key head are stacked, one below the other, into ``rows``: so keys and
values are brought into panels once for all of them. A work item is one block of those rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.attention_tiles import (
    BLOCK_KEYS,
    AttentionTiles,
    attention_gemm,
    scores_tile,
    values_tile,
)
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.lower.rules.attention_spec import (
    AttentionSpec,
    Queries,
    attention_spec,
)
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

    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
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

#: About 5 µs of one core's work.
_CHUNK_FLOPS = 500_000


@dataclass(frozen=True, eq=False)
class AttentionKernel(CpuKernel):
    """The kernel of attention.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra; the queries are in memory, affine in the axis that scores sum over.
        tiles: the tile sizes of the two matmuls.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: AttentionSpec
    tiles: AttentionTiles
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "attention"

    @property
    def q(self) -> Load:
        """The element of the queries."""
        assert isinstance(self.spec.q, Load)
        return self.spec.q

    # -- text and accesses --------------------------------------------------------------------

    def describe(self, text: KernelText) -> None:
        text.line(0, "attention")
        text.head(self.args)
        self.spec.describe_axes(text)
        text.line(1, f"{self.tiles}")
        self.spec.describe_elements(text)

    def accesses(self) -> Iterator[Access]:
        return self.spec.accesses()

    @property
    def row_axis(self) -> Symbol | None:
        known = all(isinstance(extent_of(symbol), int) for symbol in self.spec.batch)
        return (
            self.spec.batch[0]
            if self.spec.batch and known and isinstance(self.extent, int)
            else None
        )

    # -- how the work is cut ------------------------------------------------------------------

    @property
    def blocks(self) -> Dim:
        """Blocks of rows of one batch point."""
        return ceil_div(extent_of(self.spec.m), self.tiles.block)

    @property
    def extent(self) -> Dim:
        """The parallel range: batch points x blocks of rows."""
        return prod(extent_of(symbol) for symbol in self.spec.batch) * self.blocks

    @property
    def grain(self) -> int:
        """The number of consecutive items that are worth handing out together."""
        features = max_extent(self.spec.depth) + max_extent(self.spec.column)
        rows = min(self.tiles.block, max_extent(self.spec.m))
        return max(1, _CHUNK_FLOPS // max(1, 2 * rows * max_extent(self.spec.key) * features))

    @cached_property
    def score_gemm(self) -> Gemm:
        """The GEMM of query rows and one panel of keys, for its register tiles."""
        a = self.q.dtype, self.q.index
        spec = self.spec
        return attention_gemm(spec.m, spec.depth, spec.column, a, self.tiles.scores, spec.acc)

    @cached_property
    def value_gemm(self) -> Gemm:
        """The GEMM of rows of weights and one panel of values, over the keys at hand."""
        row, key = axis("row", self.tiles.block), axis("k", self.key_count)
        row_symbol, key_symbol = symbols_of((row, key))
        a = self.spec.acc, row * self.tiles.weight_pitch + key
        column, tile = self.spec.column, self.tiles.values
        return attention_gemm(row_symbol, key_symbol, column, a, tile, self.spec.acc)

    @cached_property
    def key_count(self) -> Dim:
        """Keys whose scores are held at a time: a number, or a symbol for what the code knows."""
        keys = extent_of(self.spec.key)
        if isinstance(keys, int) and not self.spec.causal and self.spec.window is None:
            if keys <= self.tiles.keys:
                return keys
            if keys % self.tiles.keys == 0:
                return self.tiles.keys
        return axis("keys", self.tiles.keys + 1)

    @property
    def single(self) -> bool:
        """Whether the scores of all keys are held at once: nothing is corrected later."""
        return max_extent(self.spec.key) <= self.tiles.keys

    @cached_property
    def key_strides(self) -> tuple[Dim, Dim] | None:
        """The offset of key 0 and the stride from key to key, if features are side by side."""
        if not isinstance(self.spec.k, Load) or self.spec.k.bindings:
            return None
        by_depth = coefficient(self.spec.k.index, self.spec.depth)
        if by_depth is None or by_depth[0] != 1:
            return None
        by_key = coefficient(by_depth[1], self.spec.key)
        if by_key is None or by_key[0] == 1:
            return None
        axes = {self.spec.key, self.spec.depth, *self.spec.batch}
        return None if symbols(by_key[0]) & axes else (by_key[1], by_key[0])

    @cached_property
    def value_pitch(self) -> int | None:
        """Elements from one key's values to the next, if register tiles read them in place.

        Copied to panels, values are near one another however often tiles go over them; tiles that
        go over them once or twice gain nothing by that.
        """
        rows, panel = self.tiles.values
        if (
            not isinstance(self.spec.v, Load)
            or self.spec.v.bindings
            or self.spec.v.dtype != self.spec.acc
        ):
            return None
        if self.tiles.features % panel or self.tiles.block > 2 * rows:
            return None
        by_column, by_key = (
            coefficient(self.spec.v.index, axis_) for axis_ in (self.spec.column, self.spec.key)
        )
        if by_column is None or by_key is None or by_column[0] != 1:
            return None
        return by_key[0] if isinstance(by_key[0], int) and by_key[0] > 0 else None

    def heights(self, rows: int) -> tuple[int, ...]:
        """Heights of register tiles of up to ``rows`` rows, greatest first, for any block's rows.

        Two of one height cover any number of rows between it and the next.
        """
        m = extent_of(self.spec.m)
        if isinstance(m, int):
            counts = {min(m, self.tiles.block), m % self.tiles.block}
            found = {min(count, rows) for count in counts}
        else:
            found = {rows, *(1 << bit for bit in range(rows.bit_length()))}
        return tuple(sorted(found - {0}, reverse=True)) or (rows,)

    @cached_property
    def scratch_layout(self) -> dict[str, int]:
        """Offsets in scratch memory: the ``offsets`` of the queries, and what all kernels have."""
        depth, offsets = max_extent(self.spec.depth), self.tiles.block * 8
        return self.tiles.scratch_layout(depth, self.spec.acc, offsets=offsets)

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
    scores = scores_tile(registers, acc, rows, k.shape[2])
    features = v.shape[3]
    assert isinstance(features, int)
    values = values_tile(registers, acc, rows, features)
    panels = max(1, -(-min(bounds(k.shape[2])[1], BLOCK_KEYS) // scores[1]))
    return AttentionTiles(scores, values, max(1, even), panels * scores[1], features)


def lower_attention(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around an ``attention`` node."""
    if not Queries(lowering.builder(region), root).in_place:
        lowering.copy(root.inputs[0])
    build = lowering.builder(region)
    result = lowering.only_transpose(root.outputs[0])
    outputs = [(result, lowering.placement.target(result))]
    spec = attention_spec(build, root, outputs)
    tiles = _attention_tiles(root, registers)
    kernel = AttentionKernel(build.args, spec, tiles, lowering.variables)
    lowering.call(region, build, kernel, outputs)
