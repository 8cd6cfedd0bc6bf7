"""Many rows of bytes times a panel of packed weights, in the tile registers of Intel AMX.

A panel passes by in stretches of ``k``. The codes of a stretch are unpacked once, to signed bytes
that the first-level cache holds, beside the float32 by which each group of them counts. Then 16
rows at a time are multiplied with all of it: a group is one instruction, whose sums go to memory,
and are weighed and added up as vectors while the tile registers have the next group.

The integers of a group are those that register tiles of vectors have
(:mod:`ostinato.backends.cpu.llvm.packed_tiles`), and count and are added up as theirs are: a row
has the same bits in either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.amx_tiles import (
    TILE_ROW_BYTES,
    encoded,
    load_configuration,
)
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic
from ostinato.backends.cpu.llvm.memory import load, prefetch, store
from ostinato.backends.cpu.llvm.microkernel import tile_dims
from ostinato.backends.cpu.llvm.packed_operands import PackedPanel, known_step
from ostinato.backends.cpu.llvm.types import (
    BYTE_POINTER,
    I8,
    I64,
    call_intrinsic,
    constant,
    register_type,
)
from ostinato.backends.cpu.llvm.unpacking import STRETCH_CHUNKS, reserve
from ostinato.backends.cpu.rules.packed_blocks import CHUNK
from ostinato.backends.cpu.rules.packing import TILE_ROWS
from ostinato.dtypes import FLOAT32, INT32, UINT8
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm

__all__ = ["define_packed_rows"]

_AHEAD = 2
"""Groups whose products are on their way while those in front are added up."""

_SUMS, _LEFT, _RIGHT = (0, 1), (2, 3), (4, 5)
"""The tile registers of sums, of rows and of codes: a group has one of each, the next the other."""


def define_packed_rows(module: ir.Module, name: str, gemm: Gemm, target: TargetSpec) -> ir.Function:
    """Adds ``void name(a, offsets, b, out, dims..., scales, sums, ahead, rows)`` to ``module``.

    The first ones are those of
    :func:`~ostinato.backends.cpu.llvm.packed_tiles.define_packed_tile`, whose rows are evenly
    spaced; ``rows`` is how many there are, a multiple of 16.
    """
    dims = tile_dims(gemm)
    pointers = 2 if gemm.fetch is None else 3
    kinds = [*[BYTE_POINTER] * 4, *[I64] * len(dims), *[BYTE_POINTER] * pointers, I64]
    builder, arguments = _function(module, name, kinds, target)
    a, _, b, out, *rest = arguments
    scales, sums, *more = rest[len(dims) :]
    ahead = more[0] if gemm.fetch is not None else None
    panel = PackedPanel(builder, gemm, target)
    _Stretches(panel, name, (a, out, scales, sums), more[-1]).emit(b, ahead)
    builder.ret_void()
    function: ir.Function = module.globals[name]
    return function


def _function(
    module: ir.Module, name: str, kinds: Sequence[ir.Type], target: TargetSpec
) -> tuple[ir.IRBuilder, Sequence[ir.Value]]:
    """A function under construction, and its arguments."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    return ir.IRBuilder(function.append_basic_block("entry")), function.args


class _Memory:
    """The memory of an unpacked stretch: vectors of codes, and of float32 by group or block.

    Attributes:
        weights: the offset of what the sums of each group count by.
        minima: the offset of what the sums of rows in it count by.
        nbytes: of all.
    """

    def __init__(self, panel: PackedPanel) -> None:
        self._vectors = panel.vectors
        groups = STRETCH_CHUNKS * panel.layout.chunk_groups
        self.weights = STRETCH_CHUNKS * (CHUNK // panel.steps) * self._vectors * TILE_ROW_BYTES
        self.minima = self.weights + groups * self._vectors * TILE_ROW_BYTES
        has = panel.form.minimum is not None
        self.nbytes = self.minima + has * groups * self._vectors * TILE_ROW_BYTES

    def codes(self, vector: int, row: int = 0) -> int:
        """The offset of a row of the codes of a vector of columns, which stand side by side."""
        rows = STRETCH_CHUNKS * CHUNK // 4
        return (vector * rows + row) * TILE_ROW_BYTES

    def weight(self, group: int, vector: int) -> int:
        """The offset of a weight; that of a minimum is as far behind :attr:`minima`."""
        return (group * self._vectors + vector) * TILE_ROW_BYTES


class _Stretches:
    """All stretches of a panel, one after the other, by all rows.

    Args:
        panel: the form of the panel, with the builder of the function.
        name: of the function.
        left: ``a, out, scales, sums``: of the first row.
        rows: a multiple of 16.
    """

    def __init__(
        self, panel: PackedPanel, name: str, left: Sequence[ir.Value], rows: ir.Value
    ) -> None:
        self.panel, self.builder, self.gemm = panel, panel.builder, panel.gemm
        self.name, self.left, self.rows = name, left, rows
        self.layout, self.form = panel.layout, panel.form
        self.memory = _Memory(panel)

    def emit(self, start: ir.Value, ahead: ir.Value | None) -> None:
        """Emit all of it.

        Args:
            start: of the panel.
            ahead: the address from which to prefetch.
        """
        b = self.builder
        held = reserve(self.panel, self.memory.nbytes)
        self._clear()
        load_configuration(b, f"tiles.groups.{self.form.group}", encoded(self._shapes()))
        chunks = bounds(self.gemm.depth)[1] // CHUNK
        whole, rest = divmod(chunks, STRETCH_CHUNKS)

        def stretch(number: ir.Value, count: int = STRETCH_CHUNKS) -> None:
            chunk = b.mul(number, I64(STRETCH_CHUNKS))
            nbytes = I64(self._panel_bytes(STRETCH_CHUNKS))
            distance = b.mul(number, nbytes)
            if ahead is not None:
                self._prefetch(b.gep(ahead, [distance], source_etype=I8), count)
            self._unpack(b.gep(start, [distance], source_etype=I8), held, count)
            b.call(self._multiply(count), [*self._left(chunk), held, self.rows])

        counted_loop(b, I64(0), I64(whole), 1, stretch, trips=whole, name="stretch")
        if rest:
            stretch(I64(whole), rest)
        call_intrinsic(b, "llvm.x86.tilerelease", ir.VoidType(), [])

    def _shapes(self) -> dict[int, tuple[int, int]]:
        """Rows and bytes of a row of each tile register."""
        group = self.form.group
        return {
            **dict.fromkeys(_SUMS, (TILE_ROWS, TILE_ROW_BYTES)),
            **dict.fromkeys(_LEFT, (TILE_ROWS, group)),
            **dict.fromkeys(_RIGHT, (group // 4, TILE_ROW_BYTES)),
        }

    def _panel_bytes(self, chunks: int) -> int:
        return self.layout.column_bytes * self.gemm.panel * chunks * CHUNK // self.form.size

    def _clear(self) -> None:
        b, (_, out, *_) = self.builder, self.left
        zero = Lane(b, constant(FLOAT32, 0.0, self.panel.lanes), FLOAT32, self.panel.lanes)

        def vector(number: ir.Value) -> None:
            store(b, out, FLOAT32, b.mul(number, I64(self.panel.lanes)), zero)

        count = b.mul(self.rows, I64(self.panel.vectors))
        counted_loop(b, I64(0), count, 1, vector, name="clear")

    def _prefetch(self, ahead: ir.Value, chunks: int) -> None:
        for place in range(0, self._panel_bytes(chunks), self.gemm.caches.line):
            prefetch(self.builder, ahead, I64(place))

    def _left(self, chunk: ir.Value) -> list[ir.Value]:
        """The operands of the first row, from a chunk on."""
        b, (a, out, scales, sums) = self.builder, self.left
        blocks = b.udiv(chunk, I64(self.layout.chunks))
        groups = b.mul(chunk, I64(self.layout.chunk_groups))
        return [
            b.gep(a, [b.mul(chunk, I64(CHUNK))], source_etype=I8),
            out,
            b.gep(scales, [b.mul(blocks, I64(4))], source_etype=I8),
            b.gep(sums, [b.mul(groups, I64(4))], source_etype=I8),
        ]

    # -- unpacking --------------------------------------------------------------------------

    def _unpack(self, start: ir.Value, held: ir.Value, chunks: int) -> None:
        """Bring the codes and weights of some chunks into memory."""
        b, layout = self.builder, self.layout
        blocks = chunks // layout.chunks
        nbytes = layout.column_bytes * self.gemm.panel

        def block(number: ir.Value) -> None:
            at = b.gep(start, [b.mul(number, I64(nbytes))], source_etype=I8)
            vectors = range(self.panel.vectors)
            scales = [self.panel.scale(at, vector) for vector in vectors]
            minima = []
            if self.form.minimum is not None:
                minima = [self.panel.minimum(at, vector) for vector in vectors]
            first = b.mul(number, I64(layout.chunks))
            codes = b.gep(at, [I64(layout.first_chunk * self.gemm.panel)], source_etype=I8)

            def chunk(place: ir.Value) -> None:
                distance = b.mul(place, I64(layout.chunk_bytes * self.gemm.panel))
                here = b.gep(codes, [distance], source_etype=I8)
                self._unpack_chunk(here, b.add(first, place), held, scales, minima)

            counted_loop(b, I64(0), I64(layout.chunks), 1, chunk, trips=layout.chunks, name="chunk")

        counted_loop(b, I64(0), I64(blocks), 1, block, trips=blocks, name="block")

    def _unpack_chunk(
        self,
        start: ir.Value,
        number: ir.Value,
        held: ir.Value,
        scales: Sequence[Lane],
        minima: Sequence[Lane],
    ) -> None:
        """One chunk; ``number`` is its place in the stretch."""
        b, panel, form = self.builder, self.panel, self.form
        dots, groups = CHUNK // panel.steps, self.layout.chunk_groups
        to = b.gep(held, [b.mul(number, I64(dots * TILE_ROW_BYTES))], source_etype=I8)
        for vector in range(panel.vectors):
            for dot in range(dots):
                codes = panel.codes(start, dot, vector)
                if panel.zero:
                    zero = constant(UINT8, panel.zero, codes.type.count)
                    codes = b.sub(codes, zero)
                offset = self.memory.codes(vector, dot)
                b.store(codes, b.gep(to, [I64(offset)], source_etype=I8), align=TILE_ROW_BYTES)
        by_group = groups * panel.vectors * TILE_ROW_BYTES
        to = b.gep(held, [b.mul(number, I64(by_group))], source_etype=I8)
        for group in range(groups):
            weights, offsets = scales, minima
            if form.factors is not None:
                factors = [code.astype(FLOAT32) for code in panel.factors(start, group)]
                weights = [scale * factor for scale, factor in zip(scales, factors, strict=True)]
            if form.minima is not None:
                codes = panel.minima(start, group)
                pairs = zip(minima, codes, strict=True)
                offsets = [minimum * code.astype(FLOAT32) for minimum, code in pairs]
            for base, lanes in ((self.memory.weights, weights), (self.memory.minima, offsets)):
                for vector, lane in enumerate(lanes):
                    place = I64(base + self.memory.weight(group, vector))
                    store(b, b.gep(to, [place], source_etype=I8), FLOAT32, I64(0), lane)

    # -- products ---------------------------------------------------------------------------

    def _multiply(self, chunks: int) -> ir.Function:
        """The function ``void(a, out, scales, sums, memory, rows)`` for so many chunks."""
        module, name = self.builder.module, f"{self.name}.{chunks}"
        found = module.globals.get(name)
        if found is None:
            kinds = [*[BYTE_POINTER] * 5, I64]
            builder, arguments = _function(module, name, kinds, self.panel.target)
            panel = PackedPanel(builder, self.gemm, self.panel.target)
            *left, held, rows = arguments
            for vector in range(panel.vectors):
                _Rows(panel, self.memory, left, held, vector, chunks).emit(rows)
            builder.ret_void()
            found = module.globals[name]
        function: ir.Function = found
        return function


class _Rows:
    """All rows times an unpacked stretch of a vector of columns.

    Args:
        left: ``a, out, scales, sums``: of the first row, at the stretch.
        held: the unpacked stretch.
        vector: of columns.
        chunks: of the stretch.
    """

    def __init__(
        self,
        panel: PackedPanel,
        memory: _Memory,
        left: Sequence[ir.Value],
        held: ir.Value,
        vector: int,
        chunks: int,
    ) -> None:
        self.panel, self.builder, self.gemm = panel, panel.builder, panel.gemm
        self.memory, self.held, self.vector = memory, held, vector
        self.a, self.out, self.scales, self.sums = left
        assert self.gemm.block_rows is not None
        assert self.gemm.row_stride is not None
        self.row_bytes = self.gemm.row_stride
        self.scale_step, self.sum_step = (
            known_step(index, self.gemm)
            for index in (self.gemm.block_rows.scales_index, self.gemm.block_rows.sums_index)
        )
        self.form, self.lanes = panel.form, panel.lanes
        self.groups = chunks * panel.layout.chunk_groups
        self.products = [reserve(panel, TILE_ROWS * TILE_ROW_BYTES) for _ in range(_AHEAD + 1)]
        kind = register_type(FLOAT32, self.lanes)
        self.block = [stack_slot(self.builder, kind) for _ in range(TILE_ROWS)]
        self.totals = [stack_slot(self.builder, kind) for _ in range(TILE_ROWS)]

    def emit(self, rows: ir.Value) -> None:
        """Emit the loop over rows, 16 at a time."""
        counted_loop(self.builder, I64(0), rows, TILE_ROWS, self._tile, name=f"rows{self.vector}")

    def _tile(self, first: ir.Value) -> None:
        """16 rows: the products of a group are on their way while those in front are added up."""
        b, per_block = self.builder, self.form.groups
        a = self._after(self.a, b.mul(first, I64(self.row_bytes)))
        row_bytes = self.gemm.panel * 4
        out = self._after(self.out, b.mul(first, I64(row_bytes)))
        out = self._after(out, I64(self.vector * TILE_ROW_BYTES))
        scales = self._after(self.scales, b.mul(first, I64(4 * self.scale_step)))
        sums = self._after(self.sums, b.mul(first, I64(4 * self.sum_step)))
        for group in range(min(_AHEAD, self.groups)):
            self._products(a, group)
        for group in range(self.groups):
            if group + _AHEAD < self.groups:
                self._products(a, group + _AHEAD)
            block, place = divmod(group, per_block)
            ends = place == per_block - 1
            if ends and block == 0:  # long blocks have the registers for themselves until then
                self._load_totals(out)
            self._weigh(group, sums, begins=place == 0)
            if ends:
                self._add_block(scales, block)
        for row, slot in enumerate(self.totals):
            store(b, out, FLOAT32, I64(row * self.gemm.panel), self._value(slot))

    def _load_totals(self, out: ir.Value) -> None:
        for row, slot in enumerate(self.totals):
            place = I64(row * self.gemm.panel)
            self.builder.store(load(self.builder, out, FLOAT32, place, self.lanes).value, slot)

    def _products(self, a: ir.Value, group: int) -> None:
        """Leave the products of a group in memory."""
        which, nbytes = group % len(_SUMS), self.form.group
        sums, left, right = _SUMS[which], _LEFT[which], _RIGHT[which]
        products = self.products[group % len(self.products)]
        rows = self._after(a, I64(group * nbytes))
        codes = self._after(self.held, I64(self.memory.codes(self.vector, group * nbytes // 4)))
        self._instruction("tilezero", sums)
        self._instruction("tileloadd64", left, rows, I64(self.row_bytes))
        self._instruction("tileloadd64", right, codes, I64(TILE_ROW_BYTES))
        self._instruction("tdpbssd", sums, I8(left), I8(right))
        self._instruction("tilestored64", sums, products, I64(TILE_ROW_BYTES))

    def _weigh(self, group: int, sums: ir.Value, *, begins: bool) -> None:
        """Add the products of a group to the sums of its block, by row, as its weights say."""
        b, form, lanes = self.builder, self.form, self.lanes
        products = self.products[group % len(self.products)]
        at = self.memory.weight(group, self.vector)
        weight = self._vector(self.memory.weights + at)
        minimum = None if form.minimum is None else self._vector(self.memory.minima + at)
        for row, slot in enumerate(self.block):
            exact = load(b, products, INT32, I64(row * lanes), lanes).astype(FLOAT32)
            if begins:
                total = exact * weight
            else:
                total = intrinsic("fmuladd", exact, weight, self._value(slot))
            if minimum is not None:
                moved = load(b, sums, INT32, I64(row * self.sum_step + group))
                signed = broadcast(moved, lanes).astype(FLOAT32)
                signed = signed if form.minimum_sign > 0 else -signed
                total = intrinsic("fmuladd", signed, minimum, total)
            b.store(total.value, slot)

    def _add_block(self, scales: ir.Value, block: int) -> None:
        """Add the sums of a block to the totals, as the rows' scales say."""
        b = self.builder
        for row, (sums, slot) in enumerate(zip(self.block, self.totals, strict=True)):
            scale = load(b, scales, FLOAT32, I64(row * self.scale_step + block))
            factor = broadcast(scale, self.lanes)
            total = intrinsic("fmuladd", self._value(sums), factor, self._value(slot))
            b.store(total.value, slot)

    def _vector(self, offset: int) -> Lane:
        return load(self.builder, self._after(self.held, I64(offset)), FLOAT32, I64(0), self.lanes)

    def _value(self, slot: ir.Value) -> Lane:
        value = self.builder.load(slot, typ=register_type(FLOAT32, self.lanes))
        return Lane(self.builder, value, FLOAT32, self.lanes)

    def _after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.builder.gep(base, [distance], source_etype=I8)

    def _instruction(self, name: str, register: int, *operands: ir.Value) -> None:
        arguments = [I8(register), *operands]
        call_intrinsic(self.builder, f"llvm.x86.{name}", ir.VoidType(), arguments)
