"""The register tile of a GEMM with packed weights: some rows of bytes times one panel of blocks.

Codes are taken apart in registers and multiplied as they are, unsigned. The sums of a group of
positions of ``k`` are integers; what codes of zero would come to is in them from the start. At the
end of a group they become float32 and count as the weights' scales say; at the end of a block, as
the rows' scales say. All is added up in one order, whatever the number of rows.

Products in pairs (AVX2) are first summed in 16 bits, as many as fit. Codes too great for even one
pair count as signed numbers: as their magnitudes, beside rows of bytes that take their signs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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
from ostinato.backends.cpu.llvm.memory import address, load, prefetch, store
from ostinato.backends.cpu.llvm.microkernel import row_pointers, tile_dims
from ostinato.backends.cpu.llvm.types import (
    BYTE_POINTER,
    I8,
    I32,
    I64,
    call_intrinsic,
    constant,
    register_type,
)
from ostinato.backends.cpu.rules.packed_blocks import CHUNK, MINIMA_SHIFT, BlockPanels
from ostinato.dtypes import FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.variables import Dim

__all__ = ["define_packed_tile"]

_PAIR = 2 * 127
"""The bound of a pair of products, times a code: activations are within -127 and 127."""

_MOST = (1 << 15) - 1
"""The greatest integer of 16 bits."""

_LOOK_UP = {
    16: "llvm.x86.ssse3.pshuf.b.128",
    32: "llvm.x86.avx2.pshuf.b",
    64: "llvm.x86.avx512.pshuf.b.512",
}
"""By bytes: instructions that look up bytes in tables of 16."""


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
    left = row_pointers(builder, gemm, rows, a, offsets)
    ahead = more[0] if more and gemm.fetches(rows) else None
    right = _block_rows(builder, gemm, rows, (scales, sums), offsets)
    _PackedTile(builder, gemm, target, left, b, right, ahead).run(out)
    builder.ret_void()
    return function


#: Gives the address of what belongs to a row.
_Locate: TypeAlias = "Callable[[int], ir.Value]"


def _block_rows(
    builder: ir.IRBuilder,
    gemm: Gemm,
    rows: int,
    bases: tuple[ir.Value, ir.Value],
    offsets: ir.Value,
) -> tuple[_Locate, _Locate]:
    """The scales and the sums of a tile's rows; see :func:`define_packed_tile`."""
    assert gemm.block_rows is not None
    indices = gemm.block_rows.scales_index, gemm.block_rows.sums_index
    if gemm.row_stride is not None:
        scales, sums = (
            _evenly(builder, base, coefficient(index, gemm.m))
            for base, index in zip(bases, indices, strict=True)
        )
        return scales, sums
    scales, sums = (
        _noted(builder, base, offsets, range(first, first + rows))
        for base, first in zip(bases, (gemm.rows, 2 * gemm.rows), strict=True)
    )
    return scales, sums


def _evenly(builder: ir.IRBuilder, base: ir.Value, parts: tuple[Dim, Dim] | None) -> _Locate:
    """Addresses of 4-byte elements at a known distance."""
    assert parts is not None
    step = parts[0]
    assert isinstance(step, int)
    return lambda row: address(builder, base, INT32, I64(row * step))


def _noted(
    builder: ir.IRBuilder, base: ir.Value, offsets: ir.Value, numbers: Sequence[int]
) -> _Locate:
    """Addresses of 4-byte elements by their offsets in memory."""
    noted = [
        builder.load(address(builder, offsets, INT64, I64(number)), align=8, typ=I64)
        for number in numbers
    ]
    found = [address(builder, base, INT32, offset) for offset in noted]
    return found.__getitem__


class _PackedTile:
    """A tile whose sums are in stack slots, which LLVM turns into registers.

    Args:
        left: pointers to the rows of ``a``.
        panel: the panel.
        rows: give the scales and the sums of a row.
        ahead: the address from which to prefetch, if the tile does.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        gemm: Gemm,
        target: TargetSpec,
        left: Sequence[ir.Value],
        panel: ir.Value,
        rows: tuple[_Locate, _Locate],
        ahead: ir.Value | None,
    ) -> None:
        assert isinstance(gemm.b_format, BlockPanels)
        self.builder, self.gemm, self.target = builder, gemm, target
        self.left, self.panel = left, panel
        self.scales, self.sums = rows
        self.ahead = ahead
        self.layout = gemm.b_format
        self.form, self.steps = gemm.b_format.form, gemm.b_format.steps
        self.lanes = target.lanes(INT32.itemsize)
        self.vectors = gemm.panel // self.lanes
        self.pairs = target.has_byte_pairs and not target.has_byte_dots
        size = len(left) * self.vectors
        self.exact = [stack_slot(builder, register_type(INT32, self.lanes)) for _ in range(size)]
        kind = register_type(FLOAT32, self.lanes)
        self.totals = [stack_slot(builder, kind) for _ in range(size)]
        self.block = [stack_slot(builder, kind) for _ in range(size)]

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

    def _block(self, number: ir.Value) -> None:
        b, form, layout = self.builder, self.form, self.layout
        distance = b.mul(number, I64(layout.column_bytes * self.gemm.panel))
        start = b.gep(self.panel, [distance], source_etype=I8)
        scales = [self._scale(start, vector) for vector in range(self.vectors)]
        minima = []
        if form.minimum is not None:
            offset = layout.minimum * self.gemm.panel
            minima = [self._half(start, offset, vector) for vector in range(self.vectors)]
        chunks, nbytes = layout.chunks, layout.chunk_bytes * self.gemm.panel
        first = b.gep(start, [I64(layout.first_chunk * self.gemm.panel)], source_etype=I8)

        def chunk(place: ir.Value) -> None:
            at = b.add(b.mul(number, I64(chunks)), place)
            codes = b.gep(first, [b.mul(place, I64(nbytes))], source_etype=I8)
            self._chunk(codes, at, scales, minima)

        self._clear(self.block)
        counted_loop(b, I64(0), I64(chunks), 1, chunk, trips=chunks, name="chunk")
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
        together = self._pairs_together(dots)
        groups = self.layout.chunk_groups
        first = b.mul(at, I64(CHUNK))
        for group in range(groups):
            number = b.add(b.mul(at, I64(groups)), I64(group))
            sums = [load(b, self.sums(row), INT32, number) for row in range(len(self.left))]
            zero = self._zero
            for row, total in enumerate(sums):
                offset = broadcast(total * -zero if zero else total.full(0), self.lanes)
                for vector in range(self.vectors):
                    b.store(offset.value, self.exact[row * self.vectors + vector])
            for dot in range(group * dots, (group + 1) * dots, together):
                held: list[ir.Value | None] = [None] * len(self.exact)
                for number in range(dot, dot + together):
                    columns = [self._codes(start, number, place) for place in range(self.vectors)]
                    k = b.add(first, I64(number * self.steps))
                    for row in range(len(self.left)):
                        repeated = self._repeated(row, k)
                        for vector, column in enumerate(columns):
                            self._multiply(row * self.vectors + vector, repeated, column, held)
                self._add_held(held)
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

    @property
    def _zero(self) -> int:
        """The code that stands for zero in products."""
        return 0 if self._signed else self._least_zero

    @property
    def _least_zero(self) -> int:
        """The least one with which no code is below zero."""
        if self.form.codebook is not None:
            return -min(self.form.codebook)
        return self.form.codes.zero

    @property
    def _greatest(self) -> int:
        """The greatest code, counted from that."""
        book = self.form.codebook
        return (1 << self.form.codes.bits) - 1 if book is None else max(book) - min(book)

    @property
    def _signed(self) -> bool:
        """Whether codes are signed numbers in products: pairs of greater ones exceed 16 bits."""
        return self.pairs and self._greatest * _PAIR > _MOST

    def _pairs_together(self, dots: int) -> int:
        """Dot products of a group whose pairs are summed in 16 bits, a divisor of ``dots``."""
        if not self.pairs or self._signed:
            return 1
        most = _MOST // (self._greatest * _PAIR)
        return max(count for count in range(1, dots + 1) if dots % count == 0 and count <= most)

    # -- codes ------------------------------------------------------------------------------

    @property
    def _bytes(self) -> ir.Type:
        return ir.VectorType(I8, self.lanes * self.steps)

    def _codes(self, start: ir.Value, dot: int, vector: int) -> ir.Value:
        """The codes of as many positions of ``k`` as a dot product adds up, for each column."""
        result: ir.Value | None = None
        for offset, part in zip(self.layout.planes, self.form.codes.fields, strict=True):
            bits = self._plane(start, offset, part.bits, dot, vector, part.to)
            result = bits if result is None else self.builder.or_(result, bits)
        assert result is not None
        if self.form.codebook is not None:
            return self._look_up(result)
        if self._signed:
            zero = constant(UINT8, self._least_zero, self.lanes * self.steps)
            return self.builder.sub(result, zero)
        return result

    def _plane(
        self, start: ir.Value, offset: int, bits: int, dot: int, vector: int, to: int
    ) -> ir.Value:
        """The bits of codes in a plane, at their position in a code."""
        b, layout, steps = self.builder, self.layout, self.steps
        held = 8 // bits
        unit, within = divmod(dot, layout.unit // steps)
        row, part = divmod(within, held)
        column = layout.first_unit + unit * layout.unit_bytes + offset + row * steps
        distance = I64(column * self.gemm.panel + vector * self.lanes * steps)
        words = ir.VectorType(I32, self.lanes * steps // 4)
        packed = b.load(b.gep(start, [distance], source_etype=I8), align=1, typ=words)
        if bits == 8:
            return b.bitcast(packed, self._bytes)
        # Shifted as words: what comes from neighbouring bytes is masked.
        shift = part * bits - to
        if shift:
            count = constant(INT32, abs(shift), self.lanes * steps // 4)
            packed = b.lshr(packed, count) if shift > 0 else b.shl(packed, count)
        mask = ((1 << bits) - 1) << to
        kept = b.and_(packed, constant(INT32, mask * 0x01010101, self.lanes * steps // 4))
        return b.bitcast(kept, self._bytes)

    def _look_up(self, codes: ir.Value) -> ir.Value:
        """The numbers of a codebook, counted from the code of zero, for codes of 4 bits."""
        b, book = self.builder, self.form.codebook
        assert book is not None
        table = [(number + self._zero) & 0xFF for number in book]
        count = codes.type.count
        name = _LOOK_UP.get(count)
        if name is not None and self.target.has_byte_look_up:
            repeated = ir.Constant(codes.type, table * (count // 16))
            return call_intrinsic(b, name, codes.type, [repeated, codes])
        result: ir.Value = ir.Constant(codes.type, None)
        for code, number in enumerate(table):
            same = b.icmp_unsigned("==", codes, constant(UINT8, code, count))
            result = b.select(same, constant(UINT8, number, count), result)
        return result

    # -- sums -------------------------------------------------------------------------------

    def _repeated(self, row: int, k: ir.Value) -> ir.Value:
        """``steps`` bytes of a row of ``a``, for every column."""
        b = self.builder
        together = ir.IntType(8 * self.steps)
        at = b.gep(self.left[row], [k], source_etype=I8)
        word = b.load(at, align=1, typ=together)
        vector = ir.VectorType(together, self.lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(I32, self.lanes), None)
        first = b.insert_element(undefined, word, I32(0))
        return b.bitcast(b.shuffle_vector(first, undefined, everywhere), self._bytes)

    def _multiply(
        self, place: int, left: ir.Value, right: ir.Value, held: list[ir.Value | None]
    ) -> None:
        """Adds products to the sum at ``place``, or to what is held of it in 16 bits."""
        b, slot = self.builder, self.exact[place]
        if not self.pairs:
            total = b.load(slot, typ=register_type(INT32, self.lanes))
            sums = add_products(b, self.target, total, (right, left), (UINT8, INT8), self.steps)
            b.store(sums, slot)
            return
        if self._signed:
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
        b, form, layout = self.builder, self.form, self.layout
        weights, offsets = scales, minima
        if form.factors is not None:
            codes = self._integers(start, group)
            if layout.paired:
                codes = [code & ((1 << MINIMA_SHIFT) - 1) for code in codes]
            factors = [(code - form.factors.zero).astype(FLOAT32) for code in codes]
            weights = [scale * factor for scale, factor in zip(scales, factors, strict=True)]
        if form.minima is not None:
            codes = self._integers(start, layout.minima + group)
            if layout.paired:
                codes = [code >> MINIMA_SHIFT for code in codes]
            pairs = zip(minima, codes, strict=True)
            offsets = [minimum * code.astype(FLOAT32) for minimum, code in pairs]
        for row in range(len(self.left)):
            moved = broadcast(sums[row], self.lanes).astype(FLOAT32)
            for vector, weight in enumerate(weights):
                place = row * self.vectors + vector
                slot = self.block[place]
                exact = b.load(self.exact[place], typ=register_type(INT32, self.lanes))
                products = Lane(b, exact, INT32, self.lanes).astype(FLOAT32)
                total = intrinsic("fmuladd", products, weight, self._value(slot))
                if offsets:
                    signed = moved if form.minimum_sign > 0 else -moved
                    total = intrinsic("fmuladd", signed, offsets[vector], total)
                b.store(total.value, slot)

    def _value(self, slot: ir.Value) -> Lane:
        value = self.builder.load(slot, typ=register_type(FLOAT32, self.lanes))
        return Lane(self.builder, value, FLOAT32, self.lanes)

    # -- scales -----------------------------------------------------------------------------

    def _scale(self, start: ir.Value, vector: int) -> Lane:
        """The scales of a block's columns."""
        if self.form.scale.kind == "f16":
            return self._half(start, 0, vector)
        b, lanes = self.builder, self.lanes
        code = self._byte(start, I64(vector * lanes))
        # Half of a power of two: the exponent of a float32, which is subnormal for the least two.
        normal = (code - 1) << 23
        subnormal = code.full(1 << 21) << code
        small = b.icmp_unsigned("<", code.value, constant(INT32, 2, lanes))
        bits = b.select(small, subnormal.value, normal.value)
        return Lane(b, b.bitcast(bits, register_type(FLOAT32, lanes)), FLOAT32, lanes)

    def _half(self, start: ir.Value, offset: int, vector: int) -> Lane:
        """Float16s of a block's columns."""
        b, lanes = self.builder, self.lanes
        first = b.gep(start, [I64(offset)], source_etype=I8)
        halves = load(b, first, FLOAT16, I64(vector * lanes), lanes)
        return Lane(b, halves.value, FLOAT32, lanes)

    def _integers(self, start: ir.Value, offset: int) -> list[Lane]:
        """The bytes of a group's columns, by vector."""
        first = offset * self.gemm.panel
        return [
            self._byte(start, I64(first + vector * self.lanes)) for vector in range(self.vectors)
        ]

    def _byte(self, start: ir.Value, place: ir.Value) -> Lane:
        """Bytes of columns, as int32."""
        return load(self.builder, start, UINT8, place, self.lanes).astype(INT32)
