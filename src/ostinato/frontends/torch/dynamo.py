"""The backend ``"ostinato"`` of ``torch.compile``. This module imports PyTorch."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import CompileContext, TracingContext

from ostinato.errors import InputError, OstinatoError, UnsupportedOpError
from ostinato.frontends.torch.backend_options import BackendOptions
from ostinato.frontends.torch.decompositions import decomposed_graph
from ostinato.frontends.torch.fx import meta_of, read_nodes
from ostinato.frontends.torch.native import NativePartition, Symbol, symbols_of, variables_of
from ostinato.frontends.torch.partitioning import counts_as_node, eager_by_nature, partition
from ostinato.frontends.torch.probe import find_unsupported
from ostinato.frontends.torch.program import USER_INPUT, InputSpec, Program
from ostinato.frontends.torch.report import EagerNode, GraphReport, Report
from ostinato.frontends.torch.schedule import Schedule, attribute
from ostinato.records import replace
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.fx import GraphModule, Node

    from ostinato.frontends.torch.partitioning import Phase

__all__ = ["backend", "report"]

#: The attribute of PyTorch's object for one ``torch.compile`` that has our :class:`_Compiler`.
_ATTRIBUTE = "_ostinato_compiler"

#: The most times that ops of a graph are decomposed: parts may have parts.
_MOST_ROUNDS = 4


class _UnsupportedGraph(UnsupportedOpError, ShortenTraceback):  # type: ignore[misc]
    """An error that Dynamo hands to the caller as it is."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.first_useful_frame = None


class _RefusedOptions(InputError, ShortenTraceback):  # type: ignore[misc]
    """An error that Dynamo hands to the caller as it is."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.first_useful_frame = None


def backend(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's.

    Args:
        module: the graph.
        example_inputs: its arguments, as fake tensors.
        options: see :class:`~.backend_options.BackendOptions`.
        mode: accepted for the sake of callers that always pass one; there is one mode.

    Raises:
        InputError: an option is unknown, or its value is not one of those it can have.
        UnsupportedOpError: with ``fallback="error"``: lists the nodes without an equivalent.
    """
    return _compiler_of_caller(options).compile(module, example_inputs)


def report(compiled: Any) -> Report:
    """The record of the graphs that a ``torch.compile`` has handed over so far.

    Args:
        compiled: a result of ``torch.compile(..., backend="ostinato")``.

    Raises:
        InputError: it is no such result.
    """
    wrapper = _wrapper_of(compiled)
    if wrapper is None:
        raise InputError(
            "report takes what torch.compile(..., backend='ostinato') returns, got "
            f"{type(compiled).__name__}"
        )
    compiler = vars(wrapper).get(_ATTRIBUTE)
    return Report(() if compiler is None else tuple(compiler.reports))


def _wrapper_of(compiled: Any) -> Any:
    """PyTorch's object for one ``torch.compile``, which calls the backend."""
    context = getattr(compiled, "dynamo_ctx", None)
    callback: Any = getattr(context, "callback", None)
    if callback is None:
        for cell in getattr(compiled, "__closure__", None) or ():
            callback = callback or getattr(cell.cell_contents, "_torchdynamo_orig_backend", None)
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback if isinstance(callback, torch._TorchCompileWrapper) else None


def _compiler_of_caller(options: Mapping[str, Any] | None) -> _Compiler:
    """The compiler of the ``torch.compile`` that calls the backend.

    PyTorch hands the backend nothing that stands for it, so it is found on the stack.
    """
    frame = sys._getframe(1)
    while frame is not None:
        wrapper = frame.f_locals.get("self")
        if isinstance(wrapper, torch._TorchCompileWrapper):
            found = vars(wrapper).get(_ATTRIBUTE)
            if found is None:
                found = _Compiler(options)
                setattr(wrapper, _ATTRIBUTE, found)
            return found  # type: ignore[no-any-return]
        frame = frame.f_back  # type: ignore[assignment]
    return _Compiler(options)


class _Compiler:
    """All compiles of one ``torch.compile``.

    Attributes:
        reports: of its graphs.
    """

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self._given = options
        try:
            self._options = BackendOptions.of(options)
            self._session = Session(
                self._options.device,
                threads=self._options.threads or torch.get_num_threads(),
                options=self._options.compile,
            )
        except InputError as error:
            raise _RefusedOptions(str(error)) from None
        self.reports: list[GraphReport] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies have no graphs yet: PyTorch compiles a copied module anew."""
        return _Compiler, (self._given,)

    def compile(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """A function that runs a graph of Dynamo's."""
        if any(isinstance(item, list | tuple | dict) for item in example_inputs):
            return flatten_graph_inputs(module, example_inputs, self.compile)  # type: ignore[no-any-return]
        return aot_module_simplified(  # type: ignore[no-any-return]
            module,
            example_inputs,
            fw_compiler=self._traced("forward"),
            bw_compiler=self._traced("backward"),
            inference_compiler=self._traced("inference"),
            keep_inference_input_mutations=True,
        )

    def _traced(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Any]:
        """Compiles an ATen graph of one kind."""

        def compile_traced(module: GraphModule, example_inputs: Sequence[Any]) -> Any:
            done = GraphReport(_compile_name(), kind)
            compiled = _TracedGraph(module, kind, self._options, self._session, done).function()
            self.reports.append(done)
            return compiled

        return compile_traced


def _compile_name() -> str:
    compile_id = CompileContext.current_compile_id()
    return f"[{compile_id}]" if compile_id is None else f"[{str(compile_id).strip('[]')}]"


class _TracedGraph:
    """The compile of one graph of ATen ops.

    Args:
        module: the graph.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        options, session: of the ``torch.compile``.
        done: the report to fill in.
    """

    def __init__(
        self,
        module: GraphModule,
        kind: str,
        options: BackendOptions,
        session: Session,
        done: GraphReport,
    ) -> None:
        self._options = options
        self._session = session
        self._done = done
        packs = kind != "backward" and options.weights != "live"
        self._static = _static_inputs() if packs else ()
        self._read(module)

    def _read(self, module: GraphModule) -> None:
        self._module = module
        self._placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        written = _written(module)
        self._weights = {
            self._placeholders[i]
            for i in self._static
            if i < len(self._placeholders)
            and self._placeholders[i] not in written
            and isinstance(self._placeholders[i].meta.get("val"), torch.Tensor)
        }
        self._constants = _constants(module)
        self._nodes = {node.name: node for node in read_nodes(module)}
        self._symbols = _symbols(self._placeholders)

    def function(self) -> Callable[[list[Any]], Sequence[Any]]:
        """A function that runs the graph on a list of arguments, and empties it.

        Raises:
            UnsupportedOpError: there are nodes without an equivalent, and no fallback.
        """
        eager = self._decompose(self._unsupported())
        module, done = self._module, self._done
        while True:
            phases, reasons = partition(module.graph, eager, self._options.min_partition)
            failed: dict[str, str] = {}
            parts: list[NativePartition | None] = []
            for number, phase in enumerate(phases):
                try:
                    parts.append(self._native(phase, number) if phase.native else None)
                except Exception as error:
                    failed.update(dict.fromkeys((n.name for n in phase.nodes), _first_line(error)))
            if not failed:
                break
            eager |= failed
        natural = eager_by_nature(module.graph)
        self._refuse_or_warn({name: eager[name] for name in eager if name not in natural})
        schedule = Schedule(module, done)
        for phase, part in zip(phases, parts, strict=True):
            if part is None:
                schedule.add_eager(phase.nodes)
            else:
                schedule.add_native(part, [*phase.nodes, *phase.copies])
        natives = [part for part in parts if part is not None]
        done.partitions = len(natives)
        done.native_nodes = sum(
            counts_as_node(n) for phase in phases if phase.native for n in phase.nodes
        )
        done.eager_nodes = [
            self._eager_node(n.name, reasons[n.name])
            for phase in phases
            if not phase.native
            for n in phase.nodes
            if n.name in reasons and counts_as_node(n)
        ]
        done.variables = list(dict.fromkeys(v for part in natives for v in part.variables))
        return schedule.function()

    def _decompose(self, eager: dict[str, str]) -> dict[str, str]:
        """Decompose the ops without an equivalent, as far as their parts have one.

        Returns:
            The nodes without an equivalent, with the reasons.
        """
        module, symbols, found = self._module, self._symbols, eager
        for _ in range(_MOST_ROUNDS):
            natural = eager_by_nature(self._module.graph)
            targets = {self._nodes[name].target for name in found if name not in natural}
            simpler = decomposed_graph(self._module, targets) if targets else None
            if simpler is None:
                break
            self._read(simpler)
            found = self._unsupported()
            if len(found) < len(eager):
                module, symbols, eager = simpler, self._symbols, found
        if module is not self._module:
            self._read(module)
            self._symbols = symbols
        return eager

    def _unsupported(self) -> dict[str, str]:
        """The nodes without an equivalent, with the reasons."""
        specs = [
            InputSpec(n.name, USER_INPUT, meta_of(n.meta.get("val")), n.name)
            for n in (*self._placeholders, *self._constants)
        ]
        nodes = tuple(self._nodes.values())
        used = symbols_of([*(s.meta for s in specs), *(m for n in nodes for m in n.metas)])
        program = Program(self._done.name, tuple(specs), nodes, ())
        symbols = {name: self._symbols[name] for name in self._symbols if name in used}
        found = find_unsupported(program, variables_of(symbols))
        grouped = {name: replace(s, group=s.hint) for name, s in symbols.items()}
        if found and len({s.hint for s in symbols.values()}) < len(symbols):
            fewer = find_unsupported(program, variables_of(grouped))
            if len(fewer) < len(found):  # sizes that PyTorch takes for equal without saying so
                self._symbols, found = grouped, fewer
        return found

    def _eager_node(self, name: str, reason: str) -> EagerNode:
        node = self._nodes[name]
        return EagerNode(name, node.target, node.where, reason)

    def _native(self, phase: Phase, number: int) -> NativePartition:
        return NativePartition(
            phase,
            self._nodes,
            self._weights,
            self._constants,
            self._symbols,
            self._session,
            f"partition {number} of {self._done.name}",
            checked=self._options.weights == "checked",
            note_repacking=self._done.note_repacking,
        )

    def _refuse_or_warn(self, reasons: Mapping[str, str]) -> None:
        """Say once which nodes have no equivalent."""
        listed = [self._eager_node(n, reasons[n]) for n in self._nodes if n in reasons]
        if not listed:
            return
        lines = "".join(f"\n  - {line}" for line in dict.fromkeys(map(str, listed)))
        nodes = "1 node" if len(listed) == 1 else f"{len(listed)} nodes"
        if self._options.fallback == "error":
            raise _UnsupportedGraph(f"graph {self._done.name}: {nodes} not supported:{lines}")
        warnings.warn(
            f"ostinato: {nodes} of graph {self._done.name} run in PyTorch:{lines}",
            RuntimeWarning,
            stacklevel=2,
        )


def _first_line(error: Exception) -> str:
    text = str(error) if isinstance(error, OstinatoError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0] if text else type(error).__name__


def _static_inputs() -> Sequence[int]:
    """The positions of parameters and buffers among the inputs of the graph that is compiled."""
    context = TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    return () if meta is None else meta.static_input_indices or ()


def _written(module: GraphModule) -> set[Node]:
    """The placeholders that the graph writes to."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            found |= {n for n in node.all_input_nodes if n.op == "placeholder"}
    return found


def _constants(module: GraphModule) -> dict[Node, torch.Tensor]:
    """The tensors that are part of the graph."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attribute(module, node)
            if isinstance(value, torch.Tensor):
                node.meta.setdefault("val", value)
                found[node] = value
    return found


def _symbols(placeholders: Sequence[Node]) -> dict[str, Symbol]:
    """The symbols in the sizes of a graph's inputs."""
    found: dict[str, Symbol] = {}
    for node in placeholders:
        value = node.meta.get("val")
        sizes = [value] if isinstance(value, torch.SymInt) else []
        if isinstance(value, torch.Tensor):
            sizes = [size for size in value.shape if isinstance(size, torch.SymInt)]
        for size in sizes:
            environment = size.node.shape_env
            for symbol in size.node.expr.free_symbols:
                name = str(symbol)
                bringer = node if size is value and str(size.node.expr) == name else None
                if name in found and (bringer is None or found[name].node is not None):
                    continue
                bounds = environment.var_to_range[symbol]
                upper = int(bounds.upper) if bounds.upper.is_Integer else None
                lower = max(0, int(bounds.lower)) if bounds.lower.is_Integer else 0
                hint = environment.backed_var_to_val.get(symbol)
                found[name] = Symbol(
                    name, lower, upper, None if hint is None else int(hint), bringer
                )
    return found
