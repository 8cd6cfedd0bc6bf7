"""The pipeline applied to nested graphs, innermost first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ostinato.ir.graph import BaseGraph
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NestedGraphs"]

#: Runs passes on a graph.
RunPasses: TypeAlias = "Callable[[BaseGraph, PassReport], BaseGraph]"


@dataclass(frozen=True)
class NestedGraphs(Pass):
    """Rewrites each nested graph as the graph around it is rewritten.

    Attributes:
        passes: runs the passes of the pipeline.
    """

    passes: RunPasses
    name: ClassVar[str] = "nested_graphs"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            attrs = {
                key: self.passes(attr, report) if isinstance(attr, BaseGraph) else attr
                for key, attr in node.attrs.items()
            }
            if any(attrs[key] is not attr for key, attr in node.attrs.items()):
                with rewriter.graph.labelled(node.label):
                    results = rewriter.graph.apply(node.op, rewriter.operands(node), attrs)
                rewriter.replace(node, results)
            else:
                rewriter.copy(node)
        return rewriter.finish()
