"""The compile of the graphs that a model has at different sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import GraphError
from ostinato.ir.deferred_graph import deferred
from ostinato.runtime.signature import interface_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.base import Backend, Executable, Progress
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ParamSource
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.variants import Variants

__all__ = ["VariantCompiler"]


class VariantCompiler:
    """Compiles the graphs of variants.

    Args:
        backend: of the device.
        options: of the compile.
        progress: called as kernels of the graph as it is are compiled.
        variants: the variants.
        given: params that the user has given, instead of those of the model.
    """

    def __init__(
        self,
        backend: Backend,
        options: CompileOptions,
        progress: Progress | None,
        variants: Variants,
        given: Mapping[str, Array],
    ) -> None:
        self._backend = backend
        self._options = options
        self._progress = progress
        self._variants = variants
        self._given = {name: array.copy() for name, array in given.items()}

    def compile(
        self, graph: BaseGraph, written: Mapping[str, Array], siblings: Sequence[Executable]
    ) -> Executable:
        """Compile the graph of a variant.

        Args:
            graph: the graph.
            written: params that were written since.
            siblings: executables of other variants.

        Raises:
            OstinatoError: see :meth:`Session.compile`.
        """
        params = interface_of(graph).params
        given = {**self._given, **written}
        if folded := sorted(name for name in given if name not in params):
            raise GraphError(
                f"graph {graph.name!r}: param {folded[0]!r} was given, and at these sizes the "
                "graph has none of that name: what depends on it is computed while loading"
            )
        sources = {**self.sources_of(graph), **given}
        progress, self._progress = self._progress, None
        if self._backend.capabilities.shared_weights:
            return self._backend.compile(graph, sources, self._options, progress, siblings=siblings)
        return self._backend.compile(graph, sources, self._options, progress)

    @staticmethod
    def sources_of(graph: BaseGraph) -> Mapping[str, ParamSource]:
        """The values of params that a graph holds; one that is deferred is not built for that."""
        parts = deferred(graph)
        return graph.param_values.sources if parts is None else parts.sources
