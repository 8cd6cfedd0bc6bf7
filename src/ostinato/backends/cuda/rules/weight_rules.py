"""The rules of all ops that read weights, which bring them into order once for a graph."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules import blockwise, matmul
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules import sums_of_products
    from ostinato.lower.rules.table import Rule
else:
    blockwise = LazyModule("ostinato.backends.cuda.rules.blockwise")
    matmul = LazyModule("ostinato.backends.cuda.rules.matmul")
    sums_of_products = LazyModule("ostinato.lower.rules.sums_of_products")

__all__ = ["weight_rules"]


def weight_rules(columns: ColumnOrder, *, splits: bool = True) -> Mapping[str, Rule]:
    """The rules for one graph, by the names of ops.

    Args:
        columns: brings weights into order.
        splits: whether long sums of few results may be two kernels.
    """
    rules = _WeightRules(columns, splits)
    return {
        "matmul": rules.matmul,
        "widening_matmul": rules.matmul,
        "integer_matmul": rules.matmul,
        "conv": rules.convolution,
        "integer_conv": rules.convolution,
        "blockwise_matmul": rules.blockwise,
        "scaled_matmul": rules.scaled,
    }


class _WeightRules:
    def __init__(self, columns: ColumnOrder, splits: bool) -> None:
        self._splits = splits
        self._columns = columns

    @cached_property
    def _matmuls(self) -> matmul.MatmulRules:
        return matmul.MatmulRules(self._columns, splits=self._splits)

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul."""
        self._matmuls.matmul(lowering, region, root)

    def scaled(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul of 8-bit floats."""
        self._matmuls.scaled(lowering, region, root)

    def convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a convolution."""
        self._matmuls.convolution(lowering, region, root)

    def blockwise(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul of bytes by codes of half a byte."""
        if not blockwise.lower_whole_weights(lowering, region, root, self._columns):
            sums_of_products.lower_blockwise_matmul(lowering, region, root)
