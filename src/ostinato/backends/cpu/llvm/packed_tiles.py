"""The register tile of a GEMM with packed weights: some rows of bytes times one panel of blocks.

Codes are taken apart in registers. The sums of a group of positions of ``k`` are integers; what
codes of zero would come to is in them from the start. At the end of a group they become float32 and
count as the weights' scales say; at the end of a block, as the rows' scales say. All is added up in
one order, whatever the number of rows.

Where no instruction multiplies four bytes, groups of a block are added up as integers, too, each
times its factor: a block has one float32 of each element. Products in pairs (AVX2) are first summed
in 16 bits, as many as fit; several rows of them are multiplied by
:mod:`ostinato.backends.cpu.llvm.unpacked_tiles`, with the same sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.byte_dots import (
    add_pairs,
    add_products,
    in_order,
    pairs_of_products,
    with_unsigned_left,
)
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic
from ostinato.backends.cpu.llvm.memory import load, prefetch, store
from ostinato.backends.cpu.llvm.microkernel import row_pointers, tile_dims
from ostinato.backends.cpu.llvm.packed_operands import Locate, PackedPanel, block_rows, repeated
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I64, constant, register_type
from ostinato.backends.cpu.llvm.unpacked_tiles import emit_unpacked_tile
from ostinato.backends.cpu.rules.packed_blocks import CHUNK
from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm

__all__ = ["define_packed_tile"]


def define_packed_tile(
    module: ir.Module, name: str, gemm: Gemm, rows: int, target: TargetSpec
) -> ir.Function:
    """Adds ``void name(a, offsets, b, out, dims..., scales, sums, ahead)`` to ``module``.

    The first ones are those of :func:`~ostinato.backends.cpu.llvm.microkernel.define_tile`. The
    scales and sums are those of the first row (:attr:`Gemm.block_rows`); where rows are not evenly
    spaced, they are the buffers, and behind the offsets of :attr:`Gemm.rows` rows come as many of
    scales and as many of sums. ``ahead`` is the address from which to prefetch; it is there with
    :attr:`Gemm.fetch`.
    """
    dims = tile_dims(gemm)
    pointers = 2 if gemm.fetch is None else 3
    arguments = [*[BYTE_POINTER] * 4, *[I64] * len(dims), *[BYTE_POINTER] * pointers]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, offsets, b, out, *rest = function.args
    scales, sums, *more = rest[len(dims) :]
    ahead = more[0] if more and gemm.fetches(rows) else None
    panel = PackedPanel(builder, gemm, target)
    if panel.pairs and rows > 1:
        prefix = name.removesuffix(str(rows))
        emit_unpacked_tile(panel, prefix, rows, (a, offsets, b, out, scales, sums), ahead)
    else:
        left = row_pointers(builder, gemm, rows, a, offsets)
        right = block_rows(builder, gemm, rows, (scales, sums), offsets)
        _PackedTile(panel, left, b, right, ahead).run(out)
    builder.ret_void()
    return function


class _PackedTile:
    """A tile whose sums are in stack slots, which LLVM turns into registers.

    Args:
        panel: the form of the panel.
        left: pointers to the rows of ``a``.
        start: of the panel.
        rows: give the scales and the sums of a row.
        ahead: the address from which to prefetch, if the tile does.
    """

    def __init__(
        self,
        panel: PackedPanel,
        left: Sequence[ir.Value],
        start: ir.Value,
        rows: tuple[Locate, Locate],
        ahead: ir.Value | None,
    ) -> None:
        self.panel, self.builder, self.gemm = panel, panel.builder, panel.gemm
        self.left, self.start = left, start
        self.scales, self.sums = rows
        self.ahead = ahead
        self.layout, self.form, self.steps = panel.layout, panel.form, panel.steps
        self.lanes, self.vectors = panel.lanes, panel.vectors
        size = len(left) * self.vectors
        self.exact, self.weighed, self.counted = (
            [stack_slot(self.builder, register_type(INT32, self.lanes)) for _ in range(size)]
            for _ in range(3)
        )
        kind = register_type(FLOAT32, self.lanes)
        self.totals = [stack_slot(self.builder, kind) for _ in range(size)]
        self.block = [stack_slot(self.builder, kind) for _ in range(size)]

    def run(self, out: ir.Value) -> None:
        """Leave the totals at ``out``."""
        b, form = self.builder, self.form
        self._clear(self.totals)
        blocks = bounds(self.gemm.depth)[1] // form.size
        counted_loop(b, I64(0), I64(blocks), 1, self._block, trips=blocks, name="block")
        for place, slot in enumerate(self.totals):
            store(b, out, FLOAT32, I64(place * self.lanes), self._value(slot))

    def _clear(self, slots: Sequence[ir.Value]) -> None:
        for slot in slots:
            self.builder.store(constant(FLOAT32, 0.0, self.lanes), slot)

    @property
    def _in_integers(self) -> bool:
        """Whether the groups of a block are added up as integers."""
        return not self.panel.target.has_byte_dots and self.form.groups > 1

    def _block(self, number: ir.Value) -> None:
        b, form, layout = self.builder, self.form, self.layout
        distance = b.mul(number, I64(layout.column_bytes * self.gemm.panel))
        start = b.gep(self.start, [distance], source_etype=I8)
        scales = [self.panel.scale(start, vector) for vector in range(self.vectors)]
        minima = []
        if form.minimum is not None:
            minima = [self.panel.minimum(start, vector) for vector in range(self.vectors)]
        chunks, nbytes = layout.chunks, layout.chunk_bytes * self.gemm.panel
        first = b.gep(start, [I64(layout.first_chunk * self.gemm.panel)], source_etype=I8)

        def chunk(place: ir.Value) -> None:
            at = b.add(b.mul(number, I64(chunks)), place)
            codes = b.gep(first, [b.mul(place, I64(nbytes))], source_etype=I8)
            self._chunk(codes, at, scales, minima)

        self._clear(self.block)
        if self._in_integers:
            for slot in (*self.weighed, *self.counted):
                b.store(constant(INT32, 0, self.lanes), slot)
        counted_loop(b, I64(0), I64(chunks), 1, chunk, trips=chunks, name="chunk")
        if self._in_integers:
            self._add_block(scales, minima)
        for row in range(len(self.left)):
            left = broadcast(load(b, self.scales(row), FLOAT32, number), self.lanes)
            for place in range(row * self.vectors, (row + 1) * self.vectors):
                products, slot = self._value(self.block[place]), self.totals[place]
                total = intrinsic("fmuladd", products, left, self._value(slot))
                b.store(total.value, slot)

    def _chunk(
        self, start: ir.Value, at: ir.Value, scales: Sequence[Lane], minima: Sequence[Lane]
    ) -> None:
        """The products of some positions of ``k``.

        Args:
            start: of the chunk in the panel.
            at: its number among all chunks.
            scales, minima: of the block's columns.
        """
        b, form = self.builder, self.form
        self._prefetch(at)
        dots = form.group // self.steps
        together = self.panel.pairs_together(dots)
        groups = self.layout.chunk_groups
        first = b.mul(at, I64(CHUNK))
        for group in range(groups):
            number = b.add(b.mul(at, I64(groups)), I64(group))
            sums = [load(b, self.sums(row), INT32, number) for row in range(len(self.left))]
            zero = self.panel.zero
            for row, total in enumerate(sums):
                offset = broadcast(total * -zero if zero else total.full(0), self.lanes)
                for vector in range(self.vectors):
                    b.store(offset.value, self.exact[row * self.vectors + vector])
            for dot in range(group * dots, (group + 1) * dots, together):
                held: list[ir.Value | None] = [None] * len(self.exact)
                for number in range(dot, dot + together):
                    vectors = range(self.vectors)
                    columns = [self.panel.codes(start, number, vector) for vector in vectors]
                    k = b.add(first, I64(number * self.steps))
                    for row, pointer in enumerate(self.left):
                        word = repeated(self.panel, pointer, k)
                        for vector, column in enumerate(columns):
                            self._multiply(row * self.vectors + vector, word, column, held)
                self._add_held(held)
            if self._in_integers:
                self._weigh_group(start, group, sums)
            else:
                self._add_group(start, group, sums, scales, minima)

    def _prefetch(self, at: ir.Value) -> None:
        """Prefetches as many bytes of the panel as a chunk takes: in order, whatever they are."""
        if self.ahead is None:
            return
        b, line = self.builder, self.gemm.caches.line
        nbytes = self.layout.column_bytes * self.gemm.panel * CHUNK // self.form.size
        first = b.mul(at, I64(nbytes))
        for start in range(0, nbytes, line):
            prefetch(b, self.ahead, b.add(first, I64(start)))

    # -- sums -------------------------------------------------------------------------------

    def _multiply(
        self, place: int, left: ir.Value, right: ir.Value, held: list[ir.Value | None]
    ) -> None:
        """Adds products to the sum at ``place``, or to what is held of it in 16 bits."""
        b, slot, panel = self.builder, self.exact[place], self.panel
        if not panel.pairs:
            total = b.load(slot, typ=register_type(INT32, self.lanes))
            factors, dtypes = (right, left), (UINT8, INT8)
            sums = add_products(b, panel.target, total, factors, dtypes, self.steps)
            b.store(sums, slot)
            return
        if panel.signed:
            right, left = with_unsigned_left(b, right, left)
        pairs, sofar = pairs_of_products(b, right, left), held[place]
        held[place] = in_order(b, pairs if sofar is None else b.add(sofar, pairs))

    def _add_held(self, held: Sequence[ir.Value | None]) -> None:
        """Adds what is held in 16 bits to the sums."""
        b = self.builder
        for slot, pairs in zip(self.exact, held, strict=True):
            if pairs is not None:
                total = b.load(slot, typ=register_type(INT32, self.lanes))
                b.store(add_pairs(b, total, pairs), slot)

    def _add_group(
        self,
        start: ir.Value,
        group: int,
        sums: Sequence[Lane],
        scales: Sequence[Lane],
        minima: Sequence[Lane],
    ) -> None:
        """Adds a group's sums, scaled as columns are, to those of the block."""
        b, form = self.builder, self.form
        weights, offsets = scales, minima
        if form.factors is not None:
            factors = [code.astype(FLOAT32) for code in self.panel.factors(start, group)]
            weights = [scale * factor for scale, factor in zip(scales, factors, strict=True)]
        if form.minima is not None:
            pairs = zip(minima, self.panel.minima(start, group), strict=True)
            offsets = [minimum * code.astype(FLOAT32) for minimum, code in pairs]
        for row in range(len(self.left)):
            moved = broadcast(sums[row], self.lanes).astype(FLOAT32)
            for vector, weight in enumerate(weights):
                place = row * self.vectors + vector
                slot = self.block[place]
                products = self._integer(self.exact[place]).astype(FLOAT32)
                total = intrinsic("fmuladd", products, weight, self._value(slot))
                if offsets:
                    signed = moved if form.minimum_sign > 0 else -moved
                    total = intrinsic("fmuladd", signed, offsets[vector], total)
                b.store(total.value, slot)

    def _weigh_group(self, start: ir.Value, group: int, sums: Sequence[Lane]) -> None:
        """Adds a group's sums, times its factors, to the integers of the block."""
        b, form = self.builder, self.form
        factors = None if form.factors is None else self.panel.factors(start, group)
        minima = None if form.minima is None else self.panel.minima(start, group)
        for place, slot in enumerate(self.weighed):
            row, vector = divmod(place, self.vectors)
            exact = self._integer(self.exact[place])
            product = exact if factors is None else exact * factors[vector]
            b.store((self._integer(slot) + product).value, slot)
            if minima is not None:
                counted = self._integer(self.counted[place])
                counted = counted + minima[vector] * broadcast(sums[row], self.lanes)
                b.store(counted.value, self.counted[place])

    def _add_block(self, scales: Sequence[Lane], minima: Sequence[Lane]) -> None:
        """Leaves the integers of a block, scaled as columns are."""
        for place, slot in enumerate(self.block):
            vector = place % self.vectors
            total = self._integer(self.weighed[place]).astype(FLOAT32) * scales[vector]
            if minima:
                moved = self._integer(self.counted[place]).astype(FLOAT32)
                signed = moved if self.form.minimum_sign > 0 else -moved
                total = intrinsic("fmuladd", signed, minima[vector], total)
            self.builder.store(total.value, slot)

    def _value(self, slot: ir.Value) -> Lane:
        value = self.builder.load(slot, typ=register_type(FLOAT32, self.lanes))
        return Lane(self.builder, value, FLOAT32, self.lanes)

    def _integer(self, slot: ir.Value) -> Lane:
        value = self.builder.load(slot, typ=register_type(INT32, self.lanes))
        return Lane(self.builder, value, INT32, self.lanes)
