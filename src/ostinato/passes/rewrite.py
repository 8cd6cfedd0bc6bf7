"""Rebuilding a graph node by node, with something else in place of some nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ostinato.errors import GraphError
from ostinato.ir.graph import BaseGraph, Node, Value
from ostinato.ir.leaves import INPUT, PARAM, STATE
from ostinato.ir.text import has_given_label
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from ostinato.passes.base import Pass, PassReport

__all__ = ["Replacement", "Rewriter", "Rule", "Uses", "live_nodes", "noted"]

#: The replacement of a node: its results, or its one result.
Replacement: TypeAlias = Value | Sequence[Value]

#: A rule sees a node and that node's operands in the graph under construction, to which it may
#: append; ``None`` leaves the node as it is.
Rule: TypeAlias = Callable[[Graph, Node, tuple[Value, ...]], Replacement | None]

#: The number of times that the outcome of a rule is offered to the rules again.
_MAX_ROUNDS = 16


def live_nodes(graph: BaseGraph) -> list[Node]:
    """The nodes that some result depends on, and every input, param and state, in order."""
    needed = {value.node for value in graph.results()}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed or node.op in (INPUT, PARAM, STATE):
            kept.append(node)
            needed.update(graph.needed_by(node))
    kept.reverse()
    return kept


class Uses:
    """The readers of each value of a graph, as far as the results depend on it."""

    def __init__(self, graph: BaseGraph) -> None:
        self.nodes = live_nodes(graph)
        self._results = Counter(graph.results())
        self._readers: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                self._readers.setdefault(value, []).append(node)

    def readers(self, value: Value) -> Sequence[Node]:
        """The nodes that read ``value``, once for each operand that is it."""
        return self._readers.get(value, ())

    def is_result(self, value: Value) -> bool:
        """Whether the value is an output or is assigned to a state."""
        return value in self._results

    def inside(self, value: Value, nodes: Iterator[Node] | Sequence[Node] | set[Node]) -> bool:
        """Whether nothing but ``nodes`` reads ``value``."""
        return not self.is_result(value) and all(n in nodes for n in self.readers(value))

    def once(self, value: Value) -> bool:
        """Whether exactly one operand of one node is ``value``, and no result is."""
        return not self.is_result(value) and len(self.readers(value)) == 1


class Rewriter:
    """A copy of ``source`` under construction.

    Go through :meth:`nodes` in order and :meth:`copy` or :meth:`replace` each, or let :meth:`run`
    do that; then :meth:`finish`. Nodes that no result depends on are left behind. Labels, source
    lines, names and values of leaves carry over, and what replaces a node takes its label.

    Args:
        source: is not changed.
        target: an empty graph to build in, if not a plain one of the same name.
    """

    def __init__(self, source: BaseGraph, target: Graph | None = None) -> None:
        self.source = source
        self.graph = Graph(source.name) if target is None else target
        self.changed = False
        self._new: dict[Value, Value] = {}

    def __getitem__(self, value: Value) -> Value:
        """The value under construction that replaces a value of the source graph."""
        return self._new[value]

    def nodes(self) -> Sequence[Node]:
        """The nodes of the source graph that are carried over."""
        return live_nodes(self.source)

    def operands(self, node: Node) -> tuple[Value, ...]:
        """The operands of a node of the source graph, in the graph under construction."""
        new = self._new
        return tuple([new[value] for value in node.inputs])

    def copy(self, node: Node) -> tuple[Value, ...]:
        """Carry ``node`` over as it is."""
        results = self.graph.adopt(node, self.operands(node))
        self._new.update(zip(node.outputs, results, strict=True))
        return results

    def replace(self, node: Node, replacement: Value | Sequence[Value | None]) -> None:
        """Let values of the graph under construction stand for the results of ``node``.

        Args:
            replacement: one for each result; ``None`` for a result that nothing reads.

        Raises:
            GraphError: their types differ from those of the results.
        """
        values = (replacement,) if isinstance(replacement, Value) else tuple(replacement)
        types = [None if value is None else value.type for value in values]
        if len(types) != len(node.outputs) or any(
            type_ not in (None, old.type) for type_, old in zip(types, node.outputs, strict=True)
        ):
            shown = ", ".join(map(str, types))
            raise GraphError(f"{node} cannot be replaced by {shown}: the types differ")
        pairs = zip(node.outputs, values, strict=True)
        self._new.update((old, new) for old, new in pairs if new is not None)
        self.changed = True

    def build(self, node: Node, rule: Callable[[], Replacement | None]) -> Replacement | None:
        """Call ``rule``; the nodes it appends in the stead of ``node`` take its label and line."""
        before = len(self.graph.nodes)
        result = rule()
        if result is not None:
            given = has_given_label(node)
            for new in self.graph.nodes[before:]:
                new.source = node.source
                if given:
                    new.label = node.label
        return result

    def run(self, rules: Mapping[str, Rule]) -> BaseGraph:
        """The source with every node offered to the rule for its op, if there is one.

        What a rule gives is offered to the rules again, so that chains collapse in one go.
        """
        for node in self.nodes():
            replacement = self._offer(node, rules) if node.op.name in rules else None
            if replacement is None:
                self.copy(node)
            else:
                self.replace(node, replacement)
        return self.finish()

    def finish(self, *, force: bool = False) -> BaseGraph:
        """The new graph, with its results; the source itself when nothing was replaced.

        Args:
            force: give the new graph even so.
        """
        if not (self.changed or force):
            return self.source
        new = self._new
        self.graph.outputs = {name: new[v] for name, v in self.source.outputs.items()}
        self.graph.assignments = {name: new[v] for name, v in self.source.assignments.items()}
        self.graph.stand_ins = self._stand_ins()
        return self.graph

    def _stand_ins(self) -> dict[int, Value]:
        before = self.source.stand_ins
        if before is None:
            return {value.id: stand_in for value, stand_in in self._new.items()}
        return {key: self._new[value] for key, value in before.items() if value in self._new}

    def _offer(self, node: Node, rules: Mapping[str, Rule]) -> Replacement | None:
        graph = self.graph
        current, operands = node, self.operands(node)
        best: Replacement | None = None
        for _ in range(_MAX_ROUNDS):
            rule, before = rules.get(current.op.name), len(graph.nodes)
            if rule is None:
                break
            found = self.build(node, lambda: rule(graph, current, operands))  # noqa: B023
            if found is None:
                break
            best = found
            if not isinstance(found, Value) or len(found.node.outputs) != 1:
                break
            if found.node not in graph.nodes[before:]:
                break
            current, operands = found.node, found.node.inputs
        return best


def noted(pass_: Pass, report: PassReport, rule: Rule) -> Rule:
    """Wrap ``rule`` so that it records in ``report`` each node that it simplifies."""

    def noting(graph: Graph, node: Node, operands: tuple[Value, ...]) -> Replacement | None:
        replacement = rule(graph, node, operands)
        if replacement is not None:
            report.changed(pass_, f"simplified {node.op.name}", node)
        return replacement

    return noting
