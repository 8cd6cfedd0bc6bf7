"""Experts of which some are resident: their matrices in the host's memory, and the others' slots.

The matrices of all experts are in page-locked memory, in the order in which kernels read them.
Runs stage those that they miss by themselves (:mod:`ostinato.backends.cuda.rules.expert_staging`);
here experts are made resident, between runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.experts import ExpertTransfers
from ostinato.backends.cuda.memory import HostBlock
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.resident_experts import ResidentLayer, ResidentMatrix
    from ostinato.backends.cuda.gpu import Gpu
    from ostinato.backends.cuda.memory import DeviceBlock
    from ostinato.ir.stored import ExpertTensor
    from ostinato.lower.program import LoweredBuffer

__all__ = ["ExpertTier", "HostExperts"]

Array = np.ndarray[Any, Any]


class HostExperts:
    """The matrices of all experts of some layers, in page-locked memory; clones share them.

    Args:
        gpu: reads them.
        layers: the layers.
        tensors: by param, its matrices in a file.

    Raises:
        ModelFormatError: they could not be read.
    """

    def __init__(
        self, gpu: Gpu, layers: Sequence[ResidentLayer], tensors: Mapping[str, ExpertTensor]
    ) -> None:
        self._blocks: dict[tuple[str, bool], HostBlock] = {}
        for layer in layers:
            for matrix in layer.matrices:
                key = matrix.param, matrix.columns
                if key not in self._blocks:
                    self._blocks[key] = _loaded(gpu, tensors[matrix.param], matrix.columns)

    def addresses(self, matrix: ResidentMatrix) -> Array:
        """By expert, the address of its matrix."""
        block, count = self._blocks[matrix.param, matrix.columns], matrix.experts
        return block.address + np.arange(count, dtype=np.int64) * (block.nbytes // count)

    def matrix(self, matrix: ResidentMatrix, expert: int) -> memoryview:
        """The bytes of an expert's matrix."""
        block = self._blocks[matrix.param, matrix.columns]
        nbytes = block.nbytes // matrix.experts
        return block.view[expert * nbytes : (expert + 1) * nbytes]


def _loaded(gpu: Gpu, tensor: ExpertTensor, columns: bool) -> HostBlock:
    """The matrices of a tensor, those of each expert by rows or by columns."""
    experts, rows, width = tensor.shape
    nbytes = rows * width * tensor.dtype.itemsize
    block = HostBlock(gpu, experts * nbytes)
    for expert in range(experts):
        matrix = tensor.matrix(expert)
        data = bytes_of(np.ascontiguousarray(matrix.T if columns else matrix))
        block.view[expert * nbytes : (expert + 1) * nbytes] = data
    return block


class ExpertTier:
    """The residents of a program's layers; none at first.

    Args:
        layers: the layers.
        locations: by buffer, its slot and its offset there; theirs are all in one fixed slot.
        memory: that of the slot.
        host: the matrices of all experts.

    Attributes:
        layers, host: see above.
    """

    def __init__(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: DeviceBlock,
        host: HostExperts,
    ) -> None:
        self.layers = tuple(layers)
        self.host = host
        self._memory = memory
        self._locations = locations
        self._promotions = self._demotions = self._moved = 0
        self._tables = [np.full(layer.experts, -1, np.int64) for layer in layers]
        self._masks = [np.zeros(layer.experts, bool) for layer in layers]
        for layer in layers:
            self._write(layer.table, np.zeros(1, np.int64), 8 * layer.experts)
            for matrix in layer.matrices:
                self._write(matrix.sources, host.addresses(matrix))
        self._publish(self._tables)

    def _write(self, buffer: LoweredBuffer, numbers: Array, offset: int = 0) -> None:
        self._memory.write(self._locations[buffer][1] + offset, bytes_of(numbers))

    def _publish(self, tables: Sequence[Array]) -> None:
        """Have runs go by these tables."""
        self._tables = [*tables]
        for layer, table in zip(self.layers, tables, strict=True):
            self._write(layer.table, table)

    def place(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make these experts of each layer resident; those that are in a slot keep it.

        A slot keeps its expert until another one takes it: so all slots are full, and a run never
        misses more experts than there are places to stage them.

        Args:
            masks: a bool for each expert; at most as many are true as there are slots.
        """
        changes = [
            _exchange(layer, table, masks[layer])
            for layer, table in zip(self.layers, self._tables, strict=True)
        ]
        for former, layer in zip(self._masks, self.layers, strict=True):
            self._promotions += int(np.count_nonzero(masks[layer] & ~former))
            self._demotions += int(np.count_nonzero(former & ~masks[layer]))
        self._masks = [masks[layer] for layer in self.layers]
        # Evictions are published before their slots are overwritten, new residents after their
        # slots are filled.
        self._publish([kept for kept, _ in changes])
        for layer, (kept, table) in zip(self.layers, changes, strict=True):
            for expert in np.flatnonzero((table >= 0) & (kept < 0)).tolist():
                self._fill(layer, expert, int(table[expert]))
                self._moved += layer.expert_bytes
        self._publish([table for _, table in changes])

    def _fill(self, layer: ResidentLayer, expert: int, slot: int) -> None:
        """Copy the matrices of an expert to a slot."""
        for matrix in layer.matrices:
            data = self.host.matrix(matrix, expert)
            start = self._locations[matrix.places][1]
            self._memory.write(start + slot * matrix.nbytes, data)

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
        staged = 0
        for layer in self.layers:
            count = np.empty(1, np.int64)
            self._memory.read(self._locations[layer.table][1] + 8 * layer.experts, bytes_of(count))
            staged += int(count[0]) * layer.expert_bytes
        return ExpertTransfers(self._promotions, self._demotions, self._moved, staged)


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
