"""A session: a device, and the options for compiling graphs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.experts import ExpertsInFile
from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.backends.registry import open_backend
from ostinato.errors import GraphError, InputError, UnsupportedOpError
from ostinato.ir.binding import variable_values
from ostinato.ir.deferred_graph import deferred
from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import is_inout
from ostinato.ir.stored import ExpertSource
from ostinato.ir.types import MAX_TENSOR_BYTES
from ostinato.ir.unbuilt import Specialize, specialization_of
from ostinato.runtime.compiled_graph import CompiledGraph
from ostinato.runtime.execution import Execution
from ostinato.runtime.handles import Handles
from ostinato.runtime.signature import Signature, interface_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.base import Capabilities, Executable, Progress
    from ostinato.backends.common.context import Context
    from ostinato.ir.binding import VariableValues
    from ostinato.ir.record import Interface
    from ostinato.ir.specialization import Specialization
    from ostinato.plan.execution_plan import ExecutionPlan

__all__ = ["Session"]


class Session:
    """Compiles graphs for one device.

    Args:
        device: a :class:`Device` or its name, such as ``"cpu"`` or ``"cuda:1"``.
        threads: on the CPU, how many threads run a graph; by default, one for each processor that
            this process may use.
        options: the defaults of :meth:`compile`.
        recover_stolen_cores: on the CPU, under Linux, finish work on the caller's core whose core
            another busy process takes; off, since it does not pay for all models (measure it with
            ``python -m bench.stolen_core``). Threads of the session are moved for it, the caller's
            never.

    Raises:
        DeviceUnavailableError: the device is not here; the message says what to do.
        InputError: ``threads``, ``options`` or ``recover_stolen_cores`` make no sense.
    """

    def __init__(
        self,
        device: Device | str = "cpu",
        *,
        threads: int | None = None,
        options: CompileOptions | None = None,
        recover_stolen_cores: bool = False,
    ) -> None:
        self.device = Device.parse(device)
        self.options = _checked_options(options) or CompileOptions()
        _check_recovery(recover_stolen_cores, self.device)
        settings = {"recover_stolen_cores": True} if recover_stolen_cores else {}
        self._backend = open_backend(self.device, threads, **settings)

    @property
    def context(self) -> Context:
        """The device's command queue: it records what is submitted, and replays it."""
        return self._backend.context

    @property
    def capabilities(self) -> Capabilities:
        """The ops and dtypes that the device computes, and what else it has or lacks."""
        return self._backend.capabilities

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, Any] | None = None,
        *,
        options: CompileOptions | None = None,
        progress: Progress | None = None,
        experts: ExpertSource | None = None,
        expert_budget: int | None = None,
    ) -> CompiledGraph:
        """Compile ``graph``; it may be run as often as you like.

        Args:
            graph: must have outputs.
            params: weights by name; those with a value in the graph may be left out, others may
                be set later with :meth:`CompiledGraph.set_param`.
            options: instead of the session's.
            progress: called with ``(done, total)`` as kernels are compiled.
            experts: an :class:`ostinato.moe.ExpertFile` with the matrices of experts. Such params
                stay there: some experts have slots in memory, the others are read from the file
                by each run that calls them, and results are the same to the bit.
            expert_budget: bytes of memory for experts, those that are being read included; every
                clone has as much. By default all experts have slots.

        Raises:
            GraphError: the graph has no outputs, is malformed, or has a tensor beyond all memory.
            InputError: a param is unknown or of another shape or dtype; or one of the file is read
                by more than layers of experts, or given as well; or the budget is too small for a
                single expert.
            ModelFormatError: experts could not be read from their file.
            UnsupportedOpError: nodes that the device has no way to compute, every one listed.
            CaptureError: inside a recording of the session's context.
        """
        self.context.refuse_while_capturing("compile allocates memory")
        options = _checked_options(options) or self.options
        parts = deferred(graph)
        if parts is None:
            _check_graph(graph)
        way = specialization_of(graph)
        if way is None and parts is None and experts is None and options.specialize == "always":
            way = _specialization_of_variables(graph)
        if way is not None and experts is None and options.specialize != "never":
            return self._compile_for_sizes(graph, way, params, options, progress)
        if parts is None:
            _check_sizes(graph, way)
        interface = interface_of(graph)
        if interface.written and not self.capabilities.inouts:
            names = ", ".join(map(repr, sorted(interface.written)))
            raise UnsupportedOpError(f"{self.device} cannot write to inputs: {names}")
        signature = Signature(interface)
        given = signature.check_params({} if params is None else params, cast=options.cast_inputs)
        sources = graph.param_values.sources if parts is None else parts.sources
        arrays = {**sources, **given}
        stored = self._stored_experts(interface, given, experts, expert_budget)
        if stored is None:
            executable = self._backend.compile(graph, arrays, options, progress)
        else:
            arrays = {name: a for name, a in arrays.items() if name not in stored.tensors}
            executable = self._backend.compile(graph, arrays, options, progress, experts=stored)
        return self._compiled(signature, executable, options)

    def _compiled(
        self, signature: Signature, executable: Executable, options: CompileOptions
    ) -> CompiledGraph:
        backend = self._backend
        handles, cast = Handles(signature, executable.empty), options.cast_inputs
        execution = Execution(signature, executable, self.context, handles, cast=cast)
        return CompiledGraph(execution, lambda: backend.capabilities)

    def _compile_for_sizes(
        self,
        graph: BaseGraph,
        way: Specialization[BaseGraph],
        params: Mapping[str, Any] | None,
        options: CompileOptions,
        progress: Progress | None,
    ) -> CompiledGraph:
        """Compile a graph that can be built again for other sizes, as far as it is built."""
        from ostinato.runtime.specialized import SpecializedExecutable
        from ostinato.runtime.variant_compiler import VariantCompiler
        from ostinato.runtime.variants import SpecializedSignature, Variants

        variants = Variants(graph, way, always=options.specialize == "always")
        signature = SpecializedSignature(interface_of(graph), variants)
        cast = options.cast_inputs
        given = signature.check_params({} if params is None else params, cast=cast)
        parts = deferred(graph)
        if parts is None:
            written = graph.param_values.written
            given = {**{n: graph.param_values[n] for n in written if n in graph.params}, **given}
        builder = VariantCompiler(self._backend, options, progress, variants, given)
        unset = set(signature.params).difference(builder.sources_of(graph), given)
        executable = SpecializedExecutable(
            variants, builder.compile, options.max_specializations, unset
        )
        if variants.base is not None:
            variants.keep_base(graph)
            try:
                executable.compile_base()
            except (MemoryError, GraphError) as error:
                if not way.open:
                    raise
                variants.refuse_base(str(error))
        return self._compiled(signature, executable, options)

    def _stored_experts(
        self,
        interface: Interface,
        given: Mapping[str, Any],
        experts: ExpertSource | None,
        budget: int | None,
    ) -> ExpertsInFile | None:
        """The params of a graph that stay in a file."""
        _check_budget(experts, budget)
        if experts is None:
            return None
        if not self._backend.capabilities.experts_in_file:
            raise UnsupportedOpError(f"{self.device} has no way to leave experts in a file")
        tensors = experts.tensors(interface.params)
        if twice := sorted(given.keys() & tensors.keys()):
            raise InputError(f"params in the file of experts are given as well: {', '.join(twice)}")
        return ExpertsInFile(tensors, budget)

    def prepare(
        self,
        graph: BaseGraph,
        params: Mapping[str, Any] | None = None,
        *,
        variables: VariableValues | None = None,
        options: CompileOptions | None = None,
        progress: Progress | None = None,
        experts: ExpertSource | None = None,
        expert_budget: int | None = None,
    ) -> ExecutionPlan:
        """Plan, allocate and compile everything for ``graph``, and run nothing.

        Args:
            graph, params, options, progress, experts, expert_budget: as for :meth:`compile`.
            variables: values of Variables that runs take until they are given others:
                ``{"n": 4}``, ``{"n": n.bind(4)}`` or ``[n.bind(4)]``.

        Raises:
            GraphError, InputError, UnsupportedOpError, ModelFormatError, CaptureError: as
                :meth:`compile`.
            VariableError: there is no such Variable, or a value is out of its bounds.
        """
        compiled = self.compile(
            graph,
            params,
            options=options,
            progress=progress,
            experts=experts,
            expert_budget=expert_budget,
        )
        given = {} if variables is None else variables
        values = variable_values(given, interface_of(graph).variables)
        if (way := specialization_of(graph)) is not None and way.needed:
            compiled.warm(values)
            values = {n: v for n, v in values.items() if n not in way.reasons}
        plan = compiled.plan
        plan.set_variables(values)
        plan.allocate()
        return plan


def _specialization_of_variables(graph: BaseGraph) -> Specialization[BaseGraph] | None:
    """The specialisation of a graph whose inputs have Variables for sizes."""
    from ostinato.runtime.graph_specialization import GraphSpecialization, can_specialize

    return GraphSpecialization(graph) if can_specialize(graph) else None


def _checked_options(options: object) -> CompileOptions | None:
    if options is None:
        return None
    if isinstance(options, CompileOptions):
        if options.specialize not in ("auto", "always", "never"):
            raise InputError(
                f'specialize is "auto", "always" or "never", got {options.specialize!r:.80}'
            )
        most = options.max_specializations
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InputError(f"max_specializations is at least 1, got {most!r:.80}")
        return options
    raise InputError(f"options are a CompileOptions, got {type(options).__name__}")


def _check_budget(experts: object, budget: object) -> None:
    if experts is not None and not isinstance(experts, ExpertSource):
        raise InputError(f"experts are an ExpertFile, got {type(experts).__name__}")
    whole = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
    if budget is not None and not (whole and experts is not None):
        raise InputError(f"expert_budget is a number of bytes for experts=, got {budget!r:.80}")


def _check_recovery(recover: object, device: Device) -> None:
    if not isinstance(recover, bool):
        raise InputError(f"recover_stolen_cores is True or False, got {recover!r:.80}")
    if recover and device.kind != "CPU":
        raise InputError(f"recover_stolen_cores is for the CPU, and the device is {device}")


def _check_graph(graph: object) -> None:
    if not isinstance(graph, BaseGraph):
        raise GraphError(f"expected a Graph, got {type(graph).__name__}")
    written = (graph.states[name] for name in graph.assignments)
    if not (graph.outputs or any(is_inout(value.node) for value in written)):
        raise GraphError(f"graph {graph.name!r} has no outputs: call set_outputs")


def _check_sizes(graph: BaseGraph, way: Specialization[BaseGraph] | None) -> None:
    """Check that a graph is built, and that its tensors are not beyond all memory."""
    if way is not None and way.needed:
        because = "; ".join(dict.fromkeys([*way.reasons.values(), *way.inputs.values()]))
        names = ", ".join(way.words.get(name, name) for name in (*way.reasons, *way.inputs))
        raise GraphError(
            f"graph {graph.name!r} has to be compiled for given {names}: {because}; give the sizes "
            'to load_onnx with dims=, or compile with specialize="auto"'
        )
    for node in graph.nodes:
        if isinstance(node.op, Specialize):
            raise GraphError(
                f"graph {graph.name!r} is built from its model for the sizes of a run, and it was "
                "changed or pickled since it was loaded; load it with dims= for that"
            )
        for value in node.outputs:
            if value.type.max_bytes > MAX_TENSOR_BYTES:
                raise GraphError(f"{node}: a tensor of {value.type.max_bytes:,} bytes is too large")
