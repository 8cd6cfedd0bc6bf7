"""Softmax over keys that come some at a time: the state of each row, and sums of values by weight.

When later keys have greater scores, earlier sums are corrected: no row of scores is ever held
whole. A row's sums are made in one order, which depends on the places of the keys alone. So rows
that share a block, and keys that a row does not attend to, whose scores are minus infinity, do not
change a bit of it.
"""

from __future__ import annotations

import math
from functools import partial
from operator import add
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.horizontal import across
from ostinato.backends.cpu.llvm.interleaving import emit_interleaved
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, where
from ostinato.backends.cpu.llvm.memory import address, load, splat, store
from ostinato.backends.cpu.llvm.microkernel import tile_dims, tile_lanes
from ostinato.backends.cpu.llvm.types import I64, register_type
from ostinato.backends.cpu.llvm.vecmath.exponential import normal_exp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.span_records import RecordMemory
    from ostinato.backends.cpu.llvm.tiles import Tiles
    from ostinato.backends.cpu.rules.attention_tiles import AttentionTiles
    from ostinato.backends.cpu.rules.gemm import Gemm

__all__ = ["OnlineSoftmax", "normalising_factor"]


class OnlineSoftmax:
    """The rows of a block, as :meth:`AttentionTiles.scratch_layout` has them.

    Args:
        kernel: the kernel.
        tiles: its tile sizes.
        gemms: of the scores, and of the values.
        value_tiles: the register tiles of the latter.
        scratch: the address of each part of scratch memory.
        single: whether all keys come at once, so that nothing is corrected.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        tiles: AttentionTiles,
        gemms: tuple[Gemm, Gemm],
        value_tiles: Tiles,
        scratch: Mapping[str, ir.Value],
        *,
        single: bool,
    ) -> None:
        self.builder = kernel.builder
        self.tiles = tiles
        self.single = single
        self.acc = gemms[0].acc
        self.score_lanes, self.value_lanes = (tile_lanes(gemm, kernel.target) for gemm in gemms)
        self._value_gemm, self._value_tiles = gemms[1], value_tiles
        self._scratch = scratch
        self._interleaves = kernel.target.interleaves

    def for_rows(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Run ``body`` for each of the first ``count`` rows."""
        counted_loop(self.builder, I64(0), count, 1, body, name="row")

    def start(self, count: ir.Value) -> None:
        """No score yet, sums of nothing."""
        b, panel = self.builder, self.tiles.values[1]
        none = splat(b, -math.inf, self.acc, self.score_lanes)
        zeros = splat(b, 0.0, self.acc, self.value_lanes)

        def row(number: ir.Value) -> None:
            self.put("greatest", number, none)
            self.put("shift", number, splat(b, -math.inf, self.acc, 1))
            self.put("total", number, splat(b, 0.0, self.acc, 1))
            for start in range(0, self.tiles.value_panels * panel, self.value_lanes):
                place = b.add(b.mul(number, I64(panel)), I64(start % panel))
                store(b, self._sums(start // panel), self.acc, place, zeros)

        self.for_rows(count, row)

    # -- scores -----------------------------------------------------------------------------

    def scores(self, row: ir.Value, at: ir.Value, score: Callable[[int, Lane], Lane]) -> None:
        """Take up a row's scores of a panel of keys, the first of which is the ``at``-th held.

        Args:
            score: gives the scores of a vector, by its first key in the panel and its products.
        """
        b, panel, width = self.builder, self.tiles.scores[1], self.score_lanes
        greatest = self.get("greatest", row, width)
        for within in range(0, panel, width):
            place = b.add(b.mul(row, I64(panel)), I64(within))
            scores = score(within, load(b, self._scratch["scores"], self.acc, place, width))
            to = b.add(b.mul(row, I64(self.tiles.weight_pitch)), b.add(at, I64(within)))
            store(b, self._scratch["weights"], self.acc, to, scores)
            greatest = _greater(scores, greatest)
        self.put("greatest", row, greatest)

    def weigh(self, row: ir.Value, keys: ir.Value) -> None:
        """Turn the scores of ``keys`` keys into weights, relative to the greatest score so far."""
        b, width = self.builder, self.score_lanes
        greatest = across(self.get("greatest", row, width), _greater)
        shift = where(greatest == -math.inf, 0.0, greatest)
        kind = register_type(self.acc, width)
        slot = stack_slot(b, kind)
        b.store(splat(b, 0.0, self.acc, width).value, slot)
        start = b.mul(row, I64(self.tiles.weight_pitch))
        panel = self.tiles.scores[1]

        def weigh(at: ir.Value) -> None:
            weights: dict[int, tuple[ir.Value, Lane]] = {}

            def weight(within: int) -> None:
                place = b.add(start, b.add(at, I64(within)))
                score = load(b, self._scratch["weights"], self.acc, place, width)
                weights[within] = place, normal_exp(score - shift)

            chains = [partial(weight, within) for within in range(0, panel, width)]
            emit_interleaved(b, chains, alternate=self._interleaves)
            total = Lane(b, b.load(slot, typ=kind), self.acc, width)
            # One vector of sums for all widths of panels, in the order of the keys.
            for place, lane in weights.values():
                store(b, self._scratch["weights"], self.acc, place, lane)
                total = total + lane
            b.store(total.value, slot)

        counted_loop(b, I64(0), keys, panel, weigh, name="panel")
        total = across(Lane(b, b.load(slot, typ=kind), self.acc, width), add)
        if not self.single:
            correction = normal_exp(self.get("shift", row, 1) - shift)
            self.put("correction", row, correction)
            self.put("shift", row, greatest)
            total = self.get("total", row, 1) * correction + total
        self.put("total", row, total)

    # -- values -----------------------------------------------------------------------------

    def add_values(self, count: ir.Value, keys: ir.Value, number: int, values: ir.Value) -> None:
        """Add the weighted values of a panel of features to the sums of ``count`` rows.

        Args:
            keys: how many there are.
            number: of the panel.
            values: its address.
        """
        b = self.builder
        dims = [keys for _ in tile_dims(self._value_gemm)]
        out = self._sums(number) if self.single else self._scratch["last"]
        pitch, panel = I64(self.tiles.weight_pitch), I64(self.tiles.values[1])

        def arguments(row: ir.Value) -> Sequence[ir.Value]:
            weights = address(b, self._scratch["weights"], self.acc, b.mul(row, pitch))
            sums = address(b, out, self.acc, b.mul(row, panel))
            return [weights, weights, values, sums, *dims]

        self._value_tiles.cover(count, arguments)
        if not self.single:
            self.for_rows(count, lambda row: self._correct(row, number))

    def _correct(self, row: ir.Value, number: int) -> None:
        """Add the sums over the last keys to those before, made relative to the same shift."""
        b, panel = self.builder, self.tiles.values[1]
        correction = self.get("correction", row, 1)
        for within in range(0, panel, self.value_lanes):
            place = b.add(b.mul(row, I64(panel)), I64(within))
            before = load(b, self._sums(number), self.acc, place, self.value_lanes)
            last = load(b, self._scratch["last"], self.acc, place, self.value_lanes)
            store(b, self._sums(number), self.acc, place, before * correction + last)

    # -- results ----------------------------------------------------------------------------

    def factor(self, row: ir.Value, sink: Lane | None = None) -> Lane:
        """The factor that turns a row's sums into its result.

        Args:
            sink: a score that counts, without a value.
        """
        total = self.get("total", row, 1)
        shift = None
        if sink is not None:
            shift = across(self.get("greatest", row, self.score_lanes), _greater)
        return normalising_factor(total, shift, sink)

    def result(self, row: ir.Value, start: int) -> Lane:
        """A vector of a row's sums, from the feature ``start`` on."""
        panel = self.tiles.values[1]
        place = self.builder.add(self.builder.mul(row, I64(panel)), I64(start % panel))
        return load(self.builder, self._sums(start // panel), self.acc, place, self.value_lanes)

    # -- records of spans -------------------------------------------------------------------

    def leave(self, row: ir.Value, memory: RecordMemory, record: ir.Value) -> None:
        """Write what a row has come to into a record."""
        sums = partial(self.result, row)
        memory.write(record, self.get("shift", row, 1), self.get("total", row, 1), sums)

    def merge_into(self, row: ir.Value, memory: RecordMemory, record: ir.Value) -> None:
        """Add what a row has come to to the record of the keys before."""
        sums = partial(self.result, row)
        memory.merge(record, self.get("shift", row, 1), self.get("total", row, 1), sums)

    def take(self, row: ir.Value, memory: RecordMemory, record: ir.Value) -> None:
        """Make a row what a record says."""
        b, panel, shift = self.builder, self.tiles.values[1], memory.shift(record)
        self.put("greatest", row, broadcast(shift, self.score_lanes))
        self.put("shift", row, shift)
        self.put("total", row, memory.total(record))
        for start in range(0, self.tiles.value_panels * panel, self.value_lanes):
            place = b.add(b.mul(row, I64(panel)), I64(start % panel))
            store(b, self._sums(start // panel), self.acc, place, memory.sums(record, start))

    # -- scratch memory ---------------------------------------------------------------------

    def get(self, part: str, row: ir.Value, lanes: int) -> Lane:
        """The share of a row in a part of scratch memory."""
        place = self.builder.mul(row, I64(lanes))
        return load(self.builder, self._scratch[part], self.acc, place, lanes)

    def put(self, part: str, row: ir.Value, lane: Lane) -> None:
        """Write the share of a row in a part of scratch memory."""
        place = self.builder.mul(row, I64(lane.lanes))
        store(self.builder, self._scratch[part], self.acc, place, lane)

    def _sums(self, number: int) -> ir.Value:
        """The address of the sums of a panel of features."""
        start = I64(number * self.tiles.block * self.tiles.values[1])
        return address(self.builder, self._scratch["sums"], self.acc, start)


def normalising_factor(total: Lane, shift: Lane | None, sink: Lane | None) -> Lane:
    """The factor that turns sums of values into their mean.

    Args:
        total: of the weights.
        shift: the greatest score, needed where there is a sink.
        sink: a score that counts, without a value.
    """
    if sink is None or shift is None:
        return 1.0 / where(total == 0.0, 1.0, total)
    shift = where(shift == -math.inf, 0.0, shift)
    greatest = _greater(sink, shift)
    share = normal_exp(shift - greatest)
    total = total * share + normal_exp(sink - greatest)
    return share / where(total == 0.0, 1.0, total)


def _greater(x: Lane, y: Lane) -> Lane:
    """The greater of two; of a NaN, which shows in the total anyway, nothing is promised."""
    return where(x > y, x, y)
