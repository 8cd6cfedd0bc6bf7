"""Shared parts of the recovery passes: matches, and the check that an intermediate is private."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.passes.rewrite import Rewriter, Uses
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.passes.base import Pass, PassReport

__all__ = ["Finding", "Match", "Refusal", "is_private", "rewrite_matches", "values_above"]


@dataclass(frozen=True)
class Match:
    """A spelled-out composite op that was recognised.

    Attributes:
        root: the node whose one result the composite op gives.
        what: the composite op's name.
        build: makes it, given the graph under construction and what stands for each old value.
    """

    root: Node
    what: str
    build: Callable[[Graph, Rewriter], Value]


@dataclass(frozen=True)
class Refusal:
    """A composite op that was nearly recognised.

    Attributes:
        node: where.
        what: the composite op's name.
        why: what differs.
    """

    node: Node
    what: str
    why: str


Finding: TypeAlias = Match | Refusal


def rewrite_matches(
    graph: BaseGraph, findings: Iterable[Finding], pass_: Pass, report: PassReport
) -> BaseGraph:
    """Replace the root of every match in ``graph``; refusals go to the report."""
    matches: dict[Node, Match] = {}
    for finding in findings:
        if isinstance(finding, Match):
            matches.setdefault(finding.root, finding)
        else:
            report.refused(pass_, finding.what, finding.node, finding.why)
    if not matches:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        match = matches.get(node)
        if match is None:
            rewriter.copy(node)
            continue
        replacement = rewriter.build(node, lambda: match.build(rewriter.graph, rewriter))  # noqa: B023
        assert replacement is not None
        rewriter.replace(node, replacement)
        report.changed(pass_, f"recovered {match.what}", node)
    return rewriter.finish()


def is_private(uses: Uses, root: Value, boundary: Iterable[Value], *starts: Value) -> bool:
    """Whether what lies between ``starts`` (inclusive) and ``root`` has no readers outside.

    Args:
        uses: the readers.
        root: the value that is to be replaced.
        boundary: values at which the composite op's operands begin.
        starts: the innermost intermediates; only what depends on them must be private, the rest
            (such as ``0.5 * x``) may be shared and simply stays for its other readers.
    """
    inside = _between(root, set(boundary))
    tainted = set(starts)
    for node in sorted(inside, key=lambda n: n.outputs[0].id):
        if any(value in tainted for value in node.inputs):
            tainted.update(node.outputs)
    tainted.discard(root)
    return all(uses.inside(value, inside) for value in tainted)


def values_above(
    uses: Uses, value: Value, is_link: Callable[[Value], bool], limit: int
) -> list[Value]:
    """The values computed from ``value`` through those that satisfy ``is_link``, nearest first."""
    found: list[Value] = []
    queue, seen = [value], {value}
    while queue and len(found) < limit:
        for node in uses.readers(queue.pop(0)):
            result = node.outputs[0]
            if result not in seen:
                seen.add(result)
                if is_link(result):
                    found.append(result)
                    queue.append(result)
    return found


def _between(root: Value, boundary: set[Value]) -> set[Node]:
    """The nodes that ``root`` is computed by, back to ``boundary`` and to leaves."""
    nodes: set[Node] = set()
    queue = [root]
    while queue:
        value = queue.pop()
        if value not in boundary and value.node not in nodes:
            nodes.add(value.node)
            queue.extend(value.node.inputs)
    return nodes
