"""The operands of register tiles with packed weights: the panel, taken apart, and the rows.

Codes count as they are, unsigned. With products in pairs (AVX2), codes too great for even one pair
count as signed numbers: as their magnitudes, beside rows of bytes that take their signs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from llvmlite import ir

from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.memory import address, load
from ostinato.backends.cpu.llvm.types import (
    I8,
    I32,
    I64,
    call_intrinsic,
    constant,
    register_type,
)
from ostinato.backends.cpu.rules.packed_blocks import MINIMA_SHIFT, BlockPanels
from ostinato.dtypes import FLOAT16, FLOAT32, INT32, INT64, UINT8
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.variables import Dim

__all__ = ["Locate", "PackedPanel", "block_rows", "known_step", "repeated"]

_LOOK_UP = {
    16: "llvm.x86.ssse3.pshuf.b.128",
    32: "llvm.x86.avx2.pshuf.b",
    64: "llvm.x86.avx512.pshuf.b.512",
}
"""By bytes: instructions that look up bytes in tables of 16."""


#: Gives the address of what belongs to a row.
Locate: TypeAlias = "Callable[[int], ir.Value]"


def block_rows(
    builder: ir.IRBuilder,
    gemm: Gemm,
    rows: int,
    bases: tuple[ir.Value, ir.Value],
    offsets: ir.Value,
) -> tuple[Locate, Locate]:
    """The scales and the sums of a tile's rows.

    Args:
        rows: of the tile.
        bases: of the scales and the sums; see
            :func:`~ostinato.backends.cpu.llvm.packed_tiles.define_packed_tile`.
        offsets: of the rows.
    """
    assert gemm.block_rows is not None
    indices = gemm.block_rows.scales_index, gemm.block_rows.sums_index
    if gemm.row_stride is not None:
        scales, sums = (
            _evenly(builder, base, known_step(index, gemm))
            for base, index in zip(bases, indices, strict=True)
        )
        return scales, sums
    scales, sums = (
        _noted(builder, base, offsets, range(first, first + rows))
        for base, first in zip(bases, (gemm.rows, 2 * gemm.rows), strict=True)
    )
    return scales, sums


def known_step(index: Dim, gemm: Gemm) -> int:
    """Elements from what belongs to a row to what belongs to the next one.

    Args:
        index: of what belongs to a row, evenly spaced.
    """
    parts = coefficient(index, gemm.m)
    assert parts is not None
    step = parts[0]
    assert isinstance(step, int)
    return step


def _evenly(builder: ir.IRBuilder, base: ir.Value, step: int) -> Locate:
    """Addresses of 4-byte elements at a known distance."""
    return lambda row: address(builder, base, INT32, I64(row * step))


def _noted(
    builder: ir.IRBuilder, base: ir.Value, offsets: ir.Value, numbers: Sequence[int]
) -> Locate:
    """Addresses of 4-byte elements by their offsets in memory."""
    noted = [
        builder.load(address(builder, offsets, INT64, I64(number)), align=8, typ=I64)
        for number in numbers
    ]
    found = [address(builder, base, INT32, offset) for offset in noted]
    return found.__getitem__


class PackedPanel:
    """A panel of blocks, whose parts are loaded as vectors.

    Args:
        gemm: whose panels are blocks.

    Attributes:
        layout: of the panel.
        form: of the blocks.
        steps: positions of ``k`` that a dot product adds up.
        lanes: columns of a vector.
        vectors: of a panel.
        pairs: whether products are summed in pairs.
    """

    def __init__(self, builder: ir.IRBuilder, gemm: Gemm, target: TargetSpec) -> None:
        assert isinstance(gemm.b_format, BlockPanels)
        self.builder, self.gemm, self.target = builder, gemm, target
        self.layout = gemm.b_format
        self.form, self.steps = gemm.b_format.form, gemm.b_format.steps
        self.lanes = target.lanes(INT32.itemsize)
        self.vectors = gemm.panel // self.lanes
        self.pairs = self.steps == 4 and not target.has_byte_dots

    @property
    def zero(self) -> int:
        """The code that stands for zero in products."""
        return 0 if self.signed else self._least_zero

    @property
    def _least_zero(self) -> int:
        """The least one with which no code is below zero."""
        if self.form.codebook is not None:
            return -min(self.form.codebook)
        return self.form.codes.zero

    @property
    def signed(self) -> bool:
        """Whether codes are signed numbers in products: pairs of greater ones exceed 16 bits."""
        return self.pairs and self.layout.fitting_pairs == 0

    def pairs_together(self, dots: int) -> int:
        """Dot products of a group whose pairs are summed in 16 bits, a divisor of ``dots``."""
        if not self.pairs or self.signed:
            return 1
        most = self.layout.fitting_pairs
        return max(count for count in range(1, dots + 1) if dots % count == 0 and count <= most)

    # -- codes ------------------------------------------------------------------------------

    @property
    def bytes(self) -> ir.Type:
        """A vector of the codes of a dot product."""
        return ir.VectorType(I8, self.lanes * self.steps)

    def codes(self, start: ir.Value, dot: int, vector: int) -> ir.Value:
        """The codes of as many positions of ``k`` as a dot product adds up, for each column."""
        result: ir.Value | None = None
        for offset, part in zip(self.layout.planes, self.form.codes.fields, strict=True):
            bits = self._plane(start, offset, part.bits, dot, vector, part.to)
            result = bits if result is None else self.builder.or_(result, bits)
        assert result is not None
        if self.form.codebook is not None:
            return self._look_up(result)
        if self.signed:
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
            return b.bitcast(packed, self.bytes)
        # Shifted as words: what comes from neighbouring bytes is masked.
        shift = part * bits - to
        if shift:
            count = constant(INT32, abs(shift), self.lanes * steps // 4)
            packed = b.lshr(packed, count) if shift > 0 else b.shl(packed, count)
        mask = ((1 << bits) - 1) << to
        kept = b.and_(packed, constant(INT32, mask * 0x01010101, self.lanes * steps // 4))
        return b.bitcast(kept, self.bytes)

    def _look_up(self, codes: ir.Value) -> ir.Value:
        """The numbers of a codebook, counted from the code of zero, for codes of 4 bits."""
        b, book = self.builder, self.form.codebook
        assert book is not None
        table = [(number + self.zero) & 0xFF for number in book]
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

    # -- scales -----------------------------------------------------------------------------

    def scale(self, start: ir.Value, vector: int) -> Lane:
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

    def minimum(self, start: ir.Value, vector: int) -> Lane:
        """The minima of a block's columns."""
        return self._half(start, self.layout.minimum * self.gemm.panel, vector)

    def factors(self, start: ir.Value, group: int) -> list[Lane]:
        """The integers by which scales count in a group of a chunk, by vector."""
        assert self.form.factors is not None
        codes = self._integers(start, group)
        if self.layout.paired:
            codes = [code & ((1 << MINIMA_SHIFT) - 1) for code in codes]
        zero = self.form.factors.zero
        return [code - zero for code in codes] if zero else codes

    def minima(self, start: ir.Value, group: int) -> list[Lane]:
        """The integers by which minima count in a group of a chunk, by vector."""
        codes = self._integers(start, self.layout.minima + group)
        return [code >> MINIMA_SHIFT for code in codes] if self.layout.paired else codes

    def _integers(self, start: ir.Value, offset: int) -> list[Lane]:
        """The bytes of a group's columns, by vector."""
        first = offset * self.gemm.panel
        return [
            self._byte(start, I64(first + vector * self.lanes)) for vector in range(self.vectors)
        ]

    def _byte(self, start: ir.Value, place: ir.Value) -> Lane:
        """Bytes of columns, as int32."""
        return load(self.builder, start, UINT8, place, self.lanes).astype(INT32)


def repeated(panel: PackedPanel, row: ir.Value, k: ir.Value) -> ir.Value:
    """As many bytes of a row of ``a`` as a dot product adds up, for every column.

    Args:
        row: a pointer to it.
        k: the position of the first one.
    """
    b, together = panel.builder, ir.IntType(8 * panel.steps)
    word = b.load(b.gep(row, [k], source_etype=I8), align=1, typ=together)
    vector = ir.VectorType(together, panel.lanes)
    undefined = ir.Constant(vector, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(I32, panel.lanes), None)
    first = b.insert_element(undefined, word, I32(0))
    return b.bitcast(b.shuffle_vector(first, undefined, everywhere), panel.bytes)
