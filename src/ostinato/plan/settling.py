"""From nodes to prepared ops: where results and temps lie is settled here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.plan.buffer import Buffer
from ostinato.plan.memory import Lifetime, Placement, place
from ostinato.plan.region import Piece, Region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.ir.types import TensorType
    from ostinato.plan.buffer import Storage
    from ostinato.plan.compute_graph import ComputeGraph
    from ostinato.plan.prepared import PreparedOp
    from ostinato.plan.region import Operand, ResultStorage
    from ostinato.plan.routine import Routine

__all__ = ["Placements", "settled"]


class Placements:
    """Placements found before: a session that is built anew for every step finds its own again."""

    #: Placing takes time that grows with the square of the number of buffers; keeping, none.
    _MAX = 64

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, int, int], ...], Placement] = {}

    def find(self, lifetimes: Sequence[tuple[int, int, int]]) -> Placement:
        """What :func:`~ostinato.plan.memory.place` gives for ``(nbytes, first, last)``."""
        key = tuple(lifetimes)
        placement = self._known.get(key)
        if placement is None:
            if len(self._known) >= self._MAX:
                self._known.clear()
            placement = place([Lifetime(*life) for life in key])
            self._known[key] = placement
        return placement


def settled(
    graph: ComputeGraph,
    routines: Sequence[Routine | None],
    storage: Callable[[int], Storage],
    placements: Placements,
    sizes: Mapping[str, int],
) -> tuple[list[PreparedOp], list[ResultStorage]]:
    """The graph's nodes as prepared ops, in order, and the storages of results that users hold.

    Results that the user holds lie in memory of their own. The others, and what nodes need while
    they run, share an arena: nodes of one group never have bytes in common there, so that what may
    run at the same time still may.

    Args:
        graph: what to run.
        routines: for each node its formula, compiled.
        storage: makes the arena.
        placements: found before.
        sizes: values of Variables that are in shapes.
    """
    arena = _Arena(graph, routines, storage, placements, sizes)
    ops: list[PreparedOp] = []
    for number, (node, routine) in enumerate(zip(graph.nodes, routines, strict=True)):
        ops += node.ops(len(ops), routine, arena.temps(number), arena.find)
    return ops, list(arena.held.values())


class _Arena:
    """Buffers for all that nodes read and write.

    Attributes:
        held: the storages of results that users hold.
    """

    def __init__(
        self,
        graph: ComputeGraph,
        routines: Sequence[Routine | None],
        storage: Callable[[int], Storage],
        placements: Placements,
        sizes: Mapping[str, int],
    ) -> None:
        self._sizes = sizes
        self.held: dict[Region, ResultStorage] = {}
        members = self._members(graph, routines)
        placement = placements.find([(life[0], life[1], life[2]) for life in members.values()])
        self._offsets = dict(zip(members, placement.offsets, strict=True))
        self._storage = storage(placement.arena_bytes)
        self._temps = [() if r is None else r.temps for r in routines]

    def _members(
        self, graph: ComputeGraph, routines: Sequence[Routine | None]
    ) -> dict[Any, list[int]]:
        """What lies in the arena, regions and ``(node, temp)``: size, first and last group."""
        members: dict[Any, list[int]] = {}
        for number, (node, group) in enumerate(zip(graph.nodes, graph.groups, strict=True)):
            for operand in (*node.writes, *node.reads):
                if not isinstance(operand, Piece) or operand.region in self.held:
                    continue
                region = operand.region
                if region in members:
                    members[region][2] = group
                elif (held := region.storage) is not None:
                    self.held[region] = held
                else:
                    members[region] = [region.nbytes, group, group]
            routine = routines[number]
            for position, type_ in enumerate(() if routine is None else routine.temps):
                members[number, position] = [type_.max_bytes, group, group]
        return members

    def find(self, operand: Operand) -> Buffer:
        """The buffer of what a node reads or writes."""
        if isinstance(operand, Buffer):
            return operand
        assert isinstance(operand, Piece)
        held = self.held.get(operand.region)
        if held is not None:
            return Buffer(held, operand.offset, operand.type, sizes=self._sizes)
        return self._place(self._offsets[operand.region] + operand.offset, operand.type)

    def temps(self, number: int) -> list[Buffer]:
        """What the node of this number needs while it runs."""
        types = self._temps[number]
        return [self._place(self._offsets[number, i], type_) for i, type_ in enumerate(types)]

    def _place(self, offset: int, type_: TensorType) -> Buffer:
        return Buffer(self._storage, offset, type_, sizes=self._sizes)
