"""Places for experts that do not all stay in the device's memory.

Layers whose experts are alike share *places*: of each matrix, one buffer that holds the slots of
all layers' residents, and behind them room for as many experts as a run of one layer can miss.
Layers use that room one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.expert_store import check_uses, expert_matrices, reads_stored
from ostinato.dtypes import INT64
from ostinato.errors import InputError
from ostinato.ir.types import TensorType
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.records import dataclass
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["ExpertPlaces", "ResidentLayer", "ResidentMatrix", "resident_layers"]


@dataclass(frozen=True, eq=False)
class ResidentMatrix:
    """One matrix of each expert of a layer.

    Attributes:
        param: the name of the param.
        experts: how many there are.
        nbytes: of a matrix.
        columns: whether the elements of a column lie side by side in memory, not those of a row.
        places: of all layers that share them, ``[places, rows, columns]``.
        sources: by expert, the address of its matrix in the host's memory.
    """

    param: str
    experts: int
    nbytes: int
    columns: bool
    places: LoweredBuffer
    sources: LoweredBuffer


@dataclass(frozen=True, eq=False)
class ExpertPlaces:
    """The places that layers share.

    Attributes:
        slots: places of residents, of all layers.
        staged: places behind them.
    """

    slots: int
    staged: int


@dataclass(frozen=True, eq=False)
class ResidentLayer:
    """A layer of which some experts are resident.

    Attributes:
        node: the layer.
        experts: how many there are.
        first: the first place of its residents.
        slots: how many can be resident.
        places: those that it shares with other layers.
        table: by expert its place or -1, then the number of experts that were staged so far.
        matrices: those that each expert consists of, in the order of the node's operands.
    """

    node: Node
    experts: int
    first: int
    slots: int
    places: ExpertPlaces
    table: LoweredBuffer
    matrices: Sequence[ResidentMatrix]

    @property
    def staged(self) -> int:
        """The experts that a run of the layer can miss."""
        return min(_rows(self.node), self.experts - self.slots)

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert."""
        return sum(matrix.nbytes for matrix in self.matrices)

    @property
    def buffers(self) -> list[LoweredBuffer]:
        """All that lives as long as the program."""
        return [self.table, *(b for m in self.matrices for b in (m.places, m.sources))]


def resident_layers(
    graph: BaseGraph, nodes: Sequence[Node], store: ExpertStore, few_rows: int
) -> dict[Node, ResidentLayer]:
    """The layers whose experts are in the file, with their share of the budget.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        store: the file, and the budget.
        few_rows: rows up to which kernels read the matrices column by column.

    Raises:
        InputError: a param of the file is more than the matrices of experts, or the budget is too
            small for the experts that a run can miss.
    """
    layers = [node for node in nodes if reads_stored(node, store)]
    check_uses(graph, nodes, layers, store)
    slots = _slots(layers, store.budget, few_rows)
    found: dict[Node, ResidentLayer] = {}
    for alike in _alike(layers, few_rows).values():
        resident = [min(_experts(node), slots) for node in alike]
        missed = max(min(_rows(n), _experts(n) - s) for n, s in zip(alike, resident, strict=True))
        places = ExpertPlaces(sum(resident), missed)
        columns = bounds(prod(alike[0].inputs[_IDS[alike[0].op.name]].shape))[1] <= few_rows
        buffers = [
            _places(matrix, places.slots + missed, columns) for matrix in expert_matrices(alike[0])
        ]
        first = 0
        for node, own in zip(alike, resident, strict=True):
            table = TensorType(INT64, (_experts(node) + 1,))
            matrices = [
                ResidentMatrix(
                    value.name,
                    _experts(node),
                    _matrix_bytes(value),
                    columns,
                    buffer,
                    _sources(value),
                )
                for value, buffer in zip(expert_matrices(node), buffers, strict=True)
            ]
            found[node] = ResidentLayer(
                node,
                _experts(node),
                first,
                own,
                places,
                LoweredBuffer(table, Role.RESIDENT, f"{node.label}.slots"),
                matrices,
            )
            first += own
    return found


#: By op, the position of the ids among the operands.
_IDS: Mapping[str, int] = {"expert_mlp": 1, "grouped_matmul": 2}


def _experts(node: Node) -> int:
    count = expert_matrices(node)[0].shape[0]
    assert isinstance(count, int)
    return count


def _rows(node: Node) -> int:
    """The most rows of a run, each of which chooses an expert."""
    return max(1, bounds(prod(node.inputs[_IDS[node.op.name]].shape))[1])


def _whole(node: Node) -> int:
    """Bytes of an expert."""
    return sum(_matrix_bytes(matrix) for matrix in expert_matrices(node))


def _matrix_bytes(value: Value) -> int:
    return value.type.max_bytes // max(1, _leading(value))


def _leading(value: Value) -> int:
    count = value.shape[0]
    assert isinstance(count, int)
    return count


def _alike(layers: Sequence[Node], few_rows: int) -> dict[object, list[Node]]:
    """The layers by the form of their experts."""
    found: dict[object, list[Node]] = {}
    for node in layers:
        few = _rows(node) <= few_rows
        form = tuple((value.dtype, value.shape[1:]) for value in expert_matrices(node))
        found.setdefault((node.op.name, few, form), []).append(node)
    return found


def _slots(layers: Sequence[Node], budget: int | None, few_rows: int) -> int:
    """The slots of each layer: as many as the budget has room for, next to what runs can miss."""
    most = max(map(_experts, layers), default=0)
    if budget is None:
        return most
    least = 0
    for slots in range(most, -1, -1):
        least = sum(min(_experts(node), slots) * _whole(node) for node in layers)
        for alike in _alike(layers, few_rows).values():
            missed = max(min(_rows(n), max(0, _experts(n) - slots)) for n in alike)
            least += missed * _whole(alike[0])
        if least <= budget:
            return slots
    raise InputError(
        f"expert_budget is {budget:,} bytes, but the experts that one run of a layer can miss take "
        f"{least:,}"
    )


def _places(value: Value, count: int, columns: bool) -> LoweredBuffer:
    """The places of a matrix."""
    _, depth, width = value.shape
    shape = (max(1, count), depth, width)
    layout = Layout((0, 2, 1), shape, (0, 0, 0)) if columns else None
    name = f"places of {value.name}"
    return LoweredBuffer(TensorType(value.dtype, shape), Role.RESIDENT, name, None, None, layout)


def _sources(value: Value) -> LoweredBuffer:
    """The addresses of a layer's matrices."""
    return LoweredBuffer(
        TensorType(INT64, (_leading(value),)), Role.RESIDENT, f"{value.name}.sources"
    )
