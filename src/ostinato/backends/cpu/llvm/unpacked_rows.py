"""Some rows times an unpacked stretch of a panel of packed weights, with products in pairs (AVX2).

A first pass multiplies, and stores the sums of what fits 16 bits; a second one adds them up as
integers, times the factors of their groups, and at the end of each block as float32. So sums of
products have the registers for themselves, and so have those of blocks.

Where groups have factors, what the sums of rows count for (codes of zero, minima) is a dot product
over groups, two at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.byte_dots import (
    add_pairs,
    in_order,
    magnitudes_of,
    multiply_pairs,
    pairs_of_products,
    with_signs_of,
)
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic
from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.microkernel import row_pointers
from ostinato.backends.cpu.llvm.packed_operands import PackedPanel, block_rows, repeated
from ostinato.backends.cpu.llvm.types import I8, I16, I32, I64, constant, register_type
from ostinato.backends.cpu.llvm.unpacking import STRETCH_CHUNKS, Stretch, Unpacking, reserve
from ostinato.backends.cpu.rules.packed_blocks import CHUNK
from ostinato.dtypes import FLOAT32, INT16, INT32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType

__all__ = ["UnpackedRows"]


class UnpackedRows:
    """Multiplies some rows with a stretch, which is unpacked meanwhile, or is already.

    Arguments of the function: ``a, offsets, out, scales, sums, memory, count`` of chunks, and where
    the stretch starts in the panel.
    """

    def __init__(
        self,
        panel: PackedPanel,
        arguments: Sequence[ir.Value],
        ahead: ir.Value | None,
        rows: int,
        *,
        unpacks: bool,
    ) -> None:
        self.panel, self.builder, self.ahead, self.rows = panel, panel.builder, ahead, rows
        a, offsets, self.out, scales, sums, self.memory, self.count, start = arguments
        self.unpacking = Unpacking(panel, start, self.memory) if unpacks else None
        self.left = row_pointers(self.builder, panel.gemm, rows, a, offsets)
        self.scales, self.sums = block_rows(self.builder, panel.gemm, rows, (scales, sums), offsets)
        self.stretch = Stretch(panel)
        self.size = rows * panel.vectors
        self.parts = self.stretch.dots // self.stretch.together
        self.held = reserve(
            panel, STRETCH_CHUNKS * self.parts * self.size * self.stretch.vector_bytes
        )
        self.counts = reserve(panel, rows * panel.form.groups * INT16.itemsize)

    def emit(self) -> None:
        """Emit all of it."""
        b, stretch, lanes = self.builder, self.stretch, self.panel.lanes
        step = 1
        if self.unpacking is not None:
            self.unpacking.begin()
            step = stretch.step

        def chunks(first: ir.Value) -> None:
            for number in range(step):
                self._products(b.add(first, I64(number)))
            if self.unpacking is not None:
                self.unpacking.integers(first)

        counted_loop(b, I64(0), self.count, step, chunks, trips=STRETCH_CHUNKS, name="products")
        if stretch.counts:
            self._narrow_sums()
        totals = [stack_slot(b, register_type(FLOAT32, lanes)) for _ in range(self.size)]
        for place, slot in enumerate(totals):
            b.store(load(b, self.out, FLOAT32, I64(place * lanes), lanes).value, slot)
        blocks = b.udiv(self.count, I64(stretch.block_chunks))

        def block(number: ir.Value) -> None:
            self._add_block(number, totals)

        counted_loop(b, I64(0), blocks, 1, block, trips=stretch.blocks, name="block")
        for place, slot in enumerate(totals):
            store(b, self.out, FLOAT32, I64(place * lanes), self._lane(slot, FLOAT32))

    # -- products ---------------------------------------------------------------------------

    def _products(self, chunk: ir.Value) -> None:
        """Leave the sums of a chunk's products, of 16 bits, or of 32 where codes are signed."""
        b, stretch = self.builder, self.stretch
        stretch.prefetch_half(self.ahead, chunk)
        for part in range(self.parts):
            sums: list[ir.Value | None] = [None] * self.size
            for dot in range(part * stretch.together, (part + 1) * stretch.together):
                columns = self._columns(chunk, dot)
                k = b.add(b.mul(chunk, I64(CHUNK)), I64(dot * self.panel.steps))
                for row, pointer in enumerate(self.left):
                    word = repeated(self.panel, pointer, k)
                    for vector, column in enumerate(columns):
                        place = row * self.panel.vectors + vector
                        sums[place] = self._product(column, word, sums[place])
            number = b.add(b.mul(chunk, I64(self.parts)), I64(part))
            for place, value in enumerate(sums):
                assert value is not None
                b.store(value, self._held(number, place), align=1)

    def _columns(self, chunk: ir.Value, dot: int) -> list[tuple[ir.Value, ir.Value]]:
        """The codes of a dot product, and their magnitudes if they are signed."""
        b, panel, stretch = self.builder, self.panel, self.stretch
        if self.unpacking is not None:
            columns = self.unpacking.codes(chunk, dot)
        else:
            number = b.add(b.mul(chunk, I64(stretch.dots)), I64(dot))
            places = [stretch.at(self.memory, 0, number, v) for v in range(panel.vectors)]
            columns = [b.load(place, align=1, typ=panel.bytes) for place in places]
        if not panel.signed:
            return [(codes, codes) for codes in columns]
        return [(codes, magnitudes_of(b, codes)) for codes in columns]

    def _product(
        self, column: tuple[ir.Value, ir.Value], word: ir.Value, sofar: ir.Value | None
    ) -> ir.Value:
        b, (codes, magnitudes) = self.builder, column
        if not self.panel.signed:
            pairs = pairs_of_products(b, codes, word)
            return in_order(b, pairs if sofar is None else b.add(sofar, pairs))
        pairs = pairs_of_products(b, magnitudes, with_signs_of(b, codes, word))
        total = constant(INT32, 0, self.panel.lanes) if sofar is None else sofar
        return in_order(b, add_pairs(b, total, pairs))

    def _held(self, number: ir.Value, place: int) -> ir.Value:
        b, nbytes = self.builder, self.stretch.vector_bytes
        offset = b.add(b.mul(number, I64(self.size * nbytes)), I64(place * nbytes))
        return b.gep(self.held, [offset], source_etype=I8)

    # -- sums -------------------------------------------------------------------------------

    def _narrow_sums(self) -> None:
        """The sums of all rows as integers of 16 bits: groups are too short for more."""
        b, groups = self.builder, self.panel.form.groups
        for row in range(self.rows):
            sums = load(b, self.sums(row), INT32, I64(0), groups).value
            place = b.gep(self.counts, [I64(row * groups)], source_etype=I16)
            b.store(b.trunc(sums, ir.VectorType(I16, groups)), place, align=2)

    def _add_block(self, number: ir.Value, totals: Sequence[ir.Value]) -> None:
        """Adds a block's products to the totals."""
        b, stretch, panel = self.builder, self.stretch, self.panel
        kind = register_type(INT32, panel.lanes)
        slots = [stack_slot(b, kind) for _ in range(self.size)]
        for slot in slots:
            b.store(constant(INT32, 0, panel.lanes), slot)
        first = b.mul(number, I64(stretch.block_chunks))

        def chunk(place: ir.Value) -> None:
            self._add_chunk(b.add(first, place), slots)

        trips = stretch.block_chunks
        counted_loop(b, I64(0), I64(trips), 1, chunk, trips=trips, name="sums")
        counts = self._counts(number)
        vectors = range(panel.vectors)
        scales = [self._parameter(stretch.scales_at, number, vector) for vector in vectors]
        minima = []
        if panel.form.minimum is not None:
            minima = [self._parameter(stretch.minima_at, number, vector) for vector in vectors]
        for row in range(self.rows):
            left = broadcast(load(b, self.scales(row), FLOAT32, number), panel.lanes)
            for vector in vectors:
                place = row * panel.vectors + vector
                exact = self._lane(slots[place], INT32)
                if panel.zero:
                    exact = exact - counts[place] * panel.zero
                value = exact.astype(FLOAT32) * scales[vector]
                if minima:
                    moved = counts[place].astype(FLOAT32)
                    signed = moved if panel.form.minimum_sign > 0 else -moved
                    value = intrinsic("fmuladd", signed, minima[vector], value)
                total = intrinsic("fmuladd", value, left, self._lane(totals[place], FLOAT32))
                b.store(total.value, totals[place])

    def _add_chunk(self, chunk: ir.Value, slots: Sequence[ir.Value]) -> None:
        """Adds the sums of a chunk, times the factors of their groups, to those of its block."""
        b, stretch, panel = self.builder, self.stretch, self.panel
        groups = panel.layout.chunk_groups
        sums = register_type(INT32, panel.lanes)
        pairs = ir.VectorType(I16, 2 * panel.lanes)
        for part in range(self.parts):
            factors: list[ir.Value | None] = [None] * panel.vectors
            if panel.form.factors is not None:
                group = b.add(b.mul(chunk, I64(groups)), I64(part * groups // self.parts))
                factors = [
                    b.load(
                        stretch.at(self.memory, stretch.factors_at, group, vector),
                        align=1,
                        typ=sums if panel.signed else pairs,
                    )
                    for vector in range(panel.vectors)
                ]
            number = b.add(b.mul(chunk, I64(self.parts)), I64(part))
            for place, slot in enumerate(slots):
                factor = factors[place % panel.vectors]
                held = b.load(
                    self._held(number, place), align=1, typ=sums if panel.signed else pairs
                )
                total = b.load(slot, typ=sums)
                if not panel.signed:
                    added = multiply_pairs(b, held, factor)
                else:
                    added = held if factor is None else b.mul(held, factor)
                b.store(b.add(total, added), slot)

    def _counts(self, number: ir.Value) -> list[Lane]:
        """The sums of rows in a block, each times the integer by which its group counts."""
        b, stretch, panel = self.builder, self.stretch, self.panel
        form = panel.form
        if panel.zero == 0 and form.minimum is None:
            return []
        if not stretch.counts:
            found = []
            for row in range(self.rows):
                first = b.mul(number, I64(form.groups))
                total = load(b, self.sums(row), INT32, first)
                for group in range(1, form.groups):
                    total = total + load(b, self.sums(row), INT32, b.add(first, I64(group)))
                found += [broadcast(total, panel.lanes)] * panel.vectors
            return found
        pairs = ir.VectorType(I16, 2 * panel.lanes)
        totals: list[ir.Value | None] = [None] * self.size
        for pair in range(form.groups // 2):
            columns = [
                b.load(
                    stretch.at(self.memory, stretch.counts_at, I64(pair), vector),
                    align=1,
                    typ=pairs,
                )
                for vector in range(panel.vectors)
            ]
            for row in range(self.rows):
                place = b.gep(self.counts, [I64(row * form.groups + 2 * pair)], source_etype=I16)
                both = Lane(b, b.load(place, align=2, typ=I32), INT32, 1)
                sums = b.bitcast(broadcast(both, panel.lanes).value, pairs)
                for vector, column in enumerate(columns):
                    at = row * panel.vectors + vector
                    product, sofar = multiply_pairs(b, column, sums), totals[at]
                    totals[at] = product if sofar is None else b.add(sofar, product)
        return [Lane(b, total, INT32, panel.lanes) for total in totals]

    def _parameter(self, start: int, number: ir.Value, vector: int) -> Lane:
        """A scale or a minimum of a block's columns."""
        place = self.stretch.at(self.memory, start, number, vector)
        return load(self.builder, place, FLOAT32, I64(0), self.panel.lanes)

    def _lane(self, slot: ir.Value, dtype: DType) -> Lane:
        value = self.builder.load(slot, typ=register_type(dtype, self.panel.lanes))
        return Lane(self.builder, value, dtype, self.panel.lanes)
