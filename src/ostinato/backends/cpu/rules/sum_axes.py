"""The loops of a sum over ``k``: a matmul has one, a convolution channels and kernel positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nodes import extent_of
from ostinato.records import dataclass
from ostinato.variables import coefficient, symbols

if TYPE_CHECKING:
    from ostinato.variables import Dim, Symbol

__all__ = ["SumAxis", "sum_axes"]


@dataclass(frozen=True)
class SumAxis:
    """A loop of the sum: ``extent`` values, ``step`` elements of ``a`` apart."""

    extent: Dim
    step: Dim


def sum_axes(a_index: Dim, k: tuple[Symbol, ...]) -> tuple[SumAxis, ...]:
    """The axes of a sum as loops, outermost first; axes that one loop can walk are merged.

    Args:
        a_index: the element offset into the left operand.
        k: the axes summed over.

    Raises:
        OstinatoError: ``a_index`` is not affine in ``k``, which is a bug in its maker.
    """
    merged: list[SumAxis] = []
    for symbol in k:
        loop = SumAxis(extent_of(symbol), _step(a_index, symbol, k))
        if loop.extent == 1:
            continue
        if merged and merged[-1].step == loop.extent * loop.step:
            loop = SumAxis(merged.pop().extent * loop.extent, loop.step)
        merged.append(loop)
    return tuple(merged)


def _step(index: Dim, symbol: Symbol, k: tuple[Symbol, ...]) -> Dim:
    split = coefficient(index, symbol)
    if split is None or not symbols(split[0]).isdisjoint(k):
        raise OstinatoError(f"gemm: {index} is not affine in {symbol.name}")
    return split[0]
