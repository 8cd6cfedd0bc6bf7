"""Facts: conditions on symbolic sizes that ops rely on, checked when the sizes are known.

An op states once, in :meth:`ostinato.ir.op.Op.facts`, which sizes it cannot do without: ``argmax``
needs an element along its axis. Where the sizes are fixed, type inference refuses what breaks a
fact. Where they are symbolic, the facts of a graph are a part of its interface, and a run whose
sizes break one raises before anything is dispatched.

A fact is an expression and its least value. An equality is two facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.errors import VariableError
from ostinato.variables import Expr, Symbol, evaluate, provably_less, provably_nonnegative, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.variables import Dim

__all__ = ["Fact", "check_facts", "graph_facts", "least_values"]


class Fact(NamedTuple):
    """A condition of a node: ``size >= least``.

    Attributes:
        size: an expression of Variables.
        least: its least value.
        problem: the words for sizes that break it, with the tensor and the axis.
        elements: elements of the result; where there are none the node computes nothing, and the
            condition is void.
        node: the op and the label of the node, once it is known.
    """

    size: Dim
    least: int
    problem: str
    elements: Dim = 1
    node: str = ""

    @property
    def certain(self) -> bool:
        """Whether the condition holds for all values within the Variables' bounds."""
        return self.elements == 0 or provably_nonnegative(self.size - self.least)

    @property
    def impossible(self) -> bool:
        """Whether it holds for none of them."""
        return self.elements != 0 and provably_less(self.size, self.least)

    def check(self, values: Mapping[str, int]) -> None:
        """Check the condition at values of Variables.

        Raises:
            VariableError: it does not hold.
        """
        if evaluate(self.size, values) >= self.least or evaluate(self.elements, values) == 0:
            return
        names = sorted(symbol.name for symbol in symbols(self.size))
        given = ", ".join(f"{name} = {values[name]}" for name in names)
        raise VariableError(
            f"{self.node}: {self.problem}; a run needs {self.size} >= {self.least}, got {given}"
        )


def check_facts(facts: Iterable[Fact], values: Mapping[str, int]) -> None:
    """Check facts at values of Variables; those that mention others are left for later.

    Raises:
        VariableError: one does not hold.
    """
    for fact in facts:
        if all(s.name in values for dim in (fact.size, fact.elements) for s in symbols(dim)):
            fact.check(values)


def least_values(facts: Iterable[Fact]) -> dict[str, int]:
    """By Variable, the least value that facts about that Variable alone allow.

    A device that reads a Variable from its own memory can check that much, and no expressions.
    """
    least: dict[str, int] = {}
    for fact in facts:
        if isinstance(fact.size, int) or not provably_less(0, fact.elements):
            continue
        match fact.size.terms:
            case (((Symbol(name=name),), 1),):
                least[name] = max(least.get(name, 0), fact.least - fact.size.const)
    return least


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
            needed.update(value.node for value in node.inputs)
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
