"""The layers of experts of one executable: what runs called, and which experts are resident."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
from ostinato.backends.common.extents import Extents, expert_numbers, tokens_in_use
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_image import RoutingLocation
    from ostinato.backends.common.resident_experts import ResidentLayer

__all__ = ["ExpertLayers", "NotedProgram", "ResidentTier"]

Array = np.ndarray[Any, Any]


class NotedProgram(Protocol):
    """A program whose runs are noted.

    Attributes:
        on_run: called after each run, with the values of its Variables.
    """

    on_run: Callable[[Sequence[int]], None] | None

    @property
    def sizes(self) -> LiveSizes:
        """The Variables, and the sizes of inputs and outputs."""


class ResidentTier(Protocol):
    """The resident experts of a program's layers, of which the others are in a file."""

    @property
    def layers(self) -> Sequence[ResidentLayer]:
        """The layers."""

    def begin(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make the initial experts resident, without counting transfers."""

    def place(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make these experts of each layer resident; at most as many as there are slots."""

    def resident(self, layer: ResidentLayer) -> Array:
        """The mask of a layer's residents."""

    def transfers(self) -> ExpertTransfers:
        """The transfers so far."""


class ReadableMemory(Protocol):
    """Memory of a device."""

    def read(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of it to the host."""


class ExpertLayers:
    """The layers of a program that choose among experts.

    Args:
        routings: where runs leave the ids of the experts that they called.
        program: the program.
        resident: of each layer, its nodes whose experts do not all stay on the device.
        tier: their residents; ``None``: all experts are on the device.

    Attributes:
        tier: see above.
        extents: the rows in use.
    """

    def __init__(
        self,
        routings: Sequence[RoutingLocation],
        program: NotedProgram,
        resident: Sequence[Sequence[ResidentLayer]] = (),
        tier: ResidentTier | None = None,
    ) -> None:
        self._routings = tuple(routings)
        self._program = program
        self._resident = [tuple(nodes) for nodes in resident] or [() for _ in self._routings]
        self._latest: tuple[list[int], tuple[int, int] | None] | None = None
        self.tier = tier
        self.extents = Extents()
        if self._routings:
            program.on_run = self._note

    def begin(self, other: ExpertLayers | None = None) -> None:
        """Make the residents of another executable resident; by default, the first experts."""
        if self.tier is None:
            return
        masks = self._first_experts()
        if other is not None and other.tier is not None:
            masks = {layer: other.tier.resident(layer) for layer in self.tier.layers}
        self.tier.begin(masks)

    def _first_experts(self) -> dict[ResidentLayer, Array]:
        """The masks of default residents."""
        layers = () if self.tier is None else self.tier.layers
        return {layer: np.arange(layer.experts) < layer.slots for layer in layers}

    def descriptions(self) -> tuple[ExpertLayer, ...]:
        """See :attr:`Executable.expert_layers`."""
        return tuple(
            ExpertLayer(routing.node, routing.experts, min((n.slots for n in nodes), default=None))
            for routing, nodes in zip(self._routings, self._resident, strict=True)
        )

    # -- residency ---------------------------------------------------------------------------------

    def place(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        """See :meth:`Executable.place_experts`."""
        if self.tier is None:
            return masks
        wanted = self._first_experts()
        for nodes, mask in zip(self._resident, masks, strict=True):
            for node in nodes:
                if mask is not None and node.slots < node.experts:
                    wanted[node] = mask
        self.tier.place(wanted)
        return [
            wanted[nodes[0]] if nodes and mask is None else mask
            for nodes, mask in zip(self._resident, masks, strict=True)
        ]

    def resident(self) -> Sequence[Array | None]:
        """See :meth:`Executable.resident_experts`."""
        return [
            self.tier.resident(nodes[0]) if self.tier is not None and nodes else None
            for nodes in self._resident
        ]

    def transfers(self) -> ExpertTransfers:
        """See :meth:`Executable.expert_transfers`."""
        return ExpertTransfers() if self.tier is None else self.tier.transfers()

    # -- what was called ---------------------------------------------------------------------------

    def _note(self, variables: Sequence[int]) -> None:
        """Note a run with these values of the Variables."""
        self._latest = [*variables], self.extents.current

    def clear(self) -> None:
        """Forget the last run; to be called when the arena is discarded."""
        self._latest = None

    def take_ids(
        self, arena: ReadableMemory, values: Callable[[], Mapping[str, int]]
    ) -> list[Array] | None:
        """See :meth:`Executable.take_expert_ids`.

        Args:
            arena: where runs leave the ids.
            values: returns those that the last run gave data-dependent Variables.
        """
        latest, self._latest = self._latest, None
        if latest is None:
            return None
        variables, extent = latest
        found = []
        for routing in self._routings:
            count = routing.nbytes // 8
            if routing.rows:
                count = self._program.sizes.number(routing.rows, variables, values())
            ids = np.empty(count, np.int64)
            arena.read(routing.offset, bytes_of(ids))
            by_token = expert_numbers(ids, routing.experts).reshape(-1, *routing.per_token)
            found.append(by_token[: tokens_in_use(len(by_token), routing.padded, extent)])
        return found
