"""The verifier: the invariants of valid graphs, checked node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.errors import GraphError
from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import CONSTANT, INPUT, PARAM, STATE, Leaf, is_inout
from ostinato.variables import Expr, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.ir.graph import Node, Value
    from ostinato.ir.op import Op
    from ostinato.variables import Dim, Symbol

__all__ = ["verify"]


def verify(graph: BaseGraph) -> None:
    """Check that ``graph`` is well formed.

    Nodes follow the nodes they read and own what they produce; declared types equal inferred ones;
    attributes are immutable; leaves are registered under their unique names; Variables of one name
    are one Variable; outputs and assignments are values of the graph with the right types; and so
    for nested graphs.

    Raises:
        GraphError: something does not hold; the message names the node.
    """
    defined: set[Value] = set()
    variables = graph.variables
    for node in graph.nodes:
        _check_operands(node, defined)
        _check_ownership(graph, node)
        _check_attrs(node)
        _check_types(node)
        _check_variables(node, variables)
        _check_sizes(graph, node, defined)
        defined.update(node.outputs)
    _check_leaves(graph)
    _check_results(graph, defined)


def _fail(node: Node, message: str) -> None:
    source = f" at {node.source}" if node.source else ""
    raise GraphError(f"{node}{source}: {message}")


def _check_operands(node: Node, defined: set[Value]) -> None:
    for value in node.inputs:
        if value not in defined:
            _fail(node, f"reads {value!r}, which no earlier node of this graph defines")


def _check_ownership(graph: BaseGraph, node: Node) -> None:
    if not node.outputs:
        _fail(node, "produces nothing")
    for index, value in enumerate(node.outputs):
        if value.node is not node or value.graph is not graph or value.index != index:
            _fail(node, f"result {index} is {value!r}, which another node or graph owns")


def _check_attrs(node: Node) -> None:
    holders: dict[Op, str] = {CONSTANT: "array", STATE: "init"}
    arrays = holders.get(node.op)
    for key, value in node.attrs.items():
        if key == arrays and not is_inout(node):
            _check_array(node, key, value)
        elif isinstance(value, BaseGraph):
            _check_nested(node, key, value)
        elif not _immutable(value):
            _fail(node, f"attribute {key!r} holds {value!r}; attributes are immutable scalars")
    if arrays is not None and arrays not in node.attrs:
        _fail(node, f"attribute {arrays!r} is missing")


def _check_array(node: Node, key: str, value: Any) -> None:
    type_ = node.outputs[0].type
    if not isinstance(value, np.ndarray) or value.flags.writeable:
        _fail(node, f"attribute {key!r} must be an array that cannot be written")
    if value.shape != type_.shape or value.dtype != type_.dtype.numpy:
        _fail(node, f"attribute {key!r} is {value.dtype}{value.shape}, the type is {type_}")


def _check_nested(node: Node, key: str, graph: BaseGraph) -> None:
    try:
        verify(graph)
    except GraphError as error:
        _fail(node, f"attribute {key!r}: {error}")


def _immutable(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_immutable, value))
    return value is None or isinstance(value, bool | int | float | str | DType | Expr)


def _check_types(node: Node) -> None:
    if isinstance(node.op, Leaf):
        if node.inputs:
            _fail(node, "a leaf reads nothing")
        return
    try:
        inferred = node.op.result_types([v.type for v in node.inputs], node.attrs)
    except GraphError as error:
        _fail(node, str(error))
    declared = tuple(v.type for v in node.outputs)
    if inferred != declared:
        shown = [", ".join(map(str, types)) for types in (declared, inferred)]
        _fail(node, f"declares {shown[0]}, but its operands give {shown[1]}")


def _check_variables(node: Node, known: Mapping[str, Symbol]) -> None:
    for dim in _dims(node):
        for symbol in _symbols(dim):
            if known.get(symbol.name) != symbol:
                _fail(node, f"Variable {symbol.name!r} is not the graph's Variable of that name")


def _check_sizes(graph: BaseGraph, node: Node, defined: set[Value]) -> None:
    for binding in graph.size_nodes(node):
        if binding.outputs[0] not in defined:
            _fail(node, f"mentions {binding.attrs['size']}, which no earlier node binds")


def _dims(node: Node) -> Iterator[Any]:
    for value in node.outputs:
        yield from value.shape
    for attr in node.attrs.values():
        if isinstance(attr, BaseGraph):
            yield from (Expr({(symbol,): 1}, 0) for symbol in attr.variables.values())
        else:
            yield from attr if isinstance(attr, tuple) else (attr,)


def _symbols(dim: Dim) -> frozenset[Symbol]:
    return symbols(dim) if isinstance(dim, Expr) else frozenset()


def _check_leaves(graph: BaseGraph) -> None:
    tables: dict[Op, dict[str, Value]] = {
        INPUT: graph.inputs,
        PARAM: graph.params,
        STATE: graph.states,
    }
    seen: set[str] = set()
    listed = 0
    for node in graph.nodes:
        table = tables.get(node.op)
        if table is None:
            continue
        name = str(node.attrs.get("name"))
        if name in seen:
            _fail(node, f"another leaf is named {name!r}")
        if table.get(name) is not node.outputs[0]:
            _fail(node, f"the graph does not list it as {node.op.name} {name!r}")
        seen.add(name)
        listed += 1
    if listed != sum(map(len, tables.values())):
        raise GraphError(f"graph {graph.name!r} lists a leaf that is none of its nodes")
    for name in graph.param_values:
        if name not in graph.params:
            raise GraphError(f"graph {graph.name!r} holds a value for {name!r}, which is no param")


def _check_results(graph: BaseGraph, defined: set[Value]) -> None:
    for name, value in graph.outputs.items():
        if value not in defined:
            raise GraphError(f"output {name!r} is {value!r}, which is no value of {graph.name!r}")
    for name, value in graph.assignments.items():
        if name not in graph.states:
            raise GraphError(f"{name!r} is assigned but is no state of graph {graph.name!r}")
        if value not in defined:
            raise GraphError(f"state {name!r} is assigned {value!r}, no value of {graph.name!r}")
        if value.type != graph.states[name].type:
            raise GraphError(
                f"state {name!r} is {graph.states[name].type}, but is assigned {value!r}"
            )
