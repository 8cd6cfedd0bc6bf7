"""Control flow: nested graphs are lowered into the list of calls of the graph around them.

The calls of a nested graph stand between calls of :class:`Control` kernels, which decide what runs
next. They use the buffers of the graph around: captured values where they are, parts of scanned and
stacked tensors as views of these, whose offset has the number of the iteration for a Variable. A
loop's carried values are to its body what states are to a graph, and are updated in the same ways.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ostinato.ir.leaves import CONSTANT, INPUT, PARAM, STATE
from ostinato.lower.fusion.reads import is_transparent
from ostinato.lower.loopir.builder import is_pointwise
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.program import Call, Layout, LoweredBuffer, Role
from ostinato.ops.builder import Graph
from ostinato.ops.control import COND, LOOP, LoopParts
from ostinato.records import dataclass
from ostinato.variables import Expr, Symbol, bounds, prod

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim

__all__ = [
    "CONTROL_OPS",
    "ENDLESS",
    "Control",
    "ControlKind",
    "control_targets",
    "loop_ranges",
    "lower_control",
    "reads_parts_in_place",
]

#: Lowers a nested graph: its leaves' buffers, those of its outputs, and the Variables of its
#: kernels.
LowerNested: TypeAlias = Callable[
    ["BaseGraph", Mapping["Value", LoweredBuffer], Mapping[str, LoweredBuffer], tuple[Symbol, ...]],
    None,
]

#: The ops that a device takes whose programs have calls of :class:`Control` kernels.
CONTROL_OPS = (COND.name, LOOP.name)

#: The most iterations of a loop of which no number is known.
ENDLESS = 1 << 40

#: The first character of the name of a loop's iteration number; no user's Variable has it.
_ITERATION = "#"


class ControlKind(enum.IntEnum):
    """The kinds of control kernels, which enclose the calls of nested graphs."""

    IF = 1  #: goes on, or, without the condition, behind the ELSE
    ELSE = 2  #: goes on behind the END_IF
    END_IF = 3  #: goes on
    LOOP = 4  #: begins with iteration 0, or goes on behind the END_LOOP
    END_LOOP = 5  #: begins the next iteration behind the LOOP, or goes on


@dataclass(frozen=True, eq=False)
class Control(Kernel):
    """Decides which call runs next.

    Attributes:
        kind: see :class:`ControlKind`.
        args: the condition, a bool, if ``conditional``; the trip count, an int64, if ``counted``.
        conditional, counted: whether it reads these.
        trips: of a loop, the most iterations as far as is known.
        counter: of a loop, the position of the number of the iteration among the kernels' ``vars``.
        iteration: that number, as the kernels of the body know it.
    """

    kind: ControlKind
    args: tuple[Arg, ...] = ()
    conditional: bool = False
    counted: bool = False
    trips: Dim | None = None
    counter: int = 0
    iteration: Symbol | None = None
    variables: tuple[Symbol, ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, self.kind.name.lower())
        text.head(self.args)
        if self.kind in (ControlKind.LOOP, ControlKind.END_LOOP):
            text.line(1, f"trips {self.trips}, iteration {self.counter}")

    def variable_free(self) -> bool:
        """No: it is never left out, though it writes nothing."""
        return False

    @property
    def decides(self) -> bool:
        """Whether what runs next depends on the run; else it always is the same."""
        return self.kind not in (ControlKind.ELSE, ControlKind.END_IF)


def control_targets(calls: Sequence[Call]) -> dict[int, int]:
    """By the position of each call of a control kernel, that of the call that it may jump to."""
    targets: dict[int, int] = {}
    open_: list[int] = []
    for position, call in enumerate(calls):
        if not isinstance(call.kernel, Control):
            continue
        match call.kernel.kind:
            case ControlKind.IF | ControlKind.LOOP:
                open_.append(position)
            case ControlKind.ELSE:
                targets[open_.pop()] = position + 1
                open_.append(position)
            case ControlKind.END_IF:
                targets[open_.pop()] = position + 1
                targets[position] = position + 1
            case ControlKind.END_LOOP:
                targets[position] = open_[-1] + 1
                targets[open_.pop()] = position + 1
    return targets


def loop_ranges(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """The positions of each loop's first and last call, outer loops after those within them."""
    found: list[tuple[int, int]] = []
    open_: list[int] = []
    for position, call in enumerate(calls):
        if isinstance(call.kernel, Control):
            if call.kernel.kind is ControlKind.LOOP:
                open_.append(position)
            elif call.kernel.kind is ControlKind.END_LOOP:
                found.append((open_.pop(), position))
    return found


def lower_control(build: ProgramBuilder, node: Node, lower: LowerNested) -> None:
    """Lower a node that runs nested graphs.

    Args:
        build: the program of the graph that the node is of.
        node: a ``cond`` or a ``loop``.
        lower: lowers a nested graph.
    """
    for value in node.inputs:
        build.materialise_views(value)
    if node.op.name == "cond":
        _lower_cond(build, node, lower)
    else:
        _lower_loop(build, node, lower)


def _lower_cond(build: ProgramBuilder, node: Node, lower: LowerNested) -> None:
    condition, *captured = node.inputs
    flag = _in_memory(build, condition)
    results = [build.placement.target(value) for value in node.outputs]
    build.assigned.update(results)
    binding = _Binding(build)
    branches = [node.attrs["then_graph"], node.attrs["else_graph"]]
    bound = [binding.graph(branch, captured) for branch in branches]
    for kind, (graph, stored) in zip((ControlKind.IF, ControlKind.ELSE), bound, strict=True):
        reads = [flag] if kind is ControlKind.IF else []
        _control(build, node, kind, reads, conditional=kind is ControlKind.IF)
        targets = dict(zip(graph.outputs, results, strict=True))
        lower(graph, stored, targets, build.variables)
    _control(build, node, ControlKind.END_IF, [])
    build.stored.update(zip(node.outputs, results, strict=True))


def _lower_loop(build: ProgramBuilder, node: Node, lower: LowerNested) -> None:
    parts, operands = LoopParts(node.attrs), node.inputs
    counts = [_in_memory(build, v) for v in operands[: parts.counted]]
    started = [_in_memory(build, v) for v in operands[parts.counted : parts.first_carried]]
    carried = operands[parts.first_carried : parts.first_scanned]
    scanned = operands[parts.first_scanned : parts.first_captured]
    captured = operands[parts.first_captured :]
    trips, backwards = node.attrs["trips"], node.attrs["backwards"]
    results = [build.placement.target(value) for value in node.outputs]
    body = node.attrs["body"]
    outputs = list(body.outputs.items())
    going = [LoweredBuffer(v.type, Role.TEMP, f"{node.label}.going", v) for _, v in outputs[:1]]
    del going[parts.conditional :]
    build.assigned.update((*results, *going))
    for value, buffer in zip(carried, results, strict=False):
        build.copy_into(value, buffer)

    counter = len(build.variables)
    most = ENDLESS if trips is None else bounds(trips)[1]
    number = Symbol(f"{_ITERATION}{counter}", 0, max(most - 1, 0))
    iteration = Expr({(number,): 1}, 0)
    at = [trips - 1 - iteration if b else iteration for b in backwards]
    binding = _Binding(build)
    graph, stored = binding.graph(
        body,
        captured,
        iteration=iteration,
        carried=list(zip(carried, results, strict=False)),
        parts=[(_in_memory(build, v), i) for v, i in zip(scanned, at, strict=False)],
    )
    names = list(graph.outputs)
    bodies = list(graph.outputs.values())
    first = parts.conditional + len(carried)
    targets = dict(zip(names, going, strict=False))
    for name, value, whole, i in zip(
        names[first:], bodies[first:], results[len(carried) :], at[len(scanned) :], strict=True
    ):
        targets[name] = _part(whole, value, i, Role.TEMP)
    for value, state in zip(bodies[parts.conditional : first], graph.states.values(), strict=True):
        graph.assign(state, value)
    graph.outputs = {name: graph.outputs[name] for name in targets}

    limits = {"trips": trips, "counter": counter, "iteration": number, "counted": parts.counted}
    flags = {"conditional": parts.conditional}
    _control(build, node, ControlKind.LOOP, [*started, *counts], **flags, **limits)
    lower(graph, stored, targets, (*build.variables, number))
    _control(build, node, ControlKind.END_LOOP, [*going, *counts], **flags, **limits)
    build.stored.update(zip(node.outputs, results, strict=True))


def _control(
    build: ProgramBuilder,
    node: Node,
    kind: ControlKind,
    reads: Sequence[LoweredBuffer],
    **given: object,
) -> None:
    args = tuple(Arg(buffer.type.dtype, reads=True, writes=False) for buffer in reads)
    kernel = Control(kind, args, **given)  # type: ignore[arg-type]
    title = kind.name.lower().replace("_", " ")
    build.calls.append(Call(kernel, tuple(reads), (node.label,), title))


def _in_memory(build: ProgramBuilder, value: Value) -> LoweredBuffer:
    """The buffer of a value that a control kernel reads, or that parts are taken of."""
    if value not in build.stored or build.stored[value].layout is not None:
        build.copy(value)
    return build.stored[value]


def _part(whole: LoweredBuffer, value: Value, index: Dim, role: Role) -> LoweredBuffer:
    """The memory of ``value``, the part of a tensor at ``index`` along its first axis."""
    base = index * prod(value.shape)
    layout = Layout(tuple(range(value.ndim)), value.shape, (0,) * value.ndim, base)
    return LoweredBuffer(value.type, role, f"{whole.name}.part", layout=layout, home=whole)


class _Binding:
    """Nested graphs whose leaves are bound to memory of the graph around.

    Views, constants and whatever depends on params alone are seen by the nested graph for what they
    are, so that it is lowered as if it stood in the graph around: weights are packed once.
    """

    def __init__(self, build: ProgramBuilder) -> None:
        self._build = build

    def graph(
        self,
        nested: BaseGraph,
        captured: Sequence[Value],
        *,
        iteration: Dim | None = None,
        carried: Sequence[tuple[Value, LoweredBuffer]] = (),
        parts: Sequence[tuple[LoweredBuffer, Dim]] = (),
    ) -> tuple[Graph, dict[Value, LoweredBuffer]]:
        """A copy of ``nested`` to be lowered, and the buffers of its leaves.

        Args:
            nested: its inputs are the iteration, if there is one, then the carried values, parts
                of scanned ones, and the captured ones.
            captured: values of the graph around.
            iteration: the number of the iteration.
            carried: the first values, and the memory that is to hold those of each iteration.
            parts: tensors, and the position of the iteration's part.
        """
        copy = Graph(nested.name)
        stored: dict[Value, LoweredBuffer] = {}
        new: dict[Value, Value] = {}
        inputs = iter(nested.inputs.values())
        if iteration is not None:
            new[next(inputs)] = copy.dim_value(iteration)
        for value, (_, buffer) in zip(inputs, carried, strict=False):
            new[value] = state = copy._leaf(  # its shape may be symbolic
                copy.states, STATE, f"carried_{len(new)}", value.shape, value.dtype, init=None
            )
            stored[state] = buffer
        return self._rest(nested, copy, stored, new, captured, parts)

    def _rest(
        self,
        nested: BaseGraph,
        copy: Graph,
        stored: dict[Value, LoweredBuffer],
        new: dict[Value, Value],
        captured: Sequence[Value],
        parts: Sequence[tuple[LoweredBuffer, Dim]],
    ) -> tuple[Graph, dict[Value, LoweredBuffer]]:
        inputs = [value for value in nested.inputs.values() if value not in new]
        for value, (whole, index) in zip(inputs, parts, strict=False):
            leaf = copy.input(f"part_{len(new)}", value.shape, value.dtype)
            stored[leaf] = _part(whole, value, index, whole.role)
            new[value] = leaf
        known: dict[Value, Value] = {}
        for value, outer in zip(inputs[len(parts) :], captured, strict=True):
            new[value] = self._captured(outer, copy, stored, known)
        for node in nested.nodes:
            if node.op is not INPUT:
                copies = copy.adopt(node, [new[value] for value in node.inputs])
                new.update(zip(node.outputs, copies, strict=True))
        copy.set_outputs({name: new[value] for name, value in nested.outputs.items()})
        return copy, stored

    def _captured(
        self,
        value: Value,
        copy: Graph,
        stored: dict[Value, LoweredBuffer],
        known: dict[Value, Value],
    ) -> Value:
        """A captured value in the nested graph: a leaf, or views of leaves."""
        if value in known:
            return known[value]
        build, node = self._build, value.node
        if node.op is CONSTANT:
            (found,) = copy.adopt(node, ())
        elif value not in build.stored and is_transparent(node):
            operands = [self._captured(v, copy, stored, known) for v in node.inputs]
            found = copy.adopt(node, operands)[value.index]
        else:
            fixed = node.op is PARAM or node in build.fixed
            leaf = copy.param if fixed else copy.input
            found = leaf(f"captured_{len(known)}", value.shape, value.dtype)
        if value in build.stored:
            stored[found] = build.stored[value]
        known[value] = found
        return found


def reads_parts_in_place(graph: BaseGraph, value: Value) -> bool:
    """Whether everything that reads a part of a tensor can do so where it stands."""
    readers = (n for n in graph.nodes if not is_transparent(n) and value in _leaves_behind(n))
    return all(is_pointwise(n) or n.op.reduces or n.op.name == "matmul" for n in readers)


def _leaves_behind(node: Node) -> set[Value]:
    found: set[Value] = set()
    stack = list(node.inputs)
    while stack:
        value = stack.pop()
        if not value.node.inputs:
            found.add(value)
        elif is_transparent(value.node):
            stack.extend(value.node.inputs)
    return found
