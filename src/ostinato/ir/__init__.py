"""The intermediate representation: typed graphs, their text form, and the verifier."""

from ostinato.ir.graph import Node, Value
from ostinato.ir.op import Attr, Op
from ostinato.ir.text import format_graph, graph_constants, graphs_equal
from ostinato.ir.types import TensorType
from ostinato.ir.verify import verify

__all__ = [
    "Attr",
    "Node",
    "Op",
    "TensorType",
    "Value",
    "format_graph",
    "graph_constants",
    "graphs_equal",
    "verify",
]
