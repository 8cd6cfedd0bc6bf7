"""Experts of which some are resident: their matrices in the host's memory, and the others' slots.

The matrices of all experts are in page-locked memory, in the order in which kernels read them.
Runs stage those that they miss by themselves (:mod:`ostinato.backends.cuda.rules.expert_staging`);
here experts are made resident, between runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.expert_tier import SlotTier
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


class ExpertTier(SlotTier["DeviceBlock"]):
    """See :class:`~ostinato.backends.common.expert_tier.SlotTier`.

    Args:
        layers, locations, memory: see there.
        host: the matrices of all experts.

    Attributes:
        host: see above.
    """

    def __init__(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: DeviceBlock,
        host: HostExperts,
    ) -> None:
        super().__init__(layers, locations, memory)
        self.host = host
        for layer in layers:
            self._write(layer.table, np.zeros(1, np.int64), 8 * layer.experts)
            for matrix in layer.matrices:
                self._write(matrix.sources, host.addresses(matrix))
        self._publish(self.tables)

    def _write(self, buffer: LoweredBuffer, numbers: Array, offset: int = 0) -> None:
        self._memory.write(self._locations[buffer][1] + offset, bytes_of(numbers))

    def _publish(self, tables: Sequence[Array]) -> None:
        super()._publish(tables)
        for layer, table in zip(self.layers, tables, strict=True):
            self._write(layer.table, table)

    def _octets(self, matrix: ResidentMatrix, expert: int) -> memoryview:
        return self.host.matrix(matrix, expert)

    def _staged_bytes(self) -> int:
        staged = 0
        for layer in self.layers:
            count = np.empty(1, np.int64)
            self._memory.read(self._locations[layer.table][1] + 8 * layer.experts, bytes_of(count))
            staged += int(count[0]) * layer.expert_bytes
        return staged
