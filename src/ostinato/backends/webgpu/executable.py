"""A compiled program with memory on a WebGPU device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.commands import BoundCall, Resident
from ostinato.backends.common.device_executable import DeviceExecutable
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.webgpu.memory import Blocks, DeviceBlock, device_block
from ostinato.backends.webgpu.program import WebGpuProgram
from ostinato.errors import InputError
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.program_memory import ProgramMemory
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.backends.webgpu.code import LoadedCode
    from ostinato.backends.webgpu.compilation import Compilation
    from ostinato.backends.webgpu.context import WebGpuContext
    from ostinato.backends.webgpu.expert_tier import ExpertTier
    from ostinato.backends.webgpu.image import AnyStep, Image
    from ostinato.backends.webgpu.partial_launch import LeadingRows, RowLimits
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.program import LoweredBuffer
    from ostinato.plan.buffer import Storage

__all__ = ["WebGpuExecutable"]

Array = np.ndarray[Any, Any]


class WebGpuExecutable(DeviceExecutable[DeviceBlock, "AnyStep", WebGpuProgram, "WebGpuContext"]):
    """See :class:`~ostinato.backends.common.device_executable.DeviceExecutable`.

    Args:
        image: the compiled program.
        code: of its kernels.
        context: the device's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans, reports and messages.
        siblings, experts: see the class above.
    """

    def __init__(
        self,
        image: Image,
        code: LoadedCode,
        context: WebGpuContext,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], Compilation],
        siblings: Sequence[WebGpuExecutable] | None = None,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> None:
        self._code = code
        self._compiled = compilation
        self._leading_rows: dict[int, LeadingRows] = {}
        self._nodes_of = lambda position: compilation().nodes_of(position)
        blocks = Blocks(context.gpu, "a compiled graph")
        super().__init__(image, blocks, context, params, compilation, siblings, experts)

    def _start(self, memory: ProgramMemory[DeviceBlock, AnyStep]) -> None:
        super()._start(memory)
        self.program.row_limits = self._row_limits

    def _row_limits(self) -> RowLimits | None:
        """The part of the program that runs of the calling thread need; ``None``: all."""
        extent = self._experts.extents.current
        if extent is None or extent[0] == extent[1]:
            return None
        from ostinato.backends.webgpu.partial_launch import LeadingRows

        actual, upper = extent
        if upper not in self._leading_rows:
            compiled = self._compiled()
            target = compiled.target
            self._leading_rows[upper] = LeadingRows(compiled.lowered.program, upper, target)
        return self._leading_rows[upper].limits(actual)

    def _new_program(self) -> WebGpuProgram:
        image = self._image
        sizes = LiveSizes(image.variables, image.externals)
        self._resident = Resident(self._context.commands, sizes)
        return WebGpuProgram(
            self._context.gpu,
            image.steps,
            self._code,
            sizes,
            image.externals,
            self.memory.fixed,
            touches=self._resident.accesses,
            describe=self._nodes_of,
        )

    def _open_tier(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: DeviceBlock,
    ) -> ExpertTier:
        from ostinato.backends.webgpu.expert_tier import ExpertTier

        tier = ExpertTier(layers, locations, memory, self._tensors)
        self.program.stage_experts = tier.stage
        return tier

    def _new_block(self, nbytes: int, purpose: str) -> DeviceBlock:
        return DeviceBlock(self._context.gpu, nbytes, purpose)

    def _host_memory(self, nbytes: int) -> memoryview:
        return bytes_of(np.zeros(nbytes, np.uint8))

    def _store(self, block: DeviceBlock, offset: int, data: memoryview) -> None:
        block.write(offset, data, padded=True)

    def _perform(self, steps: Sequence[AnyStep], blocks: dict[int, DeviceBlock]) -> None:
        self.program.perform(steps, blocks)

    def _memory_of(self, storage: Storage) -> DeviceBlock:
        return device_block(storage)

    def discard(self) -> None:
        super().discard()
        self.program.discard()

    def adopt(self, array: Any) -> DeviceArray:
        if isinstance(array, DeviceArray) and array.device == self._context.device:
            if array.memory.gpu is not self._context.gpu:
                raise InputError(f"the array was on {array.device} before that was lost")
            return array
        raise InputError(
            f"a {type(array).__name__} is in the memory of another device, which "
            f"{self._context.device} does not read; copy it to the host"
        )

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        arrays = self._apart(inputs, outputs)
        return BoundCall(self.program, self._resident, arrays, variables, self.memory.check_open)
