"""The command queue of a WebGPU device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.encoded_program import EncodedProgram
from ostinato.backends.common.recording_context import RecordingContext
from ostinato.backends.webgpu.memory import DeviceBlock, device_block
from ostinato.backends.webgpu.program import WebGpuProgram
from ostinato.backends.webgpu.replay import MergedReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.commands import RecordedWork, Replay
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.encoded import Encoded
    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.device import Device
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.host_steps import HostKernels
    from ostinato.plan.buffer import Storage
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

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


class WebGpuEncoded(EncodedProgram[DeviceBlock]):
    """See :class:`~ostinato.backends.common.encoded_program.EncodedProgram`."""

    def __init__(
        self, context: WebGpuContext, ops: Sequence[PreparedOp], variables: Sequence[Symbol]
    ) -> None:
        self._context = context
        super().__init__(context, ops, variables)

    def _new_program(
        self,
        ops: Sequence[PreparedOp],
        sizes: LiveSizes,
        touches: Sequence[tuple[int, int, bool]],
    ) -> WebGpuProgram:
        from ostinato.backends.webgpu.op_compiler import op_steps

        context = self._context
        steps, names, code = op_steps(ops, self._memory, context.gpu, context.host)
        return WebGpuProgram(
            context.gpu,
            steps,
            code,
            sizes,
            (),
            self._blocks,
            touches=touches,
            describe=names.__getitem__,
        )

    def _memory_of(self, storage: Storage) -> DeviceBlock:
        return device_block(storage)
