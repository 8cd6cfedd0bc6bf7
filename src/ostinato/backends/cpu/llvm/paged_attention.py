"""Rendering a kernel of :mod:`ostinato.backends.cpu.rules.paged_attention` as LLVM IR.

A work item finds the runs of its tile of rows. For each, it copies the queries into scratch memory,
scaled, and goes over the keys that rows of the run attend to, as many at a time as scratch memory
has room for, from a position that is a multiple of that number: keys are transposed into panels,
register tiles multiply the queries with them, scores become weights, and values are copied for the
register tiles that sum them up by weight. The pools are read where they are, through the table.
Each span of keys has a softmax of its own; an item merges those of its runs, or leaves some of them
as records to :mod:`~ostinato.backends.cpu.llvm.span_merge`.

Which keys come together depends on their positions alone, so a row has the same bits in any run.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.expressions import enter_point, expression_scalars
from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
    stack_slot,
)
from ostinato.backends.cpu.llvm.key_panels import first_lanes, pack_keys
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, where
from ostinato.backends.cpu.llvm.memory import address, prefetch, splat, store
from ostinato.backends.cpu.llvm.microkernel import tile_dims
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.online_softmax import OnlineSoftmax
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.span_records import RecordMemory
from ostinato.backends.cpu.llvm.tiles import Tiles
from ostinato.backends.cpu.llvm.transpose import square_size
from ostinato.backends.cpu.llvm.types import I1, I8, I64
from ostinato.backends.cpu.rules.spans import SPAN
from ostinato.dtypes import BOOL, INT64
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Load, Scalar, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import Expr, Symbol, axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.paged_attention import PagedAttentionKernel

__all__ = ["render"]

_XP = LaneNamespace()

#: Bytes of a cache line.
_LINE = 64

#: Positions of a block from which the time that they take is enough for the next to arrive.
_FEWEST_AHEAD = 32


def render(attention: PagedAttentionKernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`PagedAttentionKernel.scratch_bytes` of scratch.
    """
    return kernel_module(attention, name, target, lambda k: _Renderer(attention, name, k).render())


@dataclass(frozen=True)
class _Run:
    """Rows of one sequence: their scope, the first, how many, and the reach of their positions.

    Attributes:
        scope: knows the sequence and the key head.
        first: the first row.
        rows: how many there are.
        stacked: how many there are of all query heads, one below the other.
        lowest, highest: the ends of their positions.
        oldest: the first position that one of them attends to.
    """

    scope: Scope
    first: ir.Value
    rows: ir.Value
    stacked: ir.Value
    lowest: ir.Value
    highest: ir.Value
    oldest: ir.Value


class _Renderer:
    def __init__(self, attention: PagedAttentionKernel, name: str, kernel: KernelFunction) -> None:
        self.attention, self.spec = attention, attention.spec
        self.kernel = kernel
        self.builder = kernel.builder
        self.acc = attention.spec.acc
        self.scalars = expression_scalars(kernel, attention.args, attention.spec.operands)
        self.indices = self.scalars.indices
        self.scratch = {
            part: kernel.builder.gep(kernel.scratch, [I64(start)], source_etype=I8)
            for part, start in attention.scratch_layout.items()
            if part != "end"
        }
        scores, values = attention.score_gemm, attention.value_gemm
        heights = attention.heights(scores.rows)
        self.score_tiles = Tiles(kernel, f"{name}.scores", scores, heights)
        value_tiles = Tiles(kernel, f"{name}.values", values, attention.heights(values.rows))
        self.softmax = OnlineSoftmax(
            kernel, attention.tiles, (scores, values), value_tiles, self.scratch, single=False
        )

    def render(self) -> None:
        attention, b = self.attention, self.builder
        outermost = Scope(symbols=dict(self.kernel.variables))
        names = ("part", "tile", "share", "shared")
        axes = [axis(name, size) for name, size in zip(names, attention.items, strict=True)]
        part, tile, share, _ = symbols_of(axes)
        parallel_axes = [(s, extent_of(s)) for s in (part, tile, share, self.spec.shared)]

        def item(step: ir.Value) -> None:
            scope = enter_point(self.scalars, outermost, parallel_axes, step)
            self._item(scope, *(scope.symbols[symbol] for symbol in (part, tile, share)))

        counted_loop(b, self.kernel.begin, self.kernel.end, 1, item, name="item")
        b.ret_void()

    # -- runs -------------------------------------------------------------------------------

    def _item(self, scope: Scope, part: ir.Value, tile: ir.Value, share: ir.Value) -> None:
        """Compute every so many of the runs of a tile, or a part of their spans."""
        attention, spec, b = self.attention, self.spec, self.builder
        size, shares = I64(attention.tile_rows), self.indices.scalar(attention.items[2], scope)
        first = b.mul(tile, size)
        every = self.indices.scalar(extent_of(spec.row), scope)
        end = self._least(b.add(first, size), every)
        begun = stack_slot(b, I64)
        b.store(I64(0), begun)

        def row(number: ir.Value) -> None:
            before = self._greatest(b.sub(number, I64(1)), first)
            own, other = (self._number(spec.sequence, scope, r) for r in (number, before))
            begins = b.or_(b.icmp_signed("==", number, first), b.icmp_signed("!=", own, other))
            with b.if_then(begins):
                count = b.load(begun, typ=I64)
                b.store(b.add(count, I64(1)), begun)
                with b.if_then(b.icmp_signed("==", b.urem(count, shares), share)):
                    self._attend(self._run(scope, number, end, own), part)

        counted_loop(b, first, end, 1, row, name="row")

    def _run(self, scope: Scope, first: ir.Value, end: ir.Value, sequence: ir.Value) -> _Run:
        """The run from row ``first`` on; notes the positions of its rows."""
        spec, b = self.spec, self.builder
        positions = max_extent(spec.place)
        length = b.mul(self.indices.scalar(extent_of(spec.page), scope), I64(positions))
        last = b.sub(length, I64(1))
        rows, lowest, highest = (stack_slot(b, I64) for _ in range(3))
        goes_on = stack_slot(b, I1)
        for slot, value in ((rows, I64(0)), (lowest, last), (highest, I64(-1)), (goes_on, I1(1))):
            b.store(value, slot)

        def row(number: ir.Value) -> None:
            same = b.icmp_signed("==", self._number(spec.sequence, scope, number), sequence)
            same = b.and_(same, b.load(goes_on, typ=I1))
            b.store(same, goes_on)
            with b.if_then(same):
                position = self._least(self._number(spec.position, scope, number), last)
                place = b.sub(number, first)
                b.store(position, address(b, self.scratch["positions"], INT64, place))
                b.store(self._least(position, b.load(lowest, typ=I64)), lowest)
                b.store(self._greatest(position, b.load(highest, typ=I64)), highest)
                b.store(b.add(place, I64(1)), rows)

        counted_loop(b, first, end, 1, row, name="member")
        owner = self._clamped(sequence, self.indices.scalar(extent_of(spec.owner), scope))
        count, low = b.load(rows, typ=I64), b.load(lowest, typ=I64)
        oldest: ir.Value = I64(0)
        if spec.window is not None:
            oldest = self._greatest(b.sub(low, I64(spec.window - 1)), oldest)
        return _Run(
            scope.child(symbols={spec.owner: owner}),
            first,
            count,
            b.mul(count, I64(spec.group)),
            low,
            b.load(highest, typ=I64),
            oldest,
        )

    def _attend(self, run: _Run, part: ir.Value) -> None:
        """Compute a run, or the spans of it that are a part."""
        attention, b = self.attention, self.builder
        start = b.sub(run.oldest, b.urem(run.oldest, I64(attention.tiles.keys)))
        stop = b.add(run.highest, I64(1))
        if attention.records is None:
            self._begin(run, run.oldest)
            self._blocks(run, start, stop)
            self._finish(run)
            return
        first = b.udiv(start, I64(SPAN))
        count = b.sub(b.udiv(b.add(stop, I64(SPAN - 1)), I64(SPAN)), first)
        first_part = b.icmp_signed("==", part, I64(0))
        with b.if_then(b.or_(first_part, b.icmp_signed("<", part, count))):
            own = b.mul(b.add(first, part), I64(SPAN))
            self._begin(run, self._greatest(own, run.oldest))
            self._spans(run, part, (first, count), (start, stop))

    def _begin(self, run: _Run, oldest: ir.Value) -> None:
        """Prepare the queries and the softmax of a run, for keys from ``oldest`` on."""
        self._prefetch_first(run, oldest)
        self._copy_queries(run)
        self.softmax.start(run.stacked)

    def _blocks(self, run: _Run, start: ir.Value, stop: ir.Value) -> None:
        """Go over the keys from ``start`` to ``stop``, as many at a time as there is room for."""
        most = self.attention.tiles.keys

        def keys(first: ir.Value) -> None:
            left = self.builder.sub(stop, first)
            self._keys(run, first, self._least(left, I64(most)))

        counted_loop(self.builder, start, stop, most, keys, name="keys")

    def _spans(
        self,
        run: _Run,
        part: ir.Value,
        spans: tuple[ir.Value, ir.Value],
        keys: tuple[ir.Value, ir.Value],
    ) -> None:
        """Go over the spans of a run: all of them, or those of a part.

        Args:
            spans: the first, and how many there are.
            keys: the first, and the end of the last.
        """
        attention, b, softmax = self.attention, self.builder, self.softmax
        (first, count), (start, stop) = spans, keys
        records = attention.records
        assert records is not None
        memory = RecordMemory(b, records, softmax.value_lanes)
        parts = self.indices.scalar(attention.parts, run.scope)
        apart = b.icmp_signed(">", parts, I64(1))
        several = b.and_(b.not_(apart), b.icmp_signed(">", count, I64(1)))
        merged = partial(memory.at, self.scratch["merged"])
        with b.if_then(several):
            softmax.for_rows(run.stacked, lambda row: memory.start(merged(row)))

        def span(step: ir.Value) -> None:
            number = b.add(first, b.add(part, b.mul(step, parts)))
            begin = b.mul(number, I64(SPAN))
            softmax.start(run.stacked)
            end = self._least(b.add(begin, I64(SPAN)), stop)
            self._blocks(run, self._greatest(begin, start), end)
            if records.argument is not None:
                with b.if_then(apart):
                    self._leave(run, memory, self.kernel.buffers[records.argument], number)
            with b.if_then(several):
                softmax.for_rows(
                    run.stacked, lambda row: softmax.merge_into(row, memory, merged(row))
                )

        own = b.udiv(b.add(b.sub(count, part), b.sub(parts, I64(1))), parts)
        counted_loop(b, I64(0), own, 1, span, name="span")
        with b.if_then(several):
            softmax.for_rows(run.stacked, lambda row: softmax.take(row, memory, merged(row)))
        with b.if_then(b.not_(apart)):
            self._finish(run)

    def _leave(self, run: _Run, memory: RecordMemory, base: ir.Value, span: ir.Value) -> None:
        """Leave the records of a span in memory."""
        spec, b = self.spec, self.builder
        heads, spans = memory.records.shared, self.indices.scalar(memory.records.spans, run.scope)
        shared = self.indices.scalar(Expr({(spec.shared,): 1}, 0), run.scope)

        def record(row: ir.Value, member: ir.Value, stacked: ir.Value) -> None:
            place = b.add(b.mul(b.add(run.first, row), I64(heads)), shared)
            place = b.add(b.mul(place, spans), span)
            place = b.add(b.mul(place, I64(spec.group)), member)
            self.softmax.leave(stacked, memory, memory.at(base, place))

        self._for_stacked(run, record)

    def _for_stacked(self, run: _Run, body: Callable[[ir.Value, ir.Value, ir.Value], None]) -> None:
        """Run ``body`` for each row and query head: a row of the run, a head, their stacked row."""
        b, group = self.builder, self.spec.group

        def row(number: ir.Value) -> None:
            def head(member: ir.Value) -> None:
                body(number, member, b.add(b.mul(number, I64(group)), member))

            counted_loop(b, I64(0), I64(group), 1, head, trips=group, name="head")

        counted_loop(b, I64(0), run.rows, 1, row, name="row")

    def _copy_queries(self, run: _Run) -> None:
        """Copy the queries of a run, scaled, into scratch memory."""
        spec, b = self.spec, self.builder
        depth, width = max_extent(spec.depth), self.softmax.score_lanes

        def query(row: ir.Value, member: ir.Value, stacked: ir.Value) -> None:
            symbols = {spec.row: b.add(run.first, row), spec.member: member}
            scope = run.scope.child(symbols=symbols)
            for start, vector in self._vectors(scope, spec.depth, width):
                lane = broadcast(self.scalars.value(spec.q, vector), width)
                lane = lane * spec.scale
                place = b.add(b.mul(stacked, I64(depth)), I64(start))
                mask = None if vector.mask is None else vector.mask.value
                store(b, self.scratch["queries"], self.acc, place, lane, mask)

        self._for_stacked(run, query)

    # -- keys -------------------------------------------------------------------------------

    def _keys(self, run: _Run, first: ir.Value, count: ir.Value) -> None:
        """Add what ``count`` keys from ``first`` on contribute to the sums of a run."""
        attention, b = self.attention, self.builder

        def panel(at: ir.Value) -> None:
            self._scores(run, first, at, b.sub(count, at))

        counted_loop(b, I64(0), count, attention.tiles.scores[1], panel, name="panel")
        self.softmax.for_rows(run.stacked, lambda row: self.softmax.weigh(row, count))
        for number in range(attention.tiles.value_panels):
            self._pack_values(run, first, count, number)
            self.softmax.add_values(run.stacked, count, number, self.scratch["values"])

    def _scores(self, run: _Run, first: ir.Value, at: ir.Value, left: ir.Value) -> None:
        """The scores of the panel of keys from ``at`` on, among those from ``first`` on."""
        attention, spec, b = self.attention, self.spec, self.builder
        size, depth = attention.tiles.scores[1], max_extent(spec.depth)
        begin = b.add(first, at)
        self._pack_keys(run, begin, self._least(left, I64(size)))
        dims = [self.indices.scalar(dim, run.scope) for dim in tile_dims(attention.score_gemm)]

        def arguments(row: ir.Value) -> list[ir.Value]:
            queries = address(b, self.scratch["queries"], self.acc, b.mul(row, I64(depth)))
            out = address(b, self.scratch["scores"], self.acc, b.mul(row, I64(size)))
            return [queries, queries, self.scratch["keys"], out, *dims]

        self.score_tiles.cover(run.stacked, arguments)
        whole = b.icmp_signed("<", b.add(begin, I64(size - 1)), b.add(run.lowest, I64(1)))
        if spec.window is not None:
            beyond = b.sub(run.highest, I64(spec.window))
            whole = b.and_(whole, b.icmp_signed(">", begin, beyond))
        with b.if_else(whole) as (all_keys, some_keys):
            with all_keys:
                self._row_scores(run, begin, at, masked=False)
            with some_keys:
                self._row_scores(run, begin, at, masked=True)

    def _row_scores(self, run: _Run, begin: ir.Value, at: ir.Value, *, masked: bool) -> None:
        """Take up the scores of a panel, minus infinity where a row does not attend to a key.

        Args:
            begin: the position of its first key.
            at: its place among the keys at hand.
            masked: whether there may be such rows and keys.
        """
        b, width = self.builder, self.softmax.score_lanes

        def row(number: ir.Value, _: ir.Value, stacked: ir.Value) -> None:
            position = b.load(address(b, self.scratch["positions"], INT64, number), typ=I64)
            ahead = b.sub(position, begin)

            def score(within: int, product: Lane) -> Lane:
                limited = self._limited(product)
                if not masked:
                    return limited
                flags = self._attends(b.sub(ahead, I64(within)), width)
                return where(Lane(b, flags, BOOL, width), limited, -math.inf)

            self.softmax.scores(stacked, at, score)

        self._for_stacked(run, row)

    def _attends(self, ahead: ir.Value, width: int) -> ir.Value:
        """A flag for each of the keys from the one on that a row is ``ahead`` of."""
        b, window = self.builder, self.spec.window
        flags = first_lanes(b, b.add(ahead, I64(1)), width)
        if window is None:
            return flags
        outside = first_lanes(b, b.sub(ahead, I64(window - 1)), width)
        return b.and_(flags, b.not_(outside))

    def _limited(self, score: Lane) -> Lane:
        softcap = self.spec.softcap
        return score if softcap is None else _XP.tanh(score / softcap) * softcap

    def _pack_keys(self, run: _Run, begin: ir.Value, count: ir.Value) -> None:
        """Transpose keys into a panel; the last stands in for those that fill up a square."""
        attention, spec, b = self.attention, self.spec, self.builder
        size, depth = attention.tiles.scores[1], max_extent(spec.depth)
        side = min(square_size(size), self.softmax.score_lanes)
        positions = max_extent(spec.place)
        last = b.add(begin, b.sub(count, I64(1)))

        def square(within: ir.Value) -> None:
            start = b.add(begin, within)
            page = following = None
            if positions % side == 0:
                at = b.udiv(start, I64(positions))
                page, following = self._page(run, at), self._following(run, at)
            keys, scales = [], []
            for number in range(side):
                key = self._least(b.add(start, I64(number)), last)
                scope = self._key(run, key, page)
                k = spec.k
                keys.append(self.scalars.address(k.buffer, k.dtype, k.index, scope))
                if spec.k_scale is not None:
                    scales.append(self.scalars.value(spec.k_scale, scope))
                if following is not None:
                    place = b.urem(b.add(start, I64(number)), I64(positions))
                    self._prefetch(following, spec.k, spec.depth, place)
            panel = self.scratch["keys"], size, self.acc
            pack_keys(b, keys, spec.k.dtype, depth, panel, within, scales)

        counted_loop(b, I64(0), count, side, square, name="square")

    def _key(self, run: _Run, key: ir.Value, page: Scope | None) -> Scope:
        """A scope that knows where a key is, and its first feature.

        Args:
            page: of its block, if that is known.
        """
        spec, b = self.spec, self.builder
        positions = I64(max_extent(spec.place))
        inside = page or self._page(run, b.udiv(key, positions))
        symbols = {spec.place: b.urem(key, positions), spec.depth: I64(0)}
        return inside.child(symbols=symbols)

    def _page(self, run: _Run, page: ir.Value) -> Scope:
        """A scope that knows the block of a page of the run's sequence."""
        spec = self.spec
        scope = run.scope.child(symbols={spec.page: page})
        number = self.scalars.value(spec.table, scope).astype(INT64).value
        block = self._clamped(number, self.indices.scalar(extent_of(spec.block), scope))
        return run.scope.child(symbols={spec.block: block})

    def _following(self, run: _Run, page: ir.Value) -> Scope | None:
        """The scope of the next page, or of the last one, if it is worth to prefetch."""
        positions = max_extent(self.spec.place)
        if not self.attention.prefetches or positions < _FEWEST_AHEAD:
            return None
        last = self.builder.udiv(self._greatest(run.highest, I64(0)), I64(positions))
        return self._page(run, self._least(self.builder.add(page, I64(1)), last))

    def _prefetch_first(self, run: _Run, oldest: ir.Value) -> None:
        """Prefetch the keys of the page of ``oldest``, then its values: no page before it did."""
        attention, spec, b = self.attention, self.spec, self.builder
        if not attention.prefetches:
            return
        positions = I64(max_extent(spec.place))
        number = b.udiv(oldest, positions)
        page, base = self._page(run, number), b.mul(number, positions)
        start = b.sub(oldest, base)
        end = self._least(b.sub(b.add(run.highest, I64(1)), base), positions)
        for element, features in (
            (spec.k, spec.depth),
            (spec.v, spec.column),
        ):
            part = partial(self._prefetch, page, element, features)
            counted_loop(b, start, end, 1, part, name="ahead")

    def _prefetch(self, page: Scope, element: Load, features: Symbol, place: ir.Value) -> None:
        """Prefetch the features of a key or value."""
        scope = page.child(symbols={self.spec.place: place, features: I64(0)})
        start = self.scalars.address(element.buffer, element.dtype, element.index, scope)
        for distance in range(0, max_extent(features) * element.dtype.itemsize, _LINE):
            prefetch(self.builder, start, I64(distance))

    # -- values -----------------------------------------------------------------------------

    def _pack_values(self, run: _Run, first: ir.Value, count: ir.Value, number: int) -> None:
        """Copy a panel of features of ``count`` values from ``first`` on, one row for each.

        Those that no row of the run attends to are zeros, whatever the pool holds.
        """
        attention, spec, b = self.attention, self.spec, self.builder
        panel, width = attention.tiles.values[1], self.softmax.value_lanes
        positions = I64(max_extent(spec.place))
        stop = b.add(first, count)
        seen = self._greatest(first, run.oldest)
        zeros = splat(b, 0.0, self.acc, width)

        def outside(key: ir.Value) -> None:
            for within in range(0, panel, width):
                place = b.add(b.mul(b.sub(key, first), I64(panel)), I64(within))
                store(b, self.scratch["values"], self.acc, place, zeros)

        def page(at: ir.Value) -> None:
            base = b.mul(at, positions)
            inside, following = self._page(run, at), self._following(run, at)
            start = self._greatest(seen, base)
            end = self._least(stop, b.add(base, positions))

            def value(key: ir.Value) -> None:
                scope = inside.child(symbols={spec.place: b.sub(key, base)})
                if following is not None and number == 0:
                    self._prefetch(following, spec.v, spec.column, b.sub(key, base))
                target = b.mul(b.sub(key, first), I64(panel))
                vectors = dict(self._vectors(scope, spec.column, width))
                for within in range(0, panel, width):
                    lane = zeros
                    vector = vectors.get(number * panel + within)
                    if vector is not None:
                        lane = self.scalars.value(spec.v, vector).astype(self.acc)
                        if spec.v_scale is not None:
                            lane = lane * self.scalars.value(spec.v_scale, scope)
                    place = b.add(target, I64(within))
                    store(b, self.scratch["values"], self.acc, place, broadcast(lane, width))

            counted_loop(b, start, end, 1, value, name="value")

        if spec.window is not None:
            counted_loop(b, first, seen, 1, outside, name="outside")
        pages = b.udiv(b.add(stop, b.sub(positions, I64(1))), positions)
        counted_loop(b, b.udiv(seen, positions), pages, 1, page, name="page")

    # -- results ----------------------------------------------------------------------------

    def _finish(self, run: _Run) -> None:
        """Divide sums by the totals of the weights, and store them."""
        attention, spec, b = self.attention, self.spec, self.builder
        target, width = spec.store, self.softmax.value_lanes
        dtype = attention.args[target.buffer].dtype

        def row(number: ir.Value, member: ir.Value, stacked: ir.Value) -> None:
            symbols = {spec.row: b.add(run.first, number), spec.member: member}
            scope = run.scope.child(symbols=symbols)
            sink = None
            if spec.sink is not None:
                sink = self.scalars.value(spec.sink, scope)
            factor = self.softmax.factor(stacked, sink)
            for start, vector in self._vectors(scope, spec.column, width):
                result = self.softmax.result(stacked, start) * factor
                self.scalars.store(target.buffer, dtype, target.index, result, vector)

        self._for_stacked(run, row)

    # -- small parts ------------------------------------------------------------------------

    def _vectors(self, scope: Scope, along: Symbol, width: int) -> list[tuple[int, Scope]]:
        """The first elements along a known axis of all its vectors, and their scopes."""
        vectors, extent = [], max_extent(along)
        for start in range(0, extent, width):
            mask = None
            if start + width > extent:
                lanes = first_lanes(self.builder, I64(extent - start), width)
                mask = Mask(lanes, nonempty=True)
            vectors.append((start, Scope((scope,), along, width, mask, {along: I64(start)})))
        return vectors

    def _number(self, scalar: Scalar, scope: Scope, row: ir.Value) -> ir.Value:
        """An integer of a row."""
        inside = scope.child(symbols={self.spec.row: row})
        return self.scalars.value(scalar, inside).astype(INT64).value

    def _clamped(self, number: ir.Value, size: ir.Value) -> ir.Value:
        """``number`` within ``0..size-1``; a negative one is counted from the end first."""
        b = self.builder
        negative = b.icmp_signed("<", number, I64(0))
        number = b.select(negative, b.add(number, size), number)
        return self._greatest(self._least(number, b.sub(size, I64(1))), I64(0))

    def _least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def _greatest(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.icmp_signed(">", x, y), x, y)
