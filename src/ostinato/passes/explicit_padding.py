"""Explicit padding: a convolution's zeros as a ``pad`` node, for backends that want them so."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["ExplicitPadding"]

#: The ops whose padding becomes a node of its own.
_CONVOLUTIONS: Final = frozenset({"conv", "integer_conv"})


class ExplicitPadding(Pass):
    """Puts the padding of every convolution into a ``pad`` before it.

    Kernels then walk their input with steps that never leave it.
    """

    name: ClassVar[str] = "explicit_padding"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if node.op.name not in _CONVOLUTIONS or not _is_padded(node):
                rewriter.copy(node)
                continue
            rule = partial(_padded, rewriter.graph, node, rewriter.operands(node))
            made = rewriter.build(node, rule)
            assert made is not None
            rewriter.replace(node, made)
            report.changed(self, "made padding explicit", node)
        return rewriter.finish()


def _is_padded(node: Node) -> bool:
    return any(low or high for low, high in node.attrs["padding"])


def _padded(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value:
    x, *rest = operands
    padding = node.attrs["padding"]
    widths = ((0, 0), (0, 0), *padding)
    wide = g.pad(x, widths)
    unpadded = {**node.attrs, "padding": ((0, 0),) * len(padding)}
    return g.apply(node.op, (wide, *rest), unpadded)[0]
