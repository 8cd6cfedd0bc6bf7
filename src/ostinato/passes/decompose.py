"""Decomposition: ops that a backend lacks, spelled in ops that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ostinato.errors import UnsupportedOpError
from ostinato.ir.graph import BaseGraph, Node
from ostinato.ir.leaves import Leaf
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Replacement, Rewriter
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["REWROTE", "Decompose", "Native"]

#: Before the name of the op, in the events of this pass.
REWROTE = "rewrote "

#: Whether a backend takes a node as it is.
Native: TypeAlias = Callable[[Node], bool]

#: Decompositions stand on one another (batch_norm on var on mean ...), but not this deep.
_MAX_DEPTH = 24


@dataclass(frozen=True)
class Decompose(Pass):
    """Rewrites every node that is not native by its op's decomposition, until all are native.

    Attributes:
        native: whether the backend takes a node as it is.
    """

    native: Native
    name: ClassVar[str] = "decompose"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        """The rewritten graph.

        Raises:
            UnsupportedOpError: some nodes are neither native nor decomposable; lists every one.
        """
        for depth in range(_MAX_DEPTH):
            rewriter = Rewriter(graph)
            stuck = self._expand(rewriter, report, quiet=depth > 0)
            if not rewriter.changed:
                break
            graph = rewriter.finish()
        if stuck:
            raise UnsupportedOpError(_message(stuck))
        return graph

    def _expand(self, rewriter: Rewriter, report: PassReport, *, quiet: bool) -> list[Node]:
        """Decompose once all nodes that are not native; returns the nodes that cannot be."""
        stuck: list[Node] = []
        for node in rewriter.nodes():
            if isinstance(node.op, Leaf) or self.native(node):
                rewriter.copy(node)
                continue
            simpler = rewriter.build(node, self._rule(rewriter, node))
            if simpler is None:
                stuck.append(node)
                rewriter.copy(node)
                continue
            rewriter.replace(node, simpler)
            if node.op.decodes_weights:
                report.changed(self, "decoded packed weights to float32", node)
            if not quiet:
                report.changed(self, f"{REWROTE}{node.op.name}", node)
        return stuck

    def _rule(self, rewriter: Rewriter, node: Node) -> Callable[[], Replacement | None]:
        operands = rewriter.operands(node)
        return lambda: node.op.decompose(rewriter.graph, operands, node.attrs)


def _described(node: Node) -> str:
    """A line with a node, its types, and where the user has added it."""
    results = ", ".join(str(value.type) for value in node.outputs)
    return f"  {node} -> {results}{f' at {node.source}' if node.source else ''}"


def _message(stuck: Sequence[Node]) -> str:
    listed = "\n".join(map(_described, stuck))
    some = "a node" if len(stuck) == 1 else f"{len(stuck)} nodes"
    return f"the backend neither takes nor can rewrite {some} of the graph:\n{listed}"
