"""A lowered program with code and memory, ready to run through the native core."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.memory import Layout, Slot, Tenancy
from ostinato.lower.leading_rows import LeadingRows
from ostinato.lower.program import Role
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.preparation import preparations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.backends.cpu.compiler import MachineCode
    from ostinato.backends.device import Device
    from ostinato.lower.leading_rows import Cut
    from ostinato.lower.program import Call, LoweredBuffer, Program
    from ostinato.plan.preparation import Preparation
    from ostinato.plan.report import CompileReport

__all__ = ["CpuExecutable"]

Array = np.ndarray[Any, Any]

#: Bytes of a param that one thread copies before it looks for more.
_COPIED_AT_ONCE = 1 << 18


class CpuExecutable(Executable):
    """See :class:`~ostinato.backends.base.Executable`.

    Memory is taken once, here: an arena for what lives within a run, and a block each for
    constants, weights and states. Inputs and outputs are the caller's arrays.
    """

    def __init__(
        self,
        program: Program,
        code: MachineCode,
        pool: _core.ThreadPool,
        device: Device,
        report: CompileReport,
        params: Mapping[str, Array],
    ) -> None:
        self.program = program
        self.report = report
        self._device = device
        self._code = code
        self._pool = pool
        self._layout = Layout.of(program)
        self._preparations = preparations(program.prepare)
        self._leading_rows: dict[int, LeadingRows] = {}
        self._constants = _core.Arena(self._layout.sizes[Slot.CONSTANTS])
        for buffer, offset in self._layout.members(Slot.CONSTANTS):
            _typed_view(self._constants, offset, buffer)[...] = buffer.data
        self._weights = Tenancy(self._layout.sizes[Slot.WEIGHTS])
        self._take_memory()
        for buffer, offset in self._layout.members(Slot.STATES):
            _typed_view(self._states, offset, buffer)[...] = _initial(buffer)
        self._write(params, [p for p in self._preparations if p.params <= params.keys()])

    # -- memory ------------------------------------------------------------------------------------

    def _take_memory(self) -> None:
        """Memory of its own for all that is not shared, and the native program that runs on it."""
        sizes = self._layout.sizes
        self._arena = _core.Arena(sizes[Slot.ARENA])
        self._states = _core.Arena(sizes[Slot.STATES])
        self._idle = _core.Arena(sizes[Slot.IDLE])
        steps = [self._step(call) for call in self.program.calls]
        slots = [*self._fixed(), *self._externals()]
        self._run = self._native(steps, slots, owner=(self._code, self._weights))
        self.plan = ExecutionPlan(self._device, self.program, self._layout.placement)

    def _fixed(self) -> list[_core.Slot]:
        """In the order of :class:`Slot`."""
        return [self._arena, self._constants, self._weights.arena, self._states, self._idle]

    def _externals(self) -> Iterator[_core.Slot]:
        for buffer in (*self.program.inputs.values(), *self.program.outputs.values()):
            size = self._code.size(buffer.type.size * buffer.type.dtype.itemsize)
            written = buffer.role is Role.OUTPUT
            yield (buffer.nbytes, written, size) if size else (buffer.nbytes, written)

    def clone(self) -> CpuExecutable:
        with self._weights.guard:
            twin = copy.copy(self)
            twin._weights = self._weights.join()
            twin._take_memory()
        self._transfer(twin._states, (Slot.STATES, 0), self._layout.sizes[Slot.STATES])
        return twin

    def _native(
        self,
        steps: Sequence[_core.Step],
        slots: Sequence[_core.Slot],
        *,
        owner: object,
        turns_with: _core.Program | None = None,
    ) -> _core.Program:
        variables = len(self.program.variables)
        return _core.Program(
            self._pool, slots, steps, variables, owner=owner, turns_with=turns_with
        )

    def _step(self, call: Call) -> _core.Step:
        kernel = call.kernel
        compiled = self._code.kernel(kernel)
        arguments = tuple(self._layout.places[b] for b in call.buffers)
        extent = kernel.extent if isinstance(kernel.extent, int) else 0
        return (
            compiled.address,
            arguments,
            extent,
            compiled.extent_address,
            kernel.grain,
            kernel.scratch_bytes,
            kernel.parallel,
        )

    # -- params ------------------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self._write(params, [p for p in self._preparations if not p.params.isdisjoint(params)])

    def _write(self, params: Mapping[str, Array], stale: Sequence[Preparation]) -> None:
        """Copy arrays into params, then prepare.

        All of it is one native program that takes turns with runs. It is made for the occasion:
        weights are written rarely, and in any combination.
        """
        buffers = [self.program.params[name] for name in params]
        given = [(buffer.nbytes, False) for buffer in buffers]
        copies = [
            _copy(self._layout.places[buffer], (number, 0), buffer.nbytes)
            for number, buffer in enumerate(buffers, len(Slot))
        ]
        steps = [*copies, *(self._step(call) for part in stale for call in part.calls)]
        with self._weights.guard:
            if self._weights.move_out():
                self._run.move_slot(Slot.WEIGHTS, self._weights.arena)
            slots = [*self._fixed(), *given]
            writing = self._native(steps, slots, owner=self._code, turns_with=self._run)
            writing.run(list(params.values()))

    # -- states ------------------------------------------------------------------------------------

    def read_state(self, name: str) -> Array:
        buffer = self.program.states[name]
        array = np.empty(_fixed_shape(buffer), buffer.type.dtype.numpy)
        self._transfer(array, self._layout.places[buffer], buffer.nbytes)
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        buffer = self.program.states[name]
        if array is None:
            array = np.ascontiguousarray(_initial(buffer))
        self._transfer(array, self._layout.places[buffer], buffer.nbytes, write=True)

    def _transfer(
        self,
        outside: Array | _core.Arena,
        place: tuple[int, int],
        nbytes: int,
        *,
        write: bool = False,
    ) -> None:
        """Copy bytes between memory of others and a place of ours, in turn with runs."""
        there = (len(Slot), 0)
        step = _copy(place, there, nbytes) if write else _copy(there, place, nbytes)
        slots = [*self._fixed(), (nbytes, not write)]
        self._native([step], slots, owner=self._code, turns_with=self._run).run([outside])

    # -- running -----------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        self._run.run([*inputs, *outputs], variables)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        return self._run.bind([*inputs, *outputs], variables)

    # -- leading rows ------------------------------------------------------------------------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        if extent is None or extent[0] == extent[1]:
            self._cut([None] * len(self.program.calls))
            return
        actual, upper = extent
        if upper not in self._leading_rows:
            self._leading_rows[upper] = LeadingRows(self.program, upper)
        self._cut(self._leading_rows[upper].cuts(actual))

    def _cut(self, cuts: Sequence[Cut | None]) -> None:
        """Have each step run as far as its cut says; ``None``: in full."""
        limits = np.full(len(cuts), np.iinfo(np.int64).max)
        idle = np.zeros(self._idle.nbytes // limits.itemsize, np.int64)
        for position, (call, cut) in enumerate(zip(self.program.calls, cuts, strict=True)):
            if cut is None:
                continue
            limits[position] = cut.extent
            for buffer in call.buffers:
                if buffer.role is Role.IDLE:
                    idle[self._layout.places[buffer][1] // limits.itemsize] = cut.idle
        self._run.set_limits(limits, self._idle, idle)

    # -- the arena ---------------------------------------------------------------------------------

    @property
    def arena(self) -> memoryview:
        return memoryview(self._arena)

    @property
    def arena_address(self) -> int:
        return self._arena.address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._layout.results


def _copy(target: tuple[int, int], source: tuple[int, int], nbytes: int) -> _core.Step:
    """The step that copies bytes from one place to another."""
    return (_core.memcpy_kernel, (target, source), nbytes, 0, _COPIED_AT_ONCE, 0)


def _initial(buffer: LoweredBuffer) -> Array:
    """What a state holds before the first run."""
    assert buffer.value is not None
    array: Array = buffer.value.node.attrs["init"]
    return array


def _fixed_shape(buffer: LoweredBuffer) -> tuple[int, ...]:
    return tuple(int(d) for d in buffer.type.shape)  # type: ignore[arg-type]  # never symbolic


def _typed_view(memory: _core.Arena, offset: int, buffer: LoweredBuffer) -> Array:
    array: Array = np.ndarray(
        _fixed_shape(buffer), buffer.type.dtype.numpy, memoryview(memory), offset
    )
    return array
