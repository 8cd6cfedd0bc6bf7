"""The runtime of a compiled graph: params and states as arrays of the framework, and runs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.arrays import (
    ArrayBlocks,
    ArrayMemory,
    ResidentArray,
)
from ostinato.backends.array_api.context import ArrayContext
from ostinato.backends.array_api.program import ArrayProgram, true_or_false
from ostinato.backends.array_api.stage_code import StageCode
from ostinato.backends.base import Executable
from ostinato.backends.common.commands import ProgramCall, Resident
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.plan_maker import lent_storages, make_plan
from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_memory import ProgramMemory
from ostinato.plan.device_array import DeviceArray, may_share_memory
from ostinato.plan.order import NOTHING, ORDER, Accesses, Submission
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.backends.array_api.arrays import ArrayBlock
    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.backends.array_api.lowering import StagedProgram
    from ostinato.backends.common.context import Context
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ParamSource
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.buffer import Storage
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.memory import MemoryReport
    from ostinato.plan.report import CompiledSizes

__all__ = ["ArrayExecutable"]

Array = np.ndarray[Any, Any]


class ArrayExecutable(Executable):
    """See :class:`~ostinato.backends.base.Executable`.

    Params, states and constants are arrays of the framework. Inputs are read where they are, if the
    framework can; results are copied to the caller's arrays.

    Args:
        image: the program's buffers.
        lowered: the graph.
        functions: its compiled stages.
        context: the device's command queue.
        params: contents of the params.
        keeps: whether values between stages stay in memory after a run.
    """

    def __init__(
        self,
        image: ProgramImage[Any],
        lowered: LoweredGraph[StagedProgram],
        functions: StageFunctions,
        context: ArrayContext,
        params: Mapping[str, ParamSource],
        *,
        keeps: bool = False,
    ) -> None:
        self.report = lowered.report
        self._image = image._replace(constants=())
        self._lowered = lowered
        self._functions = functions
        self._framework = functions.framework
        self._context = context
        self._keeps = keeps
        self._lent: dict[Slot | str, Storage] = {}
        self._start(ProgramMemory(self._image, ArrayBlocks(self._framework)))
        constants = self._block(Slot.CONSTANTS)
        with self._framework.scope():
            for buffer, offset in lowered.layout.members(Slot.CONSTANTS):
                assert buffer.data is not None
                elements = np.ascontiguousarray(buffer.data).reshape(buffer.data.shape)
                constants.arrays[offset] = self._framework.from_host(elements, copy=True)
        for name in image.states:
            self.write_state(name, None)
        self.memory.weights.write_first(params, self._write)

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[ArrayBlock, Any]) -> None:
        """Make the program that runs on ``memory``."""
        image = self._image
        self.memory = memory
        self.unset = memory.weights.unset
        self._results: Array | None = None
        sizes = LiveSizes(image.variables, image.externals)
        self._resident = Resident(self._context.commands, sizes)
        self.program = ArrayProgram(
            self._functions,
            self._lowered,
            image.externals,
            memory.fixed,
            self._resident.accesses,
            keeps=self._keeps,
        )

    def clone(self, context: Context | None = None) -> ArrayExecutable:
        twin = copy.copy(self)
        if context is not None:
            assert isinstance(context, ArrayContext)
            twin._context = context
        twin._lent = {}
        with self.memory.guard:
            twin._start(self.memory.clone())
        states = self._block(Slot.STATES).arrays
        with self._framework.scope():
            copies = {offset: self._framework.copy(array) for offset, array in states.items()}
            self._framework.wait([*copies.values()])
        twin._block(Slot.STATES).arrays.update(copies)
        twin.last = ()
        return twin

    def _block(self, slot: Slot) -> ArrayBlock:
        """The present block of a fixed slot."""
        return self.memory.fixed()[slot]

    def discard(self) -> None:
        self._block(Slot.ARENA).arrays.clear()
        if self._results is not None:
            self._results[:] = 0
        ORDER.memory_changes(self.program)
        if Slot.ARENA in self._lent:
            ORDER.memory_changes(self._lent[Slot.ARENA])

    def close(self) -> None:
        with self.memory.guard:
            self.memory.close()
        for own in (self.program, *self._lent.values()):
            ORDER.memory_changes(own, replaced=True)
        self._results = None

    @property
    def _result_memory(self) -> Array:
        """The memory of results that are not returned, on the host."""
        self.memory.check_open()
        if self._results is None:
            self._results = np.zeros(self._image.sizes[Slot.ARENA], np.uint8)
        return self._results

    @property
    def arena(self) -> memoryview:
        return self._result_memory.data

    @property
    def arena_address(self) -> int:
        address: int = self._result_memory.__array_interface__["data"][0]
        return address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results

    # -- params and states -------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self.memory.weights.write(params, self._write)

    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[Any]]) -> None:
        """Make arrays of params; those of clones stay what they are."""
        self.memory.check_open()
        block = self.memory.weights.block
        program = self._lowered.program
        with block.guard, self._framework.scope():
            made = {}
            for name, array in params.items():
                elements = np.ascontiguousarray(true_or_false(array)).reshape(array.shape)
                made[name] = self._framework.from_host(elements, copy=True)
            self._framework.wait([*made.values()])
            former = block.memory
            if block.unshare() and (lent := self._lent.get(Slot.WEIGHTS)):
                # What a clone has lent stays as it is.
                ORDER.memory_changes((lent, former), replaced=True)
            for name, array in made.items():
                place = self._lowered.layout.locations.get(program.params[name])
                if place is not None:
                    block.memory.arrays[place[1]] = array

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        slot, offset = state.location
        with self._framework.scope():
            held = self._framework.to_host(self.memory.fixed()[slot].arrays[offset])
            return np.array(held, order="C").reshape(state.shape)

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        slot, offset = state.location
        content = state.initial_array() if array is None else true_or_false(array)
        with self._framework.scope():
            held = self._framework.from_host(
                np.ascontiguousarray(content).reshape(state.shape), copy=True
            )
            self._framework.wait([held])
        self.memory.fixed()[slot].arrays[offset] = held

    # -- arrays on the device ----------------------------------------------------------------------

    def adopt(self, array: Any) -> DeviceArray:
        if isinstance(array, ResidentArray) and array.device == self._context.device:
            return array
        with self._framework.scope():
            found = self._framework.adopt(array)
            dtype = self._framework.xp.dtype_of(found).numpy
        return self._resident_array(found, tuple(found.shape), dtype, foreign=True)

    def resident(self, array: Array) -> Array:
        if isinstance(array, DeviceArray):
            return array
        elements = np.ascontiguousarray(true_or_false(array)).reshape(array.shape)
        with self._framework.scope():
            held = self._framework.from_host(elements, copy=True)
        found: Any = self._resident_array(held, array.shape, array.dtype)
        kept: Array = found
        return kept

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.resident(np.zeros(shape, dtype))

    def _resident_array(
        self, held: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, foreign: bool = False
    ) -> ResidentArray:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = ArrayMemory(self._framework, held, nbytes, foreign=foreign)
        return ResidentArray(self._context.device, memory, shape, dtype)

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        _check_apart(inputs, outputs)
        self.program.run([*inputs, *outputs], variables)

    def run_consuming(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        variables: Sequence[int],
        consumed: Collection[int],
    ) -> None:
        _check_apart(inputs, outputs)
        mine = [
            number
            for number in consumed
            if isinstance(found := inputs[number], ResidentArray)
            and not found.memory.foreign
            and sum(other is found for other in inputs) == 1
        ]
        self.program.run_consuming([*inputs, *outputs], variables, mine)

    def run_direct(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        self._context.refuse_while_capturing("run reads its results back")
        arrays = [*inputs, *outputs]
        touched = _touched(arrays, len(inputs))
        with Submission(self.program.accesses, Accesses(touched) if touched else NOTHING):
            if not self.direct:
                return False
            self.program.run(arrays, variables)
            self.last = tuple(outputs)
        return True

    @property
    def live_sizes(self) -> dict[str, int]:
        return dict(self.program.live_sizes)

    @property
    def compiled_sizes(self) -> tuple[CompiledSizes, ...]:
        return self._functions.compiled_sizes

    def warm(self, variables: Sequence[int]) -> None:
        self.program.warm(variables)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        _check_apart(inputs, outputs)
        arrays = [*inputs, *outputs]
        return ProgramCall(
            self.program, self._resident, arrays, len(inputs), variables, self.memory.check_open
        )

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """All rows are computed."""

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        self._lent = lent_storages(self, self._lowered, self._context)

        def code(kernel: Kernel) -> StageCode:
            return StageCode(self._functions, kernel)

        plan = make_plan(self, self._lowered, code, self._lent, self._context, facts)
        plan.memory = self._with_temporaries(plan.memory)
        return plan

    def _with_temporaries(self, memory: MemoryReport) -> MemoryReport:
        """A report with what compiled stages take while they run."""
        known = [self._functions.latest(stage) for stage in self._lowered.program.stages]
        taken = [function.memory for function in known if function is not None]
        temporary = max((found.temporary for found in taken), default=0)
        unshared = sum(found.unshared for found in taken)
        return replace(
            memory,
            arena_bytes=memory.arena_bytes + temporary,
            unshared_bytes=memory.unshared_bytes + unshared,
            lower_bound_bytes=memory.lower_bound_bytes + temporary,
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


def _touched(arrays: Sequence[Any], inputs: int) -> list[tuple[int, int, bool]]:
    """The memory of contiguous arrays, inputs first, as a submission accesses it.

    Raises:
        ValueError: an array is not contiguous, or an output overlaps another array.
    """
    spans: list[tuple[int, int, bool]] = []
    for number, array in enumerate(arrays):
        if not array.flags.c_contiguous:
            raise ValueError("an array is not C-contiguous")
        if not (nbytes := array.nbytes):
            continue
        resident = isinstance(array, DeviceArray)
        start = array.address if resident else array.__array_interface__["data"][0]
        written = number >= inputs
        if written:
            for other, size, _ in spans:
                if start < other + size and other < start + nbytes:
                    raise ValueError(f"output {number - inputs} overlaps another array in memory")
        spans.append((start, nbytes, written))
    return spans
