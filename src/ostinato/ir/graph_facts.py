"""The facts of a graph: those that the nodes of its results rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.ir.facts import Fact
from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import CONSTANT
from ostinato.variables import Expr, maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.variables import Dim

__all__ = ["graph_facts"]


def graph_facts(graph: BaseGraph) -> tuple[Fact, ...]:
    """The facts that the results of a graph rely on, without those that hold in any case.

    Those of a nested graph are void at sizes at which it is not run, where sizes decide that.
    """
    if not graph.variables:
        return ()
    found: dict[tuple[Dim, int, Dim], Fact] = {}
    for node in _needed(graph):
        for fact in _node_facts(node):
            found.setdefault((fact.size, fact.least, fact.elements), fact)
    return tuple(found.values())


def _needed(graph: BaseGraph) -> Sequence[Node]:
    """The nodes that the graph's results depend on, in order."""
    needed = {value.node for value in graph.results()}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(graph.needed_by(node))
    return [node for node in graph.nodes if node in needed]


def _node_facts(node: Node) -> Iterator[Fact]:
    stated = [*node.op.facts([value.type for value in node.inputs], node.attrs)]
    chosen = _chosen_sizes(node)
    for value in node.outputs:
        for axis, dim in enumerate(value.shape):
            if dim in chosen:
                stated.append(Fact(dim, 0, f"axis {axis} of {value.type} has a negative size"))
    for fact in stated:
        if not fact.certain:
            yield fact._replace(node=f"{node.op.name} {node.label!r}")
    yield from _nested_facts(node)


def _nested_facts(node: Node) -> Iterator[Fact]:
    for key, attr in node.attrs.items():
        if isinstance(attr, BaseGraph):
            runs = _runs(node, key)
            for fact in graph_facts(attr):
                if not (guarded := fact._replace(elements=fact.elements * runs)).certain:
                    yield guarded


def _runs(node: Node, attribute: str) -> Dim:
    """An expression that is 0 at sizes at which a nested graph of a node is not run."""
    match node.op.name, attribute:
        case "cond", "then_graph":
            return _truth(node.inputs[0])
        case "cond", "else_graph":
            return _truth(node.inputs[0], negated=True)
        case "loop", "body":
            trips = node.attrs["trips"]
            return 1 if trips is None else minimum(trips, 1)
    return 1


def _truth(value: Value, *, negated: bool = False) -> Dim:
    """0 where a condition on sizes is false, 1 where it is true; 1 for other conditions.

    Args:
        negated: of the opposite.
    """
    node = value.node
    name = node.op.name
    if name in ("reshape", "broadcast_to", "cast") and value.dtype.is_bool:
        (inner,) = node.inputs
        return _truth(inner, negated=negated) if inner.dtype.is_bool else 1
    if name in ("logical_not", "bitwise_invert"):
        return _truth(node.inputs[0], negated=not negated)
    sizes = [_size(operand) for operand in node.inputs]
    if name not in _DIFFERENCES or None in sizes:
        return 1
    left, right = sizes
    positive = minimum(maximum(_DIFFERENCES[name](left, right), 0), 1)
    return 1 - positive if negated else positive


#: For each comparison, an expression that is positive exactly where it holds.
_DIFFERENCES: dict[str, Callable[[Any, Any], Dim]] = {
    "less": lambda a, b: b - a,
    "less_equal": lambda a, b: b - a + 1,
    "greater": lambda a, b: a - b,
    "greater_equal": lambda a, b: a - b + 1,
    "equal": lambda a, b: 1 - maximum(a - b, b - a),
    "not_equal": lambda a, b: maximum(a - b, b - a),
}


def _size(value: Value) -> Dim | None:
    """The size that an integer scalar holds; ``None`` if it is computed otherwise."""
    while value.node.op.name in ("reshape", "broadcast_to", "cast") and value.dtype.is_integer:
        (value,) = value.node.inputs
    node = value.node
    if node.op.name == "dim_value":
        dim: Dim = node.attrs["dim"]
        return dim
    if node.op is CONSTANT and node.attrs["array"].size == 1 and value.dtype.is_integer:
        return int(node.attrs["array"].reshape(()).item())
    return None


def _chosen_sizes(node: Node) -> set[Dim]:
    """The expressions among a node's attributes: sizes that do not come from its operands."""
    attrs = node.attrs.values()
    listed = [item for attr in attrs for item in (attr if isinstance(attr, tuple) else (attr,))]
    return {item for item in listed if isinstance(item, Expr)}
