"""A program under construction: the values that are in memory, and the calls that compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.builder import KernelBuilder
from ostinato.lower.loopir.views import MAX_NON_AFFINE, VIEWS, is_non_affine
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules.updates import copy_nest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import Outputs
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.memory.placement import Placement
    from ostinato.lower.program import Layout
    from ostinato.variables import Dim, Symbol

__all__ = ["ProgramBuilder"]


class ProgramBuilder:
    """Calls in the order in which they run, and the buffers that they use.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on, in order.
        variables: what kernels take the values of.
        stored: the buffers of the graph's leaves.
        placement: where computed values are written.
        facts: the conditions of the graph on values of its Variables.
        outer: the program of the graph around, whose calls these are among.

    Attributes:
        calls: so far.
        stored: the buffer of each value that is in memory.
        inlined: nodes that every kernel computes on the spot.
        needed: the computed values that are read outside of their region.
        counted: nodes whose operations are those of calls that count themselves.
        kept: buffers that each run writes, and that keep their contents until the next.
        live_sizes: those of them that hold data-dependent sizes, by Variable.
        assigned: buffers that are written in several places, of which a run decides.
        fixed: the nodes that depend on params and constants alone.
        nested: whether the graph is nested in another.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        variables: tuple[Symbol, ...],
        stored: dict[Value, LoweredBuffer],
        placement: Placement,
        facts: Sequence[Fact] = (),
        outer: ProgramBuilder | None = None,
    ) -> None:
        self.graph = graph
        self.nodes = nodes
        self.variables = variables
        self.stored = stored
        self.placement = placement
        self.calls: list[Call] = [] if outer is None else outer.calls
        self.inlined: set[Node] = set()
        self.needed: set[Value] = set()
        self.counted: set[Node] = set()
        self.kept: set[LoweredBuffer] = set() if outer is None else outer.kept
        self.assigned: set[LoweredBuffer] = set() if outer is None else outer.assigned
        self.fixed: set[Node] = set()
        self.nested = outer is not None
        self.live_sizes: dict[str, LoweredBuffer] = {}
        self._facts = [fact for fact in facts if fact.names & _data_names(variables)]
        self._position = {node: i for i, node in enumerate(nodes)}

    def builder(
        self, region: Region, instead: Mapping[Value, LoweredBuffer] | None = None
    ) -> KernelBuilder:
        """A builder for a kernel that computes the members of ``region``.

        Args:
            instead: where it finds values that are elsewhere for others.
        """
        stored = {**self.stored, **instead} if instead else self.stored
        return KernelBuilder(stored, _Members(set(region.members), self.inlined))

    def helper_builder(self, instead: Mapping[Value, LoweredBuffer] | None = None) -> KernelBuilder:
        """A builder for a kernel that prepares something for a region's.

        Args:
            instead: see :meth:`builder`.
        """
        stored = {**self.stored, **instead} if instead else self.stored
        return KernelBuilder(stored, self.inlined)

    # -- memory --------------------------------------------------------------------------------

    def region_outputs(self, region: Region) -> Outputs:
        """The values that the region stores, with their buffers."""
        values = [v for n in region.members for v in n.outputs if v in self.needed]
        return [(value, self.placement.target(value)) for value in values]

    def store(self, node: Node) -> LoweredBuffer:
        """The buffer of a node's only result, which is in memory from here on."""
        (value,) = node.outputs
        self.stored[value] = buffer = self.placement.target(value)
        return buffer

    def layout(self, value: Value) -> Layout | None:
        """The layout of ``value`` in memory; ``None``: C order, or not in memory."""
        return self.stored[value].layout if value in self.stored else None

    def only_transpose(self, value: Value) -> Value:
        """The transpose of ``value`` that is all that anything reads of it, else ``value``.

        Stored in its place, it is in the order in which the next kernel goes over it.
        """
        readers = {node for node in self.nodes if value in node.inputs}
        if len(readers) == 1 and value not in self.graph.results():
            (reader,) = readers
            if reader.op.name == "permute_dims":
                return reader.outputs[0]
        return value

    # -- sizes ---------------------------------------------------------------------------------

    def decided_facts(self) -> list[Fact]:
        """The conditions on data-dependent sizes all of which are bound now; each once."""
        open_names = _data_names(self.variables) - self.live_sizes.keys()
        decided = [fact for fact in self._facts if not fact.names & open_names]
        self._facts = [fact for fact in self._facts if fact.names & open_names]
        return decided

    # -- calls ---------------------------------------------------------------------------------

    def call(
        self,
        region: Region,
        build: KernelBuilder,
        kernel: Kernel,
        outputs: Outputs,
        by: str = "",
    ) -> None:
        """Append the kernel of a region, whose ``outputs`` are in memory from here on.

        Args:
            by: the library that computes it, if one does.
        """
        self.stored.update(outputs)
        nodes = sorted({*region.members, *build.computed}, key=self._position.__getitem__)
        title = "+".join(dict.fromkeys(n.op.name for n in nodes)) + (by and f" by {by}")
        flops: Dim = 0
        for node in (n for n in nodes if n not in self.counted):
            flops = flops + node.op.flops([v.type for v in node.inputs], node.attrs)
        labels = tuple(dict.fromkeys(n.label for n in nodes))
        self.calls.append(Call(kernel, tuple(build.buffers), labels, title, flops))

    def helper_call(
        self, node: Node, title: str, build: KernelBuilder, kernel: Kernel, flops: Dim = 0
    ) -> None:
        """Append a kernel on the way to what ``node`` computes."""
        labels = tuple(dict.fromkeys(n.label for n in (node, *build.computed)))
        self.calls.append(Call(kernel, tuple(build.buffers), labels, title, flops))

    # -- copies --------------------------------------------------------------------------------

    def materialise_views(self, value: Value) -> None:
        """Store views along the way to ``value`` where too many would be read through at once."""
        chain = []
        while value.node.op.name in VIEWS and value not in self.stored:
            chain.append(value)
            (value,) = value.node.inputs
        non_affine = 0
        for view in reversed(chain):
            non_affine += is_non_affine(view.node)
            if non_affine > MAX_NON_AFFINE:
                self.copy(view)
                non_affine = 0

    def copy(self, value: Value) -> None:
        """Bring ``value``, a view of something, into memory of its own."""
        buffer = LoweredBuffer(value.type, Role.TEMP, f"{value.node.label}.copy", value)
        self.copy_into(value, buffer)
        self.stored[value] = buffer

    def copy_into(
        self,
        value: Value,
        buffer: LoweredBuffer,
        stored: Mapping[Value, LoweredBuffer] | None = None,
    ) -> None:
        """Copy ``value`` into ``buffer``.

        Args:
            stored: where it is read from, if not from where it is for others.
        """
        build = KernelBuilder(self.stored if stored is None else stored, self.inlined)
        kernel = copy_nest(build, value, buffer, self.variables)
        self.helper_call(value.node, "copy", build, kernel)


def _data_names(variables: Sequence[Symbol]) -> set[str]:
    return {variable.name for variable in variables if variable.bound is not None}


class _Members:
    """The nodes that a region's kernel computes: its own, and the inlined ones."""

    def __init__(self, own: set[Node], inlined: set[Node]) -> None:
        self._own, self._inlined = own, inlined

    def __contains__(self, node: object) -> bool:
        return node in self._own or node in self._inlined
