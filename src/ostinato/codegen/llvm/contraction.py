"""Rendering a :class:`~ostinato.lower.contraction.Contraction` as LLVM IR.

An item of the parallel range runs in three steps. Register tiles leave their sums in scratch
memory; where the output is contiguous along rows of ``a`` rather than along columns of ``b`` (a
convolution with channels first), the sums are transposed; then the epilogue runs over them as a
stage like any other, with the contiguous axis as lanes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ostinato.codegen.llvm.byte_tiles import define_byte_tile
from ostinato.codegen.llvm.indices import Indices
from ostinato.codegen.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
)
from ostinato.codegen.llvm.memory import address
from ostinato.codegen.llvm.microkernel import define_tile, tile_dims
from ostinato.codegen.llvm.namespace import LaneNamespace
from ostinato.codegen.llvm.scalars import Scalars
from ostinato.codegen.llvm.scopes import Scope
from ostinato.codegen.llvm.stages import StageEmitter
from ostinato.codegen.llvm.transpose import square_size, transpose_square
from ostinato.codegen.llvm.types import I8, I64
from ostinato.codegen.llvm.vectors import cut, plan_vectors
from ostinato.dtypes import FLOAT32, INT64
from ostinato.lower.dependences import Dependences
from ostinato.lower.loops import (
    Accumulator,
    Load,
    LoopNest,
    Scalar,
    Stage,
    extent_of,
    max_extent,
)
from ostinato.lower.rewrite import Rewriter
from ostinato.lower.views import unravel
from ostinato.variables import (
    Dim,
    Expr,
    Symbol,
    axis,
    ceil_div,
    minimum,
    substitute,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llvmlite import ir

    from ostinato.codegen.llvm.toolchain import TargetSpec
    from ostinato.lower.contraction import Contraction

__all__ = ["render"]


def render(contraction: Contraction, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.codegen.llvm.kernel`; its parallel range is
    :attr:`Contraction.extent` and it needs :attr:`Contraction.scratch_bytes` of scratch. Of ``a``
    it reads only the rows and positions that the sums are made of.

    Raises:
        OstinatoError: the contraction's indices are not of the form that it promises.
    """
    return kernel_module(
        contraction, name, target, lambda k: _Renderer(contraction, name, k).render()
    )


class _Renderer:
    def __init__(self, contraction: Contraction, name: str, kernel: KernelFunction) -> None:
        self.contraction = contraction
        self.kernel = kernel
        self.builder = kernel.builder
        self.indices = Indices(kernel.builder)
        self.item = axis("range.item", contraction.extent)
        self.rows: Dim = extent_of(contraction.m)
        self.blocks = contraction.blocks
        if contraction.idle is not None:
            self.rows = axis("m.computed", max_extent(contraction.m) + 1)
            if self.blocks != 1:
                self.blocks = ceil_div(self.rows, contraction.block)
        self.block = axis("m.block", contraction.blocks)
        self.panel = axis("n.panel", contraction.panels)
        self.first_row: Dim = self.block * contraction.block
        self.first_column: Dim = self.panel * contraction.panel
        self.row_count = minimum(contraction.block, self.rows - self.first_row)
        left = extent_of(contraction.n) - self.first_column
        self.column_count = minimum(contraction.panel, left)
        self.offsets, self.sums, self.turned = (
            self._bytes_after(kernel.scratch, I64(start)) for start in contraction.scratch_layout
        )
        form = contraction.b_format
        define = define_tile if form is None or form.steps == 1 else define_byte_tile
        self.tiles = {
            rows: define(kernel.module, f"{name}.tile{rows}", contraction, rows, kernel.target)
            for rows in (contraction.rows, *contraction.remainders)
        }

    def render(self) -> None:
        kernel = self.kernel
        outermost = Scope(symbols=dict(kernel.variables))
        self._read_idle(outermost)
        for dim in tile_dims(self.contraction):
            self.indices.scalar(dim, outermost)

        def body(index: ir.Value) -> None:
            item = outermost.child(symbols={_symbol(self.item): index})
            self._take_apart(item)
            self._multiply(item)
            self._finish(item)

        counted_loop(self.builder, kernel.begin, kernel.end, 1, body, name="item")
        self.builder.ret_void()

    def _read_idle(self, scope: Scope) -> None:
        """Gives :attr:`rows` its value where an argument says how many are not wanted."""
        c, b = self.contraction, self.builder
        if c.idle is None:
            return
        most = max_extent(c.m)
        wanted = axis("m.wanted", most + 1)
        idle = b.load(self.kernel.buffers[c.idle], align=8, typ=I64)
        scope.symbols[_symbol(wanted)] = b.sub(I64(most), idle)
        scope.symbols[_symbol(self.rows)] = self.indices.scalar(c.computed_rows(wanted), scope)

    def _take_apart(self, item: Scope) -> None:
        """Finds the batch point, row block and panel of an item."""
        c = self.contraction
        batch = [extent_of(symbol) for symbol in c.batch]
        inner = [(self.block, self.blocks), (self.panel, c.panels)]
        if not c.panels_innermost:
            inner.reverse()
        wheels = [*c.batch, *(_symbol(wheel) for wheel, _ in inner)]
        positions = unravel([*batch, *(extent for _, extent in inner)], self.item)
        for wheel, position in zip(wheels, positions, strict=True):
            item.symbols[wheel] = self.indices.scalar(position, item)

    # -- sums -------------------------------------------------------------------------------

    def _multiply(self, item: Scope) -> None:
        """Leaves the sums of the item's rows and columns in scratch memory."""
        c, b = self.contraction, self.builder
        count = self.indices.scalar(self.row_count, item)
        panel = self._panel_address(item)
        locate, scales = self._locate_rows(item, count), self._locate_scales(item)
        dims = [self.indices.scalar(dim, item) for dim in tile_dims(c)]

        def tile(height: int, row: ir.Value) -> None:
            out = address(b, self.sums, c.acc, b.mul(row, I64(c.panel)))
            b.call(self.tiles[height], [*locate(row), panel, out, *dims, *scales(row)])

        if c.remainders:
            self._separate_tiles(count, tile)
        else:
            self._overlapping_tiles(count, tile)

    def _overlapping_tiles(self, count: ir.Value, tile: Callable[[int, ir.Value], None]) -> None:
        """Full tiles only; the last goes back over rows of the one before it if it must."""
        b, rows = self.builder, self.contraction.rows
        last = b.sub(count, I64(rows))

        def step(row: ir.Value) -> None:
            tile(rows, b.select(b.icmp_signed("<", row, last), row, last))

        counted_loop(b, I64(0), count, rows, step, name="tile")

    def _separate_tiles(self, count: ir.Value, tile: Callable[[int, ir.Value], None]) -> None:
        """Full tiles, then one as high as there are rows left."""
        c, b = self.contraction, self.builder
        row = b.mul(b.udiv(count, I64(c.rows)), I64(c.rows))
        counted_loop(b, I64(0), row, c.rows, lambda row: tile(c.rows, row), name="tile")
        done = b.append_basic_block("tiles.done")
        switch = b.switch(b.sub(count, row), done)
        for height in c.remainders:
            switch.add_case(I64(height), b.append_basic_block(f"rows{height}"))
            b.position_at_end(b.function.basic_blocks[-1])
            tile(height, row)
            b.branch(done)
        b.position_at_end(done)

    def _locate_rows(self, item: Scope, count: ir.Value) -> Callable[[ir.Value], list[ir.Value]]:
        """What tells a tile where its rows of ``a`` are, as a function of its first row's number.

        Rows that are not evenly spaced have their offsets noted in scratch memory first.
        """
        c, b = self.contraction, self.builder
        a = self.kernel.buffers[c.a]
        if c.row_stride is not None:
            start = substitute(c.row_offset, {c.m: self.first_row})
            first = address(b, a, c.a_dtype, self.indices.scalar(start, item))
            stride = I64(c.row_stride)
            return lambda row: [address(b, first, c.a_dtype, b.mul(row, stride)), self.offsets]

        number = axis("m.row", c.block)
        offset = substitute(c.row_offset, {c.m: self.first_row + number})

        def note(row: ir.Value) -> None:
            inside = item.child(symbols={_symbol(number): row})
            b.store(self.indices.scalar(offset, inside), address(b, self.offsets, INT64, row))

        counted_loop(b, I64(0), count, 1, note, name="row")
        return lambda row: [a, address(b, self.offsets, INT64, row)]

    def _locate_scales(self, item: Scope) -> Callable[[ir.Value], list[ir.Value]]:
        """The same for the scales of blocks, where there are any: those of rows and of columns."""
        c, b, scales = self.contraction, self.builder, self.contraction.scales
        if scales is None:
            return lambda row: []
        number, buffers = axis("m.scaled", c.block), self.kernel.buffers
        start = substitute(scales.a_index, {c.m: self.first_row + number})
        blocks = c.depth // scales.size
        element = self.indices.scalar(self.panel * blocks * c.panel, item)
        columns = address(b, buffers[scales.b], scales.b_dtype, element)

        def at(row: ir.Value) -> list[ir.Value]:
            inside = item.child(symbols={_symbol(number): row})
            first = self.indices.scalar(start, inside)
            return [address(b, buffers[scales.a], FLOAT32, first), columns]

        return at

    def _panel_address(self, item: Scope) -> ir.Value:
        c = self.contraction
        number = c.b_group * c.panels + self.panel
        element = self.indices.scalar(number * c.panel_size, item)
        return address(self.builder, self.kernel.buffers[c.b], c.b_dtype, element)

    def _bytes_after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.builder.gep(base, [distance], source_etype=I8)

    # -- epilogue ---------------------------------------------------------------------------

    def _finish(self, item: Scope) -> None:
        """Runs the epilogue over the sums, the axis along which it stores as lanes."""
        c = self.contraction
        row, column = axis("m.row", self.row_count), axis("n.column", self.column_count)
        rewriter = partial(
            _Epilogue,
            position={c.m: self.first_row + row, c.n: self.first_column + column},
        )
        if c.stores_along_rows:
            self._transpose(item)
            epilogue = rewriter(Load(len(c.args), column * c.padded_block + row, c.acc))
            self._run(epilogue, column, row, c.block, self.turned, item)
        else:
            epilogue = rewriter(Load(len(c.args), row * c.panel + column, c.acc))
            self._run(epilogue, row, column, c.panel, self.sums, item)

    def _transpose(self, item: Scope) -> None:
        c, b = self.contraction, self.builder
        size = square_size(math.gcd(c.panel, c.padded_block))
        count = self.indices.scalar(self.row_count, item)

        def square(row: ir.Value, column: ir.Value) -> None:
            source = address(b, self.sums, c.acc, b.add(b.mul(row, I64(c.panel)), column))
            end = address(b, self.turned, c.acc, b.add(b.mul(column, I64(c.padded_block)), row))
            transpose_square(b, c.acc, size, (source, c.panel), (end, c.padded_block))

        def squares(row: ir.Value) -> None:
            trips = c.panel // size
            across = partial(square, row)
            counted_loop(b, I64(0), I64(c.panel), size, across, trips=trips, name="square")

        counted_loop(b, I64(0), count, size, squares, name="squares")

    def _run(
        self,
        epilogue: _Epilogue,
        loop: Expr,
        lane: Expr,
        capacity: int,
        sums: ir.Value,
        item: Scope,
    ) -> None:
        """The stores at every ``loop``, with ``lane`` (at most ``capacity`` values) as lanes."""
        c, b = self.contraction, self.builder
        loop_axis, lane_axis = _symbol(loop), _symbol(lane)
        stage = Stage((loop_axis,), tuple(map(epilogue.statement, c.epilogue)))
        dependences = Dependences(LoopNest(c.args, (), (stage,)))
        scalars = Scalars(b, LaneNamespace(), [*self.kernel.buffers, sums], dependences)
        dtypes = [*(arg.dtype for arg in c.args), c.acc]
        stages = StageEmitter(b, self.kernel.target, scalars, dtypes)
        plan = plan_vectors(lane_axis, capacity, [stage], self.kernel.target, dependences)
        # As many vectors at a time as divide a panel: none of a whole one is left over.
        vectors = max(1, capacity // plan.width)
        plan = replace(plan, unroll=min(plan.unroll, vectors & -vectors))
        count = extent_of(lane_axis)
        cut(
            b,
            lane_axis,
            (I64(0), self.indices.scalar(count, item)),
            count if isinstance(count, int) else None,
            plan,
            item,
            lambda shared, vectors: stages.columns(stage, shared, vectors),
        )


class _Epilogue(Rewriter):
    """Moves statements to an item's place, and puts its sums where the accumulator was."""

    def __init__(self, sums: Load, position: Mapping[Symbol, Dim]) -> None:
        super().__init__(lambda dim: substitute(dim, position))
        self._sums = sums

    def scalar(self, scalar: Scalar) -> Scalar:
        return self._sums if isinstance(scalar, Accumulator) else super().scalar(scalar)


def _symbol(dim: Dim) -> Symbol:
    """The symbol that an axis consists of."""
    (symbol,) = symbols(dim)
    return symbol
