"""A compiled program with memory on the device, run on a stream."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.commands import BoundCall, Resident
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_memory import ProgramMemory
from ostinato.backends.cuda.context import CudaContext
from ostinato.backends.cuda.gpu import Stream
from ostinato.backends.cuda.memory import Blocks, DeviceBlock, ForeignBlock, HostBlock, device_block
from ostinato.backends.cuda.program import CudaProgram
from ostinato.errors import InputError
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray, Flags, may_share_memory
from ostinato.plan.dlpack import import_tensor
from ostinato.plan.order import NOTHING, ORDER, Accesses, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.program_image import ProgramPreparation
    from ostinato.backends.cuda.compilation import Compilation
    from ostinato.backends.cuda.gpu import Library
    from ostinato.backends.cuda.image import Image, Step
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ParamSource
    from ostinato.plan.buffer import Storage
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.report import CompileReport

__all__ = ["CudaExecutable"]

Array = np.ndarray[Any, Any]


class CudaExecutable(Executable):
    """See :class:`~ostinato.backends.base.Executable`.

    Weights, states and intermediate values are on the device. Inputs and outputs are copied from
    and to the caller's arrays. Results without such an array are in page-locked memory of the host.

    Args:
        image: the compiled program.
        code: by symbol, the library of each kernel.
        context: the device's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans and reports.
        graphs: whether runs are launched as CUDA graphs.
    """

    def __init__(
        self,
        image: Image,
        code: Mapping[str, Library],
        context: CudaContext,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], Compilation],
        *,
        graphs: bool = True,
    ) -> None:
        self._image = image._replace(constants=())
        self._code = code
        self._context = context
        self._compilation = compilation
        self._uses_graphs = graphs
        self._lent: dict[Slot | str, Storage] = {}
        self._start(ProgramMemory(image, Blocks(context.gpu, "a compiled graph")))
        for name in image.states:
            self.write_state(name, None)
        self.memory.weights.write_first(params, self._write)

    @property
    def compilation(self) -> Compilation:
        """The compilation of the program."""
        return self._compilation()

    @property
    def report(self) -> CompileReport:  # type: ignore[override]  # read-only
        return self.compilation.lowered.report

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[DeviceBlock, Step]) -> None:
        """Make the program that runs on ``memory``."""
        image = self._image
        self.memory = memory
        self.unset = memory.weights.unset
        self._results: HostBlock | None = None
        sizes = LiveSizes(image.variables, image.externals)
        self._resident = Resident(self._context.commands, sizes)
        self.program = CudaProgram(
            Stream(self._context.gpu),
            image.steps,
            self._code,
            sizes,
            image.externals,
            memory.fixed,
            graphs=self._uses_graphs,
            touches=self._resident.accesses,
        )

    def clone(self, context: Context | None = None) -> CudaExecutable:
        twin = copy.copy(self)
        if context is not None:
            assert isinstance(context, CudaContext)
            twin._context = context
        twin._lent = {}
        with self.memory.guard:
            twin._start(self.memory.clone())
        twin._block(Slot.STATES).copy_from(self._block(Slot.STATES))
        twin.last = ()
        return twin

    def _block(self, slot: Slot) -> DeviceBlock:
        """The present block of a fixed slot."""
        return self.memory.fixed()[slot]

    def discard(self) -> None:
        self._block(Slot.ARENA).discard()
        ORDER.memory_changes(self.program)
        if Slot.ARENA in self._lent:
            ORDER.memory_changes(self._lent[Slot.ARENA])

    def close(self) -> None:
        with self.memory.guard:
            self.memory.close()
        self.program.discard()
        for own in (self.program, *self._lent.values()):
            ORDER.memory_changes(own, replaced=True)
        self._results = None

    @property
    def _result_memory(self) -> HostBlock:
        """The memory of results that are not returned."""
        self.memory.check_open()
        if self._results is None:
            outputs = [e.nbytes for e in self._image.externals if e.written]
            ends = [o + n for o, n in zip(self._image.results, outputs, strict=True)]
            self._results = HostBlock(self._context.gpu, max(ends, default=0))
        return self._results

    @property
    def arena(self) -> memoryview:
        return self._result_memory.view

    @property
    def arena_address(self) -> int:
        return self._result_memory.address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results

    # -- params and states -------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self.memory.weights.write(params, self._write)

    def _write(
        self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[Step]]
    ) -> None:
        """Copy arrays into params, then prepack; non-retained params are only prepacked."""
        block = self.memory.weights.block
        given: dict[int, DeviceBlock] = {}
        with block.guard:
            former = block.memory
            if block.unshare() and (lent := self._lent.get(Slot.WEIGHTS)):
                # What a clone has lent stays as it is.
                ORDER.memory_changes((lent, former), replaced=True)
            fixed = self.memory.fixed()
            for position, (name, (nbytes, place)) in enumerate(self._image.params.items()):
                if name not in params:
                    continue
                data = bytes_of(np.ascontiguousarray(params[name]))
                if place is None:
                    kind = DeviceBlock(self._context.gpu, nbytes, f"param {name!r}")
                    given[-1 - position] = kind
                    kind.write(0, data)
                else:
                    slot, offset = place
                    fixed[slot].write(offset, data)
            steps = [step for part in stale for step in part.steps]
            if steps:
                slots = {n: b.address for n, b in (*enumerate(fixed), *given.items())}
                self.program.perform(steps, self._code, slots)

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        array = state.empty()
        slot, offset = state.location
        self.memory.fixed()[slot].read(offset, bytes_of(array))
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        slot, offset = state.location
        block = self.memory.fixed()[slot]
        if array is not None:
            block.write(offset, bytes_of(np.ascontiguousarray(array)))
        elif len(element := bytes(state.initial)) == state.itemsize:
            block.repeat(offset, element, math.prod(state.shape))
        else:
            block.write(offset, bytes_of(state.initial_array()))

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

    def resident(self, array: Array) -> Array:
        if isinstance(array, DeviceArray):
            return array
        kept: Any = self.empty(array.shape, array.dtype)
        kept.memory.write(0, bytes_of(np.ascontiguousarray(array)))
        resident: Array = kept
        return resident

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        block: Any = DeviceBlock(self._context.gpu, nbytes, "a handle")
        array: Any = DeviceArray(self._context.device, block, shape, dtype)
        found: Array = array
        return found

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        _check_apart(inputs, outputs)
        self.program.run([*inputs, *outputs], variables)

    def run_many(
        self, runs: Sequence[tuple[Sequence[Array], Sequence[Array], Sequence[int]]]
    ) -> None:
        for inputs, outputs, _ in runs:
            _check_apart(inputs, outputs)
        self.program.run_many(
            [([*inputs, *outputs], variables) for inputs, outputs, variables in runs]
        )

    def run_direct(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        self._context.refuse_while_capturing("run reads its results back")
        arrays = [*inputs, *outputs]
        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError("an array is not C-contiguous")
        spans = [(_address(array), array.nbytes) for array in arrays]
        _check_spans(spans, len(inputs))
        touched = [
            (start, nbytes, number >= len(inputs))
            for number, (start, nbytes) in enumerate(spans)
            if nbytes
        ]
        program = self.program
        with Submission(program.accesses, Accesses(touched) if touched else NOTHING):
            if not self.direct:
                return False
            if any(isinstance(array, DeviceArray) for array in arrays):
                places = program.places(arrays, variables)
            else:
                places = program.host_places(spans, variables)
            program.run_at(places, variables)
            self.last = tuple(outputs)
        return True

    @property
    def live_sizes(self) -> dict[str, int]:
        arena, found = self._block(Slot.ARENA), {}
        for name, offset in self._image.live_sizes.items():
            number = np.empty(1, np.int64)
            arena.read(offset, bytes_of(number))
            found[name] = int(number[0])
        return found

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        _check_apart(inputs, outputs)
        arrays = [*inputs, *outputs]
        return BoundCall(self.program, self._resident, arrays, variables, self.memory.check_open)

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """All rows are computed."""

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        # Imported here, since runs do not need it.
        from ostinato.backends.common.plan_maker import lent_storages, make_plan

        compiled, context = self.compilation, self._context
        self._lent = lent_storages(self, compiled.lowered, context)
        return make_plan(
            self, compiled.lowered, compiled.code.code, self._lent, context, facts, device_block
        )


def _check_apart(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Check that no output overlaps another array.

    Raises:
        ValueError: one does.
    """
    for position, output in enumerate(outputs):
        for other in (*inputs, *outputs[:position]):
            if may_share_memory(output, other):
                raise ValueError(f"output {position} overlaps another array in memory")


def _address(array: Any) -> int:
    """The address of the first byte of an array of the host or the device."""
    if isinstance(array, DeviceArray):
        return array.address
    found: int = array.__array_interface__["data"][0]
    return found


def _check_spans(spans: Sequence[tuple[int, int]], inputs: int) -> None:
    """Check the same of contiguous arrays, given as addresses and sizes, inputs first."""
    for position in range(inputs, len(spans)):
        start, nbytes = spans[position]
        for number, (other, size) in enumerate(spans[:position]):
            if nbytes and size and start < other + size and other < start + nbytes:
                raise ValueError(f"output {position - inputs} overlaps array {number} in memory")
