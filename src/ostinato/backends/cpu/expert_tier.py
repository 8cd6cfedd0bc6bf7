"""Experts in a file: residency in memory, and transfers between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.experts import ExpertTransfers
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.compiler import SizeCode
from ostinato.backends.cpu.rules.offload import source_numbers
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

#: Positions of a source's counters among its numbers; see csrc/experts.h.
_BYTES_READ, _FAILURES = 8, 9


class ExpertTier:
    """The layers of a program whose experts are in a file; none is resident at first.

    Args:
        layers: these layers.
        tensors: by param, its matrices in the file.
        locations: slots and offsets of buffers; theirs are all in one fixed slot.
        memory: that of the slot.
        code: of the kernels that prepack.
        native: makes a program of steps on slots that excludes runs while it runs.
    """

    def __init__(
        self,
        layers: Sequence[StoredExperts],
        tensors: Mapping[str, ExpertTensor],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: _core.Arena,
        code: MachineCode,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        self._layers = layers
        self._tensors = tensors
        self._locations = locations
        self._files = {file: tensor for tensor in tensors.values() for file in tensor.files}
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
        self._publish.run(self._tables)

    def _number_of(self, buffer: LoweredBuffer) -> int:
        """The offset of a buffer, in int64 numbers."""
        return self._locations[buffer][1] // 8

    def _describe(self, matrix: StoredMatrix, code: MachineCode) -> None:
        """Write the descriptor of a matrix of each expert, in the layout of csrc/experts.h."""
        tensor, packing = self._tensors[matrix.param], matrix.packing
        nest = packing.nest
        extent = nest.extent
        assert isinstance(extent, int)
        compiled = code.kernel(nest)
        assert not isinstance(compiled, SizeCode)
        address = compiled.address
        rooms = packing.rooms
        head = [
            address, extent, packing.pieces, packing.stride, packing.packed_bytes, rooms[-1],
            tensor.shape[0], len(packing.ranges), 0, 0,
        ]  # fmt: skip
        ranges = [
            (part.piece_bytes, part.matrix_bytes, room)
            for part, room in zip(packing.ranges, rooms, strict=False)
        ]
        places = [(p.file.fileno(), p.offset) for part in tensor.ranges for p in part]
        numbers = [*head, *(number for row in (*ranges, *places) for number in row)]
        assert len(numbers) == source_numbers(tensor.shape[0], tensor.layout)
        start = self._number_of(matrix.source)
        self._memory[start : start + len(numbers)] = numbers

    def _make_programs(
        self,
        memory: _core.Arena,
        native: Callable[[Sequence[_core.Step], Sequence[_core.Slot]], _core.Program],
    ) -> None:
        """Make the program that stages experts into slots, and the one that publishes tables."""
        slots: list[_core.Slot] = [memory]
        publish: list[_core.Step] = []
        stage: list[_core.Step] = []
        for number, (layer, table) in enumerate(zip(self._layers, self._tables, strict=True), 1):
            location = (0, self._locations[layer.table][1])
            publish.append(copy_step(location, (number, 0), table.nbytes))
            slots.append((table.nbytes, False))
        lists: list[_core.Slot] = []
        for number, layer in enumerate(self._layers, len(slots)):
            lists.append((max(1, layer.slots) * 8, False))
            for matrix in layer.matrices if layer.slots else ():
                at = [(0, self._locations[matrix.source][1]), (number, 0)]
                at.append((0, self._locations[matrix.slots][1]))
                stage.append(_staging_step(at, layer.slots, matrix.packing))
        self._publish = native(publish, slots)
        self._stage = native([*publish, *stage], [*slots, *lists])

    # -- residency ---------------------------------------------------------------------------------

    def place(self, masks: Sequence[Array]) -> None:
        """Make these experts of each layer resident; those that are already keep their slots.

        Args:
            masks: a bool for each expert; at most as many are true as there are slots.

        Raises:
            ModelFormatError: the file could not be read, or was written. None of the experts to be
                promoted is resident.
        """
        kept, tables, lists = [], [], []
        promoted = demoted = moved = 0
        for layer, mask, table in zip(self._layers, masks, self._tables, strict=True):
            staying = np.where(mask, table, -1)
            new = np.flatnonzero(mask & (table < 0))
            free = np.setdiff1d(np.arange(layer.slots), staying)[: len(new)]
            listed = np.full(max(1, layer.slots), -1, np.int64)
            listed[free] = new
            table_after = staying.copy()
            table_after[new] = free
            kept.append(staying)
            tables.append(table_after)
            lists.append(listed)
            promoted += len(new)
            demoted += int(np.count_nonzero((table >= 0) & ~mask))
            moved += len(new) * sum(m.packing.matrix_bytes for m in layer.matrices)
        self._tables = kept
        self._demotions += demoted
        # Evictions are published before their slots are overwritten, new residents after their
        # slots are filled.
        if promoted:
            failures = self.failures()
            self._stage.run([*kept, *lists])
            self._moved += moved
            self.check(failures)
        self._tables = tables
        self._promotions += promoted
        self._publish.run(tables)

    def begin(self, masks: Sequence[Array]) -> None:
        """Make the initial experts resident, without counting transfers."""
        self.place(masks)
        self._promotions = self._demotions = self._moved = 0
        self._memory[self._bytes_read] = 0

    def resident(self) -> list[Array]:
        """By layer, the mask of resident experts."""
        return [table >= 0 for table in self._tables]

    def failures(self) -> int:
        """The number of failed reads so far."""
        return int(self._memory[self._failures].sum())

    def check(self, before: int) -> None:
        """Check that no read has failed, and that the file is unchanged since it was opened.

        Args:
            before: the number of failed reads before the operation.

        Raises:
            ModelFormatError: a read has failed, now or earlier without a report; or the file has
                changed.
        """
        failures, reported = self.failures(), self._reported
        self._reported = failures
        for file, tensor in self._files.items():
            if failures > min(before, reported) or not file.unchanged:
                raise tensor.changed(file)

    def transfers(self) -> ExpertTransfers:
        """The transfers so far."""
        staged = int(self._memory[self._bytes_read].sum()) - self._moved
        return ExpertTransfers(self._promotions, self._demotions, self._moved, staged)

    def close(self, error: Exception) -> None:
        """Give back the memory; from now on, moving experts raises ``error``."""
        self._publish.stop(error)
        self._stage.stop(error)
        self._failures = self._bytes_read = np.zeros(0, np.intp)
        self._memory = np.zeros(0, np.int64)


def _staging_step(at: Sequence[_core.Argument], count: int, packing: PiecePacking) -> _core.Step:
    """The step that stages the matrices of ``count`` slots."""
    extent = count * packing.pieces
    return (_core.stage_experts_kernel, at, extent, 0, 1, packing.scratch_bytes)
