"""The cost of computing an element, in short instructions: whether to do so twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from ostinato.ir.graph import Node

__all__ = ["COSTLY", "LONG", "SHORT_OPS", "cost"]

# fmt: off
#: Ops of a few instructions; the other elementwise ones are polynomials and the like.
SHORT_OPS = frozenset((
    "abs", "add", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "cast", "ceil",
    "clip", "divide", "equal", "floor", "greater", "greater_equal", "isnan", "leaky_relu", "less",
    "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "neg", "not_equal", "relu", "round", "rsqrt", "sqrt", "square", "subtract",
    "trunc", "where",
))
# fmt: on

#: What an op that is not short counts as, in short ones.
LONG = 12

#: From here on, computing an element again is dearer than storing and loading it.
COSTLY = 4


def cost(node: Node) -> int:
    """The cost of an element of a pointwise node's result, its operands' elements given."""
    if not isinstance(node.op, Elementwise):
        return COSTLY
    return 1 if node.op.name in SHORT_OPS else LONG
