"""Operands of a matmul as rows in memory: what a ring brings, or threads read by vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import VECTOR_BYTES
from ostinato.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, INT8, UINT8
from ostinato.lower.loopir.nodes import Apply, Load, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim, Symbol

__all__ = ["BYTES", "FLOATS", "INTEGERS", "Rows", "offset_of", "rows_of", "stored"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""The dtypes of weights and of scales."""

INTEGERS = (INT8, UINT8)
"""The dtypes of weights whose sums are integers."""

BYTES = (*INTEGERS, *FLOAT8)
"""All dtypes of a byte."""


@dataclass(frozen=True)
class Rows:
    """An operand of a matmul as rows in memory.

    Attributes:
        argument: its position among the arguments.
        offset: bytes before the first row.
        nbytes: of a row.
        piece: bytes of a row in a stage, at most.
    """

    argument: int
    offset: int
    nbytes: int
    piece: int


def rows_of(scalar: Scalar, row: Symbol, column: Symbol, piece: int) -> Rows | None:
    """An operand as rows, if it is one in memory, perhaps converted."""
    load = stored(scalar)
    length = extent_of(column)
    if not isinstance(load, Load) or load.bindings or not isinstance(length, int):
        return None
    offset, itemsize = offset_of(load.index, {row: length, column: 1}), load.dtype.itemsize
    nbytes = length * itemsize
    if offset is None or nbytes % VECTOR_BYTES or offset * itemsize % VECTOR_BYTES:
        return None
    return Rows(load.buffer, offset * itemsize, nbytes, piece)


def stored(scalar: Scalar) -> Scalar:
    """An operand as it is in memory, before any conversion."""
    while isinstance(scalar, Apply) and scalar.op == "cast":
        (scalar,) = scalar.operands
    return scalar


def offset_of(index: Dim, factors: Mapping[Symbol, int]) -> int | None:
    """The constant by which ``index`` differs from the sum of symbols times their factors."""
    for symbol, factor in factors.items():
        found = coefficient(index, symbol)
        if found is None or (found[0] != factor and max_extent(symbol) > 1):
            return None
        index = found[1]
    return index if isinstance(index, int) else None
