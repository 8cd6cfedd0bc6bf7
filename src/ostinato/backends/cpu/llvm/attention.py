"""Rendering an :class:`~ostinato.backends.cpu.rules.attention.AttentionKernel` as LLVM IR.

An item is a block of query rows. Over as many keys as are held at a time it goes in three steps:
panel by panel, keys are transposed into scratch memory, register tiles multiply the rows with them,
and scores are scaled and masked; row by row, scores become weights; panel by panel of features,
values are copied into scratch memory and register tiles sum them up by weight. When later keys have
greater scores, earlier sums are corrected: no row of scores is ever held whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.expressions import enter_point, expression_scalars
from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
)
from ostinato.backends.cpu.llvm.key_panels import KeyPanels, first_lanes
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, where
from ostinato.backends.cpu.llvm.memory import address, splat, store
from ostinato.backends.cpu.llvm.microkernel import tile_dims
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.online_softmax import OnlineSoftmax
from ostinato.backends.cpu.llvm.scalars import condition_mask
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.tiles import Tiles
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.dtypes import BOOL, INT64
from ostinato.lower.loopir.nodes import Load, extent_of
from ostinato.records import dataclass
from ostinato.variables import Dim, Expr, Symbol, axis, axis_symbol, bounds, remainder

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.attention import AttentionKernel

__all__ = ["render"]

_XP = LaneNamespace()


def render(attention: AttentionKernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`AttentionKernel.scratch_bytes` of scratch.
    """
    return kernel_module(attention, name, target, lambda k: _Renderer(attention, name, k).render())


@dataclass(frozen=True)
class _Item:
    """A block of rows: its scope, its first row, how many there are, and where tiles find them."""

    scope: Scope
    first: ir.Value
    count: ir.Value
    locate: Callable[[ir.Value], list[ir.Value]]


@dataclass(frozen=True)
class _Keys:
    """The keys at hand: the first, and how many."""

    first: ir.Value
    count: ir.Value


class _Renderer:
    def __init__(self, attention: AttentionKernel, name: str, kernel: KernelFunction) -> None:
        self.attention = attention
        self.kernel = kernel
        self.builder = kernel.builder
        self.acc = attention.spec.acc
        read = [
            attention.spec.k,
            attention.spec.v,
            *(
                scalar
                for scalar in (attention.spec.mask, attention.spec.sink)
                if scalar is not None
            ),
        ]
        self.scalars = expression_scalars(kernel, attention.args, read)
        self.indices = self.scalars.indices
        scores, values = attention.score_gemm, attention.value_gemm
        heights = attention.heights(scores.rows)
        self.score_tiles = Tiles(kernel, f"{name}.scores", scores, heights)
        heights = attention.heights(values.rows)
        pitch = attention.value_pitch
        value_tiles = Tiles(kernel, f"{name}.values", values, heights, pitch)
        self.scratch = {
            part: kernel.builder.gep(kernel.scratch, [I64(start)], source_etype=I8)
            for part, start in attention.scratch_layout.items()
            if part != "end"
        }
        self.key_panels = KeyPanels(attention, kernel, self.scalars, self.scratch["keys"])
        self.softmax = OnlineSoftmax(
            kernel,
            attention.tiles,
            (scores, values),
            value_tiles,
            self.scratch,
            single=attention.single,
        )

    def render(self) -> None:
        attention, b = self.attention, self.builder
        outermost = Scope(symbols=dict(self.kernel.variables))
        block = axis_symbol(axis("m.block", attention.blocks))
        parallel_axes = [(symbol, extent_of(symbol)) for symbol in attention.spec.batch]
        parallel_axes.append((block, attention.blocks))

        def item(step: ir.Value) -> None:
            self._item(enter_point(self.scalars, outermost, parallel_axes, step), block)

        counted_loop(b, self.kernel.begin, self.kernel.end, 1, item, name="item")
        b.ret_void()

    def _item(self, scope: Scope, block: Symbol) -> None:
        attention, b = self.attention, self.builder
        rows = I64(attention.tiles.block)
        first = b.mul(scope.symbols[block], rows)
        left = b.sub(self.indices.scalar(extent_of(attention.spec.m), scope), first)
        count = b.select(b.icmp_signed("<", left, rows), left, rows)
        item = _Item(scope, first, count, self._locate(scope, first, count))
        self.softmax.start(count)
        start, stop = self._reach(item)

        def keys(at: ir.Value) -> None:
            left = b.sub(stop, at)
            most = I64(attention.tiles.keys)
            count = b.select(b.icmp_signed("<", left, most), left, most)
            if isinstance(attention.key_count, int):
                count = I64(attention.key_count)
            self._keys(item, _Keys(at, count))

        counted_loop(b, start, stop, attention.tiles.keys, keys, name="keys")
        self._finish(item)

    def _keys(self, item: _Item, keys: _Keys) -> None:
        """Adds what the keys at hand contribute to the sums of all rows."""
        attention = self.attention
        panel = attention.tiles.scores[1]

        def scores(at: ir.Value) -> None:
            self._scores(item, keys, at)

        counted_loop(self.builder, I64(0), keys.count, panel, scores, name="panel")
        self.softmax.for_rows(item.count, lambda row: self.softmax.weigh(row, keys.count))
        for number in range(attention.tiles.value_panels):
            place = self._value_panel(item.scope, keys, number)
            self.softmax.add_values(item.count, keys.count, number, place)

    # -- rows -------------------------------------------------------------------------------

    def _locate(
        self, scope: Scope, first: ir.Value, count: ir.Value
    ) -> Callable[[ir.Value], list[ir.Value]]:
        """A function that gives a tile's queries by its first row in the block.

        Rows that are not evenly spaced have their offsets noted in scratch memory first.
        """
        b, product, dtype = self.builder, self.attention.score_gemm, self.attention.q.dtype
        q, offsets = self.kernel.buffers[self.attention.q.buffer], self.scratch["offsets"]

        def offset(row: ir.Value) -> ir.Value:
            inside = scope.child(symbols={self.attention.spec.m: row})
            return self.indices.scalar(product.row_offset, inside)

        if product.row_stride is not None:
            start, stride = address(b, q, dtype, offset(first)), I64(product.row_stride)
            return lambda row: [address(b, start, dtype, b.mul(row, stride)), offsets]

        def note(row: ir.Value) -> None:
            b.store(offset(b.add(first, row)), address(b, offsets, INT64, row))

        counted_loop(b, I64(0), count, 1, note, name="row")
        return lambda row: [q, address(b, offsets, INT64, row)]

    def _reach(self, item: _Item) -> tuple[ir.Value, ir.Value]:
        """The first key that some row of the item may attend to, and the one after the last.

        The first is rounded down to where keys are cut.
        """
        attention, b = self.attention, self.builder
        end = self.indices.scalar(extent_of(attention.spec.key), item.scope)
        if not attention.spec.causal and attention.spec.window is None:
            return I64(0), end
        length = self.indices.scalar(attention.spec.length, item.scope)
        last = b.sub(b.add(item.first, item.count), I64(1))
        # A block that goes over from one query head to the next may have any position.
        one_head = b.icmp_signed("==", b.udiv(item.first, length), b.udiv(last, length))
        before = b.sub(end, length)
        low = b.add(before, b.select(one_head, b.urem(item.first, length), I64(0)))
        high = b.add(before, b.select(one_head, b.urem(last, length), b.sub(length, I64(1))))
        start: ir.Value = I64(0)
        if attention.spec.window is not None:
            oldest = Lane(b, b.sub(low, I64(attention.spec.window - 1)), INT64, 1)
            oldest = where(oldest > 0, oldest, 0)
            start = b.sub(oldest.value, b.urem(oldest.value, I64(attention.tiles.keys)))
        if attention.spec.causal:
            beyond = b.add(high, I64(1))
            end = b.select(b.icmp_signed("<", beyond, end), beyond, end)
        return start, end

    # -- scores -----------------------------------------------------------------------------

    def _scores(self, item: _Item, keys: _Keys, at: ir.Value) -> None:
        """Leave the scores of the panel of keys from ``at`` on among the weights."""
        b = self.builder
        left = b.sub(keys.count, at)
        self._multiply(item, b.add(keys.first, at), left)

        def rows(may_end: bool) -> None:
            live = left if may_end else None
            self.softmax.for_rows(
                item.count, lambda row: self._row_scores(item, keys, at, row, live)
            )

        self.key_panels.whole_or_partial(left, rows)

    def _multiply(self, item: _Item, first: ir.Value, left: ir.Value) -> None:
        """Leave the scores of all rows and a panel of keys in scratch memory.

        Args:
            left: keys from the panel's ``first`` on.
        """
        attention, b = self.attention, self.builder
        self.key_panels.pack(item.scope, first, left)
        dims = [self.indices.scalar(d, item.scope) for d in tile_dims(attention.score_gemm)]
        panel = I64(attention.tiles.scores[1])

        def arguments(row: ir.Value) -> list[ir.Value]:
            out = address(b, self.scratch["scores"], self.acc, b.mul(row, panel))
            return [*item.locate(row), self.scratch["keys"], out, *dims]

        self.score_tiles.cover(item.count, arguments)

    def _row_scores(
        self, item: _Item, keys: _Keys, at: ir.Value, row: ir.Value, live: ir.Value | None
    ) -> None:
        """One row of :meth:`_scores`.

        Args:
            live: how many keys of the panel there are, if they may not fill it.
        """
        b, attention = self.builder, self.attention
        scope = item.scope.child(symbols={attention.spec.m: b.add(item.first, row)})
        vectors = dict(self.key_panels.vectors(scope, b.add(keys.first, at), live))

        def score(within: int, product: Lane) -> Lane:
            return self._masked(self._scaled(product), vectors[within])

        self.softmax.scores(row, at, score)

    def _scaled(self, product: Lane) -> Lane:
        softcap = self.attention.spec.softcap
        score = product if self.attention.spec.scale == 1.0 else product * self.attention.spec.scale
        return score if softcap is None else _XP.tanh(score / softcap) * softcap

    def _masked(self, score: Lane, scope: Scope) -> Lane:
        """Minus infinity where a row does not attend to a key, or there is no key."""
        attention, b = self.attention, self.builder
        kept = [] if scope.mask is None else [Lane(b, scope.mask.value, BOOL, scope.width)]
        if attention.spec.mask is not None:
            mask = self.scalars.value(attention.spec.mask, scope)
            if mask.dtype.is_bool:
                kept.append(mask)
            else:
                score = score + mask
        conditions = self._conditions()
        if conditions:
            holds = condition_mask(self.indices, conditions, scope)
            kept.append(Lane(b, holds, BOOL, scope.width))
        for flags in kept:
            score = where(broadcast(flags, scope.width), score, -math.inf)
        return score

    def _conditions(self) -> list[Dim]:
        """Expressions ``>= 0`` where ``causal`` and ``window`` let a row attend to a key."""
        attention = self.attention
        key, m = _dim(attention.spec.key), _dim(attention.spec.m)
        position = (
            remainder(m, attention.spec.length)
            + extent_of(attention.spec.key)
            - attention.spec.length
        )
        found = [position - key] if attention.spec.causal else []
        if attention.spec.window is not None:
            found.append(key - position + attention.spec.window - 1)
        return [condition for condition in found if bounds(condition)[0] < 0]

    # -- values -----------------------------------------------------------------------------

    def _value_panel(self, scope: Scope, keys: _Keys, number: int) -> ir.Value:
        """The address of a panel of features of all values at hand."""
        attention, v = self.attention, self.attention.spec.v
        if attention.value_pitch is None:
            self._pack_values(scope, keys, number)
            return self.scratch["values"]
        assert isinstance(v, Load)
        start = I64(number * attention.tiles.values[1])
        inside = scope.child(symbols={attention.spec.key: keys.first, attention.spec.column: start})
        element = self.indices.scalar(v.index, inside)
        return address(self.builder, self.kernel.buffers[v.buffer], v.dtype, element)

    def _pack_values(self, scope: Scope, keys: _Keys, number: int) -> None:
        """Copies a panel of features of all values at hand, one row for each key."""
        b, attention = self.builder, self.attention
        panel, width = attention.tiles.values[1], self.softmax.value_lanes

        def row(key: ir.Value) -> None:
            inside = scope.child(symbols={attention.spec.key: b.add(keys.first, key)})
            start = b.mul(key, I64(panel))
            for within in range(0, panel, width):
                lane = splat(b, 0.0, self.acc, width)
                vector = self._feature_vector(inside, number * panel + within)
                if vector is not None:
                    lane = self.scalars.value(attention.spec.v, vector).astype(self.acc)
                place = b.add(start, I64(within))
                store(b, self.scratch["values"], self.acc, place, broadcast(lane, width))

        counted_loop(b, I64(0), keys.count, 1, row, name="value")

    def _feature_vector(self, scope: Scope, start: int) -> Scope | None:
        """The scope of the vector of features from ``start`` on; ``None`` if there are none."""
        attention, width = self.attention, self.softmax.value_lanes
        left = attention.tiles.features - start
        if left <= 0:
            return None
        mask = None
        if left < width:
            mask = Mask(first_lanes(self.builder, I64(left), width), nonempty=True)
        return Scope(
            (scope,), attention.spec.column, width, mask, {attention.spec.column: I64(start)}
        )

    def _finish(self, item: _Item) -> None:
        """Divides sums by the totals of the weights, and stores them."""
        attention, b = self.attention, self.builder
        panel, width = attention.tiles.values[1], self.softmax.value_lanes
        target = attention.spec.store
        dtype = attention.args[target.buffer].dtype

        def row(number: ir.Value) -> None:
            scope = item.scope.child(symbols={attention.spec.m: b.add(item.first, number)})
            factor = self.softmax.factor(number, self._sink(scope))
            for start in range(0, attention.tiles.value_panels * panel, width):
                vector = self._feature_vector(scope, start)
                if vector is not None:
                    result = self.softmax.result(number, start) * factor
                    self.scalars.store(target.buffer, dtype, target.index, result, vector)

        self.softmax.for_rows(item.count, row)

    def _sink(self, scope: Scope) -> Lane | None:
        """The score of the row's head that has no key."""
        sink = self.attention.spec.sink
        return None if sink is None else self.scalars.value(sink, scope)


def _dim(symbol: Symbol) -> Dim:
    return Expr({(symbol,): 1}, 0)
