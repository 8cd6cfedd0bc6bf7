"""The intermediate representation: typed graphs, their text form, and the verifier."""

from ostinato.ir.graph import Node, Value
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType

__all__ = ["Attr", "Node", "Op", "TensorType", "Value"]
