"""The driver of lowering: ``Graph -> Program``, by a rule table that the device hands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.errors import UnsupportedOpError
from ostinato.ir.graph_facts import graph_facts
from ostinato.lower.control import lower_control, reads_parts_in_place
from ostinato.lower.fusion.horizontal import fused_horizontally
from ostinato.lower.fusion.inline import inline_regions
from ostinato.lower.fusion.reads import reads_state
from ostinato.lower.fusion.regions import (
    FusionOptions,
    Refusal,
    Region,
    form_regions,
    values_between,
)
from ostinato.lower.memory.layouts import choose_layouts
from ostinato.lower.memory.overwrites import overwritten_states
from ostinato.lower.memory.placement import Placement
from ostinato.lower.memory.subviews import Subviews, find_subviews
from ostinato.lower.prepack import split_prepared
from ostinato.lower.program import LoweredBuffer, Program, Role
from ostinato.lower.program_builder import ProgramBuilder
from ostinato.lower.rules.table import lower_loops
from ostinato.ops.control import ControlFlow
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.rules.table import RuleTable
    from ostinato.variables import Symbol

__all__ = ["LoweringOptions", "live_nodes", "lower"]


@dataclass(frozen=True)
class LoweringOptions:
    """The optimisations of lowering, on every device.

    Attributes:
        fusion: which fusions are on.
        channels_last: store images with their channels last where that is faster.
        in_place: let producers write directly into the output of a concatenation or a padding.
    """

    fusion: FusionOptions = field(default_factory=FusionOptions)
    channels_last: bool = True
    in_place: bool = True


def lower(
    graph: BaseGraph,
    table: RuleTable,
    options: LoweringOptions,
    variables: Sequence[Symbol] | None = None,
    facts: Sequence[Fact] | None = None,
) -> tuple[Program, list[Refusal]]:
    """Kernels and buffers for ``graph``, and the fusions that were refused.

    Args:
        graph: has only ops that some rule of ``table`` lowers.
        table: the device's rules.
        options: the optimisations that are on.
        variables: what kernels take the values of, by default all that the graph mentions.
        facts: the conditions on sizes that are checked where they depend on data, by default those
            of the graph.

    Raises:
        UnsupportedOpError: nodes for which no kernel exists, every one listed.
    """
    mentioned = graph.variables.values() if variables is None else variables
    conditions = graph_facts(graph) if facts is None else facts
    return _Lowering(graph, table, options, tuple(mentioned), conditions).program()


def live_nodes(graph: BaseGraph) -> list[Node]:
    """The nodes that the results depend on, in order."""
    needed: set[Node] = set()
    stack = [value.node for value in graph.results()]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(graph.needed_by(node))
    return [node for node in graph.nodes if node in needed]


class _Lowering:
    """The lowering of one graph, stage by stage: fusion, memory, kernels, results, prepacking."""

    def __init__(
        self,
        graph: BaseGraph,
        table: RuleTable,
        options: LoweringOptions,
        variables: tuple[Symbol, ...],
        facts: Sequence[Fact] = (),
        nested: _NestedIn | None = None,
    ) -> None:
        self.graph = graph
        self.table = table
        self.options = options
        if table.multi_root is None:
            self.options = replace(options, fusion=replace(options.fusion, products=False))
        nodes = live_nodes(graph)
        stored = _stored_leaves(graph, nodes, {} if nested is None else nested.stored)
        targets, outer = (None, None) if nested is None else (nested.targets, nested.build)
        self.placement = Placement(graph, nodes, stored, targets)
        self.build = ProgramBuilder(graph, nodes, variables, stored, self.placement, facts, outer)
        self.refused: list[Refusal] = []

    def program(self) -> tuple[Program, list[Refusal]]:
        """The program of a graph that is not nested."""
        build = self.build
        next_states = self.run()
        prepare, calls = split_prepared(build.calls, build.kept | build.assigned)
        by_role = {
            role: {b.name: b for b in build.stored.values() if b.role is role}
            for role in (Role.INPUT, Role.PARAM, Role.STATE)
        }
        program = Program(
            calls,
            prepare,
            by_role[Role.INPUT],
            by_role[Role.PARAM],
            by_role[Role.STATE],
            {name: self.placement.outputs[name] for name in self.graph.outputs},
            next_states,
            build.variables,
            frozenset(build.kept),
            build.live_sizes,
        )
        return program, self.refused

    def run(self) -> dict[str, LoweredBuffer]:
        """Append the calls of the graph; by state name, the buffer of its next value."""
        build = self.build
        regions = self._fuse()
        self._place(regions)
        for group in self._groups(regions):
            if group[0].members[0] not in build.inlined:
                self._lower_group(group)
        self._finish_outputs()
        return self._finish_states()

    def _lower_nested(
        self,
        graph: BaseGraph,
        stored: Mapping[Value, LoweredBuffer],
        targets: Mapping[str, LoweredBuffer],
        variables: tuple[Symbol, ...],
    ) -> None:
        """Append the calls of a nested graph."""
        nested = _NestedIn(self.build, stored, targets)
        inner = _Lowering(graph, self.table, self.options, variables, nested=nested)
        for value, buffer in stored.items():
            is_part = buffer.layout is not None and buffer.layout.base != 0
            if is_part and not reads_parts_in_place(graph, value):
                inner.build.copy(value)
        inner.run()
        self.refused += inner.refused

    # -- fusion --------------------------------------------------------------------------------

    def _fuse(self) -> list[Region]:
        """Regions; notes the nodes that other regions' kernels compute."""
        build, results, fusion = self.build, self.graph.results(), self.options.fusion
        takes, on_host = None, self.table.on_host
        if self.table.by_library is not None:
            fusion, takes = replace(fusion, products=False), self._takes_epilogue
        epilogues = self.table.epilogues
        regions, refused = form_regions(build.nodes, fusion, takes, on_host, epilogues)
        self.refused += refused
        build.fixed = {node for region in regions if region.fixed for node in region.members}
        if fusion.elementwise:
            build.inlined = inline_regions(
                regions, build.nodes, results, fusion.max_members, on_host
            )
        self._check_supported(regions)
        return regions

    def _takes_epilogue(self, region: Region, reader: Node) -> bool:
        """Whether the kernel of a region, by a library or not, takes a reader as well."""
        by_library, able = self.table.by_library, self.table.library_epilogue
        if by_library is None or not any(map(by_library, region.roots)):
            return True
        alone = region.members == list(region.roots) and len(region.roots) == 1
        return alone and able is not None and able(region.roots[0], reader)

    def _check_supported(self, regions: Iterable[Region]) -> None:
        roots = (r.root for r in regions if not isinstance(r.root and r.root.op, ControlFlow))
        missing = [n for n in roots if n is not None and self.table.find(n.op.name) is None]
        if missing:
            listed = "\n".join(f"  {node} {node.source}".rstrip() for node in missing)
            raise UnsupportedOpError(
                f"{self.table.device} has no kernel for these nodes:\n{listed}"
            )

    def _groups(self, regions: Sequence[Region]) -> list[list[Region]]:
        """The regions that share a kernel."""
        if self.options.fusion.products:
            return fused_horizontally(regions, self.table.by_library)
        return [[region] for region in regions]

    # -- memory --------------------------------------------------------------------------------

    def _place(self, regions: Sequence[Region]) -> None:
        """Decide how values are laid out, and which are written within larger ones."""
        build, placement, results = self.build, self.placement, self.graph.results()
        build.needed = values_between(regions, build.nodes, results)
        gains = self.table.layout_gains
        if self.options.channels_last and gains is not None:
            placement.layouts = choose_layouts(build.nodes, regions, results, gains)
        placement.subviews = Subviews(placement.layouts)
        if self.options.in_place:
            free = placement.free(build.needed)
            if build.nested:  # the state is the value that a loop carries
                stored = (regions, build.inlined, build.needed, free)
                found = overwritten_states(self.graph, build.nodes, *stored)
                placement.overwrite({n: build.stored[state] for n, state in found.items()})
                free = placement.free(build.needed)
            placement.subviews = find_subviews(
                build.nodes, regions, free, build.inlined, placement.layouts
            )

    # -- kernels -------------------------------------------------------------------------------

    def _lower_group(self, group: Sequence[Region]) -> None:
        build, root = self.build, group[0].root
        if root is not None and isinstance(root.op, ControlFlow):
            lower_control(build, root, self._lower_nested)
            return
        members = (node for region in group for node in region.members)
        for value in dict.fromkeys(v for node in members for v in node.inputs):
            build.materialise_views(value)
        first = group[0]
        if sum(len(region.roots) for region in group) > 1:
            assert self.table.multi_root is not None
            self.table.multi_root(build, group)
        elif first.root is None:
            lower_loops(build, first)
        else:
            rule = self.table.find(first.root.op.name)
            assert rule is not None
            rule(build, first, first.root)

    # -- results -------------------------------------------------------------------------------

    def _finish_outputs(self) -> None:
        """Outputs that no kernel writes directly: leaves, views, and values listed twice."""
        build, outputs = self.build, self.placement.outputs
        for name, value in self.graph.outputs.items():
            if name not in outputs:
                build.materialise_views(value)
                build.copy_into(value, self.placement.output(name, value, value))

    def _finish_states(self) -> dict[str, LoweredBuffer]:
        """Copy each new value over its state, after everything that reads the old one."""
        build, graph = self.build, self.graph
        buffers = {name: build.stored[state] for name, state in graph.states.items()}
        moved: list[tuple[Value, Mapping[Value, LoweredBuffer], LoweredBuffer]] = []
        for name, value in graph.assignments.items():
            done = self.placement.updated_state(value.node) is buffers[name]
            if done or value is graph.states[name]:
                continue
            if reads_state(value):  # which may hold its own new value by then
                aside = LoweredBuffer(value.type, Role.TEMP, f"{name}.new", value)
                build.copy_into(value, aside)
                moved.append((value, {value: aside}, buffers[name]))
            else:
                moved.append((value, build.stored, buffers[name]))
        for value, stored, buffer in moved:
            build.copy_into(value, buffer, stored)
        return {name: buffers[name] for name in graph.assignments}


class _NestedIn(NamedTuple):
    """The surroundings of a nested graph.

    Attributes:
        build: the program of the graph around.
        stored: the buffers of the nested graph's leaves.
        targets: the buffers of its outputs, by name.
    """

    build: ProgramBuilder
    stored: Mapping[Value, LoweredBuffer]
    targets: Mapping[str, LoweredBuffer]


def _stored_leaves(
    graph: BaseGraph, nodes: Iterable[Node], given: Mapping[Value, LoweredBuffer]
) -> dict[Value, LoweredBuffer]:
    """The buffers of inputs, params, states and constants of more than one element.

    Args:
        given: buffers that leaves have already.
    """
    stored = dict(given)
    for role, leaves in (
        (Role.INPUT, graph.inputs),
        (Role.PARAM, graph.params),
        (Role.STATE, graph.states),
    ):
        for name, value in leaves.items():
            stored.setdefault(value, LoweredBuffer(value.type, role, name, value))
    for node in nodes:
        if node.op.name == "constant" and node.attrs["array"].size != 1:
            (value,) = node.outputs
            data = node.attrs["array"]
            buffer = LoweredBuffer(value.type, Role.CONSTANT, node.label, value, data)
            stored.setdefault(value, buffer)
    return stored
