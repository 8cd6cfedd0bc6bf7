"""The kernel of ``paged_attention``: runs of rows against keys and values in blocks of a pool.

Rows of one sequence that follow one another within a tile of rows are a *run*. Their query heads
that share a key head are stacked, one below the other: each key and value is read once for all of
them. Work items are a tile of rows and a key head, and of the runs in the tile every so many.

Keys come in *spans* of a known number of positions. Each has a softmax of its own, and those of a
row are merged in the order of positions. Where there are few rows, an item has every so many spans
of a run, which it leaves in memory, and a second kernel merges them: so one row keeps all threads
busy, with the bits of any other way.
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
from ostinato.backends.cpu.rules.spans import MANY_ROWS, SPAN, SpanMergeKernel, SpanRecords
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.kernel import Access
from ostinato.lower.loopir.nodes import Accumulator, Store, extent_of, max_extent
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.paged_attention_spec import is_in_place, paged_attention_spec
from ostinato.ops.paged_attention import scales_and_sinks
from ostinato.records import dataclass, replace
from ostinato.variables import (
    Dim,
    Expr,
    Symbol,
    axis,
    bounds,
    ceil_div,
    maximum,
    minimum,
    prod,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.paged_attention_spec import PagedAttentionSpec

__all__ = ["PagedAttentionKernel", "lower_paged_attention"]

#: Rows that are stacked at most: many enough that packing a panel of keys costs little next to its
#: matmuls.
_BLOCK_ROWS = 64

#: Work items that share the runs of a tile of rows, as when every row is of another sequence.
_SHARES = 4


@dataclass(frozen=True, eq=False)
class PagedAttentionKernel(CpuKernel):
    """The kernel of paged attention.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra.
        tiles: the tile sizes of the two matmuls; ``block`` counts stacked rows.
        records: of spans; ``None`` where no sequence has more than one.
        prefetches: whether each block of a pool is prefetched while the one before it is used.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: PagedAttentionSpec
    tiles: AttentionTiles
    records: SpanRecords | None
    prefetches: bool
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "paged_attention"

    # -- text and accesses --------------------------------------------------------------------

    def describe(self, text: KernelText) -> None:
        text.line(0, "paged attention")
        text.head(self.args)
        text.line(1, f"{self.tiles}, prefetches={self.prefetches}")
        if (records := self.records) is not None:
            where = "" if records.argument is None else f", apart in b{records.argument}"
            text.line(1, f"spans of {SPAN} of {text.dim(records.spans)}{where}")
        self.spec.describe(text)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        return self.spec.elements(position)

    def accesses(self) -> Iterator[Access]:
        yield from accesses_of_scalars(self.spec.operands)
        yield from accesses_of_statements((self.spec.store,))
        if self.records is not None and self.records.argument is not None:
            element = axis("record.element", prod(self.records.shape))
            yield Access(self.records.argument, element, writes=True)

    # -- how the work is cut ------------------------------------------------------------------

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.tiles.block // self.spec.group

    @property
    def items(self) -> tuple[Dim, Dim, Dim, int]:
        """The items that share the spans of a run, tiles of rows, those of its runs, key heads."""
        rows = extent_of(self.spec.row)
        shares = minimum(min(_SHARES, self.tile_rows), maximum(rows, 1))
        return self.parts, ceil_div(rows, self.tile_rows), shares, max_extent(self.spec.shared)

    @property
    def parts(self) -> Dim:
        """The items that share the spans of a run: one where there are many rows."""
        if self.records is None or self.records.argument is None:
            return 1
        return maximum(MANY_ROWS - extent_of(self.spec.row), 1)

    @property
    def extent(self) -> Dim:
        """The parallel range."""
        return prod(self.items) if self.tiles.features else 0

    # -- the two matmuls ----------------------------------------------------------------------

    @cached_property
    def score_gemm(self) -> Gemm:
        """The GEMM of stacked queries, copied to scratch memory, and a panel of keys."""
        row, depth = axis("m", self.tiles.block), axis("d", extent_of(self.spec.depth))
        row_symbol, depth_symbol = symbols_of((row, depth))
        a = self.spec.acc, row * max_extent(self.spec.depth) + depth
        tile = self.tiles.scores
        return attention_gemm(row_symbol, depth_symbol, self.spec.column, a, tile, self.spec.acc)

    @cached_property
    def value_gemm(self) -> Gemm:
        """The GEMM of rows of weights and a panel of values, over the keys at hand."""
        row, key = axis("m", self.tiles.block), axis("k", axis("keys", self.tiles.keys + 1))
        row_symbol, key_symbol = symbols_of((row, key))
        a = self.spec.acc, row * self.tiles.weight_pitch + key
        tile = self.tiles.values
        return attention_gemm(row_symbol, key_symbol, self.spec.column, a, tile, self.spec.acc)

    def heights(self, rows: int) -> tuple[int, ...]:
        """Heights of register tiles of up to ``rows`` rows, greatest first, for any count of them.

        Two of one height cover any number of rows between it and the next.
        """
        least = min(self.spec.group, rows)  # no run has fewer rows than a group
        found = {rows, least, *(1 << bit for bit in range(rows.bit_length()))}
        return tuple(sorted((height for height in found if height >= least), reverse=True))

    @cached_property
    def scratch_layout(self) -> dict[str, int]:
        """Offsets in scratch memory: the ``positions`` of rows, ``queries``, and what all have."""
        depth, rows = max_extent(self.spec.depth), self.tile_rows
        more = {"positions": rows * 8, "queries": self.tiles.block * depth * self.spec.acc.itemsize}
        if self.records is not None:
            more["merged"] = self.tiles.block * self.records.size * self.spec.acc.itemsize
        return self.tiles.scratch_layout(depth, self.spec.acc, **more)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.scratch_layout["end"]


def _tiles(node: Node, registers: RegisterFile) -> AttentionTiles:
    """The tile sizes of a ``paged_attention`` node's matmuls."""
    q, keys, values = node.inputs[:3]
    acc = q.dtype.accumulator
    heads, shared, features = q.shape[1], keys.shape[2], values.shape[3]
    assert isinstance(heads, int)
    assert isinstance(shared, int)
    assert isinstance(features, int)
    group = heads // shared
    most = max(1, bounds(q.shape[0])[1])
    rows = min(most, max(1, _BLOCK_ROWS // max(1, group))) * group
    some = minimum(q.shape[0] * group, rows) if not isinstance(q.shape[0], int) else rows
    return AttentionTiles(
        scores_tile(registers, acc, some, BLOCK_KEYS + 1),
        values_tile(registers, acc, some, features),
        max(1, rows),
        BLOCK_KEYS,
        features,
    )


def lower_paged_attention(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around a ``paged_attention`` node."""
    for pool in root.inputs[1:3]:
        if not is_in_place(lowering.builder(region), pool):
            lowering.copy(pool)
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    records = _records(root, registers)
    if records is None:
        kernel = _kernel(build, root, registers, lowering.variables, outputs, None)
        lowering.call(region, build, kernel, outputs)
        return
    buffer = LoweredBuffer(TensorType(records.acc, records.shape), Role.TEMP, f"{root.label}.spans")
    few = bounds(root.inputs[0].shape[0])[0] < MANY_ROWS - 1
    apart = replace(records, argument=build.argument(buffer, writes=True)) if few else records
    kernel = _kernel(build, root, registers, lowering.variables, outputs, apart)
    lowering.call(region, build, kernel, outputs)
    if few:
        merging = lowering.helper_builder()
        merge = _merge_kernel(merging, kernel, root, buffer, lowering.variables, outputs)
        lowering.helper_call(root, "merge_spans", merging, merge)


def _records(node: Node, registers: RegisterFile) -> SpanRecords | None:
    """The records of spans; ``None`` where a sequence has no more than one."""
    q, keys, values, table = node.inputs[:4]
    positions, shared, features = keys.shape[1], keys.shape[2], values.shape[3]
    length = table.shape[1] * positions
    if bounds(length)[1] <= SPAN or features == 0:
        return None
    assert isinstance(shared, int)
    heads, panel = q.shape[1], _tiles(node, registers).values[1]
    assert isinstance(heads, int)
    assert isinstance(features, int)
    whole = -(-features // panel) * panel
    acc = q.dtype.accumulator
    return SpanRecords(None, shared, ceil_div(length, SPAN), heads // shared, whole, acc)


def _merge_kernel(
    build: KernelBuilder,
    attention: PagedAttentionKernel,
    node: Node,
    buffer: LoweredBuffer,
    variables: tuple[Symbol, ...],
    outputs: Outputs,
) -> SpanMergeKernel:
    """The kernel that merges the spans that ``attention`` leaves in a buffer."""
    assert attention.records is not None
    spec = attention.spec
    records = replace(attention.records, argument=build.argument(buffer, reads=True))
    ((result, out),) = outputs
    target = build.argument(out, writes=True)
    sinks = scales_and_sinks(node.inputs)[1]
    row, shared, member = (Expr({(s,): 1}, 0) for s in (spec.row, spec.shared, spec.member))
    position = build.at(node.inputs[5], (row,))
    head = shared * spec.group + member
    sink = cast(build.at(sinks[0], (head,)), spec.acc) if sinks else None
    return SpanMergeKernel(
        args=build.args,
        row=spec.row,
        shared=spec.shared,
        member=spec.member,
        column=spec.column,
        page=spec.page,
        positions=max_extent(spec.place),
        position=position,
        sink=sink,
        window=spec.window,
        store=Store(target, spec.result_index(result), Accumulator(spec.acc)),
        records=records,
        lanes=attention.tiles.values[1],
        variables=variables,
    )


def _kernel(
    build: KernelBuilder,
    node: Node,
    registers: RegisterFile,
    variables: tuple[Symbol, ...],
    outputs: Outputs,
    records: SpanRecords | None,
) -> PagedAttentionKernel:
    """The kernel of a ``paged_attention`` node."""
    ((result, buffer),) = outputs
    spec = paged_attention_spec(build, node, result, buffer)
    return PagedAttentionKernel(
        args=build.args,
        spec=spec,
        tiles=_tiles(node, registers),
        records=records,
        prefetches=registers.prefetches,
        variables=variables,
    )
