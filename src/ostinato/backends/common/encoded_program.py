"""Prepared ops as a program of a device with memory of its own."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ostinato.backends.common.commands import BoundCall, BoundProgram, Resident
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_runner import RELEASED
from ostinato.errors import PlanError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import LentStorage
from ostinato.plan.order import ORDER, Accesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common import op_encoding
    from ostinato.backends.common.recording_context import RecordingContext
    from ostinato.plan.buffer import Storage
    from ostinato.plan.prepared import PreparedOp
    from ostinato.plan.profile import StepTime
    from ostinato.variables import Symbol
else:
    op_encoding = LazyModule("ostinato.backends.common.op_encoding")

__all__ = ["EncodedProgram", "OpProgram"]


class OpProgram(BoundProgram, Protocol):
    """A device's program of single ops."""

    def discard(self) -> None:
        """Give back the memory of its own, until the next run."""


M = TypeVar("M")


class EncodedProgram(Encoded, Generic[M]):
    """Prepared ops as a program whose slots are their storages.

    Args:
        context: the command queue.
        ops: the ops.
        variables: in the order in which kernels take them.
    """

    def __init__(
        self, context: RecordingContext, ops: Sequence[PreparedOp], variables: Sequence[Symbol]
    ) -> None:
        self._memory = op_encoding.OpMemory.of(ops, variables, context.device)
        self._closed = False
        self._known: weakref.WeakSet[M] = weakref.WeakSet(self._blocks())
        sizes = LiveSizes([(v.name, v.min, v.max) for v in variables])
        resident = Resident(context.commands, sizes)
        self.program = self._new_program(ops, sizes, resident.accesses)
        self._call = BoundCall(
            self.program, resident, (), None, self.check, lambda: self.accesses, self.uses
        )

    @abstractmethod
    def _new_program(
        self,
        ops: Sequence[PreparedOp],
        sizes: LiveSizes,
        touches: Sequence[tuple[int, int, bool]],
    ) -> OpProgram:
        """The program of the ops, on :meth:`_blocks`; every run touches this memory as well."""

    @abstractmethod
    def _memory_of(self, storage: Storage) -> M:
        """The block that a storage is."""

    def _blocks(self) -> list[M]:
        if self._closed:
            raise PlanError(RELEASED)
        return [self._memory_of(storage) for storage in self._memory.storages]

    @property
    def accesses(self) -> Accesses:
        return Accesses([*self._memory.spans, *self.program.accesses])

    def uses(self, memory: object) -> bool:
        """Whether the ops touch this memory."""
        if isinstance(memory, LentStorage):
            return memory in self._memory.slots
        return any(memory is block for block in self._known)

    def launch(self) -> None:
        self._call()

    def run(self, variables: Sequence[int]) -> None:
        self.program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[StepTime]:
        return self.program.run_profiled((), variables)

    def check(self) -> None:
        self._blocks()

    def discard(self) -> None:
        """Do nothing: all buffers are the caller's."""

    def close(self) -> None:
        self._closed = True
        self.program.discard()
        ORDER.memory_changes(self.program, replaced=True)
