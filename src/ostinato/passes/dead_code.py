"""Dead code: nodes that no result depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph

__all__ = ["DeadCode"]


class DeadCode(Pass):
    """Drops the nodes that neither an output nor an assigned state depends on.

    Inputs, params and states stay, used or not: they are what callers feed, set and read.
    """

    name: ClassVar[str] = "dead_code"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        kept = rewriter.nodes()
        if len(kept) == len(graph.nodes):
            return graph
        for node in kept:
            rewriter.copy(node)
        for node in set(graph.nodes).difference(kept):
            report.changed(self, "removed a dead node", node)
        return rewriter.finish(force=True)
