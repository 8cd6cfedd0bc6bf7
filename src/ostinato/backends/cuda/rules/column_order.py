"""Weights brought into the order in which kernels of few rows read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT8
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.lower.program import Layout, LoweredBuffer, Role

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["ColumnOrder"]


class ColumnOrder:
    """The matrices of one graph with the elements of a column side by side, each made once.

    Read once for a few rows, a matrix costs what its memory takes. A block then reads some columns
    from end to end; of rows it would read short pieces, or share columns with other blocks.
    """

    def __init__(self) -> None:
        self._made: dict[Value, LoweredBuffer] = {}

    @staticmethod
    def possible(lowering: ProgramBuilder, matrix: Value) -> bool:
        """Whether a value is a matrix, or some, of known sizes, and changes with params alone."""
        fixed = matrix.node.op in (PARAM, CONSTANT) or matrix.node in lowering.fixed
        if not fixed or lowering.nested or matrix.ndim < 2:
            return False
        if matrix.dtype.is_narrow and matrix.dtype not in FLOAT8:
            return False
        return matrix.type.size != 0 and all(isinstance(size, int) for size in matrix.shape)

    def of(self, lowering: ProgramBuilder, matrix: Value) -> LoweredBuffer:
        """The matrix in that order, copied once per write of a param."""
        if matrix not in self._made:
            *others, row, column = range(matrix.ndim)
            layout = Layout((*others, column, row), matrix.shape, (0,) * matrix.ndim)
            label = f"{matrix.node.label}.columns"
            buffer = LoweredBuffer(matrix.type, Role.TEMP, label, None, None, layout)
            lowering.copy_into(matrix, buffer)
            self._made[matrix] = buffer
        return self._made[matrix]
