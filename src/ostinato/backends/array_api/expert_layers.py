"""The layers of a graph that choose among experts, and the experts that its last run has called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ostinato.backends.common.experts import ExpertLayer
from ostinato.backends.common.extents import Extents, expert_numbers, tokens_in_use
from ostinato.lower.lowering import live_nodes
from ostinato.ops.moe import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ostinato.backends.array_api.framework import Framework
    from ostinato.ir.graph import BaseGraph, Value

__all__ = ["CalledExperts", "ExpertCalls", "called_experts"]


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


class ExpertCalls:
    """The ids of experts that the last run of a program has called, to be taken once.

    Args:
        framework: has the arrays.
        layers: of the program.

    Attributes:
        layers: see above.
        extents: the rows in use.
    """

    def __init__(self, framework: Framework, layers: Sequence[CalledExperts]) -> None:
        self._framework = framework
        self.layers = tuple(layers)
        self.extents = Extents()
        self._latest: tuple[Sequence[Any], tuple[int, int] | None] | None = None

    @property
    def values(self) -> list[Value]:
        """The ids of each layer."""
        return [layer.ids for layer in self.layers]

    @property
    def descriptions(self) -> tuple[ExpertLayer, ...]:
        """See :attr:`Executable.expert_layers`."""
        return tuple([ExpertLayer(layer.label, layer.experts) for layer in self.layers])

    def note(self, arrays: Sequence[Any]) -> None:
        """Note a run with these ids, which nothing writes from now on."""
        self._latest = arrays, self.extents.current

    def clear(self) -> None:
        """Forget the last run."""
        self._latest = None

    def take(self) -> list[np.ndarray[Any, Any]] | None:
        """See :meth:`Executable.take_expert_ids`."""
        latest, self._latest = self._latest, None
        if latest is None:
            return None
        found, (arrays, extent) = [], latest
        with self._framework.scope():
            for layer, array in zip(self.layers, arrays, strict=True):
                ids = expert_numbers(self._framework.to_host(array), layer.experts)
                found.append(ids[: tokens_in_use(len(ids), layer.padded, extent)])
        return found
