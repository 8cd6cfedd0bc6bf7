"""The runtime: the memory of a compiled graph, and its runs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.context import Context
from ostinato.backends.common.lowered_graph import LoweredGraph
from ostinato.backends.common.plan_maker import lent_storages, make_plan
from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation, Slot
from ostinato.backends.common.program_memory import BlockKind, ProgramMemory
from ostinato.ir.facts import Fact
from ostinato.ir.stored import ParamSource
from ostinato.lower.program import Program
from ostinato.plan.buffer import HostMemory
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.order import ORDER, Accesses, Submission, arrays_touched

from .program import LoopsCode, LoopsProgram, Step, octets

__all__ = ["LoopsExecutable"]

Array = np.ndarray[Any, Any]


class LoopsExecutable(Executable):
    """A program on memory of its own: a block of bytes for each :class:`Slot`."""

    def __init__(
        self,
        image: ProgramImage[Step],
        lowered: LoweredGraph[Program],
        context: Context,
        params: Mapping[str, ParamSource],
    ) -> None:
        self.report = lowered.report
        self._image = image
        self._lowered = lowered
        self._context = context
        self._start(ProgramMemory(image, Blocks()))
        for name in image.states:
            self.write_state(name, None)
        self.memory.weights.write_first(params, self._write)

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[Array, Step]) -> None:
        variables = self._lowered.program.variables
        self.memory = memory
        self.unset = memory.weights.unset
        self.program = LoopsProgram(self._image.steps, variables, memory.fixed)

    def clone(self, context: Context | None = None) -> LoopsExecutable:
        twin = copy.copy(self)
        twin._context = context or self._context
        with self.memory.guard:
            twin._start(self.memory.clone())
        twin.memory.fixed()[Slot.STATES][:] = self.memory.fixed()[Slot.STATES]
        twin.last = ()
        return twin

    def discard(self) -> None:
        self.memory.fixed()[Slot.ARENA][:] = 0
        ORDER.memory_changes(self.program)

    def close(self) -> None:
        with self.memory.guard:
            self.memory.close()
        ORDER.memory_changes(self.program, replaced=True)

    @property
    def arena(self) -> memoryview:
        return self.memory.fixed()[Slot.ARENA].data

    @property
    def arena_address(self) -> int:
        return self.memory.fixed()[Slot.ARENA].ctypes.data

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results

    # -- params and states -------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self.memory.weights.write(params, self._write)

    def _write(
        self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[Step]]
    ) -> None:
        block = self.memory.weights.block
        with block.guard:
            block.unshare()
            memory = dict(enumerate(self.memory.fixed()))
            for position, (name, (nbytes, place)) in enumerate(self._image.params.items()):
                if name not in params:
                    continue
                given = octets(_true_or_false(params[name]))
                if place is None:
                    memory[-1 - position] = given
                else:
                    slot, offset = place
                    memory[slot][offset : offset + nbytes] = given
            for preparation in stale:
                self.program.perform(preparation.steps, memory, {})

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        array = state.empty()
        octets(array)[:] = self._state(name)
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        content = state.initial_array() if array is None else _true_or_false(array)
        self._state(name)[:] = octets(content)

    def _state(self, name: str) -> Array:
        """The bytes of a state."""
        state = self._image.states[name]
        slot, offset = state.location
        return self.memory.fixed()[slot][offset : offset + state.empty().nbytes]

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        _check_apart(inputs, outputs)
        self.program.run([*map(_true_or_false, inputs), *outputs], variables)

    @property
    def live_sizes(self) -> dict[str, int]:
        return self._image.read_sizes(self.arena)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        _check_apart(inputs, outputs)
        touched = arrays_touched(inputs, outputs)

        def call() -> None:
            self._context.refuse_while_capturing("this device records no runs")
            with Submission(self.accesses, touched):
                self.run(inputs, outputs, variables)

        return call

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """All rows are computed."""

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        lent = lent_storages(self, self._lowered, self._context)
        return make_plan(self, self._lowered, LoopsCode, lent, self._context, facts)


class Blocks(BlockKind[Array]):
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`: arrays of bytes."""

    def allocate(self, nbytes: int) -> Array:
        return np.zeros(nbytes, np.uint8)

    def duplicate(self, block: Array) -> Array:
        return block.copy()

    def memory(self, block: Array) -> HostMemory:
        return HostMemory(block)


def _check_apart(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for position, output in enumerate(outputs):
        others = itertools.chain(inputs, outputs[:position])
        if any(np.may_share_memory(output, other) for other in others):
            raise ValueError(f"output {position} overlaps another array in memory")


def _true_or_false(array: Array) -> Array:
    """The array; of bools, any byte that is not 0 is a true one."""
    return array.view(np.uint8) != 0 if array.dtype == bool else array
