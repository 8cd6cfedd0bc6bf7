"""Graphs of models that are built when a run brings sizes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ostinato.ir.specialization import Specialization
from ostinato.ir.unbuilt import declare_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ostinato.frontends.onnx.reading import ModelReader
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import Array, ParamSource
    from ostinato.ir.types import TensorType
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["ModelSpecialization", "unbuilt_graph"]


class CachedModel(Protocol):
    """The cache's entries of a model."""

    def at(
        self, shapes: Mapping[str, tuple[Dim, ...]], contents: Mapping[str, Array]
    ) -> CachedModel:
        """The entry for inputs of these shapes, some with these contents."""

    def graph(self) -> Graph | None:
        """The cached graph; ``None`` without an entry."""

    def keep(self, graph: Graph) -> None:
        """Write the entry."""


class ModelSpecialization(Specialization["BaseGraph"]):
    """Builds the graph of a model for given shapes of its inputs.

    Args:
        open_reader: gives the reader of the model, when it is first needed.
        cached: the cache's entries of the model, where it may have some.
        reasons, inputs, open, words, conditions: see :class:`Specialization`.
    """

    def __init__(
        self,
        open_reader: Callable[[], ModelReader],
        cached: CachedModel | None,
        reasons: Mapping[str, str],
        inputs: Mapping[str, str],
        open: frozenset[str],
        words: Mapping[str, str],
        conditions: Mapping[str, str],
    ) -> None:
        super().__init__(reasons, inputs, open, words, conditions)
        self._open_reader = open_reader
        self._cached = cached

    @cached_property
    def _reader(self) -> ModelReader:
        return self._open_reader()

    def build(
        self, shapes: Mapping[str, tuple[Dim, ...]], contents: Mapping[str, Array]
    ) -> BaseGraph:
        cached = None if self._cached is None else self._cached.at(shapes, contents)
        if cached is not None and (known := cached.graph()) is not None:
            return known
        graph = self._reader.graph(shapes, contents)
        if cached is not None and self._reader.self_contained:
            cached.keep(graph)
        return graph


def unbuilt_graph(
    name: str,
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    params: Mapping[str, ParamSource],
    reasons: Iterable[str],
) -> Graph:
    """A graph of these inputs, params and outputs whose nodes are built when sizes are known."""
    from ostinato.ops.builder import Graph  # most graphs of the cache are not built at all

    graph = Graph(name)
    for name_, type_ in inputs.items():
        graph.input(name_, type_.shape, type_.dtype)
    for name_, source in params.items():
        graph.param(name_, source.shape, source.dtype, value=source)
    declare_outputs(graph, outputs, sorted(set(reasons)))
    return graph
