"""Graphs whose nodes are built at their first use.

A program that was compiled before is found by the record of its graph, without its nodes. So the
nodes of a model that was loaded before are not built at once, and neither the parser nor the ops
are imported. ``python -m bench.start_savings`` measures the gain: a warm start of a small model
takes 187 instead of 200 ms of processor time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.ir.deferred import Deferrable
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.record import GraphRecord, Interface
    from ostinato.ir.specialization import Specialization
    from ostinato.ir.stored import ParamSource

__all__ = ["Deferred", "deferred", "deferred_graph"]

G = TypeVar("G", bound="BaseGraph")


@dataclass(frozen=True, eq=False)
class Deferred:
    """The parts of a graph that is not built yet.

    Attributes:
        record, interface: of the graph.
        sources: of the elements of its params.
        build: builds it, but for the values of its params.
        specialization: of the graph, if it has one.
        guard: a lock that is held while it is built.
    """

    record: GraphRecord
    interface: Interface
    sources: Mapping[str, ParamSource]
    build: Callable[[GraphRecord], BaseGraph]
    specialization: Specialization[BaseGraph] | None = None
    guard: threading.RLock = field(default_factory=threading.RLock)

    def attributes(self, owner: BaseGraph) -> dict[str, Any]:
        """Build the graph, and hand its nodes over to ``owner``."""
        built = self.build(self.record)
        for name, source in self.sources.items():
            built.param_values.put(name, source)
        built.specialization = self.specialization
        for value in built.values():
            value.graph = owner
        return built.__dict__


def deferred_graph(kind: type[G], parts: Deferred) -> G:
    """A graph of this class that builds its contents when one of its attributes is used."""
    graph = kind.__new__(kind)
    graph._source = parts
    return graph


def deferred(graph: object) -> Deferred | None:
    """The parts of a graph that is neither built nor changed; else ``None``."""
    if not isinstance(graph, Deferrable) or len(graph.__dict__) != 1:
        return None
    source = graph._source
    return source if isinstance(source, Deferred) else None
