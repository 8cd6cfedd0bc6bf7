"""``Graph``: the node list together with the vocabulary's methods."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError
from ostinato.ir.graph import BaseGraph, Value
from ostinato.ir.leaves import INPUT
from ostinato.lazy import LazyModule
from ostinato.ops.agreement import agreed_shapes
from ostinato.ops.vocabulary.control import ControlVocabulary, Nested
from ostinato.ops.vocabulary.sizes import SizeVocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir import text
    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim
else:
    text = LazyModule("ostinato.ir.text")

__all__ = ["Graph", "NestedGraph"]


class Graph(BaseGraph, SizeVocabulary[Value], ControlVocabulary):
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

    def apply(self, op: Op, operands: Sequence[Value], attrs: dict[str, Attr]) -> tuple[Value, ...]:
        """Append one node; operands whose sizes depend on data are made to agree before.

        Raises:
            GraphError: the operands do not fit; names the op, the operands and the source line.
        """
        if self.has_data_sizes:
            self._own(op.name, operands)
            agreed = agreed_shapes(op, [value.shape for value in operands], attrs)
            if agreed is not None:
                pairs = zip(operands, agreed, strict=True)
                operands = [self._with_shape(value, shape) for value, shape in pairs]
        return super().apply(op, operands, attrs)

    def _with_shape(self, value: Value, shape: Sequence[Dim]) -> Value:
        """``value`` with sizes that equal its own in a run; each is a condition by itself."""
        for axis, size in enumerate(shape):
            if value.shape[axis] != size:
                changed = (*value.shape[:axis], size, *value.shape[axis + 1 :])
                value = self.reshape(value, changed)
        return value

    def type_of(self, operand: Any) -> TensorType | None:
        return operand.type if isinstance(operand, Value) else None

    def new_variable(self, name: str | None) -> str:
        """A name for a Variable: ``name``, or one after the node that a front end converts.

        Raises:
            GraphError: the graph has a Variable of that name.
        """
        if name is not None:
            if name in self.variables:
                raise GraphError(f"the graph has a Variable {name!r} already")
            return name
        base = re.sub(r"\W+", "_", self._label, flags=re.ASCII).strip("_") or "size"
        base = base if base.isidentifier() else f"_{base}"
        unique, count = base, 2
        while unique in self.variables:
            unique, count = f"{base}_{count}", count + 1
        return unique

    def local(self, value: Any) -> Value:
        """``value``, which is to be a value of this graph.

        Raises:
            GraphError: it is none.
        """
        self._own(f"graph {self.name!r}", (value,))
        assert isinstance(value, Value)
        return value

    def nest(self, name: str) -> NestedGraph:
        return NestedGraph(name, self)


class NestedGraph(Graph, Nested):
    """A nested graph under construction: values of the graphs around may be operands.

    Args:
        name: of the graph.
        outer: the graph around.
    """

    def __init__(self, name: str, outer: Graph) -> None:
        super().__init__(name)
        self._outer = outer
        self._arguments: list[Value] = []
        self._captured: dict[Value, Value] = {}

    @property
    def captured(self) -> list[Value]:
        return list(self._captured)

    def captured_by(self, value: Value) -> tuple[Value, ...]:
        """The value of the graph around that an input of this one stands for, if it does."""
        return tuple(outer for outer, own in self._captured.items() if own is value)

    @property
    def arguments(self) -> list[Value]:
        return list(self._arguments)

    def argument(self, name: str, type_: TensorType) -> Value:
        value = super().input(name, type_.shape, type_.dtype)
        self._arguments.append(value)
        return value

    def local(self, value: Any) -> Value:
        if isinstance(value, Value) and value.graph is self:
            return value
        outer = self._outer.local(value)
        if outer not in self._captured:
            name = f"captured_{len(self._captured)}"
            self._captured[outer] = super().input(name, outer.shape, outer.dtype)
        return self._captured[outer]

    def apply(self, op: Op, operands: Sequence[Any], attrs: dict[str, Attr]) -> tuple[Value, ...]:
        return super().apply(op, [self.local(value) for value in operands], attrs)

    def input(self, name: str, *args: Any, **kwargs: Any) -> Value:
        raise GraphError(f"input {name!r}: a nested graph takes values of the graph around")

    def param(self, name: str, *args: Any, **kwargs: Any) -> Value:
        raise GraphError(f"param {name!r}: a nested graph has none; use one of the graph around")

    def state(self, name: str, *args: Any, **kwargs: Any) -> Value:
        raise GraphError(f"state {name!r}: a nested graph has none; use one of the graph around")

    def closed(self, results: Sequence[Value], captured: Sequence[Value]) -> Graph:
        graph = Graph(self.name)
        inputs = [*self._arguments, *(self.local(value) for value in captured)]
        new: dict[Value, Value] = {}
        for value in inputs:
            new[value] = graph.adopt(value.node, ())[0]
        for node in self.nodes:
            if node.op is not INPUT:
                copies = graph.adopt(node, [new[value] for value in node.inputs])
                new.update(zip(node.outputs, copies, strict=True))
        graph.set_outputs([new[value] for value in results])
        return graph
