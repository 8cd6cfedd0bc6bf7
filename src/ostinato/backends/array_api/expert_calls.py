"""The experts that the last run of a program has called, and those that are on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
from ostinato.backends.common.extents import Extents, expert_numbers, tokens_in_use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ostinato.backends.array_api.expert_layers import CalledExperts
    from ostinato.backends.array_api.expert_tier import ExpertTier
    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.ir.graph import Node, Value

    Array: TypeAlias = np.ndarray[Any, Any]

__all__ = ["ExpertCalls"]


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
