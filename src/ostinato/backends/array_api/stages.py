"""Divide a graph into stages: functions that a framework compiles, and steps of the host.

A stage is as many nodes as possible. The host takes the nodes whose results decide what is compiled
or run next: sizes that depend on data and, where the framework has none of its own, control flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import CONSTANT, Leaf
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.lowering import live_nodes
from ostinato.records import dataclass
from ostinato.variables import Expr, bounds, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

    #: Whether the host takes a node.
    OnHost: TypeAlias = Callable[[Node], bool]

__all__ = ["ExpertStep", "HostStep", "OnHost", "Part", "Stage", "StagedGraph", "is_large"]


@dataclass(frozen=True, eq=False)
class Part(Kernel):
    """A part of a graph that runs as a whole, on arrays of values.

    Attributes:
        nodes: in order.
        operands: the values that it takes.
        results: the values that it gives.
        args: its arguments in memory, in a program; see :class:`Kernel`.
        variables: the graph's, in a program.
        reads: by operand, the position of its argument.
        writes: by result, the positions of the arguments that take it.
    """

    nodes: tuple[Node, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    args: tuple[Arg, ...] = ()
    variables: tuple[Symbol, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[tuple[int, ...], ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, type(self).__name__.lower())
        text.head(self.args)
        for node in self.nodes:
            text.line(1, str(node))


@dataclass(frozen=True, eq=False)
class Stage(Part):
    """Nodes that the framework compiles as one function.

    Attributes:
        numbers: the values of nodes ``dim_value`` whose Variables give no size in this stage. It
            takes them as further operands, so that one function serves all values.
        sizes: the Variables for whose values it is compiled.
        donated: states among the operands whose next value it gives: results may take their memory.
        last: whether no part of the program comes after it.
        resident: those of its nodes whose experts are not all on the device. Of each it takes the
            places of the experts that are called, and their matrices, as further operands.
    """

    numbers: tuple[Value, ...] = ()
    sizes: tuple[str, ...] = ()
    donated: tuple[Value, ...] = ()
    last: bool = False
    resident: tuple[ResidentLayer, ...] = ()

    def variable_free(self) -> bool:
        return not self.sizes and not self.numbers

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        """Of a state that is only updated in place: those of its updates."""
        if not writes:
            return self._updates_of(self.operands[self.reads.index(position)])
        for value, positions in zip(self.results, self.writes, strict=True):
            if position in positions and value.node.op.updates_operand:
                return self._updates_of(value.node.inputs[0])
        return None

    def _updates_of(self, value: Value) -> Dim | None:
        """The elements written into a donated operand; ``None``: it is read otherwise, too."""
        readers = [node for node in self.nodes if value in node.inputs]
        if value not in self.donated or not all(
            node.op.updates_operand and node.inputs.index(value) == 0 for node in readers
        ):
            return None
        return sum([max((v.type.size for v in n.inputs[1:]), key=_most) for n in readers], 0)


@dataclass(frozen=True, eq=False)
class HostStep(Part):
    """A node that the host computes, or whose nested graphs it runs.

    Attributes:
        nested: the nested graphs, by attribute.
    """

    nested: tuple[tuple[str, StagedGraph], ...] = ()

    @property
    def node(self) -> Node:
        """The node."""
        return self.nodes[0]

    def variable_free(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class ExpertStep(Part):
    """The staging of the experts that a node of a later stage calls, and that are not resident.

    Attributes:
        layers: the node's, alone.
    """

    layers: tuple[ResidentLayer, ...] = ()

    def variable_free(self) -> bool:
        return False


class StagedGraph:
    """The parts of a graph, in the order in which they run.

    Args:
        graph: the graph.
        on_host: whether the host takes a node.
        observed: values that parts give besides the graph's results.
        resident: the nodes whose experts are not all on the device.
        stored: params in a file of experts, which steps of the host read by themselves.

    Attributes:
        graph: see above.
        constants: those of many elements, which stages take as operands.
        parts: in order.
    """

    def __init__(
        self,
        graph: BaseGraph,
        on_host: OnHost,
        observed: Sequence[Value] = (),
        resident: Mapping[Node, ResidentLayer] | None = None,
        stored: Collection[Value] = (),
    ) -> None:
        self._stored = stored
        self._resident = {} if resident is None else resident
        self.graph = graph
        self._on_host = on_host
        live = live_nodes(graph)
        self.constants = [node.outputs[0] for node in live if is_large(node)]
        self._nodes = [node for node in live if not isinstance(node.op, Leaf)]
        self._results = dict.fromkeys([*graph.results(), *observed])
        self.parts = self._divided()

    def _divided(self) -> list[Part]:
        """The parts: in each round a stage, then the steps of the host that need its results."""
        rounds: dict[Node, int] = {}
        for node in self._nodes:
            before = [n for n in self.graph.needed_by(node) if n in rounds]
            rounds[node] = max((rounds[n] + self._on_host(n) for n in before), default=0)
            if node in self._resident and (ids := self._resident[node].ids.node) in rounds:
                rounds[node] = max(rounds[node], rounds[ids] + 1)
        members: list[tuple[list[Node], list[Node]]] = []
        for number in range(max(rounds.values(), default=-1) + 1):
            here = [node for node, found in rounds.items() if found == number]
            hosted = [node for node in here if self._on_host(node)]
            members.append(([n for n in here if n not in set(hosted)], hosted))
        passed = [value for value in self._results if isinstance(value.node.op, Leaf)]
        if passed and (not members or members[-1][1]):
            members.append(([], []))
        parts: list[Part] = []
        for number, (nodes, hosted) in enumerate(members):
            through = passed if number == len(members) - 1 else []
            parts += [self._expert_step(node) for node in nodes if node in self._resident]
            if nodes or through:
                parts.append(self._stage(nodes, through))
            parts += [self._host_step(node) for node in hosted]
        return parts

    def _stage(self, nodes: Sequence[Node], passed: Sequence[Value]) -> Stage:
        """The stage of some nodes.

        Args:
            nodes: in order.
            passed: results that are leaves of the graph, which the stage copies.
        """
        inside = set(nodes)
        read = {value for n in self._nodes if n not in inside for value in n.inputs}
        fixed = {s for node in nodes if not _is_number(node) for s in _sizes_of(node)}
        fixed |= {s for value in passed for dim in value.shape for s in symbols(dim)}
        numbers = [n for n in nodes if _is_number(n) and not fixed.issuperset(_sizes_of(n))]
        computed = [node for node in nodes if node not in set(numbers)]
        used = dict.fromkeys([*(v for node in computed for v in self._inputs(node)), *passed])
        own = {value for node in nodes for value in node.outputs}
        return Stage(
            tuple(computed),
            tuple([v for v in used if v not in own and not _is_small(v.node)]),
            tuple(
                [v for n in nodes for v in n.outputs if v in read or v in self._results] + [*passed]
            ),
            numbers=tuple([node.outputs[0] for node in numbers]),
            sizes=tuple(sorted({symbol.name for symbol in fixed})),
            resident=tuple([self._resident[node] for node in nodes if node in self._resident]),
        )

    def _inputs(self, node: Node) -> list[Value]:
        """The operands of a node, without those that it has others for."""
        layer = self._resident.get(node)
        replaced = () if layer is None else layer.positions
        return [value for i, value in enumerate(node.inputs) if i not in replaced]

    def _expert_step(self, node: Node) -> ExpertStep:
        layer = self._resident[node]
        operands = () if _is_small(layer.ids.node) else (layer.ids,)
        return ExpertStep((node,), operands, (), layers=(layer,))

    def _host_step(self, node: Node) -> HostStep:
        nested = tuple(
            (name, StagedGraph(attr, self._on_host))
            for name, attr in node.attrs.items()
            if isinstance(attr, BaseGraph)
        )
        held = {value for value in node.inputs if value in self._stored or _is_small(value.node)}
        operands = dict.fromkeys(value for value in node.inputs if value not in held)
        return HostStep((node,), tuple(operands), tuple(node.outputs), nested=nested)


def _most(dim: Dim) -> int:
    return bounds(dim)[1]


def is_large(node: Node) -> bool:
    """Whether a node is a constant of different elements, which is kept out of compiled code."""
    if node.op is not CONSTANT:
        return False
    array = node.attrs["array"]
    return bool(array.size > 1 and any(array.strides))


def _is_small(node: Node) -> bool:
    return node.op is CONSTANT and not is_large(node)


def _is_number(node: Node) -> bool:
    return node.op.name == "dim_value"


def _sizes_of(node: Node) -> set[Symbol]:
    """The Variables that a node mentions, in nested graphs as well."""
    found = {s for value in (*node.inputs, *node.outputs) for d in value.shape for s in symbols(d)}
    for attr in node.attrs.values():
        if isinstance(attr, BaseGraph):
            for inner in attr.nodes:
                found |= _sizes_of(inner)
        else:
            found |= {s for dim in _dims(attr) for s in symbols(dim)}
    return found


def _dims(attr: Any) -> Iterator[Dim]:
    if isinstance(attr, Expr):
        yield attr
    elif isinstance(attr, tuple):
        for item in attr:
            yield from _dims(item)
