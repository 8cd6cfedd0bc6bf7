"""Graphs of recorded sessions: nodes in order, to be rewritten and run again."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.eager.fusion import fused
from ostinato.eager.reorder import reordered
from ostinato.plan.buffer import Buffer, LentStorage
from ostinato.plan.hazards import HazardTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.eager.compute_node import ComputeNode
    from ostinato.plan.buffer import Memory, Storage

__all__ = ["ComputeGraph", "Launcher", "groups_of"]


class Launcher(Protocol):
    """An encoder and runner of graphs."""

    def encode(self, graph: ComputeGraph) -> Any:
        """Compile the graph to one native program on its buffers."""

    def run(self, encode: Callable[[], Any]) -> int:
        """Run the program that ``encode`` returns, and wait; the nanoseconds that it took."""


class ComputeGraph:
    """The nodes of a session, in the order in which they run.

    It is immutable: :meth:`fuse` and :meth:`reorder` return new graphs, which write the same bytes
    to all memory that can be read afterwards. Each may be run any number of times. Buffers are held
    by reference, and scalars by value.

    Args:
        nodes: in order.
        launcher: encodes and runs the graph.
        fused: number of nodes fused into others by earlier rewrites.
        reordered: number of nodes moved by earlier rewrites.

    Attributes:
        nodes: each with ``name``, ``reads`` and ``writes``.
        fused, reordered: numbers of nodes that were fused or moved since they were recorded.
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
        """A graph in which elementwise nodes are fused with their only consumer.

        No bit of a result changes. A node is not fused if its result has another consumer, is read
        twice or in another shape, or lies in a buffer of the user's; nor if a node between it and
        its consumer writes the same bytes. Results that the user still holds are written by the
        fused node as well.
        """
        nodes = fused(self.nodes)
        gone = len(self.nodes) - len(nodes)
        return self._with(nodes, fused=self.fused + gone)

    def reorder(self) -> ComputeGraph:
        """A graph in which independent nodes are adjacent, for fewer barriers."""
        order = reordered(self.nodes)
        moved = sum(before is not after for before, after in zip(self.nodes, order, strict=True))
        return self._with(order, reordered=self.reordered + moved)

    def replay(self) -> None:
        """Run all nodes again on the present contents of the buffers, in one native call, and wait.

        While the context records, the call is recorded instead.

        Raises:
            PlanError: a buffer was released.
            VariableError: it uses Variables, and the context is not in dev-state mode.
        """
        self._launcher.run(self.encode)

    def encode(self) -> Any:
        """The graph as its launcher encoded it; encoded again if lent memory has moved.

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
        """For each node the number of its group; a barrier separates two groups."""
        return groups_of(self.nodes)

    @property
    def barriers(self) -> int:
        """The number of barriers."""
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
    """For each node its group: the longest runs of nodes without a conflict between them."""
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
