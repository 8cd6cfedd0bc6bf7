"""Sharing of a common beginning between concatenations."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["SharedConcats"]

_Key = tuple[int, tuple["Value", ...]]


class SharedConcats(Pass):
    """Rewrites ``concat([a, b, c])`` as ``concat([concat([a, b]), c])`` where the inner one exists.

    Dense blocks concatenate all that came before, again and again. Each operand has one place then,
    and a backend may compute it there, once and for all.
    """

    name: ClassVar[str] = "shared_concats"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        known: dict[_Key, Value] = {}
        for node in rewriter.nodes():
            if node.op.name != "concat":
                rewriter.copy(node)
                continue
            axis, operands = node.attrs["axis"], rewriter.operands(node)
            shared = _longest_beginning(known, axis, operands)
            if shared is None:
                (result,) = rewriter.copy(node)
            else:
                result = _continued(rewriter, node, known[axis, operands[:shared]], shared)
                report.changed(self, "shared the beginning of a concat", node)
            known.setdefault((axis, operands), result)
        return rewriter.finish()


def _longest_beginning(
    known: dict[_Key, Value], axis: int, operands: tuple[Value, ...]
) -> int | None:
    """The number of leading ``operands`` that an earlier concatenation has already put together."""
    lengths = range(len(operands) - 1, 1, -1)
    return next((count for count in lengths if (axis, operands[:count]) in known), None)


def _continued(rewriter: Rewriter, node: Node, begun: Value, count: int) -> Value:
    """``node`` in the graph under construction, its first ``count`` operands being ``begun``."""
    rest = rewriter.operands(node)[count:]

    def rule() -> Value:
        return rewriter.graph.apply(node.op, (begun, *rest), node.attrs)[0]

    made = rewriter.build(node, rule)
    assert made is not None
    rewriter.replace(node, made)
    return rewriter[node.outputs[0]]
