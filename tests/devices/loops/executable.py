"""The runtime: the memory of a compiled graph, and its runs."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.buffer_layout import BufferLayout
from ostinato.backends.common.context import Context
from ostinato.backends.common.program_image import Slot
from ostinato.backends.options import CompileOptions
from ostinato.errors import InputError, PlanError, VariableError
from ostinato.ir.facts import Fact
from ostinato.ir.stored import ParamSource, elements
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.text import kernel_text
from ostinato.lower.program import Call, LoweredBuffer, Program, Role
from ostinato.lower.rules.sizes import SizeStep
from ostinato.plan.buffer import Buffer, HostMemory, LentStorage, Storage
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.lowered import LoweredOps
from ostinato.plan.memory import program_memory
from ostinato.plan.order import ORDER, Accesses, Submission, arrays_touched
from ostinato.plan.report import CompileReport
from ostinato.plan.values import Origin
from ostinato.variables import Symbol, capacity, evaluate

from .interpreter import run_nest
from .rules import LibraryCall

__all__ = ["LoopsExecutable"]

Array = np.ndarray[Any, Any]


class LoopsExecutable(Executable):
    """A program on memory of its own: a block of bytes for each :class:`Slot`."""

    def __init__(
        self,
        program: Program,
        origin: Origin,
        report: CompileReport,
        context: Context,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
    ) -> None:
        self.report = report
        self.unset = set(program.params)
        self._program = program
        self._origin = origin
        self._context = context
        self._layout = BufferLayout.of(program, apart=options.keep_intermediates)
        self._blocks = [np.zeros(size, np.uint8) for size in self._layout.sizes]
        self._closed = False
        for buffer, _ in self._layout.members(Slot.CONSTANTS):
            assert buffer.data is not None
            self._elements(buffer, {})[...] = buffer.data.ravel()
        for name in program.states:
            self.write_state(name, None)
        self.write_params({name: elements(source) for name, source in params.items()})

    # -- memory ------------------------------------------------------------------------------------

    def _elements(self, buffer: LoweredBuffer, sizes: Mapping[str, int]) -> Array:
        """The elements of a buffer in memory of the executable's own."""
        slot, offset = self._layout.places[buffer]
        block = self._open_blocks()[slot]
        count = evaluate(buffer.type.size, sizes)
        return np.ndarray(count, buffer.type.dtype.numpy, block.data, offset)

    def _open_blocks(self) -> list[Array]:
        if self._closed:
            raise PlanError("the memory was released; prepare the graph again to run it")
        return self._blocks

    def clone(self, context: Context | None = None) -> LoopsExecutable:
        twin = copy.copy(self)
        twin._context = context or self._context
        twin.unset = set(self.unset)
        twin._blocks = [
            block if slot in (Slot.CONSTANTS, Slot.WEIGHTS) else block.copy()
            for slot, block in zip(Slot, self._open_blocks(), strict=True)
        ]
        twin.last = ()
        return twin

    def discard(self) -> None:
        self._open_blocks()[Slot.ARENA][:] = 0
        ORDER.memory_changes(self)

    def close(self) -> None:
        self._closed = True
        self._blocks = []
        ORDER.memory_changes(self, replaced=True)

    @property
    def arena(self) -> memoryview:
        return self._open_blocks()[Slot.ARENA].data

    @property
    def arena_address(self) -> int:
        return self._open_blocks()[Slot.ARENA].ctypes.data

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._layout.results

    # -- params and states -------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        blocks = self._open_blocks()
        blocks[Slot.WEIGHTS] = blocks[Slot.WEIGHTS].copy()  # clones share the former block
        for name, array in params.items():
            self._elements(self._program.params[name], {})[...] = _flat(array)
        self.unset.difference_update(params)
        if not self.unset:
            self._run_calls(self._program.prepare, {}, {})

    def read_state(self, name: str) -> Array:
        buffer = self._program.states[name]
        return self._elements(buffer, {}).reshape(_shape(buffer)).copy()

    def write_state(self, name: str, array: Array | None) -> None:
        buffer = self._program.states[name]
        if array is None:
            assert buffer.value is not None
            array = buffer.value.node.attrs["init"]
        self._elements(buffer, {})[...] = _flat(array)

    # -- running -----------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        self._check_apart(inputs, outputs)
        program = self._program
        external = dict(zip(program.inputs.values(), map(_flat, inputs), strict=True))
        results = [output.reshape(-1) for output in outputs]
        external |= zip(program.outputs.values(), results, strict=True)
        self._run_calls(program.calls, external, self._values(variables))

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        self._check_apart(inputs, outputs)
        touched = arrays_touched(inputs, outputs)

        def call() -> None:
            self._context.refuse_while_capturing("this device records no runs")
            with Submission(self.accesses, touched):
                self.run(inputs, outputs, variables)

        return call

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """All rows are computed."""

    def _run_calls(
        self,
        calls: Iterable[Call],
        external: Mapping[LoweredBuffer, Array],
        values: Mapping[Symbol, int],
    ) -> list[float]:
        """Run kernels in order; the seconds that each took."""
        sizes = _by_name(values)
        seconds = []
        with np.errstate(all="ignore"):
            for call in calls:
                start = time.perf_counter()
                buffers = [
                    external[b][: evaluate(b.type.size, sizes)]
                    if b in external
                    else self._elements(b, sizes)
                    for b in call.buffers
                ]
                if isinstance(call.kernel, SizeStep):
                    values = run_size_step(call.kernel, buffers, values)
                    sizes = _by_name(values)
                elif isinstance(call.kernel, LibraryCall):
                    call.kernel.run(buffers, values)
                else:
                    assert isinstance(call.kernel, LoopNest)
                    run_nest(call.kernel, buffers, values)
                seconds.append(time.perf_counter() - start)
        return seconds

    @property
    def live_sizes(self) -> dict[str, int]:
        found = self._program.live_sizes.items()
        return {name: int(self._elements(buffer, {})[0]) for name, buffer in found}

    def _values(self, variables: Sequence[int]) -> dict[Symbol, int]:
        return dict(zip(self._program.variables, variables, strict=True))

    def _check_apart(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for position, output in enumerate(outputs):
            others = itertools.chain(inputs, outputs[:position])
            if any(np.may_share_memory(output, other) for other in others):
                raise ValueError(f"output {position} overlaps another array in memory")

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        program, layout, context = self._program, self._layout, self._context
        sizes = {v.name: v.max for v in program.variables}
        device, token = context.device, id(self)  # what every run touches
        kept: list[Storage] = [
            LentStorage(device, size, partial(self._block, slot), token, context)
            for slot, size in zip(Slot, layout.sizes, strict=True)
        ]
        external = [*program.inputs.values(), *program.outputs.values()]
        own = [context.storage(buffer.nbytes) for buffer in external]
        storages = [*kept, *own]
        buffers = {
            buffer: self._plan_buffer(buffer, storages[slot], offset, sizes)
            for buffer, (slot, offset) in layout.places.items()
        }
        lowered = LoweredOps(program, buffers, LoopsCode, self._origin)
        return ExecutionPlan(
            lowered.ops,
            device=device,
            queue=context,
            runner=lambda _: PlanRunner(self, own),
            inputs={name: buffers[b] for name, b in program.inputs.items()},
            outputs={name: buffers[b] for name, b in program.outputs.items()},
            memory=program_memory(program, layout.placement),
            preparation=lowered.preparation,
            variables=program.variables,
            sizes=sizes,
            values=lowered.values,
            facts=facts,
        )

    def _plan_buffer(
        self, buffer: LoweredBuffer, storage: Storage, offset: int, sizes: Mapping[str, int]
    ) -> Buffer:
        write: Callable[[Array], None] | None = None
        if buffer.role is Role.PARAM:
            write = partial(self._write_param, buffer.name)
        elif buffer.role is Role.STATE:
            write = partial(self.write_state, buffer.name)
        fixed = buffer.role in (Role.CONSTANT, Role.PREPARED)
        read_only = f"a {buffer.role.value} buffer" if fixed else ""
        return Buffer(storage, offset, buffer.type, sizes=sizes, read_only=read_only, write=write)

    def _write_param(self, name: str, array: Array) -> None:
        self.write_params({name: array})

    def _block(self, slot: Slot) -> HostMemory:
        return HostMemory(self._open_blocks()[slot])

    def run_plan(self, storages: Sequence[Storage], variables: Sequence[int]) -> list[float]:
        """Run on a plan's inputs and outputs; the seconds that each kernel took."""
        values = self._values(variables)
        sizes = _by_name(values)
        external = {}
        buffers = [*self._program.inputs.values(), *self._program.outputs.values()]
        for buffer, storage in zip(buffers, storages, strict=True):
            assert isinstance(storage.memory, HostMemory)
            count = evaluate(capacity(buffer.type.size), sizes)
            external[buffer] = np.ndarray(count, buffer.type.dtype.numpy, storage.memory.block)
        return self._run_calls(self._program.calls, external, values)

    def check_params(self) -> None:
        """Raise :class:`InputError` where a param was never set."""
        if self.unset:
            names = ", ".join(sorted(self.unset))
            raise InputError(f"these params were never set: {names}")


def run_size_step(
    step: SizeStep, buffers: Sequence[Array], values: Mapping[Symbol, int]
) -> Mapping[Symbol, int]:
    """The values of Variables after a step that binds one, or checks what follows from them."""
    limit = evaluate(step.limit, _by_name(values))
    if step.symbol is None:
        if limit < 0:
            raise VariableError(f"{step.problem}, got {limit}")
        return values
    count, kept = buffers
    if not 0 <= count[0] <= limit:
        raise VariableError(f"{step.problem}, got {count[0]}")
    kept[:] = count
    return {**values, step.symbol: int(count[0])}


@dataclass(frozen=True)
class LoopsCode:
    """The code of a kernel: its loop IR, which is interpreted."""

    kernel: Kernel
    assembly: None = None

    @property
    def source(self) -> str:
        return kernel_text(self.kernel)


@dataclass(frozen=True)
class PlanRunner:
    """Runs a plan: see :class:`~ostinato.plan.execution_plan.Runner`."""

    executable: LoopsExecutable
    storages: Sequence[Storage]

    @property
    def accesses(self) -> Accesses:
        spans = [storage.span(0, storage.nbytes, written=True) for storage in self.storages]
        return Accesses([*self.executable.accesses, *spans])

    def check(self) -> None:
        self.executable.check_params()

    @property
    def live_sizes(self) -> Mapping[str, int]:
        return self.executable.live_sizes

    def run(self, variables: Sequence[int]) -> None:
        self.executable.run_plan(self.storages, variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self.executable.run_plan(self.storages, variables)

    def discard(self) -> None:
        self.executable.discard()

    def close(self) -> None:
        self.executable.close()


def _flat(array: Array) -> Array:
    """The elements of an array in C order; any byte that is not 0 is a true bool."""
    flat = array.reshape(-1)
    return flat.view(np.uint8) != 0 if flat.dtype == bool else flat


def _by_name(values: Mapping[Symbol, int]) -> dict[str, int]:
    return {symbol.name: size for symbol, size in values.items()}


def _shape(buffer: LoweredBuffer) -> tuple[int, ...]:
    return tuple(map(int, buffer.type.shape))  # type: ignore[arg-type]  # not symbolic
