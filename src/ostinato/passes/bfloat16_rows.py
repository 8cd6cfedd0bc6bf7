"""Rows rounded to bfloat16 before they are multiplied with bfloat16 weights."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.ir.leaves import PARAM
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["LEAST_WEIGHTS", "Bfloat16Rows"]

#: Weights of a matrix from which on rounding pays: smaller ones stay in caches.
LEAST_WEIGHTS: Final = 1 << 16


@dataclass(frozen=True)
class Bfloat16Rows(Pass):
    """Makes float32 rows times a bfloat16 matrix a ``widening_matmul`` of bfloat16.

    Rows are rounded; products and sums stay float32. A device whose instructions multiply pairs of
    bfloat16 then has nothing to widen. Which matmuls change depends on the weights alone, never on
    the number of rows.

    Attributes:
        wanted: whether it pays on this device; asked when there are such matmuls.
    """

    wanted: Callable[[], bool]
    name: ClassVar[str] = "bfloat16_rows"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        found = [node for node in graph.nodes if _narrow_matrix(node) is not None]
        if not found or not self.wanted():
            return graph
        rewriter = Rewriter(graph)
        rounded: dict[Value, Value] = {}
        for node in rewriter.nodes():
            matrix = _narrow_matrix(node)
            if matrix is None:
                rewriter.copy(node)
                continue
            made = rewriter.build(node, partial(_matmul, rewriter, node, matrix, rounded))
            assert made is not None
            rewriter.replace(node, made)
            report.changed(self, "rounded rows to bfloat16", node)
        return rewriter.finish()


def _narrow_matrix(node: Node) -> Value | None:
    """The bfloat16 matrix that float32 rows are multiplied with, if it is a large weight."""
    if node.op.name != "matmul":
        return None
    rows, matrix = node.inputs
    if rows.dtype != FLOAT32 or rows.ndim < 2 or matrix.ndim != 2 or matrix.node.op.name != "cast":
        return None
    (narrow,) = matrix.node.inputs
    source = narrow
    while source.node.op.name in ("permute_dims", "reshape"):
        (source,) = source.node.inputs
    sizes = [size for size in narrow.shape if isinstance(size, int)]
    known = len(sizes) == 2 and sizes[1] > 1 and prod(sizes) >= LEAST_WEIGHTS
    return narrow if known and narrow.dtype == BFLOAT16 and source.node.op is PARAM else None


def _matmul(rewriter: Rewriter, node: Node, matrix: Value, rounded: dict[Value, Value]) -> Value:
    """The matmul in place of ``node``; those of the same rows round them once."""
    g: Graph = rewriter.graph
    rows = rewriter.operands(node)[0]
    if rows not in rounded:
        rounded[rows] = g.cast(rows, BFLOAT16)
    return g.widening_matmul(rounded[rows], rewriter[matrix])
