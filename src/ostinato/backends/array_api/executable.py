"""The runtime of a compiled graph: params and states as arrays of the framework, and runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ostinato.backends.array_api._fresh_runs import FreshRun
from ostinato.backends.array_api.arrays import (
    ArrayBlock,
    ArrayBlocks,
    ArrayMemory,
    ResidentArray,
)
from ostinato.backends.array_api.context import ArrayContext
from ostinato.backends.array_api.expert_tier import ExpertTier, HostExperts
from ostinato.backends.array_api.program import ArrayProgram, true_or_false
from ostinato.backends.array_api.stage_code import StageCode
from ostinato.backends.common.commands import ProgramCall, Resident
from ostinato.backends.common.live_sizes import LiveSizes
from ostinato.backends.common.program_executable import ProgramExecutable
from ostinato.backends.common.program_image import Slot
from ostinato.errors import InputError
from ostinato.plan.device_array import DeviceArray
from ostinato.plan.order import NOTHING, Accesses, Submission
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.backends.array_api.lowering import StagedProgram
    from ostinato.backends.common.context import Context
    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.memory import MemoryReport
    from ostinato.plan.report import CompiledSizes

__all__ = ["ArrayCompilation", "ArrayExecutable"]

Array = np.ndarray[Any, Any]

#: The reason for which a recording cannot hold a run.
_READS_BACK = "run reads its results back"


@dataclass(frozen=True, eq=False)
class ArrayCompilation:
    """See :class:`~ostinato.backends.common.program_executable.CompiledProgram`.

    Attributes:
        lowered: the graph.
        functions: its compiled stages.
    """

    lowered: LoweredGraph[StagedProgram]
    functions: StageFunctions

    def kernel_code(self, kernel: Kernel) -> StageCode:
        """The code of a part."""
        return StageCode(self.functions, kernel)


class ArrayExecutable(ProgramExecutable[ArrayBlock, Any, ArrayProgram, ArrayContext]):
    """See :class:`~ostinato.backends.common.program_executable.ProgramExecutable`.

    Params, states and constants are arrays of the framework. Inputs are read where they are, if the
    framework can; results are copied to the caller's arrays.

    Args:
        image: the program's buffers.
        compilation: the graph and its compiled stages.
        context: the device's command queue.
        params: contents of the params.
        experts: further params: matrices of experts, of which only some stay on the device.
        keeps: whether values between stages stay in memory after a run.

    Raises:
        ModelFormatError: experts could not be read from their file.
    """

    def __init__(
        self,
        image: ProgramImage[Any],
        compilation: ArrayCompilation,
        context: ArrayContext,
        params: Mapping[str, ParamSource],
        experts: Mapping[str, ExpertTensor] | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._compiled = compilation
        self._framework = context.framework
        self._tensors = experts or {}
        self._host_experts: HostExperts | None = None
        if experts:
            layers = [*compilation.lowered.program.resident.values()]
            self._host_experts = HostExperts(self._framework, layers, experts)
        self._keeps = keeps
        kind = ArrayBlocks(self._framework)
        super().__init__(image._replace(constants=()), kind, context, params, lambda: compilation)
        constants = self._block(Slot.CONSTANTS)
        with self._framework.scope():
            for buffer, offset in compilation.lowered.layout.members(Slot.CONSTANTS):
                assert buffer.data is not None
                elements = np.ascontiguousarray(buffer.data).reshape(buffer.data.shape)
                constants.arrays[offset] = self._framework.from_host(elements, copy=True)

    run_fresh: FreshRun | None = None

    def _new_program(self) -> ArrayProgram:
        image = self._image
        sizes = LiveSizes(image.variables, image.externals)
        self._resident = Resident(self._context.commands, sizes)
        host = self._host_experts
        self._tier = None if host is None else ExpertTier(host)
        program = ArrayProgram(
            self._compiled.functions,
            self._compiled.lowered,
            image.externals,
            self.memory.fixed,
            self._resident.accesses,
            keeps=self._keeps,
            tier=self._tier,
        )
        self.run_fresh = None
        if (parts := program.fresh) is not None:
            self.run_fresh = FreshRun(
                self,
                program.accesses,
                partial(self._context.refuse_while_capturing, _READS_BACK),
                lambda: parts.bound(self.memory.fixed()),
                self._framework.failure,
            )
        return program

    def _memory_moves(self) -> None:
        if self.run_fresh is not None:
            self.run_fresh.forget()

    def close(self) -> None:
        super().close()
        self._memory_moves()

    def clone(self, context: Context | None = None) -> Self:
        twin = super().clone(context)
        if twin._tier is not None and self._tier is not None:
            twin._tier.begin(self._tier.residents())
        return twin

    def _host_memory(self, nbytes: int) -> memoryview:
        return np.zeros(nbytes, np.uint8).data

    # -- params and states -------------------------------------------------------------------------

    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[Any]]) -> None:
        """Make arrays of params; those of clones stay what they are."""
        self.memory.check_open()
        block = self.memory.weights.block
        lowered = self._compiled.lowered
        with block.guard, self._framework.scope():
            made = {}
            for name, array in params.items():
                elements = np.ascontiguousarray(true_or_false(array)).reshape(array.shape)
                made[name] = self._framework.from_host(elements, copy=True)
            self._framework.wait([*made.values()])
            held = self._own_weights()
            for name, array in made.items():
                place = lowered.layout.locations.get(lowered.program.params[name])
                if place is not None:
                    held.arrays[place[1]] = array

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

    def run_consuming(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        variables: Sequence[int],
        consumed: Collection[int],
    ) -> None:
        arrays = self._apart(inputs, outputs)
        mine = [
            number
            for number in consumed
            if isinstance(found := inputs[number], ResidentArray)
            and not found.memory.foreign
            and sum(other is found for other in inputs) == 1
        ]
        self.program.run_consuming(arrays, variables, mine)

    def run_direct(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        self._context.refuse_while_capturing(_READS_BACK)
        arrays = [*inputs, *outputs]
        touched = _touched(arrays, self._inputs)
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
        return self._compiled.functions.compiled_sizes

    def warm(self, variables: Sequence[int]) -> None:
        self.program.warm(variables)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        return ProgramCall(
            self.program,
            self._resident,
            self._apart(inputs, outputs),
            self._inputs,
            variables,
            self.memory.check_open,
        )

    # -- experts -----------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        return self.program.calls.descriptions

    def take_expert_ids(self) -> list[Array] | None:
        self.memory.check_open()
        return self.program.calls.take()

    def place_experts(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        self.memory.check_open()
        return self.program.calls.place(masks)

    def resident_experts(self) -> Sequence[Array | None]:
        return self.program.calls.resident()

    def expert_transfers(self) -> ExpertTransfers:
        self.memory.check_open()
        return self.program.calls.transfers()

    def write_params(self, params: Mapping[str, Array]) -> None:
        if stored := [name for name in params if name in self._tensors]:
            raise InputError(f"param {stored[0]!r} is in the file of experts: it is not written")
        super().write_params(params)

    def discard(self) -> None:
        super().discard()
        self.program.calls.clear()

    # -- rows in use -------------------------------------------------------------------------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self.program.calls.extents.set(extent)

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        self.program.calls.extents.push(extent)

    def pop_limit(self) -> None:
        self.program.calls.extents.pop()

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        plan = super().make_plan(facts)
        plan.memory = self._with_temporaries(plan.memory)
        return plan

    def _with_temporaries(self, memory: MemoryReport) -> MemoryReport:
        """A report with what compiled stages take while they run."""
        functions, program = self._compiled.functions, self._compiled.lowered.program
        known = [functions.latest(stage) for stage in program.stages]
        taken = [function.memory for function in known if function is not None]
        temporary = max((found.temporary for found in taken), default=0)
        unshared = sum(found.unshared for found in taken)
        return replace(
            memory,
            arena_bytes=memory.arena_bytes + temporary,
            unshared_bytes=memory.unshared_bytes + unshared,
            lower_bound_bytes=memory.lower_bound_bytes + temporary,
        )


def _touched(arrays: Sequence[Any], inputs: int) -> list[tuple[int, int, bool]]:
    """The memory of contiguous arrays as a submission accesses it.

    Args:
        arrays: those that are only read, then those that are written.
        inputs: the number of the former.

    Raises:
        ValueError: an array is not contiguous, or one that is written overlaps another one.
    """
    spans: list[tuple[int, int, bool]] = []
    for number, array in enumerate(arrays):
        if not (nbytes := array.nbytes):
            continue
        if isinstance(array, DeviceArray):
            contiguous, start = array.flags.c_contiguous, array.address
        else:
            layout = array.__array_interface__  # made anew at each look
            contiguous, start = layout["strides"] is None, layout["data"][0]
        if not contiguous:
            raise ValueError("an array is not C-contiguous")
        written = number >= inputs
        if written:
            for other, size, _ in spans:
                if start < other + size and other < start + nbytes:
                    raise ValueError(f"output {number - inputs} overlaps another array in memory")
        spans.append((start, nbytes, written))
    return spans
