"""States whose next value is written over the old one as it is computed, without a copy.

That cannot be seen where whatever else reads the old value has run by then, and the kernel itself
reads an element of it no later than it writes that element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import computed_behind, is_transparent
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region

__all__ = ["overwritten_states"]


def overwritten_states(
    graph: BaseGraph,
    nodes: Sequence[Node],
    regions: Sequence[Region],
    inlined: Collection[Node],
    stored: Collection[Value],
    free: Collection[Value],
) -> dict[Node, Value]:
    """By node, the state that its result is written over.

    Args:
        graph: has the states.
        nodes: those of its nodes that are computed, in order.
        regions: what runs together.
        inlined: nodes that the regions of their readers compute.
        stored: the values that regions store.
        free: those that they store in memory of their own choice.
    """
    region_of = {node: region for region in regions for node in region.members}
    found: dict[Node, Value] = {}
    for name, value in graph.assignments.items():
        state, node = graph.states[name], value.node
        region = region_of.get(node)
        if region is None or value not in free or node in found or node in inlined:
            continue
        if not _is_elementwise(region) or not _stores_alone(region, value, stored):
            continue
        if any(state in _leaves_behind(result) for result in graph.results()):
            continue
        readers = [n for n in nodes if not is_transparent(n) and _reads(n, state)]
        before = _producers(region, region_of)
        if all(
            _reads_in_place(n, state)
            if region_of[n] is region
            else n not in inlined and id(region_of[n]) in before
            for n in readers
        ):
            found[node] = state
    return found


def _is_elementwise(region: Region) -> bool:
    """Whether a kernel computes each element of the region from elements at its own position."""
    return region.root is None and region.inner is None


def _stores_alone(region: Region, value: Value, stored: Collection[Value]) -> bool:
    """Whether a region stores one value: no other store comes before a read of the state."""
    return [v for n in region.members for v in n.outputs if v in stored] == [value]


def _reads(node: Node, state: Value) -> bool:
    return any(state in _leaves_behind(value) for value in node.inputs)


def _reads_in_place(node: Node, state: Value) -> bool:
    """Whether a node reads the state at the very element that it computes."""
    reading = [operand for operand in node.inputs if state in _leaves_behind(operand)]
    same = node.outputs[0].shape == state.shape and isinstance(node.op, Elementwise)
    return same and all(operand is state for operand in reading)


def _leaves_behind(value: Value) -> set[Value]:
    """The leaves that a value is, or is made of through views and indices."""
    found: set[Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if not current.node.inputs:
            found.add(current)
        elif is_transparent(current.node):
            stack.extend(current.node.inputs)
    return found


def _producers(region: Region, region_of: dict[Node, Region]) -> set[int]:
    """The identities of the regions that a region depends on, which therefore run before it."""
    seen: set[int] = set()
    stack = [region]
    while stack:
        for node in stack.pop().members:
            for value in computed_behind(node.inputs):
                producer = region_of[value.node]
                if producer is not region and id(producer) not in seen:
                    seen.add(id(producer))
                    stack.append(producer)
    return seen
