"""The rules of layers of experts: the ids of a run are kept, and missing experts are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.expert_store import expert_matrices
from ostinato.backends.cuda.rules import chosen_experts
from ostinato.backends.cuda.rules.expert_operands import OrderedExperts
from ostinato.backends.cuda.rules.expert_staging import PlaceExperts, StageExperts
from ostinato.backends.cuda.rules.product import FEW_ROWS
from ostinato.backends.cuda.rules.resident_experts import resident_layers
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Arg, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules import experts, sums_of_products
from ostinato.lower.rules.loops import block_nest
from ostinato.records import dataclass, field
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.rules.resident_experts import ResidentLayer
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim

__all__ = ["CalledExperts", "ExpertRules"]


@dataclass(frozen=True, eq=False)
class CalledExperts:
    """A layer of experts: nodes that share the ids of the experts.

    Attributes:
        label: of its first node.
        experts: how many there are.
        ids: keep the ids of a run until the next one.
        resident: its nodes whose experts do not all stay on the device.
        padded: the numbers of rows of the inputs that the ids come from.
    """

    label: str
    experts: int
    ids: LoweredBuffer
    padded: tuple[int, ...] = ()
    resident: list[ResidentLayer] = field(default_factory=list)


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
        called: the layers so far, by their ids and the number of experts.
        resident: the nodes whose experts do not all stay on the device.

    Raises:
        InputError: see :func:`~ostinato.backends.cuda.rules.resident_experts.resident_layers`.
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
        self.called: dict[tuple[Value, Dim], CalledExperts] = {}
        self.resident: Mapping[Node, ResidentLayer] = {}
        self._columns = columns
        self._keep = keep
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
        kept = self._keep and not lowering.nested
        layer = self._called(lowering, root, ids, count) if kept else None
        resident = self.resident.get(root)
        if resident is None:
            return OrderedExperts(ids, count, columns=self._columns)
        if layer is not None:
            layer.resident.append(resident)
        listed = self._lasting(lowering, root, ids) if layer is None else layer.ids
        places = self._staged(lowering, resident, ids, listed)
        matrices = zip(expert_matrices(root), resident.matrices, strict=True)
        instead = {value: matrix.places for value, matrix in matrices}
        number = resident.matrices[0].places.type.shape[0]
        return OrderedExperts(ids, number, instead, places, self._columns)

    def _called(
        self, lowering: ProgramBuilder, root: Node, ids: Value, count: Dim
    ) -> CalledExperts | None:
        """The layer of a node; ``None`` for a network that every token goes through."""
        if not isinstance(count, int) or count < 2:
            return None
        if (ids, count) not in self.called:
            kept = self._lasting(lowering, root, ids)
            lowering.kept.add(kept)
            self.called[ids, count] = CalledExperts(root.label, count, kept)
        return self.called[ids, count]

    def _lasting(self, lowering: ProgramBuilder, root: Node, ids: Value) -> LoweredBuffer:
        """Memory that has the ids as int64 until the next run: their own, or that of a copy."""
        if self._stays(lowering, ids):
            return lowering.stored[ids]
        type_ = TensorType(INT64, ids.shape)
        kept = LoweredBuffer(type_, Role.TEMP, f"{root.label}.ids")
        build = lowering.helper_builder()
        at = build.axes(ids.shape)
        number = build.as_int64(build.at(ids, at))
        store = Store(build.argument(kept, writes=True), linear_index(ids.shape, at), number)
        nest = block_nest(build, symbols_of(at), [store], lowering.variables)
        lowering.helper_call(root, "experts' ids", build, nest)
        return kept

    @staticmethod
    def _stays(lowering: ProgramBuilder, ids: Value) -> bool:
        """Whether the ids are in memory of their own that nothing else of a run writes."""
        buffer = lowering.stored.get(ids)
        if buffer is None or buffer.role is not Role.TEMP or buffer in lowering.assigned:
            return False
        readers = [node for node in lowering.nodes if ids in node.inputs]
        return (
            ids.dtype is INT64
            and buffer.layout is None
            and buffer.home is None
            and not any(node.op.updates_operand for node in readers)
        )

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
