"""Executables of devices with memory of their own: params, states, results and plans."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.expert_layers import ExpertLayers
from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_memory import ProgramMemory
from ostinato.ir.stored import elements
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray, may_share_memory
from ostinato.plan.order import NOTHING, ORDER, Accesses, Submission, arrays_touched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.backends.common.program_memory import BlockKind
    from ostinato.backends.common.weights import Weights
    from ostinato.ir.facts import Fact
    from ostinato.ir.stored import ParamSource
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.buffer import Storage
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.prepared import KernelCode
    from ostinato.plan.report import CompileReport

__all__ = ["DeviceExecutable", "DeviceMemory", "DeviceProgram"]

Array = np.ndarray[Any, Any]


class DeviceMemory(Protocol):
    """A block of memory of a device."""

    @property
    def address(self) -> int:
        """The address of the first byte, on the device."""

    def write(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of the host into the block."""

    def read(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of the block to the host."""

    def repeat(self, offset: int, element: bytes, count: int, /) -> None:
        """Fill bytes of the block with copies of an element."""

    def copy_from(self, other: Self, /) -> None:
        """Copy another block of the same size."""

    def discard(self) -> None:
        """Give the memory back, until the next use; it is zero then."""


class DeviceProgram(Protocol):
    """A device's program; see :class:`~ostinato.backends.common.program_runner.RunnableProgram`.

    Attributes:
        on_run: called after each run, with the values of its Variables.
    """

    on_run: Callable[[Sequence[int]], None] | None

    @property
    def sizes(self) -> LiveSizes:
        """The Variables, and the sizes of inputs and outputs."""

    @property
    def accesses(self) -> Accesses:
        """The memory that every run touches, besides the arrays that it is given."""

    def run(self, blocks: Sequence[Any], variables: Sequence[int], /) -> None:
        """Run on inputs, then outputs."""

    def run_many(self, runs: Sequence[tuple[Sequence[Any], Sequence[int]]], /) -> None:
        """Run several times, in this order."""

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int], /) -> Sequence[float]:
        """Run; return the seconds of each step."""

    def discard(self) -> None:
        """Give back the memory of its own, until the next run."""


class CompiledProgram(Protocol):
    """A device's compilation of a graph."""

    @property
    def lowered(self) -> LoweredGraph[Any]:
        """Kernels, buffers and their memory."""

    @property
    def kernel_code(self) -> Callable[[Kernel], KernelCode]:
        """Returns the code of a kernel."""


M = TypeVar("M", bound=DeviceMemory)
S = TypeVar("S", bound=tuple[Any, ...])
P = TypeVar("P", bound=DeviceProgram)
C = TypeVar("C", bound="Context")


class DeviceExecutable(Executable, Generic[M, S, P, C]):
    """See :class:`~ostinato.backends.base.Executable`.

    Weights, states and intermediate values are on the device. Inputs and outputs are copied from
    and to the caller's arrays. Results without such an array are in memory of the host.

    Args:
        image: the compiled program.
        kind: the device's blocks.
        context: the device's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans and reports.
        siblings: executables of the same model at other sizes, to share weights with; ``None``:
            there will be none.

    Attributes:
        program: runs on :attr:`memory`.
        memory: the memory of the fixed slots.
    """

    program: P
    memory: ProgramMemory[M, S]

    def __init__(
        self,
        image: ProgramImage[S],
        kind: BlockKind[M],
        context: C,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], CompiledProgram],
        siblings: Sequence[Self] | None = None,
    ) -> None:
        self._image = image._replace(constants=())
        self._weight_form = None if siblings is None else image.weight_form()
        self._context = context
        self._compilation = compilation
        self._lent: dict[Slot | str, Storage] = {}
        shared = self._weights_of(siblings or (), params)
        self._start(ProgramMemory(image, kind, shared))
        for name in image.states:
            self.write_state(name, None)
        if shared is None:
            self.memory.weights.write_first(params, self._write)

    # -- what a device hands in --------------------------------------------------------------------

    @abstractmethod
    def _new_program(self) -> P:
        """The program that runs on :attr:`memory`."""

    @abstractmethod
    def _new_block(self, nbytes: int, purpose: str) -> M:
        """Memory of the device; messages mention its purpose."""

    @abstractmethod
    def _host_memory(self, nbytes: int) -> memoryview:
        """Zeroed memory of the host, for results."""

    @abstractmethod
    def _perform(self, steps: Sequence[S], blocks: dict[int, M]) -> None:
        """Run steps once, on these blocks by slot."""

    @abstractmethod
    def _memory_of(self, storage: Storage) -> M:
        """The block that a storage is."""

    def _open_experts(self) -> ExpertLayers:
        """The layers of experts, of which none is resident."""
        return ExpertLayers(self._image.routings, self.program)

    def _memory_moves(self) -> None:
        """Called when some of the memory is exchanged or given back."""
        return

    # -- memory ------------------------------------------------------------------------------------

    @property
    def report(self) -> CompileReport:  # type: ignore[override]  # read-only
        return self._compilation().lowered.report

    def _start(self, memory: ProgramMemory[M, S]) -> None:
        """Make the program that runs on ``memory``."""
        self.memory = memory
        self.unset = memory.weights.unset
        self._results: memoryview | None = None
        self.program = self._new_program()
        self._experts = self._open_experts()

    def clone(self, context: Context | None = None) -> Self:
        twin = copy.copy(self)
        if context is not None:
            twin._context = context  # type: ignore[assignment]  # of the same device
        twin._lent = {}
        with self.memory.guard:
            twin._start(self.memory.clone())
        twin._block(Slot.STATES).copy_from(self._block(Slot.STATES))
        twin._experts.begin(self._experts)
        twin.last = ()
        return twin

    def _block(self, slot: Slot) -> M:
        """The present block of a fixed slot."""
        return self.memory.fixed()[slot]

    def discard(self) -> None:
        self._block(Slot.ARENA).discard()
        self._memory_moves()
        ORDER.memory_changes(self.program)
        if Slot.ARENA in self._lent:
            ORDER.memory_changes(self._lent[Slot.ARENA])
        self._experts.clear()

    def close(self) -> None:
        with self.memory.guard:
            self.memory.close()
        self.program.discard()
        for own in (self.program, *self._lent.values()):
            ORDER.memory_changes(own, replaced=True)
        self._results = None

    @property
    def arena(self) -> memoryview:
        self.memory.check_open()
        if self._results is None:
            outputs = [e.nbytes for e in self._image.externals if e.written]
            outputs = outputs[len(outputs) - len(self._image.results) :]
            ends = [o + n for o, n in zip(self._image.results, outputs, strict=True)]
            self._results = self._host_memory(max(ends, default=0))
        return self._results

    @property
    def arena_address(self) -> int:
        found: int = np.frombuffer(self.arena, np.uint8).__array_interface__["data"][0]
        return found

    @property
    def result_offsets(self) -> Sequence[int]:
        return self._image.results

    # -- params and states -------------------------------------------------------------------------

    def _weights_of(
        self, siblings: Sequence[Self], params: Mapping[str, ParamSource]
    ) -> Weights[M, S] | None:
        """The weights of a sibling that has the same ones in the same form."""
        for other in siblings:
            if other._weight_form == self._weight_form and not other.unset:
                with other.memory.guard:
                    alike = params.keys() == other._image.params.keys()
                    if alike and all(other._holds(*param) for param in params.items()):
                        other.memory.check_open()
                        return other.memory.weights.share()
        return None

    def _holds(self, name: str, source: ParamSource) -> bool:
        """Whether a param has these contents."""
        weights = self.memory.weights
        if name in weights.unpacked:
            return weights.unpacked.holds(name, source)
        nbytes, location = self._image.params[name]
        assert location is not None
        held = memoryview(bytearray(nbytes))
        weights.block.memory.read(location[1], held)
        return held == memoryview(bytes_of(np.ascontiguousarray(elements(source))))

    def write_params(self, params: Mapping[str, Array]) -> None:
        self.memory.weights.write(params, self._write)

    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[S]]) -> None:
        """Copy arrays into params, then prepack; non-retained params are only prepacked."""
        block = self.memory.weights.block
        given: dict[int, M] = {}
        with block.guard:
            former = block.memory
            if block.unshare():
                self._memory_moves()
                if lent := self._lent.get(Slot.WEIGHTS):
                    # What a clone has lent stays as it is.
                    ORDER.memory_changes((lent, former), replaced=True)
            fixed = self.memory.fixed()
            for position, (name, (nbytes, place)) in enumerate(self._image.params.items()):
                if name not in params:
                    continue
                data = bytes_of(np.ascontiguousarray(params[name]))
                if place is None:
                    given[-1 - position] = self._new_block(nbytes, f"param {name!r}")
                    given[-1 - position].write(0, data)
                else:
                    slot, offset = place
                    self._store(fixed[slot], offset, data)
            if steps := [step for part in stale for step in part.steps]:
                self._perform(steps, {**dict(enumerate(fixed)), **given})

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
            self._store(block, offset, bytes_of(np.ascontiguousarray(array)))
        elif len(element := bytes(state.initial)) == state.itemsize:
            block.repeat(offset, element, math.prod(state.shape))
        else:
            self._store(block, offset, bytes_of(state.initial_array()))

    def _store(self, block: M, offset: int, data: memoryview) -> None:
        """Write a param or a state; the bytes behind it, up to a cache line's end, are unused."""
        block.write(offset, data)

    # -- arrays on the device ----------------------------------------------------------------------

    def resident(self, array: Array) -> Array:
        if isinstance(array, DeviceArray):
            return array
        kept: Any = self.empty(array.shape, array.dtype)
        kept.memory.write(0, bytes_of(np.ascontiguousarray(array)))
        resident: Array = kept
        return resident

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        block = self._new_block(math.prod(shape) * dtype.itemsize, "a handle")
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
        self.check_apart(inputs, outputs)
        self.program.run([*inputs, *outputs], variables)

    def run_many(
        self, runs: Sequence[tuple[Sequence[Array], Sequence[Array], Sequence[int]]]
    ) -> None:
        for inputs, outputs, _ in runs:
            self.check_apart(inputs, outputs)
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
        read, written = self._by_use(inputs, outputs)
        _check_apart(read, written)
        touched = arrays_touched(read, written) if arrays else NOTHING
        with Submission(self.program.accesses, touched):
            if not self.direct:
                return False
            self.program.run(arrays, variables)
            self.last = tuple(outputs)
        return True

    def check_apart(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Check that no array that a run writes overlaps another one.

        Raises:
            ValueError: one does.
        """
        _check_apart(*self._by_use(inputs, outputs))

    def _by_use(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """The arrays that a run only reads, and those that it writes: inputs may be among them."""
        inouts = sum(external.inout for external in self._image.externals)
        if not inouts:
            return inputs, outputs
        first = len(inputs) - inouts
        return inputs[:first], [*inputs[first:], *outputs]

    @property
    def live_sizes(self) -> dict[str, int]:
        arena, found = self._block(Slot.ARENA), {}
        for name, offset in self._image.live_sizes.items():
            number = np.empty(1, np.int64)
            arena.read(offset, bytes_of(number))
            found[name] = int(number[0])
        return found

    # -- experts -----------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        return self._experts.descriptions()

    def place_experts(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        self.memory.check_open()
        return self._experts.place(masks)

    def resident_experts(self) -> Sequence[Array | None]:
        return self._experts.resident()

    def expert_transfers(self) -> ExpertTransfers:
        self.memory.check_open()
        return self._experts.transfers()

    def take_expert_ids(self) -> list[Array] | None:
        self.memory.check_open()
        return self._experts.take_ids(self._block(Slot.ARENA), lambda: self.live_sizes)

    # -- rows in use: all are computed, but calls of experts are counted of these alone ------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self._experts.extents.set(extent)

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        self._experts.extents.push(extent)

    def pop_limit(self) -> None:
        self._experts.extents.pop()

    # -- the plan ----------------------------------------------------------------------------------

    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        # Imported here, since runs do not need it.
        from ostinato.backends.common.plan_maker import lent_storages, make_plan

        compiled, context = self._compilation(), self._context
        executable: Any = self
        self._lent = lent_storages(executable, compiled.lowered, context)
        return make_plan(
            executable,
            compiled.lowered,
            compiled.kernel_code,
            self._lent,
            context,
            facts,
            self._memory_of,
        )


def _check_apart(read: Sequence[Array], written: Sequence[Array]) -> None:
    """Check that no array that is written overlaps another one.

    Raises:
        ValueError: one does.
    """
    for position, array in enumerate(written):
        for other in (*read, *written[:position]):
            if may_share_memory(array, other):
                raise ValueError(f"written array {position} overlaps another one in memory")
