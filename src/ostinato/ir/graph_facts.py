"""The facts of a graph: those that the nodes of its results rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.facts import Fact
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.variables import Dim

__all__ = ["graph_facts"]


def graph_facts(graph: BaseGraph) -> tuple[Fact, ...]:
    """The facts that the results of a graph rely on, without those that hold in any case."""
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


def _chosen_sizes(node: Node) -> set[Dim]:
    """The expressions among a node's attributes: sizes that do not come from its operands."""
    attrs = node.attrs.values()
    listed = [item for attr in attrs for item in (attr if isinstance(attr, tuple) else (attr,))]
    return {item for item in listed if isinstance(item, Expr)}
