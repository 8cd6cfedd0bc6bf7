"""The weights of a register tile: rows of a packed panel as vectors of the accumulator's dtype.

A tile of one row does little but widen weights, so 8-bit floats take as few instructions as may be.
E4M3 has one magnitude that is no number. Numbers are widened as if it were one; the greatest
magnitude of each column is kept beside the sums, a byte each, and says at their end which columns
had a NaN. The bits of E5M2 are the upper half of a float16, NaNs and infinities included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.memory import load
from ostinato.backends.cpu.llvm.narrow import decode_numbers
from ostinato.backends.cpu.llvm.types import (
    I8,
    I16,
    I32,
    I64,
    call_intrinsic,
    constant,
    register_type,
    vector_of,
)
from ostinato.dtypes import FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT32, INT16, UINT8
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.dtypes import DType

__all__ = ["WeightColumns"]

#: The code of E4M3's NaN without its sign.
_NAN = 0x7F


@dataclass(frozen=True)
class WeightColumns:
    """The columns of a panel.

    Attributes:
        target: the processor.
        stored: the dtype of weights in memory.
        acc: that of sums.
        vectors: vectors of a row.
        lanes: of each.
        dense: whether the vectors of a row are next to one another.
    """

    target: TargetSpec
    stored: DType
    acc: DType
    vectors: int
    lanes: int
    dense: bool

    @property
    def _marks_nans(self) -> bool:
        return self.stored == FLOAT8_E4M3FN and self.acc == FLOAT32 and self.dense

    def first_marks(self) -> list[ir.Value]:
        """The greatest magnitudes of no weights; nothing where they are not kept."""
        return [constant(UINT8, 0, count) for _, count in self._pieces()]

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Parts of a row whose sizes are powers of two: the first column, and how many."""
        first, rest = 0, self.vectors * self.lanes if self._marks_nans else 0
        while rest:
            count = 1 << (rest.bit_length() - 1)
            yield first, count
            first, rest = first + count, rest - count

    def marked(
        self, builder: ir.IRBuilder, row: ir.Value, marks: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The marks after a row of the panel, whose address is given."""
        found = []
        for mark, (first, count) in zip(marks, self._pieces(), strict=True):
            code = _codes(builder, row, first, count)
            magnitude = builder.and_(code, constant(UINT8, _NAN, count))
            suffix = "i8" if count == 1 else f"v{count}i8"
            found.append(
                call_intrinsic(builder, f"llvm.umax.{suffix}", mark.type, [mark, magnitude])
            )
        return found

    def with_nans(
        self, builder: ir.IRBuilder, sums: Sequence[ir.Value], marks: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The sums, vector by vector and row by row, NaN in the columns that had one."""
        if not marks:
            return list(sums)
        nan = constant(FLOAT32, float("nan"), self.lanes)
        masks = []
        for mark, (_, count) in zip(marks, self._pieces(), strict=True):
            has_nan = builder.icmp_unsigned("==", mark, constant(UINT8, _NAN, count))
            masks += _split(builder, has_nan, count, self.lanes)
        return [
            builder.select(masks[place % self.vectors], nan, total)
            for place, total in enumerate(sums)
        ]

    def vector(self, builder: ir.IRBuilder, panel: ir.Value, place: int) -> ir.Value:
        """The columns from an element of the panel on."""
        lanes = self.lanes
        if self._marks_nans:
            return decode_numbers(builder, _codes(builder, panel, place, lanes), self.stored, lanes)
        by_halves = self.stored == FLOAT8_E5M2 and self.acc == FLOAT32
        if by_halves and self.target.has_half_conversions:
            code = _codes(builder, panel, place, lanes)
            wide = builder.zext(code, vector_of(I16, lanes))
            half = builder.bitcast(
                builder.shl(wide, constant(INT16, 8, lanes)), vector_of(ir.HalfType(), lanes)
            )
            return builder.fpext(half, register_type(FLOAT32, lanes))
        return load(builder, panel, self.stored, I64(place), lanes).astype(self.acc).value


def _codes(builder: ir.IRBuilder, base: ir.Value, place: int, lanes: int) -> ir.Value:
    """Bytes from a place on."""
    pointer = builder.gep(base, [I64(place)], source_etype=I8)
    return builder.load(pointer, align=1, typ=vector_of(I8, lanes))


def _split(builder: ir.IRBuilder, mask: ir.Value, count: int, lanes: int) -> list[ir.Value]:
    """Parts of a mask of ``count`` lanes, of ``lanes`` each."""
    if count == lanes:
        return [mask]
    parts = []
    for first in range(0, count, lanes):
        if lanes == 1:
            parts.append(builder.extract_element(mask, I32(first)))
            continue
        order = ir.Constant(vector_of(I32, lanes), [*range(first, first + lanes)])
        parts.append(builder.shuffle_vector(mask, mask, order))
    return parts
