"""Wide updates: accumulating scatters of 16-bit floats, computed in float32."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["WideUpdates"]

_SCATTERS = frozenset({"scatter", "scatter_nd"})
_ACCUMULATING = frozenset({"add", "mul"})


class WideUpdates(Pass):
    """Makes scatters that add or multiply float16 or bfloat16 do so in float32, and round once.

    Kernels accumulate a scatter in memory, update by update; in 16 bits each would be rounded.
    """

    name: ClassVar[str] = "wide_updates"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if not _accumulates_narrowly(node):
                rewriter.copy(node)
                continue
            made = rewriter.build(node, partial(_widened, rewriter, node))
            assert made is not None
            rewriter.replace(node, made)
            report.changed(self, "accumulated in float32", node)
        return rewriter.finish()


def _accumulates_narrowly(node: Node) -> bool:
    if node.op.name not in _SCATTERS or node.attrs["mode"] not in _ACCUMULATING:
        return False
    dtype = node.outputs[0].dtype
    return dtype.accumulator != dtype


def _widened(rewriter: Rewriter, node: Node) -> Value:
    g: Graph = rewriter.graph
    x, ids, updates = rewriter.operands(node)
    wide = x.dtype.accumulator
    (total,) = g.apply(node.op, (g.cast(x, wide), ids, g.cast(updates, wide)), node.attrs)
    return g.cast(total, x.dtype)
