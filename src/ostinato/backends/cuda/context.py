"""The command queue of a GPU."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ostinato.backends.common.commands import BoundCall, Resident
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_runner import RELEASED
from ostinato.backends.common.recording_context import RecordingContext
from ostinato.backends.cuda.gpu import Stream
from ostinato.backends.cuda.memory import DeviceBlock, device_block
from ostinato.backends.cuda.program import CudaProgram
from ostinato.backends.cuda.replay import MergedReplay
from ostinato.errors import PlanError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import LentStorage
from ostinato.plan.order import ORDER, Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common import op_encoding
    from ostinato.backends.common.commands import RecordedWork, Replay
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.cuda.gpu import Gpu
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.backends.device import Device
    from ostinato.plan import prepared
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    op_encoding = LazyModule("ostinato.backends.common.op_encoding")
    prepared = LazyModule("ostinato.plan.prepared")

__all__ = ["CudaContext"]


class CudaContext(RecordingContext):
    """See :class:`~ostinato.backends.common.context.Context`.

    Args:
        device: the GPU's name.
        gpu: the GPU.
        toolchain: compiles the kernels of single ops.

    Attributes:
        gpu: the GPU.
    """

    def __init__(self, device: Device, gpu: Gpu, toolchain: Toolchain) -> None:
        super().__init__(device)
        self.gpu = gpu
        self._stream = Stream(gpu)
        self._toolchain = toolchain

    def _merge(self, works: Sequence[RecordedWork]) -> Callable[[], Replay] | None:
        return MergedReplay.of(self._stream, works)

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> DeviceBlock:
        block = DeviceBlock(self.gpu, nbytes, "a buffer")
        _ = block.address  # now, and not at its first use
        return block

    def _compile(self, signature: OpSignature) -> CompiledOp:
        from ostinato.backends.cuda.op_compiler import compile_op  # only where it is needed

        return compile_op(signature, self._toolchain, self.gpu, self.constant)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        return CudaEncoded(self, self._stream, ops, variables)


class CudaEncoded(Encoded):
    """Prepared ops as a program whose slots are their storages.

    Args:
        context: the command queue.
        stream: takes the work.
        ops: the ops.
        variables: in the order in which kernels take them.
    """

    def __init__(
        self,
        context: CudaContext,
        stream: Stream,
        ops: Sequence[PreparedOp],
        variables: Sequence[Symbol],
    ) -> None:
        from ostinato.backends.cuda.op_compiler import op_steps

        self._memory = op_encoding.OpMemory.of(ops, variables, context.device)
        self._closed = False
        steps, code = op_steps(ops, self._memory)
        self._known: weakref.WeakSet[DeviceBlock] = weakref.WeakSet(self._blocks())
        sizes = LiveSizes([(v.name, v.min, v.max) for v in variables])
        resident = Resident(context.commands, sizes)
        touches = resident.accesses
        self.program = CudaProgram(stream, steps, code, sizes, (), self._blocks, touches=touches)
        self._call = BoundCall(
            self.program, resident, (), None, self.check, lambda: self.accesses, self.uses
        )

    def _blocks(self) -> list[DeviceBlock]:
        if self._closed:
            raise PlanError(RELEASED)
        return [device_block(storage) for storage in self._memory.storages]

    @property
    def accesses(self) -> Accesses:
        return Accesses([*self._memory.spans, *self.program.accesses])

    def uses(self, memory: object) -> bool:
        """Whether the ops touch this memory."""
        if isinstance(memory, LentStorage):
            return memory in self._memory.slots
        return isinstance(memory, DeviceBlock) and memory in self._known

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
