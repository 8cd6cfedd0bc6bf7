"""A session: a device, and the options for compiling graphs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.backends.registry import open_backend
from ostinato.errors import GraphError, InputError
from ostinato.runtime.compiled_graph import CompiledGraph
from ostinato.runtime.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.base import Progress
    from ostinato.ir.graph import BaseGraph

__all__ = ["Session"]


class Session:
    """Compiles graphs for one device (SPEC section 2).

    Args:
        device: a :class:`Device` or its name, such as ``"cpu"`` or ``"cuda:1"``.
        threads: on the CPU, how many threads run a graph; by default, one for each processor that
            this process may use.
        options: how graphs are compiled unless :meth:`compile` is told otherwise.

    Raises:
        DeviceUnavailableError: the device is not here; the message says what to do.
    """

    def __init__(
        self,
        device: Device | str = "cpu",
        *,
        threads: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        if threads is not None and (isinstance(threads, bool) or threads not in range(1, 1025)):
            raise InputError(f"threads is an int within 1..1024, got {threads!r}")
        self.device = Device.parse(device)
        self.options = options or CompileOptions()
        self._backend = open_backend(self.device, threads)

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, Any] | None = None,
        *,
        options: CompileOptions | None = None,
        progress: Progress | None = None,
    ) -> CompiledGraph:
        """Compile ``graph``; it may be run as often as you like.

        Args:
            graph: must have outputs.
            params: weights by name; those with a value in the graph may be left out, others may
                be set later with :meth:`CompiledGraph.set_param`.
            options: instead of the session's.
            progress: called with ``(done, total)`` as kernels are compiled.

        Raises:
            GraphError: the graph has no outputs, or is malformed.
            InputError: a param is unknown or of another shape or dtype.
            UnsupportedOpError: nodes that the device has no way to compute, every one listed.
        """
        options = options or self.options
        if not graph.outputs:
            raise GraphError(f"graph {graph.name!r} has no outputs: call set_outputs")
        signature = Signature(graph)
        given = signature.check_params(params or {}, cast=options.cast_inputs)
        arrays = {**graph.param_values, **given}
        executable = self._backend.compile(graph, arrays, options, progress)
        unset = frozenset(signature.params) - frozenset(arrays)
        return CompiledGraph(signature, executable, self.device, options, unset)
