"""The rules of layers of experts, whose kernels stage missing experts by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.expert_rules import ExpertRules
from ostinato.backends.cuda.rules import chosen_experts
from ostinato.backends.cuda.rules.expert_operands import OrderedExperts
from ostinato.backends.cuda.rules.expert_staging import PlaceExperts, StageExperts
from ostinato.backends.cuda.rules.product import FEW_ROWS
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules import experts, sums_of_products
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["CudaExpertRules"]


class CudaExpertRules(ExpertRules):
    """See :class:`~ostinato.backends.common.expert_rules.ExpertRules`.

    Args:
        graph, nodes, store, keep: see there.
        columns: brings matrices into the order of kernels of few rows; ``None``: there are no such
            kernels.
        pairs: whether two matrices of an expert may be multiplied by one kernel.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        store: ExpertStore | None,
        columns: ColumnOrder | None,
        *,
        keep: bool,
        pairs: bool = True,
    ) -> None:
        few_rows = 0 if columns is None else FEW_ROWS
        super().__init__(graph, nodes, store, keep=keep, few_rows=few_rows)
        self._columns = columns
        self._pairs = pairs

    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        operands = self._operands(lowering, root, root.inputs[1])
        few, pairs = self._columns is not None, self._pairs
        if not (
            few and chosen_experts.lower_few_choices(lowering, region, root, operands, pairs=pairs)
        ):
            experts.lower_expert_mlp(lowering, region, root, operands)

    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        operands = self._operands(lowering, root, root.inputs[2])
        few = self._columns is not None
        if not (few and chosen_experts.lower_few_rows(lowering, region, root, operands)):
            sums_of_products.lower_grouped_matmul(lowering, region, root, operands)

    def _operands(self, lowering: ProgramBuilder, root: Node, ids: Value) -> OrderedExperts:
        found = self.operands(lowering, root, ids)
        return OrderedExperts(
            ids, found.count, found.instead, found.places, found.first, self._columns
        )

    def _staged(
        self, lowering: ProgramBuilder, layer: ResidentLayer, ids: Value, listed: LoweredBuffer
    ) -> LoweredBuffer:
        label, count = layer.node.label, layer.staged
        places = LoweredBuffer(TensorType(INT64, ids.shape), Role.TEMP, f"{label}.places")
        missing = LoweredBuffer(TensorType(INT64, (count,)), Role.TEMP, f"{label}.missing")
        buffers = (listed, layer.table, places, missing)
        args = (
            Arg(INT64, reads=True, writes=False),
            Arg(INT64, reads=True, writes=True),
            Arg(INT64, reads=True, writes=True),
            Arg(INT64, reads=False, writes=True),
        )
        rows, first, own = prod(ids.shape), layer.places.slots, lowering.variables
        find = PlaceExperts(args, rows, layer.experts, first, count, own)
        lowering.calls.append(Call(find, buffers, (label,), "place experts"))
        for matrix in layer.matrices:
            if not matrix.nbytes:
                continue
            dtype = matrix.places.type.dtype
            given = (
                Arg(INT64, reads=True, writes=False),
                Arg(INT64, reads=True, writes=False),
                Arg(dtype, reads=True, writes=True),
            )
            stage = StageExperts(given, matrix.nbytes, first, count, own)
            used = (missing, matrix.sources, matrix.places)
            lowering.calls.append(Call(stage, used, (label,), "stage experts"))
        return places
