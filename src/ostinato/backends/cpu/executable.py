"""A lowered program with code and memory, ready to run through the native core."""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
from ostinato.backends.common.program_image import Slot
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.context import CpuContext
from ostinato.backends.cpu.memory import CopyOnWriteBlock
from ostinato.backends.cpu.routing import RoutingLog
from ostinato.backends.cpu.submission import RELEASED, copy_step, discard_step
from ostinato.backends.cpu.unpacked_weights import UnpackedWeights, batches
from ostinato.dtypes import DType
from ostinato.errors import InputError, PlanError
from ostinato.ir.stored import elements
from ostinato.plan.buffer import HostMemory
from ostinato.plan.order import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.program_image import RoutingPlace
    from ostinato.backends.cpu.compilation import Compilation
    from ostinato.backends.cpu.image import Image, Preparation
    from ostinato.backends.cpu.llvm.toolchain import LinkedCode
    from ostinato.backends.cpu.partial_launch import LeadingRows
    from ostinato.backends.cpu.rules.offload import StoredExperts
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.program import LoweredBuffer
    from ostinato.plan.buffer import Buffer, Storage
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.order import Accesses
    from ostinato.plan.report import CompileReport

__all__ = ["CpuExecutable"]

Array = np.ndarray[Any, Any]

#: Descriptions of buffers that users may not write, by the name of their role.
_READ_ONLY = {
    "constant": "a constant",
    "prepared": "prepared from params",
    "idle": "set between runs",
    "placed": "set between runs",
}


class CpuExecutable(Executable):
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
    """

    def __init__(
        self,
        image: Image,
        code: LinkedCode | None,
        context: CpuContext,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], Compilation],
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> None:
        self._image = image._replace(constants=())
        self._lent: dict[Slot | str, Storage] = {}
        self._experts = experts or {}
        self.unset = set(image.params).difference(params, self._experts)
        self._closed = False
        self._context = context
        self._code = code
        self._compilation = compilation
        self._stored = compilation().stored_by_layer if experts else [None] * len(image.routings)
        passing = {name: p.nbytes for name, p in image.params.items() if p.place is None}
        self._unpacked = UnpackedWeights(passing)
        self._leading_rows: dict[int, LeadingRows] = {}
        self._constants = _core.Arena(image.sizes[Slot.CONSTANTS])
        for offset, data in image.constants:
            memoryview(self._constants)[offset : offset + len(data)] = data
        self._weights = CopyOnWriteBlock(image.sizes[Slot.WEIGHTS])
        self._take_memory()
        for name in image.states:
            self.write_state(name, None)
        self._write_first(params)
        for name, tensor in self._experts.items():
            self._unpacked.record(name, tensor)
        if self._tier is not None:
            self._tier.begin(self._first_experts())

    @property
    def compilation(self) -> Compilation:
        """The compilation of the program."""
        return self._compilation()

    @property
    def report(self) -> CompileReport:  # type: ignore[override]  # read-only
        return self.compilation.report

    # -- memory ------------------------------------------------------------------------------------

    def _take_memory(self) -> None:
        """Take the memory that is not shared, and make the native program that runs on it."""
        sizes = self._image.sizes
        self._arena = _core.Arena(sizes[Slot.ARENA])
        self._states = _core.Arena(sizes[Slot.STATES])
        self._idle = _core.Arena(sizes[Slot.IDLE])
        self._placed = _core.Arena(sizes[Slot.PLACED])
        steps = [step.native(self._code, {}) for step in self._image.steps]
        slots = [*self._fixed(), *self._externals()]
        owner = (self._code, self._weights)
        self._run = self._context.program(
            slots,
            steps,
            self._image.variables,
            owner=owner,
            touches=[(self._arena.address, self._arena.nbytes, True)],
            limit_slot=Slot.IDLE,
        )
        self.run_direct = self._run.run_direct
        self._log = RoutingLog(self._image.routings, self._arena, self._native)
        self._tier = None
        if layers := self._in_file():
            from ostinato.backends.cpu.expert_tier import ExpertTier

            compilation = self.compilation
            places, code = compilation.layout.places, compilation.code
            self._tier = ExpertTier(layers, self._experts, places, self._placed, code, self._native)

    def _fixed(self) -> list[_core.Slot]:
        """The memory of the fixed slots, in the order of :class:`Slot`."""
        self._check_open()
        weights = self._weights.arena
        return [self._arena, self._constants, weights, self._states, self._idle, self._placed]

    def _externals(self) -> Iterator[_core.Slot]:
        for nbytes, written, size in self._image.externals:
            if size:
                assert self._code is not None
                yield nbytes, written, self._code.address(size)
            else:
                yield nbytes, written

    def clone(self, context: Context | None = None) -> CpuExecutable:
        with self._weights.guard:
            self._check_open()
            twin = copy.copy(self)
            if context is not None:
                assert isinstance(context, CpuContext)
                twin._context = context
            twin._lent = {}
            twin.unset = set(self.unset)
            twin._unpacked = self._unpacked.copy()
            twin._weights = self._weights.share()
            twin._take_memory()
        self._transfer(twin._states, (Slot.STATES, 0), self._image.sizes[Slot.STATES])
        if self._tier is not None and twin._tier is not None:
            twin._tier.begin(self._tier.resident())
        return twin

    def _native(
        self,
        steps: Sequence[_core.Step | _core.SizeStep],
        slots: Sequence[_core.Slot],
    ) -> _core.Program:
        """A program that runs between two runs of the graph."""
        pool, variables = self._context.pool, len(self._image.variables)
        return _core.Program(pool, slots, steps, variables, owner=self._code, turns_with=self._run)

    def discard(self) -> None:
        step = discard_step((Slot.ARENA, 0), self._image.intermediate_bytes)
        self._native([step], self._fixed()).run()
        self._log.clear()
        ORDER.memory_changes(self._run)
        for slot in (Slot.ARENA, Slot.IDLE):
            if slot in self._lent:
                ORDER.memory_changes(self._lent[slot])

    def close(self) -> None:
        with self._weights.guard:
            self._closed = True
            self._run.stop(PlanError(RELEASED))
            self._log.close(PlanError(RELEASED))
            if self._tier is not None:
                self._tier.close(PlanError(RELEASED))
            for own in (self._run, *self._lent.values()):
                ORDER.memory_changes(own, replaced=True)
            self._arena = self._states = self._constants = self._placed = _core.Arena(0)
            self._weights = CopyOnWriteBlock(0)
            self._unpacked = UnpackedWeights({})

    def _check_open(self) -> None:
        if self._closed:
            raise PlanError(RELEASED)

    # -- params ------------------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        if stored := [name for name in params if name in self._experts]:
            raise InputError(f"param {stored[0]!r} is in the file of experts: it is not written")
        stale = [p for p in self._image.preparations if not params.keys().isdisjoint(p.params)]
        self._write(params, stale)
        for name in params:
            if name in self._unpacked:
                self._unpacked.record(name, params[name].copy())

    def _write_first(self, params: Mapping[str, ParamSource]) -> None:
        """Write the initial params, before anything else can read them."""
        waiting: Sequence[Preparation] = self._image.preparations
        known: set[str] = set()
        for batch in batches(params):
            known.update(batch)
            ready = [p for p in waiting if known.issuperset(p.params)]
            waiting = [p for p in waiting if not known.issuperset(p.params)]
            self._write({name: elements(source) for name, source in batch.items()}, ready)
            for name in batch:
                if name in self._unpacked:
                    self._unpacked.record(name, batch[name])

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
        with self._weights.guard:
            former = self._weights.arena
            if self._weights.unshare():
                self._run.move_slot(Slot.WEIGHTS, self._weights.arena)
                if lent := self._lent.get(Slot.WEIGHTS):  # what a clone has lent stays as it is
                    ORDER.memory_changes((lent, HostMemory(former)), replaced=True)
            slots = [*self._fixed(), *((declared[name].nbytes, False) for name in params)]
            self._native([*copies, *prepared], slots).run(arrays)
        self.unset.difference_update(params)

    # -- states ------------------------------------------------------------------------------------

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        array = np.empty(state.shape, DType.parse(state.dtype).numpy)
        self._transfer(array, state.place, array.nbytes)
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        if array is None:
            dtype = DType.parse(state.dtype).numpy
            initial = np.frombuffer(state.initial, np.uint8).view(dtype)
            whole = initial[0] if initial.size == 1 else initial.reshape(state.shape)
            array = np.ascontiguousarray(np.broadcast_to(whole, state.shape))
        self._transfer(array, state.place, array.nbytes, write=True)

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
        slots = [*self._fixed(), (nbytes, not write)]
        self._native([step], slots).run([outside])

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self._run.accesses

    @property
    def direct(self) -> bool:
        return self._run.direct

    @direct.setter
    def direct(self, enable: bool) -> None:
        self._run.direct = enable and self._tier is None

    @property
    def last(self) -> tuple[Array, ...]:
        return self._run.last or ()

    @last.setter
    def last(self, results: tuple[Array, ...]) -> None:
        self._run.last = results

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        tier = self._tier
        failures = 0 if tier is None else tier.failures()
        self._run.run([*inputs, *outputs], variables)
        if tier is not None:
            tier.check(failures)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        call = self._run.bind([*inputs, *outputs], variables)
        tier = self._tier
        if tier is None:
            return call

        def checked() -> None:
            failures = tier.failures()
            call()
            tier.check(failures)

        return checked

    @property
    def live_sizes(self) -> dict[str, int]:
        arena = memoryview(self._arena)
        return {
            name: int.from_bytes(arena[offset : offset + 8], sys.byteorder, signed=True)
            for name, offset in self._image.live_sizes.items()
        }

    # -- experts -----------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        return tuple(
            ExpertLayer(routing.node, routing.experts, stored.places if stored else None)
            for routing, stored in self._layers()
        )

    def _layers(self) -> list[tuple[RoutingPlace, StoredExperts | None]]:
        """The layers that select experts, with their experts in a file, if they are there."""
        return [*zip(self._image.routings, self._stored, strict=True)]

    def _in_file(self) -> list[StoredExperts]:
        """The layers whose experts are in the file."""
        return [stored for stored in self._stored if stored is not None]

    def _first_experts(self) -> list[Array]:
        """For each layer in the file, the mask of its default residents."""
        return [
            np.arange(experts.routing.layout.experts) < experts.places
            for experts in self._in_file()
        ]

    def place_experts(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        self._check_open()
        if self._tier is None:
            return masks
        wanted = dict(zip(self._in_file(), self._first_experts(), strict=True))
        for (_, experts), mask in zip(self._layers(), masks, strict=True):
            # If all fit, evicting one gains nothing.
            if experts is not None and mask is not None and not wanted[experts].all():
                wanted[experts] = mask
        self._tier.place([*wanted.values()])
        return [
            wanted[experts] if mask is None and experts is not None else mask
            for (_, experts), mask in zip(self._layers(), masks, strict=True)
        ]

    def resident_experts(self) -> Sequence[Array | None]:
        resident = [] if self._tier is None else self._tier.resident()
        by_layer = dict(zip(self._in_file(), resident, strict=True))
        return [None if experts is None else by_layer[experts] for _, experts in self._layers()]

    def expert_transfers(self) -> ExpertTransfers:
        self._check_open()
        return ExpertTransfers() if self._tier is None else self._tier.transfers()

    def take_expert_ids(self) -> list[Array] | None:
        self._check_open()
        return self._log.take() if self.expert_layers else None

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        # Imported here, since runs do not need them.
        from ostinato.backends.cpu.submission import ProgramRunner
        from ostinato.plan.buffer import LentStorage
        from ostinato.plan.execution_plan import ExecutionPlan
        from ostinato.plan.lowered import LoweredOps
        from ostinato.plan.memory import program_memory

        compiled = self.compilation
        program, layout, passing = compiled.program, compiled.layout, compiled.passing
        sizes = {v.name: v.max for v in program.variables}
        external = [*program.inputs.values(), *program.outputs.values()]
        context, device = self._context, self._context.device
        own = [context.storage(buffer.nbytes) for buffer in external]
        token = id(self._run)  # touched by every run
        kept: dict[Slot | str, Storage] = {
            slot: LentStorage(device, size, partial(self._lend, slot), token, context)
            for slot, size in zip(Slot, layout.sizes, strict=True)
        }
        storages = [*kept.values(), *own]
        buffers = {
            buffer: self._plan_buffer(buffer, storages[slot], offset, sizes)
            for buffer, (slot, offset) in layout.places.items()
        }
        for buffer in passing:
            lend = partial(self._lend_unpacked, buffer.name)
            kept[buffer.name] = LentStorage(device, buffer.nbytes, lend, token, context)
            buffers[buffer] = self._plan_buffer(buffer, kept[buffer.name], 0, sizes)
        self._lent = kept
        lowered = LoweredOps(program, buffers, compiled.code.kernel, compiled.origin)
        return ExecutionPlan(
            lowered.ops,
            device=device,
            queue=context,
            runner=lambda _: ProgramRunner(
                self._run,
                own,
                check=self._check_params,
                discard=self.discard,
                close=self.close,
                live_sizes=lambda: self.live_sizes,
            ),
            inputs={name: buffers[b] for name, b in program.inputs.items()},
            outputs={name: buffers[b] for name, b in program.outputs.items()},
            memory=program_memory(program, layout.placement, passing),
            preparation=lowered.preparation,
            variables=program.variables,
            sizes=sizes,
            values=lowered.values,
            facts=facts,
        )

    def _plan_buffer(
        self, buffer: LoweredBuffer, storage: Storage, offset: int, sizes: Mapping[str, int]
    ) -> Buffer:
        from ostinato.lower.program import Role
        from ostinato.plan.buffer import Buffer

        write: Callable[[Array], None] | None = None
        if buffer.role is Role.PARAM:
            write = partial(self._write_param, buffer.name)
        elif buffer.role is Role.STATE:
            write = partial(self.write_state, buffer.name)
        read_only = _READ_ONLY.get(buffer.role.value, "")
        return Buffer(storage, offset, buffer.type, sizes=sizes, read_only=read_only, write=write)

    def _lend(self, slot: Slot) -> HostMemory:
        return HostMemory(self._fixed()[slot])

    def _lend_unpacked(self, name: str) -> HostMemory:
        self._check_open()
        return self._unpacked.memory(name)

    def _write_param(self, name: str, array: Array) -> None:
        self.write_params({name: array})

    def _check_params(self) -> None:
        if self.unset:
            names = ", ".join(sorted(self.unset))
            raise InputError(f"these params were never set: {names}")

    # -- leading rows ------------------------------------------------------------------------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self._run.set_limits(self._limits(extent))

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        self._run.push_limits(self._limits(extent))

    def pop_limit(self) -> None:
        self._run.pop_limits()

    def _limits(self, extent: tuple[int, int] | None) -> bytes | None:
        """The core's form of an active extent: for each step its extent, then the masked tails."""
        if extent is None or extent[0] == extent[1]:
            return None
        from ostinato.backends.cpu.partial_launch import LeadingRows

        actual, upper = extent
        if upper not in self._leading_rows:
            self._leading_rows[upper] = LeadingRows(self.compilation.program, upper)
        cuts = self._leading_rows[upper].cuts(actual)
        limits = np.full(len(cuts), np.iinfo(np.int64).max)
        idle = np.zeros(self._idle.nbytes // limits.itemsize, np.int64)
        for position, (step, cut) in enumerate(zip(self._image.steps, cuts, strict=True)):
            if cut is None:
                continue
            limits[position] = cut.extent
            for slot, offset in step.arguments:
                if slot == Slot.IDLE:
                    idle[offset // limits.itemsize] = cut.idle
                    if cut.parts:
                        idle[offset // limits.itemsize + 1] = cut.parts
        return limits.tobytes() + idle.tobytes()

    # -- the arena ---------------------------------------------------------------------------------

    @property
    def arena(self) -> memoryview:
        self._check_open()
        return memoryview(self._arena)

    @property
    def arena_address(self) -> int:
        return self._arena.address

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results
