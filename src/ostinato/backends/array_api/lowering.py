"""Lower a graph to a program whose calls are its parts, on buffers for what goes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.array_api.expert_layers import called_experts
from ostinato.backends.array_api.resident_experts import resident_layers
from ostinato.backends.array_api.stages import Stage, StagedGraph
from ostinato.ir.graph_facts import graph_facts
from ostinato.ir.leaves import is_inout
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.lowering import live_nodes
from ostinato.lower.program import Call, LoweredBuffer, Program, Role
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.array_api.expert_layers import CalledExperts
    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.backends.array_api.stages import OnHost, Part
    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Refusal
    from ostinato.variables import Symbol

__all__ = ["StagedProgram", "lower_in_stages"]


class StagedProgram(Program):
    """A program whose calls are parts of a graph.

    Attributes:
        graph: the lowered graph.
        values: by value that is in memory between parts, or from run to run, its buffer.
        facts: the conditions on sizes that depend on data.
        called: the layers that choose among experts, in order.
        resident: the nodes whose experts are not all on the device.
    """

    graph: BaseGraph
    values: dict[Value, LoweredBuffer]
    facts: tuple[Fact, ...]
    called: list[CalledExperts]
    resident: Mapping[Node, ResidentLayer]

    @property
    def parts(self) -> list[Part]:
        """The kernels of the calls."""
        return [call.kernel for call in self.calls]  # type: ignore[misc]

    @property
    def stages(self) -> list[Stage]:
        """Those of them that the framework compiles."""
        return [part for part in self.parts if isinstance(part, Stage)]


def lower_in_stages(
    graph: BaseGraph,
    on_host: OnHost,
    variables: Sequence[Symbol] | None = None,
    facts: Sequence[Fact] | None = None,
    store: ExpertStore | None = None,
) -> tuple[StagedProgram, list[Refusal]]:
    """The program of a graph; no fusion is refused, since the framework fuses.

    Args:
        graph: has only ops that the device takes.
        on_host: whether the host takes a node.
        variables: what a run gives values, by default all that the graph mentions.
        facts: the conditions on sizes, by default those of the graph.
        store: params whose experts do not all stay on the device.

    Raises:
        InputError: such a param has other readers, or does not fit the budget.
    """
    program = StagedProgram()
    program.called = called_experts(graph)
    live = live_nodes(graph)
    stored = () if store is None else [graph.params[name] for name in store.params]
    program.resident = {} if store is None else resident_layers(graph, live, store, on_host)
    observed = [layer.ids for layer in program.called]
    staged = StagedGraph(graph, on_host, observed, program.resident, stored)
    program.graph = graph
    program.variables = tuple(graph.variables.values() if variables is None else variables)
    given = {symbol.name for symbol in program.variables if symbol.bound is None}
    conditions = graph_facts(graph) if facts is None else facts
    program.facts = tuple(fact for fact in conditions if not fact.names <= given)
    program.values = {}
    for role, leaves, kept in (
        (Role.INPUT, graph.inputs, program.inputs),
        (Role.PARAM, graph.params, program.params),
        (Role.STATE, graph.states, program.states),
    ):
        for name, value in leaves.items():
            if value in stored:
                continue
            kept[name] = program.values[value] = LoweredBuffer(value.type, role, name, value)
    for value in staged.constants:
        data = value.node.attrs["array"]
        buffer = LoweredBuffer(value.type, Role.CONSTANT, value.node.label, value, data)
        program.values[value] = buffer
    for name, value in graph.outputs.items():
        program.outputs[name] = LoweredBuffer(value.type, Role.OUTPUT, name)
    program.next_states = {name: program.states[name] for name in graph.assignments}
    program.calls = [_call(program, staged, n) for n in range(len(staged.parts))]
    return program, []


def _call(program: StagedProgram, staged: StagedGraph, number: int) -> Call:
    """The call of a part: its buffers are what it reads, then what it writes."""
    part, graph = staged.parts[number], program.graph
    later = {v for other in staged.parts[number + 1 :] for v in other.operands}
    reads = {program.values[value]: Arg(value.dtype) for value in part.operands}
    position = {buffer: i for i, buffer in enumerate(reads)}
    buffers, args = [*reads], [*reads.values()]
    writes = []
    for value in part.results:
        targets = [program.outputs[n] for n, v in graph.outputs.items() if v is value]
        targets += [program.states[n] for n, v in graph.assignments.items() if v is value]
        if value in later and value not in program.values:
            temp = LoweredBuffer(value.type, Role.TEMP, value.node.label, value)
            program.values[value] = temp
            targets.append(temp)
        for target in targets:
            if target in position:
                args[position[target]] = Arg(value.dtype, reads=True, writes=True)
            else:
                position[target] = len(buffers)
                buffers.append(target)
                args.append(Arg(value.dtype, reads=False, writes=True))
        writes.append(tuple([position[target] for target in targets]))
    part = replace(
        part,
        args=tuple(args),
        variables=program.variables,
        reads=tuple([position[program.values[value]] for value in part.operands]),
        writes=tuple(writes),
    )
    if isinstance(part, Stage) and number == len(staged.parts) - 1:
        part = replace(part, donated=_donated(part, graph), last=True)
    nodes = tuple([node.label for node in part.nodes])
    names = dict.fromkeys(map(_title, part.nodes))
    flops = sum((n.op.flops([v.type for v in n.inputs], n.attrs) for n in part.nodes), 0)
    return Call(part, tuple(buffers), nodes, "+".join(names) or "copy", flops)


def _title(node: Node) -> str:
    """The op of a node; of one that binds a size, that size."""
    return f"size {node.attrs['size']}" if node.op.binds_size else node.op.name


def _donated(stage: Stage, graph: BaseGraph) -> tuple[Value, ...]:
    """The operands that are the program's states, and get their next value in the last stage."""
    assigned = {graph.states[name] for name in graph.assignments}
    assigned = {value for value in assigned if not is_inout(value.node)}
    return tuple([value for value in stage.operands if value in assigned])
