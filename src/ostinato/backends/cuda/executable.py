"""A compiled program with memory on the device, run on a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.agreed import agreed_property
from ostinato.backends.common.commands import Resident
from ostinato.backends.common.device_executable import DeviceExecutable
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.cuda._graph_calls import GraphCall, GraphRun
from ostinato.backends.cuda.bound_calls import CudaCall
from ostinato.backends.cuda.code import load_objects
from ostinato.backends.cuda.gpu import Stream
from ostinato.backends.cuda.memory import Blocks, DeviceBlock, ForeignBlock, HostBlock, device_block
from ostinato.backends.cuda.part_logs import StampedStep, stamped_steps
from ostinato.backends.cuda.program import CudaProgram
from ostinato.errors import InputError
from ostinato.plan.device_array import DeviceArray, Flags
from ostinato.plan.dlpack import import_tensor
from ostinato.plan.order import NOTHING, Accesses, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.program_memory import ProgramMemory
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.backends.cuda.compilation import Compilation
    from ostinato.backends.cuda.context import CudaContext
    from ostinato.backends.cuda.expert_tier import ExpertTier, HostExperts
    from ostinato.backends.cuda.gpu import Library
    from ostinato.backends.cuda.image import Image, Step
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.program import LoweredBuffer
    from ostinato.plan.buffer import Storage

__all__ = ["CudaExecutable"]

Array = np.ndarray[Any, Any]


class CudaExecutable(DeviceExecutable[DeviceBlock, "Step", CudaProgram, "CudaContext"]):
    """See :class:`~ostinato.backends.common.device_executable.DeviceExecutable`.

    Results without an array of the caller's are in page-locked memory of the host.

    Args:
        image: the compiled program.
        code: by symbol, the library of each kernel.
        context: the device's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans and reports.
        siblings, experts: see the class above.
        graphs: whether runs are launched as CUDA graphs.
    """

    minds_block = True
    _direct = False  #: but for runs that take Variables from the variable block

    def __init__(
        self,
        image: Image,
        code: Mapping[str, Library],
        context: CudaContext,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], Compilation],
        siblings: Sequence[CudaExecutable] | None = None,
        *,
        graphs: bool = True,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> None:
        self._code = code
        self._compiled = compilation
        self._uses_graphs = graphs
        self._host_experts: HostExperts | None = None
        super().__init__(
            image,
            Blocks(context.gpu, "a compiled graph", grows=bool(image.extents)),
            context,
            params,
            compilation,
            siblings,
            experts,
        )

    @property
    def compilation(self) -> Compilation:
        """The compilation of the program."""
        return self._compiled()

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[DeviceBlock, Step]) -> None:
        super()._start(memory)
        self._direct_run: GraphRun | None = None

    def _new_program(self) -> CudaProgram:
        image = self._image
        sizes = LiveSizes(image.variables, image.externals, image.extents)
        self._resident = Resident(self._context.commands, sizes)
        return CudaProgram(
            Stream(self._context.gpu),
            image.steps,
            self._code,
            sizes,
            image.externals,
            self.memory.fixed,
            graphs=self._uses_graphs,
            touches=self._resident.accesses,
            stamped=lambda: self._stamped_steps,
        )

    @agreed_property
    def _stamped_steps(self) -> Mapping[str, StampedStep]:
        """The forms of segments that profiles run, by symbol: compiled at the first profile."""
        compilation, target = self.compilation, self._context.gpu.target
        if not compilation.stamped:
            return {}
        toolchain = self._context.toolchain
        objects = toolchain.compile(list(compilation.stamped.values()))
        code = load_objects(self._context.gpu, objects)
        return stamped_steps(compilation.stamped, code, target)

    def _open_tier(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: DeviceBlock,
    ) -> ExpertTier:
        from ostinato.backends.cuda.expert_tier import ExpertTier, HostExperts

        if self._host_experts is None:
            self._host_experts = HostExperts(self._context.gpu, layers, self._tensors)
        return ExpertTier(layers, locations, memory, self._host_experts)

    def _new_block(self, nbytes: int, purpose: str) -> DeviceBlock:
        return DeviceBlock(self._context.gpu, nbytes, purpose)

    def _host_memory(self, nbytes: int) -> memoryview:
        return HostBlock(self._context.gpu, nbytes).view

    def _perform(self, steps: Sequence[Step], blocks: dict[int, DeviceBlock]) -> None:
        addresses = {slot: block.address for slot, block in blocks.items()}
        self.program.perform(steps, self._code, addresses)

    def _memory_of(self, storage: Storage) -> DeviceBlock:
        return device_block(storage)

    def _memory_moves(self) -> None:
        self.program.begin_epoch()

    # -- arrays on the device ----------------------------------------------------------------------

    def adopt(self, array: Any) -> DeviceArray:
        if isinstance(array, DeviceArray) and array.device == self._context.device:
            return array
        found = import_tensor(array)
        device, gpu = self._context.device, self._context.gpu
        if found.device != device.index:
            raise InputError(f"it is on CUDA:{found.device}, and the graph on {device}: move it")
        gpu.wait_for_legacy_stream()
        nbytes = math.prod(found.shape) * found.dtype.itemsize
        block = ForeignBlock(gpu, found.address, nbytes, found.owner)
        return DeviceArray(device, block, found.shape, found.dtype, Flags(found.contiguous))

    # -- running -----------------------------------------------------------------------------------

    @property
    def direct(self) -> bool:
        return self._direct and not (self._resident and self._context.dev_state_mode)

    @direct.setter
    def direct(self, enable: bool) -> None:
        self._direct = enable

    def run_direct(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        self._context.refuse_while_capturing("run reads its results back")
        run = self._direct_run
        if run is not None:
            if run.run_on(inputs, tuple(outputs), self, variables):
                return True
            self._direct_run = None
        arrays = [*inputs, *outputs]
        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError("an array is not C-contiguous")
        spans = [(_address(array), array.nbytes) for array in arrays]
        _check_spans(spans, self._inputs)
        touched = [
            (start, nbytes, number >= self._inputs)
            for number, (start, nbytes) in enumerate(spans)
            if nbytes
        ]
        program = self.program
        with Submission(program.accesses, Accesses(touched) if touched else NOTHING):
            if not self.direct:
                return False
            epoch = program.epoch
            on_host = not any(isinstance(array, DeviceArray) for array in arrays)
            if on_host:
                places = program.memory.host_places(spans, variables)
            else:
                places = program.places(arrays, variables)
            program.run_at(places, variables)
            if on_host:
                self._direct_run = program.direct_run(epoch, places)
            self.last = tuple(outputs)
        return True

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        arrays = self._apart(inputs, outputs)
        memory, commands = self.memory, self._context.commands
        call = CudaCall(self.program, self._resident, arrays, variables, memory.check_open)
        if self.program.on_run is not None:
            return call
        return GraphCall(call.run_slowly, commands)


def _address(array: Any) -> int:
    """The address of the first byte of an array of the host or the device."""
    if isinstance(array, DeviceArray):
        return array.address
    found: int = array.__array_interface__["data"][0]
    return found


def _check_spans(spans: Sequence[tuple[int, int]], read: int) -> None:
    """Check that no array that is written overlaps another one.

    Args:
        spans: the address and the size of each array, those that are only read first.
        read: how many these are.
    """
    for position in range(read, len(spans)):
        start, nbytes = spans[position]
        for number, (other, size) in enumerate(spans[:position]):
            if nbytes and size and start < other + size and other < start + nbytes:
                raise ValueError(f"array {position} overlaps array {number} in memory")
