"""Rendering a :class:`~ostinato.backends.cpu.rules.grouped_gemm.GroupedGemm` as LLVM IR.

An item, one panel by the rows of one part, runs tile by tile: the offsets of the tile's rows are
noted in scratch memory, the register tile multiplies them with each matrix's panel, and the
epilogue runs over the sums. All tiles sum in the same order, whatever their height, so a row's
result is the same bits whichever rows it shares a tile with.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.indices import Indices
from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop, kernel_module
from ostinato.backends.cpu.llvm.memory import address
from ostinato.backends.cpu.llvm.microkernel import define_tile
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.tile_epilogue import TileEpilogue
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.dtypes import INT64
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.variables import Expr, axis, axis_symbol, minimum, substitute

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

    from ostinato.backends.cpu.llvm import packed_tiles
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm
else:
    packed_tiles = LazyModule("ostinato.backends.cpu.llvm.packed_tiles")

__all__ = ["render"]


def render(grouped: GroupedGemm, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`GroupedGemm.scratch_bytes` of scratch. Of the matrices it reads only those of experts
    that have rows.
    """
    return kernel_module(grouped, name, target, lambda k: _Renderer(grouped, name, k).render())


class _Renderer:
    def __init__(self, grouped: GroupedGemm, name: str, kernel: KernelFunction) -> None:
        self.grouped = grouped
        self.kernel = kernel
        self.builder = kernel.builder
        self.tiles = [self._define(f"{name}.tile{height}", height) for height in grouped.heights]
        self.offsets, *self.sums = (
            kernel.builder.gep(kernel.scratch, [I64(start)], source_etype=I8)
            for start in grouped.scratch_layout
        )
        self.groups = kernel.buffers[grouped.groups]
        self.panel = axis("n.panel", grouped.panels)
        self.indices = Indices(kernel.builder)
        self.epilogue = _Epilogue(grouped, kernel, self.sums, self.panel)

    def _define(self, name: str, height: int) -> ir.Function:
        """A register tile of some height."""
        grouped, module, target = self.grouped, self.kernel.module, self.kernel.target
        if grouped.block_rows is not None:
            return packed_tiles.define_packed_tile(module, name, grouped.gemm, height, target)
        return define_tile(module, name, grouped.gemm, height, target, grouped.pitch)

    def render(self) -> None:
        b, kernel = self.builder, self.kernel
        outermost = Scope(symbols=dict(kernel.variables))
        count = b.mul(self._listed(I64(0)), I64(self.grouped.panels))
        end = b.select(b.icmp_signed("<", count, kernel.end), count, kernel.end)
        counted_loop(b, kernel.begin, end, 1, partial(self._item, outermost), name="item")
        b.ret_void()

    def _item(self, outermost: Scope, index: ir.Value) -> None:
        """One panel by the rows of one part."""
        b, grouped = self.builder, self.grouped
        part, panel = (op(index, I64(grouped.panels)) for op in (b.udiv, b.urem))
        at = b.add(b.mul(part, I64(3)), I64(1))
        expert, first, count = (self._listed(b.add(at, I64(field))) for field in range(3))
        matrix = b.mul(expert, I64(grouped.panels * grouped.panel_elements))
        start = b.add(matrix, b.mul(panel, I64(grouped.panel_step)))
        dtype, buffers = grouped.gemm.b_dtype, self.kernel.buffers
        matrices = [address(b, buffers[position], dtype, start) for position in grouped.b]
        item = outermost.child(symbols={axis_symbol(self.panel): panel})
        listed = b.add(first, I64(grouped.layout.first_row))

        if grouped.gemm.depth_block is not None:
            self._note(item, listed, count)
            self._multiply_by_blocks(count, matrices, grouped.gemm.depth_block)
            self._finish(item, listed, count)
            return

        def tile(done: ir.Value) -> None:
            rows = self._height(b.sub(count, done))
            row = b.add(listed, done)
            self._note(item, row, rows)
            self._multiply(rows, matrices)
            self._finish(item, row, rows)

        counted_loop(b, I64(0), count, grouped.rows, tile, name="tile")

    def _height(self, left: ir.Value) -> ir.Value:
        """The rows of the next tile where so many are left."""
        b, rows = self.builder, I64(self.grouped.rows)
        return b.select(b.icmp_signed("<", left, rows), left, rows)

    def _note(self, item: Scope, listed: ir.Value, count: ir.Value) -> None:
        """Note the offsets of ``count`` rows, the first of which is number ``listed``."""
        b, grouped = self.builder, self.grouped
        noted = [substitute(grouped.a_index, {grouped.k: 0})]
        if (rows := grouped.block_rows) is not None:
            noted += [rows.scales_index, rows.sums_index]

        def note(number: ir.Value) -> None:
            inside = item.child(symbols={grouped.m: self._listed(b.add(listed, number))})
            for position, offset in enumerate(noted):
                slot = b.add(number, I64(position * grouped.kept_rows))
                place = address(b, self.offsets, INT64, slot)
                b.store(self.indices.scalar(offset, inside), place, align=8)

        counted_loop(b, I64(0), count, 1, note, name="note")

    def _finish(self, item: Scope, listed: ir.Value, count: ir.Value) -> None:
        """Run the epilogue over the sums of those rows."""
        b, grouped = self.builder, self.grouped

        def finish(number: ir.Value) -> None:
            row = self._listed(b.add(listed, number))
            self.epilogue.emit(item.child(symbols={grouped.m: row}), number)

        counted_loop(b, I64(0), count, 1, finish, name="finish")

    def _multiply(self, count: ir.Value, matrices: list[ir.Value]) -> None:
        """Leave the sums of a tile of ``count`` rows with every matrix in scratch memory."""
        b, grouped = self.builder, self.grouped
        a, rows = self.kernel.buffers[grouped.a], grouped.block_rows
        scaled = [] if rows is None else [self.kernel.buffers[i] for i in (rows.scales, rows.sums)]

        def multiply(function: ir.Function) -> None:
            for matrix, sums in zip(matrices, self.sums, strict=True):
                fetch = grouped.gemm.fetch
                ahead = [] if fetch is None else [self._after(matrix, I64(fetch.distance))]
                b.call(function, [a, self.offsets, matrix, sums, *scaled, *ahead])

        self._with_tile(count, multiply)

    def _multiply_by_blocks(self, count: ir.Value, matrices: list[ir.Value], steps: int) -> None:
        """The same for all rows of an item: tiles go over ``steps`` positions of ``k`` in turn."""
        b, grouped, gemm = self.builder, self.grouped, self.grouped.gemm
        assert gemm.fetch is not None
        depth, (k_axis,) = max_extent(grouped.k), gemm.sum_axes
        line, nbytes = gemm.fetch.caches.line, steps * gemm.panel * gemm.b_dtype.itemsize
        share = nbytes // gemm.fetching_tiles // line * line
        # One low tile computes too little for the hardware to be helped: its requests are for what
        # it reads itself.
        several = b.icmp_signed(">", count, I64(gemm.fetch.least_rows - 1))

        def block(k: ir.Value) -> None:
            left = b.sub(I64(depth), k)
            taken = b.select(b.icmp_signed("<", left, I64(steps)), left, I64(steps))
            resumed = b.icmp_signed(">", k, I64(0))
            left_operand = self.kernel.buffers[grouped.a]
            a = address(b, left_operand, grouped.a_dtype, b.mul(k, I64(k_axis.step)))

            def tile(right: ir.Value, sums: ir.Value, row: ir.Value) -> None:
                offsets = address(b, self.offsets, INT64, row)
                out = address(b, sums, grouped.acc, b.mul(row, I64(gemm.panel)))
                first = b.add(I64(nbytes), b.mul(b.udiv(row, I64(grouped.rows)), I64(share)))
                ahead = self._after(right, b.select(several, first, I64(0)))
                arguments = [a, offsets, right, out, ahead, taken, resumed]
                rows = self._height(b.sub(count, row))
                self._with_tile(rows, lambda function: b.call(function, arguments))

            for matrix, sums in zip(matrices, self.sums, strict=True):
                right = address(b, matrix, gemm.b_dtype, b.mul(k, I64(gemm.panel)))
                tiles = partial(tile, right, sums)
                counted_loop(b, I64(0), count, grouped.rows, tiles, name="tile")

        counted_loop(b, I64(0), I64(depth), steps, block, trips=-(-depth // steps), name="block")

    def _with_tile(self, count: ir.Value, emit: Callable[[ir.Function], object]) -> None:
        """Emit something for the register tile of ``count`` rows."""
        b = self.builder
        done = b.append_basic_block("multiplied")
        switch = b.switch(count, done)
        for height, function in zip(self.grouped.heights, self.tiles, strict=True):
            block = b.append_basic_block(f"rows{height}")
            switch.add_case(I64(height), block)
            b.position_at_end(block)
            emit(function)
            b.branch(done)
        b.position_at_end(done)

    def _after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.builder.gep(base, [distance], source_etype=I8)

    def _listed(self, index: ir.Value) -> ir.Value:
        """A number of the list of rows by expert."""
        place = address(self.builder, self.groups, INT64, index)
        return self.builder.load(place, align=8, typ=I64)


class _Epilogue:
    """The epilogue of a row's sums: statements with the columns of a panel as lanes.

    Args:
        sums: where the sums with each matrix are.
        panel: the axis of panels.
    """

    def __init__(
        self, grouped: GroupedGemm, kernel: KernelFunction, sums: list[ir.Value], panel: Expr
    ) -> None:
        first = panel * grouped.panel
        row = axis("tile.row", grouped.kept_rows)
        column = axis("n.column", minimum(grouped.panel, extent_of(grouped.n) - first))
        self.row, self.column = axis_symbol(row), axis_symbol(column)
        place, position = row * grouped.panel + column, {grouped.n: first + column}
        self.statements = TileEpilogue(kernel, grouped, sums, place, position)
        self.plan = self.statements.plan(self.column, grouped.panel, max_extent(self.row))

    def emit(self, scope: Scope, number: ir.Value) -> None:
        """Runs the statements over row ``number`` of the sums."""
        scope.symbols[self.row] = number
        self.statements.emit(self.column, self.plan, scope)
