"""Graphs from programs: their sizes, states, outputs, and the conditions that runs check."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.aliasing import written_inputs
from ostinato.frontends.torch.call import Complex
from ostinato.frontends.torch.guards import guard_facts
from ostinato.frontends.torch.importer import Importer
from ostinato.frontends.torch.program import (
    BUFFER_MUTATION,
    INPUT_MUTATION,
    USER_OUTPUT,
    TensorMeta,
)
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.ir.facts import Fact
from ostinato.ir.graph import Value
from ostinato.ir.specialization import Specialization
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.variables import Expr, Variable, data_symbols, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.frontends.torch.program import Program
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import Array
    from ostinato.variables import Dim

__all__ = [
    "DEFAULT_BOUNDS",
    "Sizes",
    "build_graph",
    "checked",
    "chosen_sizes",
    "conditions",
    "mutated_inputs",
]

#: The first bounds of a dynamic size without an upper one: a run may exceed them.
DEFAULT_BOUNDS = (1, 512)


@dataclass(frozen=True)
class Sizes:
    """The dims that a program's symbols stand for.

    Attributes:
        dims: by symbol.
        open: the Variables whose bounds are defaults.
        words: by Variable, its position in the inputs.
    """

    dims: Mapping[str, Dim]
    open: frozenset[str]
    words: Mapping[str, str]


def build_graph(program: Program, name: str, dims: Mapping[str, Dim] | None = None) -> Graph:
    """The graph of a program.

    Inputs and outputs are named by the ``target`` of their specs. What the program writes to a
    weight is a state of the weight's name; what it writes to an input is a further output of the
    input's name. A complex tensor is one of its parts, along a last axis of size 2.

    Args:
        program: the program.
        name: the graph's.
        dims: what symbols of the program stand for; the others become Variables.

    Raises:
        UnsupportedOpError: lists every node that has no equivalent, and why.
        GraphError: a node's operands do not fit each other at these sizes.
        ModelFormatError: the program breaks its own rules.
    """
    sizes = chosen_sizes(program, dims or {})
    graph = _graph(program, name, sizes.dims)
    if graph.variables and not graph.states:
        graph.specialization = _ProgramSpecialization(program, name, sizes)
    return graph


def chosen_sizes(
    program: Program, given: Mapping[str, Dim], hints: Mapping[str, int] | None = None
) -> Sizes:
    """Dims for the symbols of a program: those that are given, and Variables for the others.

    Args:
        program: the program.
        given: dims by symbol.
        hints: by symbol, a value that there has to be ample room for.
    """
    hinted = hints or {}
    dims: dict[str, Dim] = {}
    open_: set[str] = set()
    words: dict[str, str] = {}
    taken = {s.name for dim in given.values() for s in symbols(dim)}
    for symbol, (target, axis) in _positions(program).items():
        if symbol in given:
            dims[symbol] = given[symbol]
            continue
        low, high = program.symbols.get(symbol, (0, None))
        least = max(low, DEFAULT_BOUNDS[0]) if high is None or high > 0 else low
        room = 1 << (2 * max(hinted.get(symbol, 0), least)).bit_length()
        most = max(DEFAULT_BOUNDS[1], room) if high is None else high
        word = program.names.get(symbol, f"{target}_dim{axis}")
        variable = Variable(_unique(word, taken), least, most)
        dims[symbol] = variable
        if word != variable.name or symbol not in program.names:
            words[variable.name] = f"dim {axis} of {target!r}"
        if high is None:
            open_.add(variable.name)
    return Sizes(dims, frozenset(open_), words)


def _positions(program: Program) -> dict[str, tuple[str, int]]:
    """By symbol of a size of the inputs, the first axis that has it, or else mentions it."""
    alone: dict[str, tuple[str, int]] = {}
    within: dict[str, tuple[str, int]] = {}
    for spec in program.users():
        if not isinstance(spec.meta, TensorMeta):
            continue
        for axis, size in enumerate(spec.meta.shape):
            if isinstance(size, str):
                if size.isidentifier():
                    alone.setdefault(size, (spec.target, axis))
                for symbol in re.findall(r"[A-Za-z_]\w*", size):
                    if symbol in program.symbols:
                        within.setdefault(symbol, (spec.target, axis))
    return {**within, **alone}


def _unique(name: str, taken: set[str]) -> str:
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    base = base if base.isidentifier() else f"_{base}"
    unique, count = base, 2
    while unique in taken:
        unique, count = f"{base}_{count}", count + 1
    taken.add(unique)
    return unique


def _graph(program: Program, name: str, dims: Mapping[str, Dim]) -> Graph:
    graph = Graph(name)
    users = {spec.target for spec in program.users()}
    kept = mutated_inputs(program) - users
    importer = Importer(program, graph, dims, kept)
    results = importer.run()
    outputs: dict[str, Value] = {}
    for spec, result in zip(program.outputs, results, strict=True):
        value = _tensor(graph, result)
        if spec.kind == USER_OUTPUT and value is not None:
            outputs[_free(spec.target, outputs)] = value
    for target, result in importer.written.items():
        value = _tensor(graph, result)
        assert value is not None
        if target in users:
            outputs[_free(target, outputs)] = value
        else:
            graph.assign(graph.states[target], value)
    facts = [*conditions(program, dims), *importer.facts]
    if outputs:
        first = next(iter(outputs))
        outputs[first] = checked(graph, outputs[first], facts)
    graph.set_outputs(outputs)
    return graph


def mutated_inputs(program: Program) -> set[str]:
    """The inputs, by ``target``, that a program may write to."""
    kinds = (BUFFER_MUTATION, INPUT_MUTATION)
    found = {spec.target for spec in program.outputs if spec.kind in kinds}
    names = written_inputs(program)
    return found | {spec.target for spec in program.inputs if spec.name in names}


def conditions(program: Program, dims: Mapping[str, Dim]) -> Iterator[Fact]:
    """The conditions on sizes with which a program was exported.

    Raises:
        UnsupportedOpError: a run could not check one.
        ModelFormatError: a guard is no condition.
    """
    yield from _range_facts(program, dims)
    if dims:
        table = SymbolTable(program.symbols)
        for symbol, dim in dims.items():
            table.define(symbol, dim)
        for guard in program.guards:
            yield from guard_facts(guard, program.users(), table)


def _range_facts(program: Program, dims: Mapping[str, Dim]) -> Iterator[Fact]:
    """The bounds of symbols, where the dims that stand for them may exceed these."""
    for symbol, dim in dims.items():
        low, high = program.symbols.get(symbol, (0, None))
        least = Fact(dim, low, f"the export holds for sizes of at least {low}")
        if not least.certain:
            yield least
        if high is not None:
            most = Fact(high - dim, 0, f"the export holds for sizes of at most {high}")
            if not most.certain:
                yield most


def checked(graph: Graph, value: Value, facts: list[Fact]) -> Value:
    """``value``, in runs whose sizes meet all conditions."""
    for fact in dict.fromkeys(facts):
        with graph.labelled(fact.node or "guard"):
            value = graph.require(value, fact.size, fact.least, fact.problem)
            margin = fact.size - fact.least
            if isinstance(margin, Expr) and data_symbols(margin):
                # A size that nothing but its check mentioned would not be bound.
                holds = graph.greater_equal(graph.dim_value(margin), 0)
                value = graph.where(holds, value, graph.zeros((), value.dtype))
    return value


def _tensor(graph: Graph, result: Any) -> Value | None:
    """A result as a tensor of the graph; ``None`` for what is fixed."""
    if isinstance(result, Complex):
        return result.pairs
    if isinstance(result, Expr):
        return graph.dim_value(result)
    return result if isinstance(result, Value) else None


def _free(name: str, taken: Mapping[str, Value]) -> str:
    unique, count = name, 2
    while unique in taken:
        unique, count = f"{name}_{count}", count + 1
    return unique


class _ProgramSpecialization(Specialization["BaseGraph"]):
    """Builds the graph of a program for other sizes of its inputs.

    Args:
        program, name: as for :func:`build_graph`.
        sizes: of the first graph.
    """

    def __init__(self, program: Program, name: str, sizes: Sizes) -> None:
        super().__init__({}, {}, sizes.open, sizes.words, {})
        self._program, self._name, self._sizes = program, name, sizes

    def build(
        self, shapes: Mapping[str, tuple[Dim, ...]], contents: Mapping[str, Array]
    ) -> BaseGraph:
        targets = {spec.target: spec.meta for spec in self._program.users()}
        dims = dict(self._sizes.dims)
        for target, shape in shapes.items():
            meta = targets[target]
            assert isinstance(meta, TensorMeta)
            dims.update(
                (size, dim)
                for size, dim in zip(meta.shape, shape, strict=False)
                if isinstance(size, str) and size in dims
            )
        return _graph(self._program, self._name, dims)
