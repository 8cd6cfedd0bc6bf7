"""The command queue of a framework's device: runs, recordings, and prepared ops."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ostinato.backends.array_api.arrays import BlockMemory, aligned_bytes
from ostinato.backends.common.commands import ProgramCall, Resident
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_runner import RELEASED, host_block
from ostinato.backends.common.recording_context import RecordingContext
from ostinato.errors import PlanError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import HostMemory, LentStorage
from ostinato.plan.order import ORDER, Accesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.array_api.arrays import ArrayBlock
    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.common import op_encoding
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    op_encoding = LazyModule("ostinato.backends.common.op_encoding")

__all__ = ["ArrayContext"]


class ArrayContext(RecordingContext):
    """See :class:`~ostinato.backends.common.context.Context`.

    The buffers of sessions and plans are in memory of the host.

    Args:
        device: the device's name.
        framework: computes.

    Attributes:
        framework: see above.
    """

    def __init__(self, device: Device, framework: Framework) -> None:
        super().__init__(device)
        self.framework = framework

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> Memory:
        return HostMemory(aligned_bytes(nbytes))

    def _compile(self, signature: OpSignature) -> CompiledOp:
        from ostinato.backends.array_api.ops import compile_op  # only where it is needed

        return compile_op(signature, self.framework, self.constant)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        return ArrayEncoded(self, ops, variables)


class ArrayEncoded(Encoded):
    """Prepared ops, run one after the other on their buffers.

    Args:
        context: the command queue.
        ops: the ops.
        variables: in the order in which a run gives their values.
    """

    def __init__(
        self, context: ArrayContext, ops: Sequence[PreparedOp], variables: Sequence[Symbol]
    ) -> None:
        from ostinato.backends.array_api.ops import OpProgram

        self._memory = op_encoding.OpMemory.of(ops, variables, context.device)
        self._closed = False
        # The blocks of plans: what stands for one as memory is made anew at each look.
        self._known: weakref.WeakSet[Memory | ArrayBlock] = weakref.WeakSet(
            memory.block if isinstance(memory, BlockMemory) else memory for memory in self._blocks()
        )
        resident = Resident(
            context.commands, LiveSizes([(v.name, v.min, v.max) for v in variables])
        )
        self.program = OpProgram(
            context.framework, ops, self._memory, variables, self._blocks, resident.accesses
        )
        self._call = ProgramCall(
            self.program, resident, (), 0, None, self.check, lambda: self.accesses, self.uses
        )

    def _blocks(self) -> list[Memory]:
        """The present memory of the storages, that of the host checked."""
        if self._closed:
            raise PlanError(RELEASED)
        for storage in self._memory.storages:
            if isinstance(storage.memory, HostMemory):
                host_block(storage, written=storage in self._memory.written)
        return [storage.memory for storage in self._memory.storages]

    @property
    def accesses(self) -> Accesses:
        return Accesses([*self._memory.spans, *self.program.accesses])

    def uses(self, memory: object) -> bool:
        """Whether the ops touch this memory."""
        if isinstance(memory, LentStorage):
            return memory in self._memory.slots
        return memory in self._known

    def launch(self) -> None:
        self._call()

    def run(self, variables: Sequence[int]) -> None:
        self.program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self.program.run_profiled((), variables)

    def check(self) -> None:
        self._blocks()

    def discard(self) -> None:
        """Do nothing: all buffers are the caller's."""

    def close(self) -> None:
        self._closed = True
        ORDER.memory_changes(self.program, replaced=True)
