"""Records of spans of keys in memory, and their merge: one softmax made of several.

A record is the greatest score, by which weights are scaled, their total, and the sums of values. An
item that merges spans as it goes and one that finds them in memory emit the same operations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.lanes import Lane, where
from ostinato.backends.cpu.llvm.memory import address, load, splat, store
from ostinato.backends.cpu.llvm.types import I64
from ostinato.backends.cpu.llvm.vecmath.exponential import normal_exp

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

    from ostinato.backends.cpu.rules.spans import SpanRecords

__all__ = ["RecordMemory"]


class RecordMemory:
    """Reads and writes records.

    Args:
        builder: emits at its current position.
        records: their form.
        lanes: of a vector of sums.
    """

    def __init__(self, builder: ir.IRBuilder, records: SpanRecords, lanes: int) -> None:
        self.builder, self.records, self.lanes = builder, records, lanes
        self.acc = records.acc

    def at(self, base: ir.Value, number: ir.Value) -> ir.Value:
        """The address of a record."""
        place = self.builder.mul(number, I64(self.records.size))
        return address(self.builder, base, self.acc, place)

    def start(self, record: ir.Value) -> None:
        """Write the record of no key."""
        b = self.builder
        nothing = splat(b, 0.0, self.acc, self.lanes)
        self.write(
            record,
            splat(b, -math.inf, self.acc, 1),
            splat(b, 0.0, self.acc, 1),
            lambda _: nothing,
        )

    def write(
        self, record: ir.Value, shift: Lane, total: Lane, sums: Callable[[int], Lane]
    ) -> None:
        """Write a record.

        Args:
            shift: the greatest score.
            total: of the weights.
            sums: gives the vector of sums from a feature on.
        """
        self._put(record, 0, shift)
        self._put(record, 1, total)
        for start in range(0, self.records.features, self.lanes):
            self._put(record, self.records.head + start, sums(start))

    def shift(self, record: ir.Value) -> Lane:
        """The greatest score."""
        return self._get(record, 0, 1)

    def total(self, record: ir.Value) -> Lane:
        """The total of the weights."""
        return self._get(record, 1, 1)

    def sums(self, record: ir.Value, start: int) -> Lane:
        """The vector of sums from a feature on."""
        return self._get(record, self.records.head + start, self.lanes)

    def merge(
        self, record: ir.Value, shift: Lane, total: Lane, sums: Callable[[int], Lane]
    ) -> None:
        """Add a later span to the record of those before; see :meth:`write`."""
        before = self.shift(record)
        greatest = where(shift > before, shift, before)
        base = where(greatest == -math.inf, 0.0, greatest)
        old, new = normal_exp(before - base), normal_exp(shift - base)
        added = self.total(record) * old + total * new
        self.write(
            record,
            greatest,
            added,
            lambda start: self.sums(record, start) * old + sums(start) * new,
        )

    def _get(self, record: ir.Value, place: int, lanes: int) -> Lane:
        return load(self.builder, record, self.acc, I64(place), lanes)

    def _put(self, record: ir.Value, place: int, lane: Lane) -> None:
        store(self.builder, record, self.acc, I64(place), lane)
