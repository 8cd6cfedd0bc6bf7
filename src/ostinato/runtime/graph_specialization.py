"""Graphs of Variables, built again with numbers for the sizes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError
from ostinato.ir.binding import solve_dims
from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import Leaf
from ostinato.ir.specialization import Specialization
from ostinato.ir.types import TensorType
from ostinato.ops.builder import Graph
from ostinato.runtime.signature import interface_of
from ostinato.variables import DataVariable, Expr, evaluate, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ostinato.ir.graph import Node, Value
    from ostinato.variables import Dim, Symbol

__all__ = ["GraphSpecialization", "can_specialize"]


def can_specialize(graph: BaseGraph) -> bool:
    """Whether the inputs of a graph have sizes that are Variables.

    Raises:
        GraphError: they have, and the graph holds states.
    """
    interface = interface_of(graph)
    found = any(symbols(dim) for type_ in interface.inputs.values() for dim in type_.shape)
    if found and interface.states:
        state = next(iter(interface.states))
        raise GraphError(
            f"graph {graph.name!r} holds the state {state!r}, which runs of all sizes share; "
            'compile it with specialize="auto"'
        )
    return found


class GraphSpecialization(Specialization[BaseGraph]):
    """Builds a graph again with numbers for the Variables of its inputs' shapes.

    Args:
        graph: as it is now; what is appended to it later does not count.
    """

    def __init__(self, graph: BaseGraph) -> None:
        super().__init__({}, {}, frozenset(), {}, {})
        self._graph = _substituted(graph, {})

    def build(
        self,
        shapes: Mapping[str, tuple[Dim, ...]],
        contents: Mapping[str, np.ndarray[Any, Any]],
    ) -> BaseGraph:
        numbers = {name: [evaluate(dim, {}) for dim in shape] for name, shape in shapes.items()}
        inputs = interface_of(self._graph).inputs.items()
        sizes = solve_dims({name: (type_.shape, numbers[name]) for name, type_ in inputs}, {})
        variables = self._graph.variables
        return _substituted(self._graph, {variables[name]: n for name, n in sizes.items()})


def _substituted(graph: BaseGraph, values: Mapping[Symbol, Dim]) -> Graph:
    """A copy of a graph with dims for some of its Variables."""
    known = dict(values)
    for symbol in graph.variables.values():
        if symbol.bound is not None:
            known[symbol] = DataVariable(symbol.name, substitute(symbol.bound, known))
    copy = Graph(graph.name)
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = [new[value] for value in node.inputs]
        attrs = {name: _attribute(attr, known) for name, attr in node.attrs.items()}
        copies = copy.adopt(node, operands, attrs, _types(node, operands, attrs, known))
        new.update(zip(node.outputs, copies, strict=True))
    copy.set_outputs({name: new[value] for name, value in graph.outputs.items()})
    for name, value in graph.assignments.items():
        copy.assign(copy.states[name], new[value])
    return copy


def _types(
    node: Node,
    operands: Sequence[Value],
    attrs: dict[str, Any],
    values: Mapping[Symbol, Dim],
) -> list[TensorType]:
    """The types of a node's results: inferred again, as sizes may break what an op relies on."""
    if isinstance(node.op, Leaf):
        return [
            TensorType(value.dtype, tuple(substitute(dim, values) for dim in value.shape))
            for value in node.outputs
        ]
    try:
        return list(node.op.result_types([value.type for value in operands], attrs))
    except GraphError as error:
        raise GraphError(f"{node.op.name} {node.label!r}: {error}") from error


def _attribute(attr: Any, values: Mapping[Symbol, Dim]) -> Any:
    if isinstance(attr, Expr):
        return substitute(attr, values)
    if isinstance(attr, tuple):
        return tuple(_attribute(item, values) for item in attr)
    return _substituted(attr, values) if isinstance(attr, BaseGraph) else attr
