"""The command queue of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.encoded_program import EncodedProgram
from ostinato.backends.common.recording_context import RecordingContext
from ostinato.backends.cuda.gpu import Stream
from ostinato.backends.cuda.memory import DeviceBlock, device_block
from ostinato.backends.cuda.program import CudaProgram
from ostinato.backends.cuda.replay import MergedReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.commands import RecordedWork, Replay
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.encoded import Encoded
    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.cuda.gpu import Gpu
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Storage
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["CudaContext"]


class CudaContext(RecordingContext):
    """See :class:`~ostinato.backends.common.context.Context`.

    Args:
        device: the GPU's name.
        gpu: the GPU.
        toolchain: compiles kernels.

    Attributes:
        gpu, toolchain: see above.
    """

    def __init__(self, device: Device, gpu: Gpu, toolchain: Toolchain) -> None:
        super().__init__(device)
        self.gpu = gpu
        self._stream = Stream(gpu)
        self.toolchain = toolchain

    @property
    def free_memory(self) -> int:
        with self.gpu.current() as driver:
            return driver.memory_info()[0]

    def _merge(self, works: Sequence[RecordedWork]) -> Callable[[], Replay] | None:
        return MergedReplay.of(self._stream, works)

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> DeviceBlock:
        block = DeviceBlock(self.gpu, nbytes, "a buffer")
        _ = block.address  # now, and not at its first use
        return block

    def _compile(self, signature: OpSignature) -> CompiledOp:
        from ostinato.backends.cuda.op_compiler import compile_op  # only where it is needed

        return compile_op(signature, self.toolchain, self.gpu, self.constant)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        return CudaEncoded(self, self._stream, ops, variables)


class CudaEncoded(EncodedProgram[DeviceBlock]):
    """See :class:`~ostinato.backends.common.encoded_program.EncodedProgram`.

    Args:
        context, ops, variables: see there.
        stream: takes the work.
    """

    def __init__(
        self,
        context: CudaContext,
        stream: Stream,
        ops: Sequence[PreparedOp],
        variables: Sequence[Symbol],
    ) -> None:
        self._stream = stream
        super().__init__(context, ops, variables)

    def _new_program(
        self,
        ops: Sequence[PreparedOp],
        sizes: LiveSizes,
        touches: Sequence[tuple[int, int, bool]],
    ) -> CudaProgram:
        from ostinato.backends.cuda.op_compiler import op_steps

        steps, code = op_steps(ops, self._memory)
        return CudaProgram(self._stream, steps, code, sizes, (), self._blocks, touches=touches)

    def _memory_of(self, storage: Storage) -> DeviceBlock:
        return device_block(storage)
