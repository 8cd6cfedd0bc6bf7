"""The command queue of a WebGPU device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ostinato.backends.common.commands import BoundCall, Resident
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_runner import RELEASED
from ostinato.backends.common.recording_context import RecordingContext
from ostinato.backends.webgpu.memory import DeviceBlock, device_block
from ostinato.backends.webgpu.program import WebGpuProgram
from ostinato.backends.webgpu.replay import MergedReplay
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
    from ostinato.backends.device import Device
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.host_steps import HostKernels
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    op_encoding = LazyModule("ostinato.backends.common.op_encoding")

__all__ = ["WebGpuContext"]


class WebGpuContext(RecordingContext):
    """See :class:`~ostinato.backends.common.context.Context`.

    Args:
        device: its name.
        gpu: the device.
        host: runs the kernels that the device lacks.

    Attributes:
        gpu, host: see above.
    """

    def __init__(self, device: Device, gpu: Gpu, host: HostKernels) -> None:
        super().__init__(device)
        self.gpu = gpu
        self.host = host

    def _merge(self, works: Sequence[RecordedWork]) -> Callable[[], Replay] | None:
        return MergedReplay.of(self.gpu, works)

    def _allocate(self, nbytes: int) -> DeviceBlock:
        block = DeviceBlock(self.gpu, nbytes, "a buffer")
        _ = block.buffers  # now, and not at its first use
        return block

    def _compile(self, signature: OpSignature) -> CompiledOp:
        from ostinato.backends.webgpu.op_compiler import compile_op  # only where it is needed

        return compile_op(signature, self.gpu.target, self.constant)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        return WebGpuEncoded(self, ops, variables)


class WebGpuEncoded(Encoded):
    """Prepared ops as a program whose slots are their storages.

    Args:
        context: the command queue.
        ops: the ops.
        variables: in the order in which kernels take them.
    """

    def __init__(
        self, context: WebGpuContext, ops: Sequence[PreparedOp], variables: Sequence[Symbol]
    ) -> None:
        from ostinato.backends.webgpu.op_compiler import op_steps

        self._memory = op_encoding.OpMemory.of(ops, variables, context.device)
        self._closed = False
        steps, names, code = op_steps(ops, self._memory, context.gpu, context.host)
        self._known: weakref.WeakSet[DeviceBlock] = weakref.WeakSet(self._blocks())
        sizes = LiveSizes([(v.name, v.min, v.max) for v in variables])
        resident = Resident(context.commands, sizes)
        self.program = WebGpuProgram(
            context.gpu,
            steps,
            code,
            sizes,
            (),
            self._blocks,
            touches=resident.accesses,
            describe=names.__getitem__,
        )
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
        self.program.discard()
        ORDER.memory_changes(self.program, replaced=True)
