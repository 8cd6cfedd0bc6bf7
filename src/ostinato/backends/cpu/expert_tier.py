"""Experts in a file: which of them have places in memory, and moving them there between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.experts import ExpertTransfers
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.rules.offload import SOURCE_HEAD
from ostinato.backends.cpu.submission import copy_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.compiler import MachineCode
    from ostinato.backends.cpu.rules.expert_staging import PiecePacking
    from ostinato.backends.cpu.rules.offload import StoredExperts, StoredMatrix
    from ostinato.ir.stored import ExpertTensor
    from ostinato.lower.program import LoweredBuffer

__all__ = ["ExpertTier"]

Array = np.ndarray[Any, Any]

#: Where a source counts, among its numbers; see csrc/experts.h.
_BYTES_READ, _FAILURES = 9, 10


class ExpertTier:
    """The layers of a program whose experts are in a file. At first nobody has a place.

    Args:
        layers: these layers.
        tensors: by param, where the matrices are.
        places: where buffers lie: theirs are all in one fixed slot.
        memory: that of the slot.
        code: of the kernels that pack.
        native: makes a program of steps on slots, which takes turns with runs.
    """

    def __init__(
        self,
        layers: Sequence[StoredExperts],
        tensors: Mapping[str, ExpertTensor],
        places: Mapping[LoweredBuffer, tuple[int, int]],
        memory: _core.Arena,
        code: MachineCode,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        self._layers = layers
        self._tensors = tensors
        self._places = places
        self._files = {tensor.file: tensor for tensor in tensors.values()}
        self._memory = np.ndarray(memory.nbytes // 8, np.int64, memoryview(memory))
        for layer in layers:
            for matrix in layer.matrices:
                self._describe(matrix, code)
        heads = [self._number_of(m.source) for layer in layers for m in layer.matrices]
        self._failures = np.array(heads, np.intp) + _FAILURES
        self._bytes_read = np.array(heads, np.intp) + _BYTES_READ
        self._promotions = self._demotions = self._moved = self._reported = 0
        self._tables = [np.full(layer.routing.layout.experts, -1, np.int64) for layer in layers]
        self._make_programs(memory, native)
        self._settle.run(self._tables)

    def _number_of(self, buffer: LoweredBuffer) -> int:
        """Where a buffer starts, in int64 numbers."""
        return self._places[buffer][1] // 8

    def _describe(self, matrix: StoredMatrix, code: MachineCode) -> None:
        """Write down where a matrix of each expert is, as csrc/experts.h has it."""
        tensor, packing = self._tensors[matrix.param], matrix.packing
        nest = packing.nest
        extent = nest.extent
        assert isinstance(extent, int)
        address = code.kernel(nest).address
        head = [
            tensor.file.fileno(), address, extent, packing.pieces, packing.piece_bytes,
            packing.matrix_bytes, packing.stride, packing.packed_bytes, packing.room, 0, 0,
        ]  # fmt: skip
        assert len(head) == SOURCE_HEAD
        start = self._number_of(matrix.source)
        numbers = [*head, *tensor.offsets]
        self._memory[start : start + len(numbers)] = numbers

    def _make_programs(
        self,
        memory: _core.Arena,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        """One that fetches experts into places, and one that lets runs know of them."""
        slots: list[_core.Slot] = [memory]
        settle: list[_core.Step] = []
        fetch: list[_core.Step] = []
        for number, (layer, table) in enumerate(zip(self._layers, self._tables, strict=True), 1):
            place = (0, self._places[layer.table][1])
            settle.append(copy_step(place, (number, 0), table.nbytes))
            slots.append((table.nbytes, False))
        lists: list[_core.Slot] = []
        for number, layer in enumerate(self._layers, len(slots)):
            lists.append((max(1, layer.places) * 8, False))
            for matrix in layer.matrices if layer.places else ():
                at = [(0, self._places[matrix.source][1]), (number, 0)]
                at.append((0, self._places[matrix.slots][1]))
                fetch.append(_fetch_step(at, layer.places, matrix.packing))
        self._settle = native(settle, slots)
        self._fetch = native([*settle, *fetch], [*slots, *lists])

    # -- places ------------------------------------------------------------------------------------

    def place(self, masks: Sequence[Array]) -> None:
        """Give the places of each layer to these experts; those that have one already keep it.

        Args:
            masks: a bool for each expert; no more are true than there are places.

        Raises:
            ModelFormatError: the file could not be read, or was written. Those that were to be
                given a place have none.
        """
        kept, tables, lists = [], [], []
        promoted = demoted = moved = 0
        for layer, mask, table in zip(self._layers, masks, self._tables, strict=True):
            staying = np.where(mask, table, -1)
            new = np.flatnonzero(mask & (table < 0))
            free = np.setdiff1d(np.arange(layer.places), staying)[: len(new)]
            listed = np.full(max(1, layer.places), -1, np.int64)
            listed[free] = new
            placed = staying.copy()
            placed[new] = free
            kept.append(staying)
            tables.append(placed)
            lists.append(listed)
            promoted += len(new)
            demoted += int(np.count_nonzero((table >= 0) & ~mask))
            moved += len(new) * sum(m.packing.matrix_bytes for m in layer.matrices)
        self._tables = kept
        self._demotions += demoted
        # Who leaves is told to runs before, who comes only after the places are written.
        if promoted:
            failures = self.failures()
            self._fetch.run([*kept, *lists])
            self._moved += moved
            self.check(failures)
        self._tables = tables
        self._promotions += promoted
        self._settle.run(tables)

    def begin(self, masks: Sequence[Array]) -> None:
        """The same, as if it had always been like this: nothing is counted."""
        self.place(masks)
        self._promotions = self._demotions = self._moved = 0
        self._memory[self._bytes_read] = 0

    def resident(self) -> list[Array]:
        """By layer, who has a place."""
        return [table >= 0 for table in self._tables]

    def failures(self) -> int:
        """How many reads have failed so far."""
        return int(self._memory[self._failures].sum())

    def check(self, before: int) -> None:
        """Make sure that all was read that should have been, and from the file that was opened.

        Args:
            before: how many reads had failed before.

        Raises:
            ModelFormatError: it was not; or it was not at an earlier time, and nobody was told.
        """
        failures, told = self.failures(), self._reported
        self._reported = failures
        for file, tensor in self._files.items():
            if failures > min(before, told) or not file.unchanged:
                raise tensor.changed()

    def transfers(self) -> ExpertTransfers:
        """What was moved so far."""
        staged = int(self._memory[self._bytes_read].sum()) - self._moved
        return ExpertTransfers(self._promotions, self._demotions, self._moved, staged)

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, moving experts raises ``error``."""
        self._settle.stop(error)
        self._fetch.stop(error)
        self._failures = self._bytes_read = np.zeros(0, np.intp)
        self._memory = np.zeros(0, np.int64)


def _fetch_step(at: Sequence[_core.Argument], count: int, packing: PiecePacking) -> _core.Step:
    """The step that fetches matrices of ``count`` places."""
    extent = count * packing.pieces
    return (_core.fetch_experts_kernel, at, extent, 0, 1, packing.scratch_bytes)
