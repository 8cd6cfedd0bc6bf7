"""The cost of computing an element, in short instructions: whether to do so twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.ir.op import Op

__all__ = ["COSTLY", "LONG", "cost", "instructions"]

#: The cost of an op that is not short, in short ones.
LONG = 12

#: From here on, computing an element again is dearer than storing and loading it.
COSTLY = 4


def instructions(op: Op) -> int:
    """The cost of an op on one element, in short instructions."""
    if not isinstance(op, Elementwise):
        return COSTLY
    return 1 if op.short else LONG


def cost(node: Node) -> int:
    """The cost of an element of a pointwise node's result, its operands' elements given."""
    return instructions(node.op)
