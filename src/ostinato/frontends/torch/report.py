"""The record of the graphs that ``torch.compile`` has handed over."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EagerNode", "GraphReport", "Report"]


@dataclass(frozen=True)
class EagerNode:
    """A node that PyTorch runs.

    Attributes:
        name: in its graph.
        op: such as ``"aten.linalg_qr.default"``.
        where: the line of the user's source; empty where unknown.
        reason: the cause.
    """

    name: str
    op: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.where}' if self.where else ''}: {self.reason}"


@dataclass
class GraphReport:
    """One graph.

    Attributes:
        name: the compile that it belongs to, in Dynamo's numbers: ``"[frame/recompile]"``.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        native_nodes: the number of nodes in native partitions.
        eager_nodes: the nodes that PyTorch runs.
        partitions: the number of native partitions.
        variables: the sizes that may differ from call to call, with their bounds.
        repacked: the number of calls before which weights had changed and were packed again.
        failures: the messages of calls of a partition that failed and ran in eager instead.
    """

    name: str
    kind: str
    native_nodes: int = 0
    eager_nodes: Sequence[EagerNode] = ()
    partitions: int = 0
    variables: Sequence[str] = ()
    repacked: int = 0
    failures: list[str] = field(default_factory=list)

    def note_repacking(self) -> None:
        """Count a call before which weights had changed."""
        self.repacked += 1

    def __str__(self) -> str:
        dims = f", sizes {', '.join(self.variables)}" if self.variables else ""
        lines = [
            f"{self.kind} graph {self.name}: {self.native_nodes} native nodes in "
            f"{self.partitions} partitions, {len(self.eager_nodes)} eager nodes{dims}"
        ]
        if self.repacked:
            lines.append(f"  weights packed again: {self.repacked}")
        for line, count in Counter(map(str, self.eager_nodes)).items():
            lines.append(f"  eager: {line}{f' ({count} times)' if count > 1 else ''}")
        for message, count in Counter(self.failures).items():
            lines.append(f"  failed {count} times and ran in eager: {message}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """All graphs of one ``torch.compile``.

    Attributes:
        graphs: in the order of their compiles.
    """

    graphs: Sequence[GraphReport]

    @property
    def recompiles(self) -> int:
        """The number of compiles of code that had been compiled before."""
        compiles = {graph.name for graph in self.graphs}
        return len(compiles) - len({name.partition("/")[0] for name in compiles})

    @property
    def native_nodes(self) -> int:
        """The number of nodes in native partitions."""
        return sum(graph.native_nodes for graph in self.graphs)

    @property
    def eager_nodes(self) -> list[EagerNode]:
        """The nodes that PyTorch runs."""
        return [node for graph in self.graphs for node in graph.eager_nodes]

    @property
    def failures(self) -> int:
        """The number of calls of a partition that failed and ran in eager instead."""
        return sum(len(graph.failures) for graph in self.graphs)

    def __str__(self) -> str:
        head = (
            f"{len(self.graphs)} graphs, {self.recompiles} recompiles, {self.native_nodes} native "
            f"nodes, {len(self.eager_nodes)} eager nodes"
        )
        return "\n".join([head, *map(str, self.graphs)])
