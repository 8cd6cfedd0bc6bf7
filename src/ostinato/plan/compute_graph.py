"""What a recorded session collected: nodes in order, to be rewritten and run again."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.plan.buffer import Buffer, LentStorage
from ostinato.plan.fusion import fused
from ostinato.plan.hazards import HazardTracker
from ostinato.plan.reorder import reordered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.plan.buffer import Memory, Storage
    from ostinato.plan.compute_node import ComputeNode

__all__ = ["ComputeGraph", "Launcher", "groups_of"]


class Launcher(Protocol):
    """Who makes graphs ready to run, and runs them."""

    def encode(self, graph: ComputeGraph) -> Any:
        """The graph as one native program on its buffers."""

    def run(self, encode: Callable[[], Any]) -> int:
        """Run the program that ``encode`` gives, and wait; the nanoseconds that it took."""


class ComputeGraph:
    """The nodes of a session, in the order in which they run.

    It is never changed: :meth:`fuse` and :meth:`reorder` give new ones, which do the same to every
    byte that somebody can read afterwards. Each may be run any number of times. Buffers are held by
    reference, and scalars by value.

    Args:
        nodes: in order.
        launcher: runs them.
        fused: how many nodes went away before.
        reordered: how many moved before.

    Attributes:
        nodes: each with ``name``, ``reads`` and ``writes``.
        fused, reordered: how many nodes went away, or moved, since they were recorded.
    """

    def __init__(
        self,
        nodes: Iterable[ComputeNode],
        launcher: Launcher,
        *,
        fused: int = 0,
        reordered: int = 0,
    ) -> None:
        self.nodes = tuple(nodes)
        self.fused = fused
        self.reordered = reordered
        self._launcher = launcher
        self._encoded: Any = None
        self._lent: list[tuple[Storage, Memory]] = []

    def fuse(self) -> ComputeGraph:
        """A graph in which elementwise nodes are joined with their only reader.

        No bit of a result changes. A node stays as it is where its result has another reader, or is
        read twice, or in another shape; where the result is in a buffer that the user brought; and
        where something between it and its reader touches the same bytes. What the user still holds
        is computed by the joint node as well.
        """
        nodes = fused(self.nodes)
        gone = len(self.nodes) - len(nodes)
        return self._with(nodes, fused=self.fused + gone)

    def reorder(self) -> ComputeGraph:
        """A graph in which independent nodes stand together, so that there are fewer barriers."""
        order = reordered(self.nodes)
        moved = sum(before is not after for before, after in zip(self.nodes, order, strict=True))
        return self._with(order, reordered=self.reordered + moved)

    def replay(self) -> None:
        """Run all nodes again on what the buffers hold now, in one native call, and wait.

        While the context records, it is recorded instead.

        Raises:
            PlanError: a buffer was released.
            VariableError: it uses Variables, and the context is not in dev-state mode.
        """
        self._launcher.run(self.encode)

    def encode(self) -> Any:
        """The graph as its launcher has made it ready to run; anew where lent memory has moved.

        Raises:
            PlanError: a buffer was released.
            VariableError: it uses Variables, and the context is not in dev-state mode.
        """
        moved = any(storage.memory != memory for storage, memory in self._lent)
        if self._encoded is None or moved:
            operands = (o for node in self.nodes for o in (*node.reads, *node.writes))
            storages = {o.storage for o in operands if isinstance(o, Buffer)}
            self._lent = [(s, s.memory) for s in storages if isinstance(s, LentStorage)]
            self._encoded = self._launcher.encode(self)
        return self._encoded

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """For each node the number of its group; between two groups there is a barrier."""
        return groups_of(self.nodes)

    @property
    def barriers(self) -> int:
        """How often nodes wait for all before them."""
        return self.groups[-1] if self.groups else 0

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        lines = [f"graph of {len(self)} nodes, {self.barriers} barriers"]
        group = 0
        for node, number in zip(self.nodes, self.groups, strict=True):
            if number != group:
                lines.append("  -- barrier")
            lines.append(f"  {node}")
            group = number
        return "\n".join(lines)

    def _with(self, nodes: Sequence[ComputeNode], **counts: int) -> ComputeGraph:
        known = {"fused": self.fused, "reordered": self.reordered, **counts}
        return ComputeGraph(nodes, self._launcher, **known)


def groups_of(nodes: Sequence[ComputeNode]) -> tuple[int, ...]:
    """Numbers nodes by groups, which are as long as nothing in them must wait for anything else."""
    tracker = HazardTracker()
    groups: list[int] = []
    group = 0
    for position, node in enumerate(nodes):
        if tracker.add(position, node):
            tracker.clear()
            tracker.add(position, node)
            group += 1
        groups.append(group)
    return tuple(groups)
