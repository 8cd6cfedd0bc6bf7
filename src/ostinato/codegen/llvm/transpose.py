"""Transposing squares of a matrix in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.codegen.llvm.memory import load, store
from ostinato.codegen.llvm.types import I32, I64

if TYPE_CHECKING:
    from ostinato.codegen.llvm.lanes import Lane
    from ostinato.dtypes import DType

__all__ = ["square_size", "transpose_square"]

_LARGEST = 16
"""Vectors of a square must fit the registers, nearly."""


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
    for _ in range(size.bit_length() - 1):
        rows = _interleaved(builder, rows)
    for row, lane in enumerate(rows):
        store(builder, end, dtype, I64(row * end_pitch), lane)


def _interleaved(builder: ir.IRBuilder, rows: list[Lane]) -> list[Lane]:
    """One of the log2(size) perfect shuffles that together transpose."""
    size = len(rows)
    half = size // 2
    result: list[Lane] = []
    for first, second in zip(rows[:half], rows[half:], strict=True):
        for part in (0, half):
            order = [part + lane // 2 + (lane % 2) * size for lane in range(size)]
            selector = ir.Constant(ir.VectorType(I32, size), order)
            mixed = builder.shuffle_vector(first.value, second.value, selector)
            result.append(first.like(mixed))
    return result
