"""Layers of which some experts are on the device: their slots, and the budget of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.expert_store import check_uses, expert_matrices, reads_stored
from ostinato.errors import InputError
from ostinato.ops.moe import NUMBERED
from ostinato.records import dataclass
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["ResidentLayer", "resident_layers"]


@dataclass(frozen=True, eq=False)
class ResidentLayer:
    """A node of which some experts are resident.

    Its matrices on the device are those of residents, then room for as many as a run can miss.

    Attributes:
        node: the node.
        experts: how many there are.
        slots: how many can be resident.
    """

    node: Node
    experts: int
    slots: int

    @property
    def ids(self) -> Value:
        """The experts that a run calls."""
        return self.node.inputs[NUMBERED[self.node.op.name][0]]

    @property
    def matrices(self) -> list[Value]:
        """The params that its experts consist of."""
        return [*expert_matrices(self.node)]

    @property
    def positions(self) -> list[int]:
        """The positions of the ids and of the matrices among the node's operands."""
        return [self.node.inputs.index(value) for value in (self.ids, *self.matrices)]

    @property
    def places(self) -> int:
        """The matrices on the device, of residents and others."""
        return self.slots + missed(self.node, self.experts - self.slots)

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert."""
        return _expert_bytes(self.node)


def missed(node: Node, others: int) -> int:
    """The most experts that a run of a node can miss, of ``others`` that are not resident."""
    ids = node.inputs[NUMBERED[node.op.name][0]]
    return min(max(1, bounds(prod(ids.shape))[1]), others)


def resident_layers(
    graph: BaseGraph, nodes: Sequence[Node], store: ExpertStore, on_host: Callable[[Node], bool]
) -> dict[Node, ResidentLayer]:
    """The nodes whose experts are in the file, with their share of the budget.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        store: the file, and the budget.
        on_host: whether the host computes a node: its experts never are on the device.

    Raises:
        InputError: a param of the file is more than the matrices of experts, or the budget is too
            small for the experts that a run can miss.
    """
    reading = [node for node in nodes if reads_stored(node, store)]
    check_uses(graph, nodes, reading, store)
    reading = [node for node in reading if not on_host(node)]
    slots = _slots(reading, store.budget)
    return {
        node: ResidentLayer(node, count, min(count, slots))
        for node, count in zip(reading, map(_experts, reading), strict=True)
    }


def _slots(nodes: Sequence[Node], budget: int | None) -> int:
    """The slots of each node: as many as the budget has room for, next to what runs can miss."""
    most = max(map(_experts, nodes), default=0)
    if budget is None:
        return most
    least = 0
    for slots in range(most, -1, -1):
        least = 0
        for node in nodes:
            own = min(_experts(node), slots)
            least += (own + missed(node, _experts(node) - own)) * _expert_bytes(node)
        if least <= budget:
            return slots
    raise InputError(
        f"expert_budget is {budget:,} bytes, but the experts that runs can miss take {least:,}"
    )


def _experts(node: Node) -> int:
    count = expert_matrices(node)[0].shape[0]
    assert isinstance(count, int)
    return count


def _expert_bytes(node: Node) -> int:
    return sum(value.type.max_bytes // _experts(node) for value in expert_matrices(node))
