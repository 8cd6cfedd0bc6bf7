"""Rendering a :class:`~ostinato.backends.cpu.rules.gemm.Gemm` as LLVM IR, alone or fused.

An item of the parallel range is a block of rows by a panel. Register tiles leave their sums in
scratch memory, and the epilogue runs over those of each tile, once they are whole, as a stage like
any other. Where the output is contiguous along rows of ``a`` rather than along columns of ``b`` (a
convolution with channels first), or tile registers hold many rows, it runs over the whole item: the
sums may have to be transposed first, for the contiguous axis to be its lanes.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.gemm_epilogue import GemmEpilogue, Span
from ostinato.backends.cpu.llvm.indices import Indices
from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
    when,
)
from ostinato.backends.cpu.llvm.memory import address
from ostinato.backends.cpu.llvm.microkernel import define_tile, tile_dims
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.dtypes import BFLOAT16, FLOAT32, INT32, INT64
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.lower.loopir.views import unravel
from ostinato.variables import (
    Dim,
    axis,
    axis_symbol,
    ceil_div,
    minimum,
    substitute,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm import (
        amx_tiles,
        bfloat16_tiles,
        byte_tiles,
        packed_rows,
        packed_tiles,
        transpose,
    )
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.multi_gemm import MultiGemm
else:
    amx_tiles = LazyModule("ostinato.backends.cpu.llvm.amx_tiles")
    bfloat16_tiles = LazyModule("ostinato.backends.cpu.llvm.bfloat16_tiles")
    byte_tiles = LazyModule("ostinato.backends.cpu.llvm.byte_tiles")
    packed_rows = LazyModule("ostinato.backends.cpu.llvm.packed_rows")
    packed_tiles = LazyModule("ostinato.backends.cpu.llvm.packed_tiles")
    transpose = LazyModule("ostinato.backends.cpu.llvm.transpose")

__all__ = ["render"]


def render(gemm: Gemm | MultiGemm, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; its parallel range
    is the ``extent`` of ``gemm`` and it needs ``scratch_bytes`` of scratch. Of ``a`` it reads
    only the rows and positions that the sums are made of.

    Raises:
        OstinatoError: indices are not of the form that the gemm promises.
    """
    return kernel_module(gemm, name, target, lambda k: _Renderer(gemm, name, k).render())


class _Renderer:
    """Goes over the items, each of which is a block of rows by a panel of one output segment."""

    def __init__(self, whole: Gemm | MultiGemm, name: str, kernel: KernelFunction) -> None:
        self.whole = whole
        self.gemm = gemm = whole.segments[0][0]
        self.kernel = kernel
        self.builder = kernel.builder
        self.indices = Indices(kernel.builder)
        self.item = axis("range.item", whole.extent)
        self.rows: Dim = extent_of(gemm.m)
        self.blocks = gemm.blocks
        if gemm.masked_tail is not None:
            self.rows = axis("m.computed", max_extent(gemm.m) + 1)
            if self.blocks != 1:
                self.blocks = ceil_div(self.rows, gemm.block)
        self.block = axis("m.block", gemm.blocks)
        self.panel = axis("n.panel", whole.panels)
        first = self.block * gemm.block
        block = Span(first, minimum(gemm.block, self.rows - first))
        tiles = _Tiles(name, kernel)
        self.segments = [
            _Segment(gemms, number, kernel, tiles, block)
            for number, gemms in enumerate(whole.segments)
        ]

    def render(self) -> None:
        kernel = self.kernel
        outermost = Scope(symbols=dict(kernel.variables))
        self._read_masked_tail(outermost)
        for dim in tile_dims(self.gemm):
            self.indices.scalar(dim, outermost)

        def body(index: ir.Value) -> None:
            item = outermost.child(symbols={axis_symbol(self.item): index})
            self._take_apart(item)
            self._emit(item)

        b = self.builder
        with amx_tiles.configured(b, self.gemm) if self.gemm.amx else nullcontext():
            counted_loop(b, kernel.begin, kernel.end, 1, body, name="item")
        b.ret_void()

    def _read_masked_tail(self, scope: Scope) -> None:
        """Gives :attr:`rows` its value where an argument says how many are not wanted."""
        c, b = self.gemm, self.builder
        if c.masked_tail is None:
            return
        most = max_extent(c.m)
        wanted = axis("m.wanted", most + 1)
        masked_tail = b.load(self.kernel.buffers[c.masked_tail], align=8, typ=I64)
        scope.symbols[axis_symbol(wanted)] = b.sub(I64(most), masked_tail)
        scope.symbols[axis_symbol(self.rows)] = self.indices.scalar(c.computed_rows(wanted), scope)

    def _take_apart(self, item: Scope) -> None:
        """Finds the batch point, row block and panel of an item."""
        c = self.gemm
        batch = [extent_of(symbol) for symbol in c.batch]
        inner = [(self.block, self.blocks), (self.panel, self.whole.panels)]
        if not self.whole.panels_innermost:
            inner.reverse()
        parallel_axes = [*c.batch, *(axis_symbol(dim) for dim, _ in inner)]
        positions = unravel([*batch, *(extent for _, extent in inner)], self.item)
        for symbol, position in zip(parallel_axes, positions, strict=True):
            item.symbols[symbol] = self.indices.scalar(position, item)

    def _emit(self, item: Scope) -> None:
        """Computes an item: what is done depends on the segment that its panel is of."""
        b, panel = self.builder, item.symbols[axis_symbol(self.panel)]
        if len(self.segments) == 1:
            self.segments[0].emit(item, panel)
            return
        for segment in self.segments:
            # Unsigned: a panel of a segment before this one is beyond its last.
            with when(b, b.icmp_unsigned("<", panel, I64(segment.panels))):
                segment.emit(item, panel)
            panel = b.sub(panel, I64(segment.panels))


class _Tiles:
    """The register tiles of a kernel: gemms whose panels have one form share them."""

    def __init__(self, name: str, kernel: KernelFunction) -> None:
        self._name, self._kernel = name, kernel
        self._made: dict[object, dict[int, ir.Function]] = {}
        self._tall: dict[object, ir.Function] = {}

    def of(self, gemm: Gemm) -> dict[int, ir.Function]:
        """The tiles for a gemm, by height."""
        key = self._key(gemm)
        if key not in self._made:
            define = _define(gemm)
            prefix = f"{self._name}.{len(self._made)}.tile"
            self._made[key] = {
                rows: define(
                    self._kernel.module, f"{prefix}{rows}", gemm, rows, self._kernel.target
                )
                for rows in (gemm.rows, *gemm.remainders)
            }
        return self._made[key]

    def tall(self, gemm: Gemm) -> ir.Function | None:
        """The function for rows in tile registers, as many at a time as :attr:`Gemm.tall`."""
        if not gemm.tall:
            return None
        key = self._key(gemm)
        if key not in self._tall:
            name = f"{self._name}.{len(self._tall)}.tall"
            kernel = self._kernel
            function = packed_rows.define_packed_rows(kernel.module, name, gemm, kernel.target)
            self._tall[key] = function
        return self._tall[key]

    @staticmethod
    def _key(gemm: Gemm) -> object:
        form, scales = gemm.b_format, gemm.scales
        scaled = None if scales is None else (scales.size, scales.b_dtype)
        return form, scaled, gemm.fetch, gemm.depth_block, gemm.remainders


def _define(gemm: Gemm) -> Callable[..., ir.Function]:
    """The function that defines register tiles for panels of a form."""
    if gemm.b_format is None or gemm.b_format.steps == 1:
        return define_tile
    if gemm.block_rows is not None:
        return packed_tiles.define_packed_tile
    if gemm.amx:
        return amx_tiles.define_amx_tile
    if gemm.a_dtype == BFLOAT16:
        return bfloat16_tiles.define_bfloat16_tile
    return byte_tiles.define_byte_tile


class _Segment:
    """An output segment: the columns of GEMMs that share an epilogue.

    Args:
        gemms: all of them; what is true of the first one's shape is true of the others'.
        number: of the segment.
        kernel: under construction.
        tiles: of the kernel.
        block: the rows of an item.
    """

    def __init__(
        self,
        gemms: Sequence[Gemm],
        number: int,
        kernel: KernelFunction,
        tiles: _Tiles,
        block: Span,
    ) -> None:
        self.gemms = gemms
        self.gemm = gemm = gemms[0]
        self.kernel = kernel
        self.builder = kernel.builder
        self.indices = Indices(kernel.builder)
        self.tiles = [tiles.of(gemm) for gemm in gemms]
        self.tall = [tiles.tall(gemm) for gemm in gemms]
        self.block = block
        self.panels = gemm.panels
        self.panel = axis(f"n.panel.{number}", self.panels)
        first_column: Dim = self.panel * gemm.panel
        left = extent_of(gemm.n) - first_column
        self.columns = Span(first_column, minimum(gemm.panel, left))
        starts = [gemm.sums_at(number) for number in range(len(gemms))]
        self.offsets = kernel.scratch
        self.sums = [self._bytes_after(kernel.scratch, I64(start)) for start in starts]
        turned = [
            self._bytes_after(kernel.scratch, I64(start + gemm.sums_bytes)) for start in starts
        ]
        self.epilogue = GemmEpilogue(gemms, kernel, self.sums, turned)

    def emit(self, item: Scope, panel: ir.Value) -> None:
        """Computes the item's rows of a panel."""
        inside = item.child(symbols={axis_symbol(self.panel): panel})
        self._multiply(inside)
        if not self.gemm.finishes_tiles:
            self.epilogue.emit(inside, self.block, self.columns)

    # -- sums -------------------------------------------------------------------------------

    def _multiply(self, item: Scope) -> None:
        """Leave the sums of the item's rows and columns in scratch memory."""
        c, b = self.gemm, self.builder
        count = self.indices.scalar(self.block.count, item)
        panels = [self._panel_address(gemm, item) for gemm in self.gemms]
        locate = self._locate_rows(item, count)
        scales = [
            self._locate_scales(gemm, item)
            if gemm.block_rows is None
            else self._locate_block_rows(gemm, item)
            for gemm in self.gemms
        ]
        dims = [self.indices.scalar(dim, item) for dim in tile_dims(c)]

        operands = [*zip(self.gemms, self.tiles, panels, self.sums, scales, strict=True)]
        first: ir.Value = I64(0)
        if c.tall:
            first = b.and_(count, I64(-c.tall))
            a, offsets = locate(I64(0))
            with when(b, b.icmp_signed(">", first, I64(0))):
                for tall, (gemm, _, panel, sums, scaled) in zip(self.tall, operands, strict=True):
                    ahead = self._ahead(gemm, panel, I64(0), None)
                    b.call(tall, [a, offsets, panel, sums, *dims, *scaled(I64(0)), *ahead, first])

        def multiply(k: ir.Value | None, more: Sequence[ir.Value]) -> None:
            """All tiles over ``k``, or over a block of it that begins there."""

            def tile(height: int, row: ir.Value) -> None:
                a, offsets = locate(row)
                place = b.mul(row, I64(c.panel)) if c.keeps_item else I64(0)
                if k is not None:
                    a = address(b, a, c.a_dtype, b.mul(k, I64(c.sum_axes[0].step)))
                for gemm, tiles, panel, sums, scaled in operands:
                    out, right = address(b, sums, c.acc, place), panel
                    if k is not None:
                        right = address(b, panel, gemm.b_dtype, b.mul(k, I64(gemm.strip)))
                    ahead = self._ahead(gemm, right, row, k)
                    arguments = [a, offsets, right, out, *dims, *scaled(row), *ahead, *more]
                    b.call(tiles[height], arguments)

            self._cover(first, count, tile, lambda row, at: self._finish(item, row, at, k))

        if c.depth_block is None:
            multiply(None, ())
            return
        assert isinstance(c.depth, int)
        depth, steps = I64(c.depth), I64(c.depth_block)

        def block(k: ir.Value) -> None:
            left = b.sub(depth, k)
            taken = b.select(b.icmp_signed("<", left, steps), left, steps)
            multiply(k, (taken, b.icmp_signed(">", k, I64(0))))

        counted_loop(b, I64(0), depth, c.depth_block, block, trips=-(-c.depth // c.depth_block))

    def _ahead(
        self, gemm: Gemm, right: ir.Value, row: ir.Value, k: ir.Value | None
    ) -> list[ir.Value]:
        """The address from which the tile at ``row`` prefetches, if it does.

        Args:
            right: where the tile's part of the panel begins.
            k: where its block begins; ``None``: there is none.
        """
        fetch, b = gemm.fetch, self.builder
        if fetch is None:
            return []
        if k is None:
            return [self._bytes_after(right, I64(fetch.distance))]
        assert gemm.depth_block is not None
        assert isinstance(gemm.depth, int)
        step = gemm.strip * gemm.b_dtype.itemsize
        nbytes = gemm.depth_block * step
        share = nbytes // gemm.fetching_tiles // fetch.caches.line * fetch.caches.line
        first = b.mul(b.udiv(row, I64(gemm.rows)), I64(share))
        ahead = self._bytes_after(right, b.add(I64(nbytes), first))
        if gemm.strip == gemm.panel:
            return [ahead]
        # What is behind a strip's end is of the next strip, not of the next panel.
        beyond = b.icmp_signed(">=", k, I64(gemm.depth - gemm.depth_block))
        others = gemm.depth * (gemm.panel - gemm.strip) * gemm.b_dtype.itemsize
        return [self._bytes_after(ahead, b.select(beyond, I64(others), I64(0)))]

    def _cover(
        self,
        first: ir.Value,
        count: ir.Value,
        tile: Callable[[int, ir.Value], None],
        finish: Callable[[ir.Value, ir.Value], None],
    ) -> None:
        """Tiles for the rows from ``first`` to ``count``, each of which is finished after its tile.

        They are full tiles, and the last one is as high as there are rows left. Where none is so
        low, it goes back over rows of the one before it.

        Args:
            finish: takes the first row to finish and that of the tile.
        """
        c, b = self.gemm, self.builder
        last = b.sub(count, I64(c.rows))

        def overlapping(row: ir.Value) -> None:
            at = b.select(b.icmp_signed("<", row, last), row, last)
            tile(c.rows, at)
            finish(row, at)

        def separate(row: ir.Value) -> None:
            done = b.append_basic_block("tile.done")
            full = b.icmp_signed("<=", row, last)
            switch = b.switch(b.select(full, I64(c.rows), b.sub(count, row)), done)
            for height in (c.rows, *c.remainders):
                switch.add_case(I64(height), b.append_basic_block(f"rows{height}"))
                b.position_at_end(b.function.basic_blocks[-1])
                tile(height, row)
                b.branch(done)
            b.position_at_end(done)
            finish(row, row)

        step = separate if c.remainders or c.tall else overlapping
        counted_loop(b, first, count, c.rows, step, name="tile")

    def _finish(self, item: Scope, row: ir.Value, at: ir.Value, k: ir.Value | None) -> None:
        """Run the epilogue over the rows of a tile from ``row`` on, if their sums are whole.

        Args:
            at: where the tile begins.
            k: where the block of ``k`` begins that it was over; ``None``: all at once.
        """
        b, c = self.builder, self.gemm
        if not c.finishes_tiles:
            return
        first, kept = axis("m.tile", c.block), axis("m.kept", c.block)
        places = {
            axis_symbol(first): row,
            axis_symbol(kept): row if c.keeps_item else b.sub(row, at),
        }
        inside = item.child(symbols=places)
        rows = Span(self.block.first + first, minimum(c.rows, self.block.count - first))
        emit = partial(self.epilogue.emit, inside, rows, self.columns, kept)
        if k is None or not c.keeps_item:
            emit()
            return
        assert isinstance(c.depth, int)
        assert c.depth_block is not None
        with when(b, b.icmp_signed(">=", k, I64(c.depth - c.depth_block))):
            emit()

    def _locate_rows(self, item: Scope, count: ir.Value) -> Callable[[ir.Value], list[ir.Value]]:
        """A function that gives a tile's rows of ``a`` by its first row's number.

        Rows that are not evenly spaced have their offsets noted in scratch memory first.
        """
        c, b = self.gemm, self.builder
        a = self.kernel.buffers[c.a]
        if c.row_stride is not None:
            start = substitute(c.row_offset, {c.m: self.block.first})
            first = address(b, a, c.a_dtype, self.indices.scalar(start, item))
            stride = I64(c.row_stride)
            return lambda row: [address(b, first, c.a_dtype, b.mul(row, stride)), self.offsets]

        number = axis("m.row", c.block)
        offset = substitute(c.row_offset, {c.m: self.block.first + number})

        def note(row: ir.Value) -> None:
            inside = item.child(symbols={axis_symbol(number): row})
            b.store(self.indices.scalar(offset, inside), address(b, self.offsets, INT64, row))

        counted_loop(b, I64(0), count, 1, note, name="row")
        return lambda row: [a, address(b, self.offsets, INT64, row)]

    def _locate_scales(self, c: Gemm, item: Scope) -> Callable[[ir.Value], list[ir.Value]]:
        """The same for the scales of blocks, where there are any: those of rows and of columns."""
        b, scales = self.builder, c.scales
        if scales is None:
            return lambda row: []
        number, buffers = axis("m.scaled", c.block), self.kernel.buffers
        start = substitute(scales.a_index, {c.m: self.block.first + number})
        blocks = c.depth // scales.size
        element = self.indices.scalar(self.panel * blocks * c.panel, item)
        columns = address(b, buffers[scales.b], scales.b_dtype, element)

        def at(row: ir.Value) -> list[ir.Value]:
            inside = item.child(symbols={axis_symbol(number): row})
            first = self.indices.scalar(start, inside)
            return [address(b, buffers[scales.a], FLOAT32, first), columns]

        return at

    def _locate_block_rows(self, c: Gemm, item: Scope) -> Callable[[ir.Value], list[ir.Value]]:
        """A function that gives the scales and sums of the left operand's blocks, by row."""
        b, rows = self.builder, c.block_rows
        assert rows is not None
        number, buffers = axis("m.blocks", c.block), self.kernel.buffers
        place = {c.m: self.block.first + number}
        parts = (
            (buffers[rows.scales], FLOAT32, substitute(rows.scales_index, place)),
            (buffers[rows.sums], INT32, substitute(rows.sums_index, place)),
        )

        def at(row: ir.Value) -> list[ir.Value]:
            inside = item.child(symbols={axis_symbol(number): row})
            return [
                address(b, buffer, dtype, self.indices.scalar(start, inside))
                for buffer, dtype, start in parts
            ]

        return at

    def _panel_address(self, c: Gemm, item: Scope) -> ir.Value:
        number = c.b_group * c.panels + self.panel
        element = self.indices.scalar(number * c.panel_size, item)
        return address(self.builder, self.kernel.buffers[c.b], c.b_dtype, element)

    def _bytes_after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.builder.gep(base, [distance], source_etype=I8)
