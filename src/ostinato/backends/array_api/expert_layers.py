"""The layers of a graph that choose among experts, and the experts that its last run has called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
from ostinato.backends.common.extents import Extents, expert_numbers, tokens_in_use
from ostinato.lower.lowering import live_nodes
from ostinato.ops.moe import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ostinato.backends.array_api.expert_tier import ExpertTier
    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.ir.graph import BaseGraph, Node, Value

    Array: TypeAlias = np.ndarray[Any, Any]

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
    """The layers of a program: the experts that its last run has called, and the resident ones.

    Args:
        framework: has the arrays.
        layers: of the program.
        resident: its nodes whose experts are not all on the device.
        tier: their residents; ``None``: there are no such nodes.

    Attributes:
        layers: see above.
        extents: the rows in use.
    """

    def __init__(
        self,
        framework: Framework,
        layers: Sequence[CalledExperts],
        resident: Mapping[Node, ResidentLayer],
        tier: ExpertTier | None,
    ) -> None:
        self._framework = framework
        self._tier = tier
        self._resident = [
            [found for found in resident.values() if found.ids is layer.ids] for layer in layers
        ]
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
        return tuple(
            ExpertLayer(layer.label, layer.experts, min((n.slots for n in nodes), default=None))
            for layer, nodes in zip(self.layers, self._resident, strict=True)
        )

    # -- residency ---------------------------------------------------------------------------------

    def place(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        """See :meth:`Executable.place_experts`."""
        if self._tier is None:
            return masks
        wanted = self._tier.first_experts()
        for nodes, mask in zip(self._resident, masks, strict=True):
            for node in nodes:
                if mask is not None and node.slots < node.experts:
                    wanted[node] = mask
        self._tier.place(wanted)
        return [
            wanted[nodes[0]] if nodes and mask is None else mask
            for nodes, mask in zip(self._resident, masks, strict=True)
        ]

    def resident(self) -> Sequence[Array | None]:
        """See :meth:`Executable.resident_experts`."""
        return [
            self._tier.resident(nodes[0]) if self._tier is not None and nodes else None
            for nodes in self._resident
        ]

    def transfers(self) -> ExpertTransfers:
        """See :meth:`Executable.expert_transfers`."""
        return ExpertTransfers() if self._tier is None else self._tier.transfers()

    # -- what was called ---------------------------------------------------------------------------

    def note(self, arrays: Sequence[Any]) -> None:
        """Note a run with these ids, which nothing writes from now on."""
        self._latest = arrays, self.extents.current

    def clear(self) -> None:
        """Forget the last run."""
        self._latest = None

    def take(self) -> list[Array] | None:
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
