"""Constant folding: nodes that depend on constants only are computed while compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.leaves import CONSTANT, Leaf
from ostinato.lazy import LazyModule
from ostinato.ops.control import ControlFlow
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import array_of
from ostinato.passes.rewrite import Rewriter
from ostinato.records import dataclass
from ostinato.variables import Expr

if TYPE_CHECKING:
    from ostinato import reference
    from ostinato.ir.graph import BaseGraph, Node
else:
    reference = LazyModule("ostinato.reference")

__all__ = ["ConstantFolding"]


@dataclass(frozen=True)
class ConstantFolding(Pass):
    """Evaluates nodes whose operands are all constants, with the rules of the reference.

    Attributes:
        max_growth: how many bytes a folded constant may be larger than what it is folded from: a
            broadcast or an iota of a large tensor is cheaper to compute than to keep.
        max_widening: the same for a 16-bit float made wider: readers widen it as they read, and
            weights are worth keeping narrow.
        max_flops: what one node may cost to fold.
    """

    max_growth: int = 1 << 20
    max_widening: int = 1 << 12
    max_flops: int = 1 << 26
    name: ClassVar[str] = "constant_folding"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        if not any(self._is_foldable(node) for node in graph.nodes if _on_constants(node)):
            return graph
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            operands = rewriter.operands(node)
            arrays = [array for value in operands if (array := array_of(value)) is not None]
            if len(arrays) != len(operands) or not self._is_foldable(node):
                rewriter.copy(node)
                continue
            with np.errstate(all="ignore"):
                results = reference.evaluate_node(node, arrays)
            rewriter.replace(node, [rewriter.graph.constant(array) for array in results])
            report.changed(self, f"folded {node.op.name}", node)
        return rewriter.finish()

    def _is_foldable(self, node: Node) -> bool:
        """Whether the node, whose operands are constants, is known in full and small enough."""
        if isinstance(node.op, Leaf | ControlFlow) or any(
            isinstance(dim, Expr) for dim in _dims(node)
        ):
            return False
        grown = sum(value.type.max_bytes for value in node.outputs)
        grown -= sum(value.type.max_bytes for value in node.inputs)
        if grown > (self.max_widening if _widens(node) else self.max_growth):
            return False
        flops = node.op.flops([value.type for value in node.inputs], node.attrs)
        return isinstance(flops, int) and flops <= self.max_flops


def _widens(node: Node) -> bool:
    """Whether the node does nothing but to widen 16-bit floats."""
    sources = {value.dtype for value in node.inputs}
    return node.op.name == "cast" and not sources.isdisjoint((FLOAT16, BFLOAT16))


def _on_constants(node: Node) -> bool:
    return all(value.node.op is CONSTANT for value in node.inputs)


def _dims(node: Node) -> list[object]:
    """Every dim that the node's types and attributes mention."""
    dims: list[object] = [dim for value in node.outputs for dim in value.shape]
    for attr in node.attrs.values():
        dims += attr if isinstance(attr, tuple) else (attr,)
    return dims
