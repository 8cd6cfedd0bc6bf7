"""``Graph``: the node list together with the vocabulary's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.ir.graph import BaseGraph, Value
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary import Vocabulary

if TYPE_CHECKING:
    from ostinato.ir import text
    from ostinato.ir.types import TensorType
else:
    text = LazyModule("ostinato.ir.text")

__all__ = ["Graph"]


class Graph(BaseGraph, Vocabulary[Value]):
    """A typed graph under construction.

    >>> g = Graph("example")
    >>> x = g.input("x", (2, 4))
    >>> g.set_outputs([g.exp(x) + 1])

    Args:
        name: the graph's name in reports.
    """

    def __str__(self) -> str:
        """The text form; see :mod:`ostinato.ir.text`."""
        return text.format_graph(self)

    def type_of(self, operand: Any) -> TensorType | None:
        return operand.type if isinstance(operand, Value) else None
