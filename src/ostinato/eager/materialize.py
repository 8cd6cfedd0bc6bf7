"""Materialise nodes: prepared ops on buffers, with an address for every result and temp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.eager.allocation import Allocation, AllocationView
from ostinato.plan.buffer import Buffer
from ostinato.plan.memory import Lifetime, Placement, place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.eager.allocation import Operand, ResultStorage
    from ostinato.eager.compute_graph import ComputeGraph
    from ostinato.ir.types import TensorType
    from ostinato.plan.buffer import Storage
    from ostinato.plan.prepared import PreparedOp

__all__ = ["PlacementCache", "materialize"]


class PlacementCache:
    """Placements by lifetimes, for sessions that are encoded anew at every step."""

    #: Entries before the cache is emptied. Placing takes time quadratic in the number of buffers.
    _MAX_ENTRIES = 64

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, int, int], ...], Placement] = {}

    def find(self, lifetimes: Sequence[tuple[int, int, int]]) -> Placement:
        """The result of :func:`~ostinato.plan.memory.place` for ``(nbytes, first, last)``."""
        key = tuple(lifetimes)
        placement = self._known.get(key)
        if placement is None:
            if len(self._known) >= self._MAX_ENTRIES:
                self._known.clear()
            placement = place([Lifetime(*life) for life in key])
            self._known[key] = placement
        return placement


def materialize(
    graph: ComputeGraph,
    compiled_ops: Sequence[CompiledOp | None],
    storage: Callable[[int], Storage],
    placements: PlacementCache,
    sizes: Mapping[str, int],
) -> tuple[list[PreparedOp], list[ResultStorage]]:
    """The graph's nodes as prepared ops, in order, and the storages of results that users hold.

    Results that the user holds lie in memory of their own. The others, and the temps of nodes,
    share an arena, in which nodes of one group have no bytes in common and can run in parallel.

    Args:
        graph: the graph.
        compiled_ops: by node; ``None`` for one that only copies.
        storage: makes the arena.
        placements: known placements.
        sizes: values of the Variables in shapes.
    """
    arena = _Arena(graph, compiled_ops, storage, placements, sizes)
    ops: list[PreparedOp] = []
    for number, (node, compiled_op) in enumerate(zip(graph.nodes, compiled_ops, strict=True)):
        ops += node.ops(len(ops), compiled_op, arena.temps(number), arena.find)
    return ops, list(arena.held.values())


class _Arena:
    """The buffers of all operands of nodes.

    Attributes:
        held: the storages of results that users hold.
    """

    def __init__(
        self,
        graph: ComputeGraph,
        compiled_ops: Sequence[CompiledOp | None],
        storage: Callable[[int], Storage],
        placements: PlacementCache,
        sizes: Mapping[str, int],
    ) -> None:
        self._sizes = sizes
        self.held: dict[Allocation, ResultStorage] = {}
        members = self._members(graph, compiled_ops)
        placement = placements.find([(life[0], life[1], life[2]) for life in members.values()])
        self._offsets = dict(zip(members, placement.offsets, strict=True))
        self._storage = storage(placement.arena_bytes)
        self._temps = [() if op is None else op.temps for op in compiled_ops]

    def _members(
        self, graph: ComputeGraph, compiled_ops: Sequence[CompiledOp | None]
    ) -> dict[Any, list[int]]:
        """By member of the arena, allocation or ``(node, temp)``: size, first and last group."""
        members: dict[Any, list[int]] = {}
        for number, (node, group) in enumerate(zip(graph.nodes, graph.groups, strict=True)):
            for operand in (*node.writes, *node.reads):
                if not isinstance(operand, AllocationView) or operand.allocation in self.held:
                    continue
                allocation = operand.allocation
                if allocation in members:
                    members[allocation][2] = group
                elif (held := allocation.storage) is not None:
                    self.held[allocation] = held
                else:
                    members[allocation] = [allocation.nbytes, group, group]
            compiled_op = compiled_ops[number]
            for position, type_ in enumerate(() if compiled_op is None else compiled_op.temps):
                members[number, position] = [type_.max_bytes, group, group]
        return members

    def find(self, operand: Operand) -> Buffer:
        """The buffer of an operand or result."""
        if isinstance(operand, Buffer):
            return operand
        assert isinstance(operand, AllocationView)
        held = self.held.get(operand.allocation)
        if held is not None:
            return Buffer(held, operand.offset, operand.type, sizes=self._sizes)
        return self._place(self._offsets[operand.allocation] + operand.offset, operand.type)

    def temps(self, number: int) -> list[Buffer]:
        """The temps of the node of this number."""
        types = self._temps[number]
        return [self._place(self._offsets[number, i], type_) for i, type_ in enumerate(types)]

    def _place(self, offset: int, type_: TensorType) -> Buffer:
        return Buffer(self._storage, offset, type_, sizes=self._sizes)
