"""The rules of layers of experts: the ids of a run are kept, and missing experts are staged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import CalledLayers, lasting_ids
from ostinato.backends.common.expert_store import expert_matrices
from ostinato.backends.common.resident_experts import resident_layers
from ostinato.lower.rules.expert_operands import ExpertOperands

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["ExpertRules"]


class ExpertRules(ABC):
    """The rules for one graph.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        store: the params that are in a file; ``None``: there is none.
        keep: whether the ids of a run are kept.
        few_rows: rows up to which kernels read the matrices column by column.

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
        *,
        keep: bool,
        few_rows: int = 0,
    ) -> None:
        self.called = CalledLayers(keep=keep)
        self.resident: Mapping[Node, ResidentLayer] = {}
        if store is not None:
            self.resident = resident_layers(graph, nodes, store, few_rows)

    @abstractmethod
    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around the networks of experts."""

    @abstractmethod
    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul whose rows choose their matrices."""

    @abstractmethod
    def _staged(
        self, lowering: ProgramBuilder, layer: ResidentLayer, ids: Value, listed: LoweredBuffer
    ) -> LoweredBuffer:
        """Stage the experts that are missing; the buffer of the place of each row's expert.

        Args:
            lowering: takes the kernels.
            layer: of which some experts are resident.
            ids: of the experts of each row.
            listed: the same in memory, as int64.
        """

    def operands(self, lowering: ProgramBuilder, root: Node, ids: Value) -> ExpertOperands:
        """The matrices of a node's experts, which are on the device from here on.

        Args:
            lowering: takes the kernels that bring the ones that are missing.
            root: the node.
            ids: of the experts of each row.
        """
        count = expert_matrices(root)[0].shape[0]
        layer = self.called.layer(lowering, root, ids, count)
        resident = self.resident.get(root)
        if resident is None:
            return ExpertOperands(ids, count)
        if layer is not None:
            layer.resident.append(resident)
        matrices = zip(expert_matrices(root), resident.matrices, strict=True)
        instead = {value: matrix.places for value, matrix in matrices}
        if not resident.staged:  # all of them are in their slots, in order
            return ExpertOperands(ids, count, instead, first=resident.first)
        listed = lasting_ids(lowering, root, ids) if layer is None else layer.ids
        places = self._staged(lowering, resident, ids, listed)
        number = resident.matrices[0].places.type.shape[0]
        return ExpertOperands(ids, number, instead, places)
