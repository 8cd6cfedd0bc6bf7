"""Experts of which some are resident, each in a slot of the device's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from ostinato.backends.common.experts import ExpertTransfers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.resident_experts import ResidentLayer, ResidentMatrix
    from ostinato.lower.program import LoweredBuffer

__all__ = ["SlotTier"]

Array = np.ndarray[Any, Any]


class WritableMemory(Protocol):
    """Memory of a device."""

    def write(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of the host into it."""


M = TypeVar("M", bound=WritableMemory)


class SlotTier(ABC, Generic[M]):
    """The residents of a program's layers; none at first.

    Args:
        layers: the layers.
        locations: by buffer, its slot and its offset there; theirs are all in one fixed slot.
        memory: that of the slot.

    Attributes:
        layers: see above.
        tables: by layer, for each expert its slot or -1.
    """

    def __init__(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: M,
    ) -> None:
        self.layers = tuple(layers)
        self._locations = locations
        self._memory = memory
        self._promotions = self._demotions = self._moved = 0
        self.tables = [np.full(layer.experts, -1, np.int64) for layer in layers]
        self._masks = [np.zeros(layer.experts, bool) for layer in layers]

    # -- what a device hands in --------------------------------------------------------------------

    @abstractmethod
    def _octets(self, matrix: ResidentMatrix, expert: int) -> memoryview:
        """The bytes of an expert's matrix, in the order in which kernels read them."""

    @abstractmethod
    def _staged_bytes(self) -> int:
        """The bytes of experts that runs have staged so far."""

    def _publish(self, tables: Sequence[Array]) -> None:
        """Have runs go by these tables."""
        self.tables = [*tables]

    # -- residency ---------------------------------------------------------------------------------

    def place(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make these experts of each layer resident; those that are in a slot keep it.

        A slot keeps its expert until another one takes it: so all slots are full, and a run never
        misses more experts than there are places to stage them.

        Args:
            masks: a bool for each expert; at most as many are true as there are slots.

        Raises:
            ModelFormatError: an expert could not be read. Those to be promoted are not resident.
        """
        changes = [
            _exchange(layer, table, masks[layer])
            for layer, table in zip(self.layers, self.tables, strict=True)
        ]
        wanted = [masks[layer] for layer in self.layers]
        staying = [mask & former for mask, former in zip(wanted, self._masks, strict=True)]
        self._demotions += _count(self._masks) - _count(staying)
        self._masks = staying
        # Evictions are published before their slots are overwritten, new residents after their
        # slots are filled.
        self._publish([kept for kept, _ in changes])
        for layer, (kept, table) in zip(self.layers, changes, strict=True):
            for expert in np.flatnonzero((table >= 0) & (kept < 0)).tolist():
                self._fill(layer, expert, int(table[expert]))
                self._moved += layer.expert_bytes
        self._publish([table for _, table in changes])
        self._promotions += _count(wanted) - _count(staying)
        self._masks = wanted

    def _fill(self, layer: ResidentLayer, expert: int, place: int) -> None:
        """Copy the matrices of an expert to a place."""
        for matrix in layer.matrices:
            start = self._locations[matrix.places][1]
            self._memory.write(start + place * matrix.nbytes, self._octets(matrix, expert))

    def begin(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make the initial experts resident, without counting transfers."""
        self.place({layer: np.arange(layer.experts) < layer.slots for layer in self.layers})
        self.place(masks)
        self._promotions = self._demotions = self._moved = 0

    def resident(self, layer: ResidentLayer) -> Array:
        """The mask of a layer's residents."""
        return self._masks[self.layers.index(layer)]

    def transfers(self) -> ExpertTransfers:
        """The transfers so far."""
        staged = self._staged_bytes()
        return ExpertTransfers(self._promotions, self._demotions, self._moved, staged)


def _count(masks: Sequence[Array]) -> int:
    """The number of experts in some masks."""
    return sum(int(np.count_nonzero(mask)) for mask in masks)


def _exchange(layer: ResidentLayer, table: Array, mask: Array) -> tuple[Array, Array]:
    """The table without the experts that leave, and with those that take their slots.

    Args:
        layer: the layer.
        table: by expert, its slot or -1.
        mask: the experts that are to have slots.
    """
    new = np.flatnonzero(mask & (table < 0))
    free = np.setdiff1d(np.arange(layer.first, layer.first + layer.slots), table)
    leaving = np.flatnonzero((table >= 0) & ~mask)[: max(0, len(new) - len(free))]
    slots = np.concatenate([free, table[leaving]])[: len(new)]
    kept = table.copy()
    kept[leaving] = -1
    after = kept.copy()
    after[new] = slots
    return kept, after
