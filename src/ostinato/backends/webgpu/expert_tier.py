"""Experts of which some are resident: the others stay in their file until a run calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.expert_tier import SlotTier
from ostinato.backends.common.extents import expert_numbers
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.resident_experts import ResidentLayer, ResidentMatrix
    from ostinato.backends.webgpu.memory import DeviceBlock
    from ostinato.ir.stored import ExpertTensor
    from ostinato.lower.program import LoweredBuffer

__all__ = ["ExpertTier"]

Array = np.ndarray[Any, Any]


class ExpertTier(SlotTier["DeviceBlock"]):
    """See :class:`~ostinato.backends.common.expert_tier.SlotTier`.

    Args:
        layers, locations, memory: see there.
        tensors: by param, its matrices in a file.
    """

    def __init__(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: DeviceBlock,
        tensors: Mapping[str, ExpertTensor],
    ) -> None:
        super().__init__(layers, locations, memory)
        self._tensors = tensors
        self._staged = 0

    def _octets(self, matrix: ResidentMatrix, expert: int) -> memoryview:
        return bytes_of(np.ascontiguousarray(self._tensors[matrix.param].matrix(expert)))

    def _staged_bytes(self) -> int:
        return self._staged

    def stage(self, number: int, ids: Array) -> Array:
        """Bring the experts that a run of a layer misses.

        They take the places behind all slots, and slots that an expert was to have and could not
        be read for.

        Args:
            number: of the layer.
            ids: of the experts, by row.

        Returns:
            By row, the place of the expert.

        Raises:
            ModelFormatError: an expert could not be read.
        """
        layer, table = self.layers[number], self.tables[number]
        numbers = expert_numbers(ids, layer.experts)
        called = np.unique(numbers)
        missing = called[table[called] < 0]
        if len(missing):
            table, shared = table.copy(), layer.places
            slots = np.arange(layer.first, layer.first + layer.slots)
            room = np.arange(shared.slots, shared.slots + shared.staged)
            room = np.concatenate([room, np.setdiff1d(slots, table)])
            for expert, place in zip(missing.tolist(), room.tolist(), strict=False):
                self._fill(layer, expert, place)
                table[expert] = place
                self._staged += layer.expert_bytes
        found: Array = table[numbers]
        return found
