"""A native partition of an FX graph: its program, its compiled graph, its calls."""

from __future__ import annotations

import ast
import threading
from typing import TYPE_CHECKING, Any

from ostinato.errors import VariableError
from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.fx import meta_of
from ostinato.frontends.torch.importer import Importer
from ostinato.frontends.torch.output_strides import OutputStrides
from ostinato.frontends.torch.prepared import prepared_call
from ostinato.frontends.torch.program import (
    BUFFER,
    INOUT,
    INPUT_MUTATION,
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    OutputSpec,
    Program,
    Ref,
    ScalarMeta,
    TensorMeta,
)
from ostinato.frontends.torch.tensors import array_of, note_write, tensor_of
from ostinato.frontends.torch.weights import Weights
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.variables import Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch.fx import Node

    from ostinato.frontends.torch._runtime import PreparedCall
    from ostinato.frontends.torch.partitioning import Phase
    from ostinato.frontends.torch.program import ProgramNode, Size
    from ostinato.ir.graph import Value
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.runtime.session import Session

__all__ = ["NativePartition", "Symbol", "symbols_of", "variables_of"]

#: Memory is planned for sizes up to this, or twice the size of the first call.
_LEAST_BOUND = 512

#: The most combinations of sizes that calls are prepared for.
_MOST_PREPARED = 64


@dataclass(frozen=True)
class Symbol:
    """A size that differs from call to call.

    Attributes:
        name: PyTorch's name of it.
        min: its least value.
        max: its greatest value; ``None``: unbounded.
        hint: the value that it had while PyTorch traced; ``None`` where it depends on data.
        node: the placeholder that brings it; ``None``: the shapes of tensors alone do.
        group: symbols of one group are compiled as one size.
    """

    name: str
    min: int
    max: int | None
    hint: int | None
    node: Node | None
    group: int | None = None

    def variable(self, least_max: int = 0) -> Variable:
        """The Variable that stands for it, with room for ``least_max``."""
        room = _LEAST_BOUND
        while room < max(2 * (self.hint or 0), least_max):
            room *= 2
        return Variable(self.name, self.min, room if self.max is None else min(room, self.max))


def symbols_of(metas: Sequence[TensorMeta | ScalarMeta | None]) -> set[str]:
    """The symbols in the sizes of tensors and in numbers."""
    found: set[str] = set()
    for meta in metas:
        if isinstance(meta, TensorMeta):
            sizes: tuple[Size, ...] = meta.shape
        else:
            sizes = () if meta is None else (meta.value,)
        for size in sizes:
            if isinstance(size, str):
                tree = ast.parse(size, mode="eval")
                called = {n.func.id for n in ast.walk(tree) if _is_named_call(n)}  # type: ignore[attr-defined]
                names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
                found |= names - called
    return found


def _is_named_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def variables_of(
    symbols: Mapping[str, Symbol], room: Mapping[str, int] | None = None
) -> dict[str, Variable]:
    """Variables for symbols; those of a group have one in common.

    Args:
        symbols: by name.
        room: values that they have to have room for.
    """
    found: dict[str, Variable] = {}
    groups: dict[int, Variable] = {}
    for name, symbol in symbols.items():
        variable = symbol.variable((room or {}).get(name, 0))
        if symbol.group is not None:
            variable = groups.setdefault(symbol.group, variable)
        found[name] = variable
    return found


class NativePartition:
    """A native partition, compiled.

    Args:
        phase: its nodes and its interface.
        nodes: by name, the nodes as data.
        weights: those of the inputs that are weights: packed, and checked before each call.
        constants: those of the inputs that never change, with their elements.
        symbols: the sizes that differ from call to call.
        session: compiles it.
        name: for messages.
        checked: whether weights are checked before each call.
        note_repacking: called where they have changed.

    Attributes:
        inputs: the nodes that a call takes the results of, tensors first.
        outputs: the nodes whose results it gives.
    """

    def __init__(
        self,
        phase: Phase,
        nodes: Mapping[str, ProgramNode],
        weights: set[Node],
        constants: Mapping[Node, torch.Tensor],
        symbols: Mapping[str, Symbol],
        session: Session,
        name: str,
        *,
        checked: bool,
        note_repacking: Callable[[], None],
    ) -> None:
        self._session = session
        tensors = [node for node in phase.inputs if node not in constants]
        written = phase.writes
        taken = [node for node in tensors if node not in weights and node not in written]
        taken += written
        packed = [node for node in tensors if node in weights]
        specs = [_spec(node, INOUT if node in written else USER_INPUT) for node in taken]
        specs += [_spec(node, USER_INPUT) for node in phase.scalars]
        specs += [_spec(node, BUFFER) for node in (*packed, *constants) if node in phase.inputs]
        body = [nodes[node.name] for node in phase.nodes]
        outputs = [OutputSpec(Ref(n.name), USER_OUTPUT, n.name) for n in phase.outputs]
        outputs += [OutputSpec(Ref(v.name), INPUT_MUTATION, n.name) for n, v in written.items()]
        elements = {n.name: array_of(t) for n, t in constants.items() if n in phase.inputs}
        self._program = Program(name, tuple(specs), tuple(body), tuple(outputs), {}, elements)
        used = symbols_of([*(s.meta for s in specs), *(m for n in body for m in n.metas)])
        self._symbols = {n: s for n, s in symbols.items() if n in used}
        scalars = [s.node for s in self._symbols.values() if s.node and s.node not in phase.scalars]
        self._scalars = [*phase.scalars, *scalars]
        self._names = [node.name for node in taken]
        self._given = _sources(specs[: len(taken)], self._symbols)
        self._weights = Weights(
            [node.name for node in packed], checked=checked, note_repacking=note_repacking
        )
        self._n_weights = len(packed)
        self._n_prepared = len(taken) + (len(packed) if checked else 0)
        self._prepared: dict[tuple[int, ...], PreparedCall] = {}
        self._lock = threading.Lock()
        self._strides = [OutputStrides.of(node.meta["val"]) for node in phase.outputs]
        self._restored = any(strides != OutputStrides() for strides in self._strides)
        self._dtypes = [node.meta["val"].dtype for node in phase.outputs]
        self.inputs = [*taken, *packed, *self._scalars]
        self.outputs = phase.outputs
        self._written = [node.name for node in written]
        self._written_at = [taken.index(node) for node in written]
        n_tensors = len(taken) + len(packed)
        for position, node in enumerate(self._scalars, n_tensors):
            for symbol in self._symbols.values():
                if symbol.node is node:
                    self._given.setdefault(symbol.name, (position, None))
        self._variables = variables_of(self._symbols)
        self._compiled = self._compile(self._variables)

    @property
    def variables(self) -> Sequence[str]:
        """The sizes that may differ, with the bounds that memory is planned for."""
        return [f"{v.name} in {v.min}..{v.max}" for v in self._variables.values()]

    def _compile(self, variables: Mapping[str, Variable]) -> CompiledGraph:
        g = Graph(self._program.name)
        results = Importer(self._program, g, variables).run()
        outputs: dict[str, Value] = {}
        for node, result, strides in zip(self.outputs, results, self._strides, strict=False):
            value = result.pairs if isinstance(result, Complex) else result
            outputs[node.name] = strides.in_memory_order(g, value)
        g.set_outputs(outputs)
        for name, value in zip(self._written, results[len(self.outputs) :], strict=True):
            g.assign(g.states[name], value)
        return self._session.compile(g)

    def __call__(self, given: tuple[Any, ...]) -> Sequence[torch.Tensor]:
        """Run on the results of :attr:`inputs`.

        Raises:
            OstinatoError: it cannot run on these. Nothing has been written.
        """
        key = self._sizes(given) if self._given else ()
        prepared = self._prepared.get(key)
        results = None if prepared is None else prepared(given[: self._n_prepared], {})
        if results is None:
            return self._run(given, key)
        if self._written_at:
            self._note_writes(given)
        if self._restored:
            return self._restore(results)
        return results

    def _sizes(self, given: Sequence[Any]) -> tuple[int, ...]:
        """The values of the symbols."""
        return tuple([_value(given, source) for source in self._given.values()])

    def _run(self, given: Sequence[Any], key: tuple[int, ...]) -> list[torch.Tensor]:
        """A call whose arguments are other than before."""
        sizes = dict(zip(self._given, key, strict=True))
        for name, value in sizes.items():
            same = self._variables[name].name
            if same != name and sizes[same] != value:
                raise VariableError(
                    f"{self._program.name} is compiled for equal sizes {same} and {name}, here "
                    f"{sizes[same]} and {value}"
                )
        with self._lock:
            compiled = self._compiled
            if any(value > self._variables[name].max for name, value in sizes.items()):
                compiled = self._widen(sizes)
            first, last = len(self._names), len(self._names) + self._n_weights
            self._weights.update(tuple(given[first:last]), compiled)
        arrays = {name: array_of(given[i]) for i, name in enumerate(self._names)}
        variables = {n: sizes[n] for n, (_, axis) in self._given.items() if axis is None}
        outputs = compiled.run(arrays, variables=variables or None)
        self._note_writes(given)
        results = [tensor_of(a, dtype) for a, dtype in zip(outputs, self._dtypes, strict=True)]
        self._prepare(given, results, key, compiled, variables)
        return self._restore(results)

    def bound(self, given: tuple[Any, ...]) -> Callable[[], None]:
        """The native run alone, on the memory of some arguments."""
        arrays = {name: array_of(given[i]) for i, name in enumerate(self._names)}
        with self._lock:
            compiled = self._compiled
        return compiled.bind(arrays, compiled.run(arrays))

    def _restore(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results with the strides of eager."""
        pairs = zip(results, self._strides, strict=True)
        return [strides.restore(result) for result, strides in pairs]

    def _note_writes(self, given: Sequence[Any]) -> None:
        for position in self._written_at:
            note_write(given[position])

    def _prepare(
        self,
        given: Sequence[Any],
        results: Sequence[torch.Tensor],
        key: tuple[int, ...],
        compiled: CompiledGraph,
        variables: Mapping[str, int],
    ) -> None:
        """Let later calls on such arguments go without Python, where they can."""
        inputs, weights = given[: len(self._names)], given[len(self._names) : self._n_prepared]
        watch = self._weights.watch
        call = prepared_call(compiled, inputs, results, weights, watch, variables)
        if call is not None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[key] = call

    def _widen(self, values: Mapping[str, int]) -> CompiledGraph:
        """Compile for larger sizes."""
        room = {n: max(2 * values[n], v.max) for n, v in self._variables.items()}
        self._variables = variables_of(self._symbols, room)
        self._compiled = self._compile(self._variables)
        self._weights.forget()
        self._prepared.clear()
        return self._compiled


def _spec(node: Node, kind: str) -> InputSpec:
    return InputSpec(node.name, kind, meta_of(node.meta["val"]), node.name)


def _sources(
    specs: Sequence[InputSpec], symbols: Mapping[str, Symbol]
) -> dict[str, tuple[int, int | None]]:
    """By symbol, the argument of a call whose shape gives its value, and the axis."""
    found: dict[str, tuple[int, int | None]] = {}
    for position, spec in enumerate(specs):
        if isinstance(spec.meta, TensorMeta):
            for axis, size in enumerate(spec.meta.shape):
                if size in symbols:
                    found.setdefault(str(size), (position, axis))
    return found


def _value(given: Sequence[Any], source: tuple[int, int | None]) -> int:
    position, axis = source
    return int(given[position] if axis is None else given[position].shape[axis])
