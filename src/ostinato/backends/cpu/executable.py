"""A compiled program with memory, run by the native core."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.model_executable import ModelExecutable
from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_memory import ProgramMemory
from ostinato.backends.common.program_runner import RELEASED
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.context import CpuContext
from ostinato.backends.cpu.expert_layers import ExpertLayers
from ostinato.backends.cpu.submission import Arenas, copy_step, discard_step
from ostinato.errors import PlanError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import HostMemory
from ostinato.plan.order import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.backends.common.context import Context
    from ostinato.backends.cpu import stored_weights
    from ostinato.backends.cpu.compilation import Compilation
    from ostinato.backends.cpu.image import AnyStep, Image, Preparation
    from ostinato.backends.cpu.llvm.toolchain import LinkedCode
    from ostinato.backends.cpu.partial_launch import LeadingRows
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.plan.buffer import Storage
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.order import Accesses
    from ostinato.plan.report import CompileReport
else:
    stored_weights = LazyModule("ostinato.backends.cpu.stored_weights")

__all__ = ["CpuExecutable"]

Array = np.ndarray[Any, Any]

#: Smaller blocks of weights are packed by each process: that takes some milliseconds.
_LEAST_STORED = 32 << 20


class CpuExecutable(ModelExecutable[_core.Arena, "AnyStep"], Executable):
    """See :class:`~ostinato.backends.base.Executable`.

    Memory is taken once, here: an arena for intermediate values, and a block each for constants,
    weights and states. Inputs and outputs are the caller's arrays.

    Args:
        image: the compiled program.
        code: the kernels; ``None`` if all of them are built-in.
        context: the CPU's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans and reports.
        experts: further params, which stay in a file.
        siblings: executables of the same model at other sizes, to share weights with; ``None``:
            there will be none.
        store_weights: whether large prepacked weights may stay on disk; see
            :class:`~ostinato.backends.cpu.stored_weights.StoredWeights`.
    """

    def __init__(
        self,
        image: Image,
        code: LinkedCode | None,
        context: CpuContext,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], Compilation],
        experts: Mapping[str, ExpertTensor] | None = None,
        siblings: Sequence[CpuExecutable] | None = None,
        *,
        store_weights: bool = False,
    ) -> None:
        self._image = image._replace(constants=())
        self._weight_form = None if siblings is None else image.prepacking()
        self._lent: dict[Slot | str, Storage] = {}
        self._tensors = experts or {}
        self._context = context
        self._code = code
        self._compilation = compilation
        self._leading_rows: dict[int, LeadingRows] = {}
        shared = self._weights_of(siblings or (), params)
        stored = None
        if store_weights and shared is None and image.sizes[Slot.WEIGHTS] >= _LEAST_STORED:
            stored = stored_weights.StoredWeights.of(image, params)
        block = None if stored is None else stored.block
        self._start(ProgramMemory(image, Arenas(), shared, block))
        for name in image.states:
            self.write_state(name, None)
        if stored is not None:
            self._write_stored(params, stored)
        elif shared is None:
            self.memory.weights.write_first(params, self._write)
        self.memory.weights.record(self._tensors)
        self._experts.begin()

    @property
    def compilation(self) -> Compilation:
        """The compilation of the program."""
        return self._compilation()

    @property
    def report(self) -> CompileReport:  # type: ignore[override]  # read-only
        return self.compilation.lowered.report

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[_core.Arena, AnyStep]) -> None:
        """Make the native programs that run on ``memory``."""
        self.memory = memory
        self.unset = memory.weights.unset
        fixed = memory.fixed()
        self._arena = fixed[Slot.ARENA]
        steps = [step.native(self._code, {}) for step in self._image.steps]
        slots = [*fixed, *self._externals()]
        owner = (self._code, memory.weights.block)
        self.program = self._context.program(
            slots,
            steps,
            self._image.variables,
            owner=owner,
            touches=[(self._arena.address, self._arena.nbytes, True)],
            limit_slot=Slot.MASKED_TAIL,
        )
        self.run_direct = self.program.run_direct
        self._experts = ExpertLayers(self._image.routings, self._arena, self._native)
        if self._tensors:
            self._experts.open_tier(self.compilation, self._tensors, fixed[Slot.RESIDENT])
        self._tier = self._experts.tier

    def _externals(self) -> Iterator[_core.Slot]:
        for nbytes, written, size, _ in self._image.externals:
            if size:
                assert self._code is not None
                yield nbytes, written, self._code.address(size)
            else:
                yield nbytes, written

    def clone(self, context: Context | None = None) -> CpuExecutable:
        with self.memory.guard:
            twin = copy.copy(self)
            if context is not None:
                assert isinstance(context, CpuContext)
                twin._context = context
            twin._lent = {}
            twin._start(self.memory.clone())
        self._transfer(
            twin.memory.fixed()[Slot.STATES], (Slot.STATES, 0), self._image.sizes[Slot.STATES]
        )
        twin._experts.begin(self._experts)
        return twin

    def _native(
        self,
        steps: Sequence[_core.Step | _core.SizeStep],
        slots: Sequence[_core.Slot],
    ) -> _core.Program:
        """A program that runs between two runs of the graph."""
        pool, variables = self._context.pool, len(self._image.variables)
        return _core.Program(
            pool, slots, steps, variables, owner=self._code, exclusive_with=self.program
        )

    def discard(self) -> None:
        step = discard_step((Slot.ARENA, 0), self._image.intermediate_bytes)
        self._native([step], self.memory.fixed()).run()
        self._experts.clear()
        ORDER.memory_changes(self.program)
        for slot in (Slot.ARENA, Slot.MASKED_TAIL):
            if slot in self._lent:
                ORDER.memory_changes(self._lent[slot])

    def close(self) -> None:
        with self.memory.guard:
            self.memory.close()
            self.program.stop(PlanError(RELEASED))
            self._experts.close(PlanError(RELEASED))
            for own in (self.program, *self._lent.values()):
                ORDER.memory_changes(own, replaced=True)
            self._arena = _core.Arena(0)

    # -- params ------------------------------------------------------------------------------------

    def _held(self, location: tuple[int, int], nbytes: int) -> memoryview:
        start = location[1]
        return memoryview(self.memory.weights.block.memory)[start : start + nbytes]

    def _write_stored(
        self, params: Mapping[str, ParamSource], stored: stored_weights.StoredWeights
    ) -> None:
        """Write the initial params into a block that the store has, or is to have."""
        weights = self.memory.weights
        if stored.complete:
            weights.adopt(params)
            return
        try:
            weights.write_first(params, self._write)
            if stored.block is not None:
                # Memory of a file that is being written is shared with forked children.
                block = stored.keep() or Arenas().duplicate(stored.block)
                weights.block.exchange(block)
                self.program.move_slot(Slot.WEIGHTS, block)
        finally:
            stored.close()

    def _write(self, params: Mapping[str, Array], stale: Sequence[Preparation]) -> None:
        """Copy arrays into params, then prepack; non-retained params are only prepacked.

        This is one native program that excludes runs while it runs. It is made for this write
        alone: weights are written rarely, and in any combination.
        """
        declared = self._image.params
        numbers = {name: number for number, name in enumerate(params, len(Slot))}
        given = {n: numbers[name] for n, name in enumerate(declared) if name in numbers}
        copies = []
        for name, number in numbers.items():
            nbytes, place = declared[name]
            if place is not None:
                copies.append(copy_step(place, (number, 0), nbytes))
        prepared = [step.native(self._code, given) for part in stale for step in part.steps]
        arrays = [np.require(array, requirements="A") for array in params.values()]
        block = self.memory.weights.block
        with block.guard:
            former = block.memory
            if block.unshare():
                self.program.move_slot(Slot.WEIGHTS, block.memory)
                if lent := self._lent.get(Slot.WEIGHTS):  # what a clone has lent stays as it is
                    ORDER.memory_changes((lent, HostMemory(former)), replaced=True)
            slots: list[_core.Slot] = [*self.memory.fixed()]
            slots += [(declared[name].nbytes, False) for name in params]
            self._native([*copies, *prepared], slots).run(arrays)

    # -- states ------------------------------------------------------------------------------------

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        array = state.empty()
        self._transfer(array, state.location, array.nbytes)
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        if array is None:
            array = state.initial_array()
        self._transfer(array, state.location, array.nbytes, write=True)

    def _transfer(
        self,
        outside: Array | _core.Arena,
        place: tuple[int, int],
        nbytes: int,
        *,
        write: bool = False,
    ) -> None:
        """Copy bytes between outside memory and a slot, ordered with runs."""
        there = (len(Slot), 0)
        step = copy_step(place, there, nbytes) if write else copy_step(there, place, nbytes)
        slots: list[_core.Slot] = [*self.memory.fixed(), (nbytes, not write)]
        self._native([step], slots).run([outside])

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    @property
    def direct(self) -> bool:
        return self.program.direct

    @direct.setter
    def direct(self, enable: bool) -> None:
        self.program.direct = enable and self._tier is None

    @property
    def last(self) -> tuple[Array, ...]:
        return self.program.last or ()

    @last.setter
    def last(self, results: tuple[Array, ...]) -> None:
        self.program.last = results

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        tier = self._tier
        failures = 0 if tier is None else tier.failures()
        self.program.run([*inputs, *outputs], variables)
        if tier is not None:
            tier.check(failures)

    def run_buffers(self, inputs: int) -> Callable[[list[Any], Sequence[int]], None]:
        return self.program.run if self._tier is None else super().run_buffers(inputs)

    @property
    def live_sizes(self) -> dict[str, int]:
        return self._image.read_sizes(memoryview(self._arena))

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        call = self.program.bind([*inputs, *outputs], variables)
        tier = self._tier
        if tier is None:
            return call

        def checked() -> None:
            failures = tier.failures()
            call()
            tier.check(failures)

        return checked

    # -- experts -----------------------------------------------------------------------------------

    @property
    def _layers(self) -> ExpertLayers:
        return self._experts

    def take_expert_ids(self) -> list[Array] | None:
        self.memory.check_open()
        return self._experts.take_ids()

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        # Imported here, since runs do not need it.
        from ostinato.backends.common.plan_maker import lent_storages, make_plan

        compiled, context = self.compilation, self._context
        lowered, code = compiled.lowered, compiled.code.code
        self._lent = lent_storages(self, lowered, context)
        return make_plan(self, lowered, code, self._lent, context, facts)

    # -- leading rows ------------------------------------------------------------------------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self.program.set_limits(self._limits(extent))

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        self.program.push_limits(self._limits(extent))

    def pop_limit(self) -> None:
        self.program.pop_limits()

    def _limits(self, extent: tuple[int, int] | None) -> bytes | None:
        """The core's form of an active extent: for each step its extent, then the masked tails."""
        if extent is None or extent[0] == extent[1]:
            return None
        from ostinato.backends.cpu.partial_launch import LeadingRows

        actual, upper = extent
        if upper not in self._leading_rows:
            self._leading_rows[upper] = LeadingRows(self.compilation.program, upper)
        return self._leading_rows[upper].limits(
            self._image.steps, actual, self._image.sizes[Slot.MASKED_TAIL]
        )

    # -- the arena ---------------------------------------------------------------------------------

    @property
    def arena(self) -> memoryview:
        self.memory.check_open()
        return memoryview(self._arena)

    @property
    def arena_address(self) -> int:
        return self._arena.address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results
