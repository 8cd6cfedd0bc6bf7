"""A graph that is built at its first use.

A program that was compiled before is found by the record of its graph, without its nodes.
So a model that was loaded before is not built at once, and the modules of the vocabulary are not
even imported. ``python -m bench.start_savings`` measures the gain: a warm start of a small model
takes 193 instead of 225 ms of processor time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.record import GraphRecord, Interface
    from ostinato.ir.specialization import Specialization
    from ostinato.ir.stored import ParamSource

__all__ = ["Deferred", "deferred", "deferred_graph"]


@dataclass(frozen=True, eq=False)
class Deferred:
    """The parts of a graph that is not built yet.

    Attributes:
        record, interface: of the graph.
        sources: of the elements of its params.
        kind: gives its class.
        build: builds it, but for the values of its params.
        specialization: of the graph, if it has one.
    """

    record: GraphRecord
    interface: Interface
    sources: Mapping[str, ParamSource]
    kind: Callable[[], type[BaseGraph]]
    build: Callable[[GraphRecord], BaseGraph]
    specialization: Specialization[BaseGraph] | None = None
    guard: threading.RLock = field(default_factory=threading.RLock)


def deferred_graph(parts: Deferred) -> BaseGraph:
    """An object that is built into a graph, in place, when one of its attributes is used.

    Before that, it is an instance of the graph's class for ``isinstance`` alone.
    """
    return cast("BaseGraph", _Unbuilt(parts))


def deferred(graph: object) -> Deferred | None:
    """The parts of a graph that is not built; ``None`` if it is, or is no graph."""
    return graph.__dict__.get(_PARTS) if type(graph) is _Unbuilt else None


#: The one attribute before a graph is built.
_PARTS = "_deferred"


def _of_graph(method: str) -> Any:
    """A special method that builds the graph and calls the graph's."""

    def build_and_call(self: _Unbuilt, *arguments: Any) -> Any:
        _build(self)
        return getattr(self, method)(*arguments)

    return build_and_call


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

    # Methods that Python looks up in the class; the last copies and pickles.
    __setattr__ = _of_graph("__setattr__")
    __repr__ = _of_graph("__repr__")
    __str__ = _of_graph("__str__")
    __reduce_ex__ = _of_graph("__reduce_ex__")


def _build(graph: _Unbuilt) -> None:
    """Give the object the attributes and the class of the graph, once however many threads ask."""
    parts = deferred(graph)
    if parts is None:
        return
    with parts.guard:
        if type(graph) is not _Unbuilt:
            return
        built = parts.build(parts.record)
        for name, source in parts.sources.items():
            built.param_values.put(name, source)
        built.specialization = parts.specialization
        for value in built.values():
            value.graph = cast("BaseGraph", graph)
        graph.__dict__.update(built.__dict__)
        # Not by assignment, which would find the property.
        object.__dict__["__class__"].__set__(graph, parts.kind())
        del graph.__dict__[_PARTS]
