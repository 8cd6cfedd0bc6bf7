"""Rendering a :class:`~ostinato.backends.cpu.rules.spans.SpanMergeKernel` as LLVM IR.

A work item is a row and a key head. For each query head, it merges the records of the spans that
the row attends to, in the order of positions, and stores the result.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.expressions import enter_point, expression_scalars
from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop, kernel_module
from ostinato.backends.cpu.llvm.key_panels import first_lanes
from ostinato.backends.cpu.llvm.online_softmax import normalising_factor
from ostinato.backends.cpu.llvm.scopes import Mask, Scope
from ostinato.backends.cpu.llvm.span_records import RecordMemory
from ostinato.backends.cpu.llvm.types import I64
from ostinato.backends.cpu.rules.spans import SPAN
from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import extent_of, max_extent

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.spans import SpanMergeKernel

__all__ = ["render"]


def render(merge: SpanMergeKernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`SpanMergeKernel.scratch_bytes` of scratch.
    """
    return kernel_module(merge, name, target, lambda k: _Renderer(merge, k).render())


class _Renderer:
    def __init__(self, merge: SpanMergeKernel, kernel: KernelFunction) -> None:
        self.merge, self.kernel, self.builder = merge, kernel, kernel.builder
        self.scalars = expression_scalars(kernel, merge.args, merge.operands)
        self.indices = self.scalars.indices
        self.lanes = math.gcd(merge.lanes, kernel.target.lanes(merge.records.acc.itemsize))
        self.memory = RecordMemory(kernel.builder, merge.records, self.lanes)

    def render(self) -> None:
        merge, b = self.merge, self.builder
        outermost = Scope(symbols=dict(self.kernel.variables))
        parallel_axes = [*zip((merge.row, merge.shared), merge.items, strict=True)]

        def item(step: ir.Value) -> None:
            self._row(enter_point(self.scalars, outermost, parallel_axes, step))

        counted_loop(b, self.kernel.begin, self.kernel.end, 1, item, name="item")
        b.ret_void()

    def _row(self, scope: Scope) -> None:
        """Merge the spans of a row, for each query head of a key head."""
        merge, b, group = self.merge, self.builder, self.merge.records.group
        length = b.mul(self.indices.scalar(extent_of(merge.page), scope), I64(merge.positions))
        last = b.sub(length, I64(1))
        position = self.scalars.value(merge.position, scope).astype(INT64).value
        position = b.select(b.icmp_signed("<", position, last), position, last)
        oldest: ir.Value = I64(0)
        if merge.window is not None:
            begin = b.sub(position, I64(merge.window - 1))
            oldest = b.select(b.icmp_signed(">", begin, I64(0)), begin, I64(0))
        first, end = b.udiv(oldest, I64(SPAN)), b.sdiv(b.add(position, I64(SPAN)), I64(SPAN))
        spans = self.indices.scalar(merge.records.spans, scope)
        heads = I64(max_extent(merge.shared))
        row = b.add(b.mul(scope.symbols[merge.row], heads), scope.symbols[merge.shared])
        assert merge.records.argument is not None
        base, merged = self.kernel.buffers[merge.records.argument], self.kernel.scratch

        def head(member: ir.Value) -> None:
            self.memory.start(merged)

            def span(number: ir.Value) -> None:
                place = b.add(b.mul(b.add(b.mul(row, spans), number), I64(group)), member)
                record = self.memory.at(base, place)
                shift, total = self.memory.shift(record), self.memory.total(record)
                self.memory.merge(merged, shift, total, lambda at: self.memory.sums(record, at))

            counted_loop(b, first, end, 1, span, name="span")
            self._store(scope.child(symbols={merge.member: member}))

        counted_loop(b, I64(0), I64(group), 1, head, trips=group, name="head")

    def _store(self, scope: Scope) -> None:
        """Divide the sums of a row by the total of the weights, and store them."""
        merge, merged = self.merge, self.kernel.scratch
        target = merge.store
        dtype = merge.args[target.buffer].dtype
        sink = None if merge.sink is None else self.scalars.value(merge.sink, scope)
        total, shift = self.memory.total(merged), self.memory.shift(merged)
        factor = normalising_factor(total, shift, sink)
        features = max_extent(merge.column)
        for start in range(0, features, self.lanes):
            mask = None
            if start + self.lanes > features:
                lanes = first_lanes(self.builder, I64(features - start), self.lanes)
                mask = Mask(lanes, nonempty=True)
            begin = {merge.column: I64(start)}
            vector = Scope((scope,), merge.column, self.lanes, mask, begin)
            result = self.memory.sums(merged, start) * factor
            self.scalars.store(target.buffer, dtype, target.index, result, vector)
