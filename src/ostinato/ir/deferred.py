"""A graph that is not built before somebody looks at it.

To compile what was compiled before, nobody has to see its nodes: the record of the graph tells
which program it was compiled to. So a model that was loaded before need not be built at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.record import GraphRecord, Interface
    from ostinato.ir.stored import ParamSource

__all__ = ["Deferred", "deferred", "deferred_graph"]


@dataclass(frozen=True, eq=False)
class Deferred:
    """What is known of a graph before it is built.

    Attributes:
        record, interface: of the graph.
        sources: what its params hold.
        kind: gives its class.
        build: builds it, but for the values of its params.
    """

    record: GraphRecord
    interface: Interface
    sources: Mapping[str, ParamSource]
    kind: Callable[[], type[BaseGraph]]
    build: Callable[[GraphRecord], BaseGraph]
    guard: threading.RLock = field(default_factory=threading.RLock)


def deferred_graph(parts: Deferred) -> BaseGraph:
    """An object that becomes a graph when one of its attributes is used, in whichever way.

    It is an instance of the graph's class before, too, as far as ``isinstance`` can tell.
    """
    return cast("BaseGraph", _Unbuilt(parts))


def deferred(graph: object) -> Deferred | None:
    """What is known of a graph that nobody has looked at; ``None``: it is there, or is no graph."""
    return graph.__dict__.get(_PARTS) if type(graph) is _Unbuilt else None


#: The attribute that it has instead of those of a graph.
_PARTS = "_deferred"


class _Unbuilt:
    def __init__(self, parts: Deferred) -> None:
        self.__dict__[_PARTS] = parts

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        parts = deferred(self)
        return type(self) if parts is None else parts.kind()

    def __getattr__(self, name: str) -> Any:
        _build(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _build(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        _build(self)
        delattr(self, name)

    def __str__(self) -> str:
        _build(self)
        return str(self)

    def __repr__(self) -> str:
        _build(self)
        return repr(self)

    def __dir__(self) -> list[str]:
        _build(self)
        return dir(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _build(self)
        return self.__reduce_ex__(protocol)


def _build(graph: _Unbuilt) -> None:
    """Make a graph of it, if no other thread just has."""
    parts = deferred(graph)
    if parts is None:
        return
    with parts.guard:
        if type(graph) is not _Unbuilt:
            return
        built = parts.build(parts.record)
        for name, source in parts.sources.items():
            built.param_values.put(name, source)
        for value in built.values():
            value.graph = cast("BaseGraph", graph)
        graph.__dict__.update(built.__dict__)
        object.__dict__["__class__"].__set__(graph, parts.kind())
        del graph.__dict__[_PARTS]
