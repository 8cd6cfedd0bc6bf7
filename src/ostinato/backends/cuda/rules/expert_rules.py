"""The rules of layers of experts: the ids of a run are kept, and missing experts are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import CalledLayers, lasting_ids
from ostinato.backends.common.expert_store import expert_matrices
from ostinato.backends.common.resident_experts import resident_layers
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
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["ExpertRules"]


class ExpertRules:
    """The rules for one graph.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        store: the params that are in a file; ``None``: there is none.
        columns: brings matrices into the order of kernels of few rows; ``None``: there are no such
            kernels.
        keep: whether the ids of a run are kept.

    Attributes:
        called: the layers so far.
        resident: the nodes whose experts do not all stay on the device.

    Raises:
        InputError: see :func:`~ostinato.backends.common.resident_experts.resident_layers`.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        store: ExpertStore | None,
        columns: ColumnOrder | None,
        *,
        keep: bool,
    ) -> None:
        self.called = CalledLayers(keep=keep)
        self.resident: Mapping[Node, ResidentLayer] = {}
        self._columns = columns
        if store is not None:
            few_rows = 0 if columns is None else FEW_ROWS
            self.resident = resident_layers(graph, nodes, store, few_rows)

    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around the networks of experts."""
        operands = self._operands(lowering, root, root.inputs[1])
        few = self._columns is not None
        if not (few and chosen_experts.lower_few_choices(lowering, region, root, operands)):
            experts.lower_expert_mlp(lowering, region, root, operands)

    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul whose rows choose their matrices."""
        operands = self._operands(lowering, root, root.inputs[2])
        few = self._columns is not None
        if not (few and chosen_experts.lower_few_rows(lowering, region, root, operands)):
            sums_of_products.lower_grouped_matmul(lowering, region, root, operands)

    def _operands(self, lowering: ProgramBuilder, root: Node, ids: Value) -> OrderedExperts:
        count = expert_matrices(root)[0].shape[0]
        layer = self.called.layer(lowering, root, ids, count)
        resident = self.resident.get(root)
        if resident is None:
            return OrderedExperts(ids, count, columns=self._columns)
        if layer is not None:
            layer.resident.append(resident)
        listed = lasting_ids(lowering, root, ids) if layer is None else layer.ids
        places = self._staged(lowering, resident, ids, listed)
        matrices = zip(expert_matrices(root), resident.matrices, strict=True)
        instead = {value: matrix.places for value, matrix in matrices}
        number = resident.matrices[0].places.type.shape[0]
        return OrderedExperts(ids, number, instead, places, self._columns)

    def _staged(
        self, lowering: ProgramBuilder, layer: ResidentLayer, ids: Value, listed: LoweredBuffer
    ) -> LoweredBuffer:
        """Stage the experts that are missing; the buffer of the place of each row's expert."""
        label, count = layer.node.label, layer.staged
        places = LoweredBuffer(TensorType(INT64, ids.shape), Role.TEMP, f"{label}.places")
        missing = LoweredBuffer(TensorType(INT64, (max(1, count),)), Role.TEMP, f"{label}.missing")
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
        for matrix in layer.matrices if count else ():
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
