"""Transposing squares of a matrix in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.types import I32, I64

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.lanes import Lane
    from ostinato.dtypes import DType

__all__ = ["square_size", "transpose_square", "transposed"]

_LARGEST = 8
"""LLVM takes four times as long over squares twice as large, which run hardly faster."""


def square_size(multiple: int) -> int:
    """The side of the squares that tile a matrix whose sides are multiples of ``multiple``."""
    return min(_LARGEST, multiple & -multiple)


def transpose_square(
    builder: ir.IRBuilder,
    dtype: DType,
    size: int,
    source: tuple[ir.Value, int],
    target: tuple[ir.Value, int],
) -> None:
    """Writes the transpose of a square of ``size`` x ``size`` elements.

    Args:
        size: a power of two.
        source: address of the first element, and elements from row to row.
        target: the same of where it goes.
    """
    (start, pitch), (end, end_pitch) = source, target
    rows = [load(builder, start, dtype, I64(row * pitch), size) for row in range(size)]
    for row, lane in enumerate(transposed(rows)):
        store(builder, end, dtype, I64(row * end_pitch), lane)


def transposed(rows: list[Lane]) -> list[Lane]:
    """The columns of a square of as many ``rows`` as each has lanes, a power of two."""
    for bit in reversed(range(len(rows).bit_length() - 1)):
        rows = _exchanged(rows, 1 << bit)
    return rows


def _exchanged(rows: list[Lane], distance: int) -> list[Lane]:
    """Swaps the blocks off the diagonal in every square of twice ``distance`` rows.

    Down from half the size, that transposes the blocks of blocks, and so the whole.
    """
    size = len(rows)
    upper = [lane if not lane & distance else size + lane - distance for lane in range(size)]
    lower = [size + lane if lane & distance else lane + distance for lane in range(size)]
    result = list(rows)
    for row in range(size):
        if not row & distance:
            pair = rows[row], rows[row + distance]
            result[row] = _picked(*pair, upper)
            result[row + distance] = _picked(*pair, lower)
    return result


def _picked(first: Lane, second: Lane, order: list[int]) -> Lane:
    selector = ir.Constant(ir.VectorType(I32, len(order)), order)
    return first.like(first.builder.shuffle_vector(first.value, second.value, selector))
