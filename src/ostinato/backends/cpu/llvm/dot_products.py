"""Scores of a few query rows as dot products along vectors of features."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.horizontal import halves
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.key_panels import first_lanes
from ostinato.backends.cpu.llvm.lanes import Lane, intrinsic
from ostinato.backends.cpu.llvm.memory import load, splat, store
from ostinato.backends.cpu.llvm.transpose import transposed
from ostinato.backends.cpu.llvm.types import I64, register_type
from ostinato.lower.loopir.nodes import Load, max_extent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.key_panels import KeyPanels
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.rules.attention import AttentionKernel

__all__ = ["DotProducts"]


class DotProducts:
    """Multiplies query rows with keys that are left where they are.

    Args:
        panels: goes over the keys.
        scores: where scores go: rows of as many as a panel has.
        lanes: of a vector register.
    """

    def __init__(
        self, attention: AttentionKernel, panels: KeyPanels, scores: ir.Value, lanes: int
    ) -> None:
        self.attention = attention
        self.builder = panels.builder
        self.panels = panels
        self.scores = scores
        depth = max_extent(attention.spec.depth)
        self.width = max(panels.square, min(lanes, 1 << (depth - 1).bit_length()))

    def panel(
        self,
        scope: Scope,
        first: ir.Value,
        left: ir.Value,
        count: ir.Value,
        query: Callable[[ir.Value], ir.Value],
    ) -> None:
        """Leave the scores of a panel of keys in the first ``count`` rows.

        Args:
            first: the panel's first key.
            left: keys from there on; what stands beyond them is no score.
            query: the address of a row's query.
        """
        b, k, strides = self.builder, self.attention.spec.k, self.attention.key_strides
        assert isinstance(k, Load)
        assert strides is not None

        def keys(addresses: list[ir.Value], within: ir.Value) -> None:
            def row(number: ir.Value) -> None:
                products = self._products(query(number), addresses, k)
                place = b.add(b.mul(number, I64(self.panels.size)), within)
                store(b, self.scores, self.attention.spec.acc, place, _totals(products))

            counted_loop(b, I64(0), count, 1, row, name="row")

        self.panels.for_keys(k, strides, scope, first, left, keys)

    def _products(self, query: ir.Value, keys: Sequence[ir.Value], k: Load) -> list[Lane]:
        """A vector of partial sums for each key."""
        b, attention, width = self.builder, self.attention, self.width
        acc, depth = attention.spec.acc, max_extent(attention.spec.depth)
        kind = register_type(acc, width)
        slots = [stack_slot(b, kind) for _ in keys]
        zero = splat(b, 0.0, acc, width)
        for slot in slots:
            b.store(zero.value, slot)

        def features(at: ir.Value, mask: ir.Value | None = None) -> None:
            q = load(b, query, attention.q.dtype, at, width, mask).astype(acc)
            for key, slot in zip(keys, slots, strict=True):
                lane = load(b, key, k.dtype, at, width, mask).astype(acc)
                total = zero.like(b.load(slot, typ=kind))
                # fmuladd, not fma: without the instruction, fma would be a library call.
                b.store(intrinsic("fmuladd", q, lane, total).value, slot)

        whole = depth - depth % width
        counted_loop(b, I64(0), I64(whole), width, features, trips=whole // width, name="d")
        if depth % width:
            features(I64(whole), first_lanes(b, I64(depth % width), width))
        return [zero.like(b.load(slot, typ=kind)) for slot in slots]


def _totals(products: list[Lane]) -> Lane:
    """The sums over all lanes of each product: a lane each."""
    while products[0].lanes > len(products):
        products = [add(*halves(lane)) for lane in products]
    return reduce(add, transposed(products))
