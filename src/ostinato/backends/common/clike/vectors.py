"""Loads of several consecutive elements at once: where they are possible, and their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import Apply, Load, Reduce
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.records import dataclass
from ostinato.variables import coefficient, symbols

if TYPE_CHECKING:
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim, Symbol

__all__ = ["VECTOR_BYTES", "Run", "run_of"]

#: The most bytes that a thread loads at once; buffers begin at multiples of it.
VECTOR_BYTES = 16


@dataclass(frozen=True)
class Run:
    """Consecutive elements in memory.

    Attributes:
        load: the first of them.
        count: of elements in a vector, a power of two; 1: nothing is known.
    """

    load: Load
    count: int


def run_of(scalar: Scalar, symbol: Symbol, extent: Dim) -> Run | None:
    """The runs of elements that ``scalar`` reads along an axis.

    Args:
        scalar: an element, perhaps converted.
        symbol: the axis.
        extent: the number of its values.

    Returns:
        ``None``: elements are computed, or not next to one another.
    """
    while isinstance(scalar, Apply) and scalar.op == "cast":
        (scalar,) = scalar.operands
    if not isinstance(scalar, Load) or any(_follows(b.value, symbol) for b in scalar.bindings):
        return None
    step = coefficient(scalar.index, symbol)
    if step is None or step[0] != 1:
        return None
    count = VECTOR_BYTES // scalar.dtype.itemsize
    while count > 1 and not (_divides(count, step[1]) and _divides(count, extent)):
        count //= 2
    return Run(scalar, count)


def _follows(number: Scalar, symbol: Symbol) -> bool:
    """Whether a number that an index takes from memory may differ along an axis."""
    indices = index_expressions((Reduce("", "sum", number, number.dtype),))
    return any(symbol in symbols(index) for index in indices)


def _divides(number: int, dim: Dim) -> bool:
    """Whether ``dim`` is a multiple of ``number`` for all values of its symbols."""
    if isinstance(dim, int):
        return dim % number == 0
    return dim.const % number == 0 and all(factor % number == 0 for _, factor in dim.terms)
