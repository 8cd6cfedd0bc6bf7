"""Rows of 16-bit floats widened once, before a matrix of as narrow weights multiplies them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.ir.leaves import PARAM
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter
from ostinato.records import dataclass
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.dtypes import DType
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["LEAST_COLUMNS", "LEAST_ROWS", "WidenedRows"]

#: Rows and columns from which on it pays to widen rows for all panels of a matrix at once.
LEAST_ROWS: Final = 8
LEAST_COLUMNS: Final = 32


@dataclass(frozen=True)
class WidenedRows(Pass):
    """Makes a matmul of 16-bit floats one of float32, whose sums are rounded once as before.

    A device without an instruction for their products widens each factor before it multiplies by
    it. Rows are widened for every panel of the matrix they meet; here, once for all of them. The
    matrix stays as narrow in memory.

    Attributes:
        wanted: whether rows of a dtype are to be widened on this device; asked when there are any.
    """

    wanted: Callable[[DType], bool]
    name: ClassVar[str] = "widened_rows"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        dtypes = {node.inputs[0].dtype for node in graph.nodes if _is_narrow(node)}
        chosen = {dtype for dtype in dtypes if self.wanted(dtype)}
        if not chosen:
            return graph
        rewriter = Rewriter(graph)
        widened: dict[Value, Value] = {}
        for node in rewriter.nodes():
            if not _is_narrow(node) or node.inputs[0].dtype not in chosen:
                rewriter.copy(node)
                continue
            made = rewriter.build(node, partial(_matmul, rewriter, node, widened))
            assert made is not None
            rewriter.replace(node, made)
            report.changed(self, "widened rows to float32", node)
        return rewriter.finish()


def _is_narrow(node: Node) -> bool:
    """Whether several rows of 16-bit floats are multiplied with a matrix of weights."""
    if node.op.name != "matmul":
        return False
    rows, matrix = node.inputs
    source = matrix
    while source.node.op.name in ("permute_dims", "reshape"):
        (source,) = source.node.inputs
    if rows.dtype not in (BFLOAT16, FLOAT16) or matrix.dtype != rows.dtype or matrix.ndim != 2:
        return False
    many = rows.ndim >= 2 and bounds(prod(rows.shape[:-1]))[1] >= LEAST_ROWS
    return many and bounds(matrix.shape[1])[1] >= LEAST_COLUMNS and source.node.op is PARAM


def _matmul(rewriter: Rewriter, node: Node, widened: dict[Value, Value]) -> Value:
    """The matmul in place of ``node``; those of the same rows widen them once."""
    g: Graph = rewriter.graph
    rows, matrix = rewriter.operands(node)
    if rows not in widened:
        widened[rows] = g.cast(rows, FLOAT32)
    return g.cast(g.matmul(widened[rows], g.cast(matrix, FLOAT32)), node.inputs[0].dtype)
