"""Operations across the lanes of one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.types import I32

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["across", "halves"]


def halves(lane: Lane) -> tuple[Lane, Lane]:
    """The lower and the upper half of a vector's lanes."""
    b, half = lane.builder, lane.lanes // 2
    if half == 1:
        low, high = (b.extract_element(lane.value, I32(part)) for part in (0, 1))
    else:
        low, high = (
            b.shuffle_vector(lane.value, lane.value, ir.Constant(ir.VectorType(I32, half), order))
            for order in (list(range(half)), list(range(half, 2 * half)))
        )
    return Lane(b, low, lane.dtype, half), Lane(b, high, lane.dtype, half)


def across(lane: Lane, combine: Callable[[Lane, Lane], Lane]) -> Lane:
    """All lanes combined to one."""
    while lane.lanes > 1:
        lane = combine(*halves(lane))
    return lane
