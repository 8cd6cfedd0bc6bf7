"""A session: a device, and the options for compiling graphs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.backends.registry import open_backend
from ostinato.errors import GraphError, InputError
from ostinato.ir.graph import BaseGraph
from ostinato.runtime.compiled_graph import CompiledGraph
from ostinato.runtime.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.base import Progress
    from ostinato.backends.context import Context
    from ostinato.plan.execution_plan import ExecutionPlan

__all__ = ["Session", "check_threads"]

_MAX_THREADS = 1024

#: No tensor may be larger: addresses, and the indices that kernels compute, have 64 bits.
_MAX_BYTES = 1 << 56


class Session:
    """Compiles graphs for one device (SPEC section 2).

    Args:
        device: a :class:`Device` or its name, such as ``"cpu"`` or ``"cuda:1"``.
        threads: on the CPU, how many threads run a graph; by default, one for each processor that
            this process may use.
        options: how graphs are compiled unless :meth:`compile` is told otherwise.

    Raises:
        DeviceUnavailableError: the device is not here; the message says what to do.
        InputError: ``threads`` or ``options`` make no sense.
    """

    def __init__(
        self,
        device: Device | str = "cpu",
        *,
        threads: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        self.device = Device.parse(device)
        self.options = _checked_options(options) or CompileOptions()
        check_threads(threads)
        self._backend = open_backend(self.device, threads)

    @property
    def context(self) -> Context:
        """The device's command queue: it records what is submitted, and replays it (SPEC 6)."""
        return self._backend.context

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
            GraphError: the graph has no outputs, is malformed, or has a tensor beyond all memory.
            InputError: a param is unknown or of another shape or dtype.
            UnsupportedOpError: nodes that the device has no way to compute, every one listed.
            CaptureError: inside a recording of the session's context.
        """
        self.context.refuse_while_capturing("compile allocates memory")
        options = _checked_options(options) or self.options
        if not isinstance(graph, BaseGraph):
            raise GraphError(f"expected a Graph, got {type(graph).__name__}")
        if not graph.outputs:
            raise GraphError(f"graph {graph.name!r} has no outputs: call set_outputs")
        _check_sizes(graph)
        signature = Signature(graph)
        given = signature.check_params({} if params is None else params, cast=options.cast_inputs)
        arrays = {**graph.param_values.sources, **given}
        executable = self._backend.compile(graph, arrays, options, progress)
        return CompiledGraph(signature, executable, self.context, options)

    def prepare(
        self,
        graph: BaseGraph,
        params: Mapping[str, Any] | None = None,
        *,
        variables: Mapping[str, int] | None = None,
        options: CompileOptions | None = None,
        progress: Progress | None = None,
    ) -> ExecutionPlan:
        """Plan, allocate and compile everything for ``graph``, and run nothing (SPEC section 3).

        Args:
            graph, params, options, progress: as for :meth:`compile`.
            variables: values of Variables that runs take until they are given others.

        Raises:
            GraphError, InputError, UnsupportedOpError, CaptureError: as :meth:`compile`.
            VariableError: there is no such Variable, or a value is out of its bounds.
        """
        plan = self.compile(graph, params, options=options, progress=progress).plan
        plan.set_variables({} if variables is None else variables)
        plan.allocate()
        return plan


def _checked_options(options: object) -> CompileOptions | None:
    if options is None or isinstance(options, CompileOptions):
        return options
    raise InputError(f"options are a CompileOptions, got {type(options).__name__}")


def check_threads(threads: object) -> None:
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (whole and threads in range(1, _MAX_THREADS + 1)):
        raise InputError(f"threads is an int within 1..{_MAX_THREADS}, got {threads!r:.80}")


def _check_sizes(graph: BaseGraph) -> None:
    for node in graph.nodes:
        for value in node.outputs:
            if value.type.max_bytes > _MAX_BYTES:
                raise GraphError(f"{node}: a tensor of {value.type.max_bytes:,} bytes is too large")
