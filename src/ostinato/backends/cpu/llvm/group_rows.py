"""Rendering the grouping of rows by expert as LLVM IR: a counting sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.expressions import expression_scalars
from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    open_kernel,
    stack_slot,
    when,
)
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.types import I1, I8, I64, call_intrinsic
from ostinato.lower.loopir.nodes import extent_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.group_rows import GroupRows

__all__ = ["render"]


def render(grouping: GroupRows, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`GroupRows.scratch_bytes` of scratch.
    """
    kernel = open_kernel(name, target, len(grouping.args), grouping.variables)
    b = kernel.builder
    with when(b, b.icmp_signed("<", kernel.begin, kernel.end)):
        _Renderer(grouping, kernel).render()
    b.ret_void()
    return kernel.module


class _Renderer:
    """Counts the rows of every expert, gives each its place in the list, then lists them.

    The extent of the run comes last.
    """

    def __init__(self, grouping: GroupRows, kernel: KernelFunction) -> None:
        self.grouping = grouping
        self.builder = kernel.builder
        self.scalars = expression_scalars(kernel, grouping.args, [grouping.expert])
        self.outermost = Scope(symbols=dict(kernel.variables))
        self.groups = kernel.buffers[grouping.groups]
        self.masked_tail = kernel.buffers[grouping.masked_tail]
        #: by expert: how many rows it has, later where its next row goes
        self.cursors = kernel.scratch

    def render(self) -> None:
        b, grouping = self.builder, self.grouping
        arguments = [self.cursors, I8(0), I64(grouping.scratch_bytes), I1(0)]
        call_intrinsic(b, "llvm.memset.p0.i64", ir.VoidType(), arguments)
        self._for_rows(lambda row, expert: self._advance(expert))
        start, parts = (stack_slot(b, I64) for _ in range(2))
        for slot in (start, parts):
            b.store(I64(0), slot)

        def place(expert: ir.Value) -> None:
            self._place(expert, start, parts)

        experts = grouping.layout.experts
        counted_loop(b, I64(0), I64(experts), 1, place, trips=experts, name="expert")
        self._put(self.groups, I64(0), b.load(parts, typ=I64))
        self._for_rows(self._list)
        for source, target in enumerate(grouping.extent_positions):
            self._put(self.groups, I64(target), self._get(self.masked_tail, I64(source)))

    def _for_rows(self, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """Runs ``body`` with every row and its expert."""
        count = self.scalars.indices.scalar(extent_of(self.grouping.row), self.outermost)

        def row(number: ir.Value) -> None:
            point = self.outermost.child(symbols={self.grouping.row: number})
            body(number, self.scalars.value(self.grouping.expert, point).value)

        counted_loop(self.builder, I64(0), count, 1, row, name="row")

    def _advance(self, expert: ir.Value) -> ir.Value:
        """Moves an expert's cursor by one; gives what it was."""
        cursor = self._get(self.cursors, expert)
        self._put(self.cursors, expert, self.builder.add(cursor, I64(1)))
        return cursor

    def _place(self, expert: ir.Value, start: ir.Value, parts: ir.Value) -> None:
        """Notes the parts of an expert, and where its rows start."""
        b, most = self.builder, self.grouping.layout.part_rows
        first, count = b.load(start, typ=I64), self._get(self.cursors, expert)
        self._put(self.cursors, expert, first)
        b.store(b.add(first, count), start)

        def part(done: ir.Value) -> None:
            number = b.load(parts, typ=I64)
            left = b.sub(count, done)
            rows = b.select(b.icmp_signed("<", left, I64(most)), left, I64(most))
            at = b.add(b.mul(number, I64(3)), I64(1))
            for offset, value in enumerate((expert, b.add(first, done), rows)):
                self._put(self.groups, b.add(at, I64(offset)), value)
            b.store(b.add(number, I64(1)), parts)

        counted_loop(b, I64(0), count, most, part, name="part")

    def _list(self, row: ir.Value, expert: ir.Value) -> None:
        place = self.builder.add(self._advance(expert), I64(self.grouping.layout.first_row))
        self._put(self.groups, place, row)

    def _get(self, base: ir.Value, index: ir.Value) -> ir.Value:
        b = self.builder
        return b.load(b.gep(base, [index], source_etype=I64), align=8, typ=I64)

    def _put(self, base: ir.Value, index: ir.Value, value: ir.Value) -> None:
        b = self.builder
        b.store(value, b.gep(base, [index], source_etype=I64), align=8)
