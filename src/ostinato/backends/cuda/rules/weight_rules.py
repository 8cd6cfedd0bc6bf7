"""The rules of all ops that read weights, which bring them into order once for a graph."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.column_order import ColumnOrder
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules import blockwise, chosen_experts, matmul
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules import experts, sums_of_products
    from ostinato.lower.rules.table import Rule
else:
    blockwise = LazyModule("ostinato.backends.cuda.rules.blockwise")
    chosen_experts = LazyModule("ostinato.backends.cuda.rules.chosen_experts")
    experts = LazyModule("ostinato.lower.rules.experts")
    matmul = LazyModule("ostinato.backends.cuda.rules.matmul")
    sums_of_products = LazyModule("ostinato.lower.rules.sums_of_products")

__all__ = ["weight_rules"]


def weight_rules(*, splits: bool = True) -> Mapping[str, Rule]:
    """The rules for one graph, by the names of ops.

    Args:
        splits: whether long sums of few results may be two kernels.
    """
    rules = _WeightRules(splits)
    return {
        "matmul": rules.matmul,
        "integer_matmul": rules.matmul,
        "conv": rules.convolution,
        "integer_conv": rules.convolution,
        "blockwise_matmul": rules.blockwise,
        "expert_mlp": rules.experts,
        "grouped_matmul": rules.grouped,
    }


class _WeightRules:
    def __init__(self, splits: bool) -> None:
        self._splits = splits
        self._columns = ColumnOrder()

    @cached_property
    def _matmuls(self) -> matmul.MatmulRules:
        return matmul.MatmulRules(self._columns, splits=self._splits)

    def matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul."""
        self._matmuls.matmul(lowering, region, root)

    def convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a convolution."""
        self._matmuls.convolution(lowering, region, root)

    def blockwise(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul of bytes by codes of half a byte."""
        if not blockwise.lower_whole_weights(lowering, region, root, self._columns):
            sums_of_products.lower_blockwise_matmul(lowering, region, root)

    def experts(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around the networks of experts."""
        if not chosen_experts.lower_few_choices(lowering, region, root, self._columns):
            experts.lower_expert_mlp(lowering, region, root)

    def grouped(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul whose rows choose their matrices."""
        if not chosen_experts.lower_few_rows(lowering, region, root, self._columns):
            sums_of_products.lower_grouped_matmul(lowering, region, root)
