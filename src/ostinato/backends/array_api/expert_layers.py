"""The layers of a graph that choose among experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.lower.lowering import live_nodes
from ostinato.ops.moe import NUMBERED

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Value

__all__ = ["CalledExperts", "called_experts"]


class CalledExperts(NamedTuple):
    """A layer of experts: nodes that share the ids of the experts.

    Attributes:
        label: of its first node.
        experts: how many there are.
        ids: those that a run calls, by token.
        padded: the numbers of rows of the inputs that the ids come from.
    """

    label: str
    experts: int
    ids: Value
    padded: frozenset[int]


def called_experts(graph: BaseGraph) -> list[CalledExperts]:
    """The layers of a graph, in order; networks that every token goes through are none."""
    found: dict[tuple[Value, int], CalledExperts] = {}
    for node in live_nodes(graph):
        if node.op.name not in NUMBERED:
            continue
        ids, matrices = (node.inputs[position] for position in NUMBERED[node.op.name])
        experts = matrices.shape[0]
        if isinstance(experts, int) and experts > 1 and (ids, experts) not in found:
            padded = _rows_behind(graph, ids)
            found[ids, experts] = CalledExperts(node.label, experts, ids, padded)
    return [*found.values()]


def _rows_behind(graph: BaseGraph, value: Value) -> frozenset[int]:
    """The numbers of rows of the inputs that a value derives from in any way."""
    inputs, seen, waiting = {*graph.inputs.values()}, {value}, [value]
    while waiting:
        before = [v for n in graph.needed_by(waiting.pop().node) for v in n.outputs]
        waiting += [each for each in before if each not in seen]
        seen.update(before)
    leading = [each.shape[0] for each in seen & inputs if each.shape]
    return frozenset(size for size in leading if isinstance(size, int))
