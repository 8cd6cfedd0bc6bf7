"""The layers of experts of one executable: what runs selected, and which experts are resident."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.program_image import RoutingLocation
    from ostinato.backends.common.routing_log import RoutingLog
    from ostinato.backends.cpu import _core
    from ostinato.backends.cpu.compilation import Compilation
    from ostinato.backends.cpu.expert_tier import ExpertTier
    from ostinato.backends.cpu.rules.offload import StoredExperts
    from ostinato.ir.stored import ExpertTensor

__all__ = ["ExpertLayers"]

Array = np.ndarray[Any, Any]


class ExpertLayers:
    """The layers of a program that select experts.

    Args:
        routings: where their lists of rows by expert are in the arena.
        arena: the arena.
        native: makes a program of steps on slots that excludes runs while it runs.

    Attributes:
        tier: the experts that are in a file; ``None`` if all are in memory.
    """

    def __init__(
        self,
        routings: Sequence[RoutingLocation],
        arena: _core.Arena,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        self._routings = routings
        self._native = native
        self._log = _log(routings, arena, native) if routings else None
        self._stored: Sequence[StoredExperts | None] = [None] * len(routings)
        self.tier: ExpertTier | None = None

    def open_tier(
        self, compilation: Compilation, tensors: Mapping[str, ExpertTensor], memory: _core.Arena
    ) -> None:
        """Take experts from a file.

        Args:
            compilation: of the program.
            tensors: by param, its matrices in the file.
            memory: of the slot of resident experts.
        """
        from ostinato.backends.cpu.expert_tier import ExpertTier

        self._stored = compilation.stored_by_layer
        if layers := self._in_file():
            places, code = compilation.lowered.layout.locations, compilation.code
            self.tier = ExpertTier(layers, tensors, places, memory, code, self._native)

    def begin(self, other: ExpertLayers | None = None) -> None:
        """Make the residents of another executable resident; by default, the first experts."""
        if self.tier is not None:
            theirs = None if other is None else other.tier
            self.tier.begin(self._first_experts() if theirs is None else theirs.resident())

    def descriptions(self) -> tuple[ExpertLayer, ...]:
        """See :attr:`Executable.expert_layers`."""
        return tuple(
            ExpertLayer(routing.node, routing.experts, stored.slots if stored else None)
            for routing, stored in self._layers()
        )

    def _layers(self) -> list[tuple[RoutingLocation, StoredExperts | None]]:
        """The layers that select experts, with their experts in a file, if they are there."""
        return [*zip(self._routings, self._stored, strict=True)]

    def _in_file(self) -> list[StoredExperts]:
        """The layers whose experts are in the file."""
        return [stored for stored in self._stored if stored is not None]

    def _first_experts(self) -> list[Array]:
        """For each layer in the file, the mask of its default residents."""
        return [
            np.arange(experts.routing.layout.experts) < experts.slots for experts in self._in_file()
        ]

    # -- residency ---------------------------------------------------------------------------------

    def place(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        """See :meth:`Executable.place_experts`."""
        if self.tier is None:
            return masks
        wanted = dict(zip(self._in_file(), self._first_experts(), strict=True))
        for (_, experts), mask in zip(self._layers(), masks, strict=True):
            # If all fit, evicting one gains nothing.
            if experts is not None and mask is not None and not wanted[experts].all():
                wanted[experts] = mask
        self.tier.place([*wanted.values()])
        return [
            wanted[experts] if mask is None and experts is not None else mask
            for (_, experts), mask in zip(self._layers(), masks, strict=True)
        ]

    def resident(self) -> Sequence[Array | None]:
        """See :meth:`Executable.resident_experts`."""
        resident = [] if self.tier is None else self.tier.resident()
        by_layer = dict(zip(self._in_file(), resident, strict=True))
        return [None if experts is None else by_layer[experts] for _, experts in self._layers()]

    def transfers(self) -> ExpertTransfers:
        """See :meth:`Executable.expert_transfers`."""
        return ExpertTransfers() if self.tier is None else self.tier.transfers()

    # -- selection ---------------------------------------------------------------------------------

    def take_ids(self) -> list[Array] | None:
        """See :meth:`Executable.take_expert_ids`."""
        return None if self._log is None else self._log.take()

    def clear(self) -> None:
        """Clear the lists; to be called when the arena is discarded."""
        if self._log is not None:
            self._log.clear()

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, reading and placing raise ``error``."""
        if self._log is not None:
            self._log.close(error)
        if self.tier is not None:
            self.tier.close(error)


def _log(
    routings: Sequence[RoutingLocation],
    arena: _core.Arena,
    native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
) -> RoutingLog:
    # Imported here, since most graphs have no experts.
    from ostinato.backends.common.routing_log import RoutingLog
    from ostinato.backends.cpu.routing_lists import ArenaLists

    return RoutingLog(routings, ArenaLists(routings, arena, native))
