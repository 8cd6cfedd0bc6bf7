"""A native partition of an FX graph: its program, its compiled graph, its calls."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.fx import meta_of
from ostinato.frontends.torch.importer import Importer
from ostinato.frontends.torch.output_strides import OutputStrides
from ostinato.frontends.torch.program import (
    BUFFER,
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    OutputSpec,
    Program,
    Ref,
    ScalarMeta,
    TensorMeta,
)
from ostinato.frontends.torch.tensors import array_of, tensor_of
from ostinato.frontends.torch.weights import Weights
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.variables import Variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch.fx import Node

    from ostinato.frontends.torch.partitioning import Phase
    from ostinato.frontends.torch.program import ProgramNode, Size
    from ostinato.ir.graph import Value
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.runtime.session import Session

__all__ = ["NativePartition", "Symbol", "symbols_of", "variables_of"]

#: Memory is planned for sizes up to this, or twice the size of the first call.
_LEAST_BOUND = 512


@dataclass(frozen=True)
class Symbol:
    """A size that differs from call to call.

    Attributes:
        name: PyTorch's name of it.
        min: its least value.
        max: its greatest value; ``None``: unbounded.
        hint: the value that it had while PyTorch traced; ``None`` where it depends on data.
        node: the placeholder that brings it; ``None``: the shapes of tensors alone do.
    """

    name: str
    min: int
    max: int | None
    hint: int | None
    node: Node | None

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


def variables_of(symbols: Mapping[str, Symbol], used: set[str]) -> dict[str, Variable]:
    """Variables for those of ``symbols`` that are used."""
    return {name: symbol.variable() for name, symbol in symbols.items() if name in used}


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
    ) -> None:
        self._session = session
        tensors = [node for node in phase.inputs if node not in constants]
        taken = [node for node in tensors if node not in weights]
        packed = [node for node in tensors if node in weights]
        specs = [_spec(node, USER_INPUT) for node in (*taken, *phase.scalars)]
        specs += [_spec(node, BUFFER) for node in (*packed, *constants) if node in phase.inputs]
        body = [nodes[node.name] for node in phase.nodes]
        outputs = [OutputSpec(Ref(n.name), USER_OUTPUT, n.name) for n in phase.outputs]
        elements = {n.name: array_of(t) for n, t in constants.items() if n in phase.inputs}
        self._program = Program(name, tuple(specs), tuple(body), tuple(outputs), {}, elements)
        used = symbols_of([*(s.meta for s in specs), *(m for n in body for m in n.metas)])
        self._symbols = {n: s for n, s in symbols.items() if n in used}
        scalars = [s.node for s in self._symbols.values() if s.node and s.node not in phase.scalars]
        self._scalars = [*phase.scalars, *scalars]
        self._names = [node.name for node in taken]
        self._given = _sources(specs[: len(taken)], self._symbols)
        self._weights = Weights([node.name for node in packed], len(taken), checked=checked)
        self._strides = [OutputStrides.of(node.meta["val"]) for node in phase.outputs]
        self._dtypes = [node.meta["val"].dtype for node in phase.outputs]
        self.inputs = [*taken, *packed, *self._scalars]
        self.outputs = phase.outputs
        n_tensors = len(taken) + len(packed)
        for position, node in enumerate(self._scalars, n_tensors):
            for symbol in self._symbols.values():
                if symbol.node is node:
                    self._given.setdefault(symbol.name, (position, None))
        self._variables = {name: s.variable() for name, s in self._symbols.items()}
        self._compiled = self._compile(self._variables)

    @property
    def variables(self) -> Sequence[str]:
        """The sizes that may differ, with the bounds that memory is planned for."""
        return [f"{v.name} in {v.min}..{v.max}" for v in self._variables.values()]

    @property
    def repacked(self) -> int:
        """The number of calls before which weights had changed."""
        return self._weights.repacked

    def _compile(self, variables: Mapping[str, Variable]) -> CompiledGraph:
        g = Graph(self._program.name)
        results = Importer(self._program, g, variables).run()
        outputs: dict[str, Value] = {}
        for node, result, strides in zip(self.outputs, results, self._strides, strict=True):
            value = result.pairs if isinstance(result, Complex) else result
            outputs[node.name] = strides.in_memory_order(g, value)
        g.set_outputs(outputs)
        return self._session.compile(g)

    def __call__(self, *given: Any) -> list[torch.Tensor]:
        """Run on the results of :attr:`inputs`.

        Raises:
            OstinatoError: it cannot run on these. Nothing has been written.
        """
        compiled = self._compiled
        variables = None
        if self._given:
            values = {name: _value(given, source) for name, source in self._given.items()}
            if any(value > self._variables[name].max for name, value in values.items()):
                compiled = self._widen(values)
            variables = {name: values[name] for name in values if self._given[name][1] is None}
        if self._weights.stale(given):
            self._weights.write(given, compiled)
        arrays = {name: array_of(given[i]) for i, name in enumerate(self._names)}
        outputs = compiled.run(arrays, variables=variables or None)
        return [
            strides.restore(tensor_of(array, dtype))
            for array, dtype, strides in zip(outputs, self._dtypes, self._strides, strict=True)
        ]

    def _widen(self, values: Mapping[str, int]) -> CompiledGraph:
        """Compile for larger sizes."""
        self._variables = {
            name: symbol.variable(max(2 * values[name], self._variables[name].max))
            for name, symbol in self._symbols.items()
        }
        self._compiled = self._compile(self._variables)
        self._weights.forget()
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
