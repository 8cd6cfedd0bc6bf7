"""The buffer that each computed value is written to: an output, a state, or memory of a run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import is_transparent
from ostinato.lower.loopir.builder import is_pointwise
from ostinato.lower.memory.layouts import Layouts
from ostinato.lower.memory.subviews import Subviews
from ostinato.lower.program import LoweredBuffer, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["Placement"]


class Placement:
    """Memory for the values of a graph.

    Args:
        graph: its outputs are written by kernels directly where that is possible.
        nodes: all that is computed, in order.
        stored: the buffers of the graph's leaves.
        targets: the buffers of outputs; ``None``: outputs get buffers of their own.

    Attributes:
        outputs: the buffers of outputs that kernels write directly.
        layouts: the order in which buffers have their axes.
        subviews: the values that are stored within larger ones.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        stored: Mapping[Value, LoweredBuffer],
        targets: Mapping[str, LoweredBuffer] | None = None,
    ) -> None:
        self._targets = targets
        self.outputs: dict[str, LoweredBuffer] = {}
        self.layouts = Layouts()
        self.subviews = Subviews(self.layouts)
        self._claimed = _claimed_outputs(graph, targets or {})
        self._in_place = _in_place_updates(graph, nodes, stored, self._claimed)

    def overwrite(self, buffers: Mapping[Node, LoweredBuffer]) -> None:
        """Write the results of these nodes over the states that these buffers are of."""
        self._in_place.update(buffers)

    def free(self, values: Iterable[Value]) -> set[Value]:
        """Those of ``values`` that are stored in memory of a run, wherever that is."""
        updated = {node.outputs[0] for node in self._in_place}
        return {v for v in values if v not in self._claimed and v not in updated}

    def target(self, value: Value) -> LoweredBuffer:
        """The buffer that ``value`` is to be written to."""
        if value.node in self._in_place and value.index == 0:
            return self._in_place[value.node]
        if value not in self._claimed:
            return self.subviews.buffer(value)
        name, output = self._claimed[value]
        return self.output(name, output, value)

    def output(self, name: str, output: Value, value: Value) -> LoweredBuffer:
        """The buffer of an output, which ``value``, the output but for its shape, is written to."""
        if self._targets is None:
            self.outputs[name] = LoweredBuffer(output.type, Role.OUTPUT, name, value)
        else:
            self.outputs[name] = self._targets[name]
        return self.outputs[name]

    def updated_state(self, node: Node) -> LoweredBuffer | None:
        """The state whose memory ``node`` updates in place; ``None``: it updates a copy."""
        return self._in_place.get(node)


def _claimed_outputs(
    graph: BaseGraph, targets: Mapping[str, LoweredBuffer]
) -> dict[Value, tuple[str, Value]]:
    """Computed values that are written straight into the output that they become.

    A reshape in between does not matter: the elements are in the same order. A part of a larger
    tensor is written by kernels alone that can write any part.
    """
    claimed: dict[Value, tuple[str, Value]] = {}
    for name, output in graph.outputs.items():
        value = output
        while value.node.op.name == "reshape":
            (value,) = value.node.inputs
        if name in targets and targets[name].layout is not None:
            able = value is output and _writes_parts(value.node)
        else:
            able = not is_transparent(value.node)
        if able and value not in claimed:
            claimed[value] = (name, output)
    return claimed


def _writes_parts(node: Node) -> bool:
    return is_pointwise(node) or node.op.reduces or node.op.writes_subviews


def _in_place_updates(
    graph: BaseGraph,
    nodes: Sequence[Node],
    stored: Mapping[Value, LoweredBuffer],
    claimed: Mapping[Value, tuple[str, Value]],
) -> dict[Node, LoweredBuffer]:
    """Updates of a state that nothing else reads, which are made in the state's own memory.

    There are none in a graph that binds sizes: a run that refuses one leaves states as they were.
    """
    found: dict[Node, LoweredBuffer] = {}
    if graph.has_data_sizes:
        return found
    readers = Counter(value for node in nodes for value in node.inputs)
    readers.update(graph.outputs.values())
    readers.update(graph.assignments.values())
    for name, value in graph.assignments.items():
        state = graph.states[name]
        chain = _update_chain(value, state)
        links = [node.inputs[0] for node in chain]
        if all(readers[link] == 1 for link in links) and value not in claimed:
            found.update(dict.fromkeys(chain, stored[state]))
    return found


def _update_chain(value: Value, state: Value) -> list[Node]:
    """The updates that make ``value`` of ``state``, each of the one before; empty if others do."""
    chain: list[Node] = []
    while value is not state:
        if not value.node.op.updates_operand or value.index != 0:
            return []
        chain.append(value.node)
        value = value.node.inputs[0]
    return chain
