"""Executables of programs on the fixed slots of :class:`ProgramMemory`: memory, runs and plans."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_memory import ProgramMemory
from ostinato.backends.common.program_runner import host_block
from ostinato.plan.device_array import may_share_memory
from ostinato.plan.order import ORDER, Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.context import Context
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
    from ostinato.plan.profile import StepTime
    from ostinato.plan.report import CompileReport

__all__ = ["CompiledProgram", "ProgramBlock", "ProgramExecutable", "SlotProgram", "check_apart"]

Array = np.ndarray[Any, Any]


class ProgramBlock(Protocol):
    """A slot of a program's memory."""

    def copy_from(self, other: Self, /) -> None:
        """Copy another block of the same size."""

    def discard(self) -> None:
        """Give the memory back, until the next use; it is zero then."""


class SlotProgram(Protocol):
    """A device's program; see :class:`~ostinato.backends.common.program_runner.RunnableProgram`."""

    @property
    def accesses(self) -> Accesses:
        """The memory that every run touches, besides the arrays that it is given."""

    def run(self, blocks: Sequence[Any], variables: Sequence[int], /) -> None:
        """Run on inputs, then outputs."""

    def run_profiled(
        self, blocks: Sequence[Any], variables: Sequence[int], /
    ) -> Sequence[StepTime]:
        """Run; return the time of each step."""

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


M = TypeVar("M", bound=ProgramBlock)
S = TypeVar("S", bound=tuple[Any, ...])
P = TypeVar("P", bound=SlotProgram)
C = TypeVar("C", bound="Context")


class ProgramExecutable(Executable, Generic[M, S, P, C]):
    """See :class:`~ostinato.backends.base.Executable`.

    Weights, states and intermediate values are in the program's own slots. Results without an array
    of the caller's are in memory of the host.

    Args:
        image: the compiled program.
        kind: the device's blocks.
        context: the device's command queue.
        params: contents of the params.
        compilation: returns the compilation of the program, for plans and reports.

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
    ) -> None:
        self._image = image._replace(constants=())
        self._inputs = sum(not external.written for external in image.externals)
        self._context = context
        self._compilation = compilation
        self._lent: dict[Slot | str, Storage] = {}
        shared = self._shared_weights(params)
        self._start(ProgramMemory(image, kind, shared))
        for name in image.states:
            self.write_state(name, None)
        if shared is None:
            self.memory.weights.write_first(params, self._write)

    # -- what a device hands in --------------------------------------------------------------------

    @abstractmethod
    def _new_program(self) -> P:
        """The program that runs on :attr:`memory`."""

    def _shared_weights(self, params: Mapping[str, ParamSource]) -> Weights[M, S] | None:
        """The weights of another executable that has the same ones in the same form."""
        return None

    @abstractmethod
    def _host_memory(self, nbytes: int) -> memoryview:
        """Zeroed memory of the host, for results."""

    @abstractmethod
    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[S]]) -> None:
        """Write params; see :class:`~ostinato.backends.common.weights.WriteParams`."""

    def _memory_of(self, storage: Storage) -> Any:
        """The memory that a storage is, as the program takes it."""
        return host_block(storage)

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

    def clone(self, context: Context | None = None) -> Self:
        twin = copy.copy(self)
        if context is not None:
            twin._context = context  # type: ignore[assignment]  # of the same device
        twin._lent = {}
        with self.memory.guard:
            twin._start(self.memory.clone())
        twin._block(Slot.STATES).copy_from(self._block(Slot.STATES))
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

    # -- params ------------------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self.memory.weights.write(params, self._write)

    def _own_weights(self) -> M:
        """The block of weights, apart from those of clones from now on; its guard is held."""
        block = self.memory.weights.block
        former = block.memory
        if block.unshare():
            self._memory_moves()
            if lent := self._lent.get(Slot.WEIGHTS):
                # What a clone has lent stays as it is.
                ORDER.memory_changes((lent, former), replaced=True)
        return block.memory

    # -- running -----------------------------------------------------------------------------------

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        self.program.run(self._apart(inputs, outputs), variables)

    def _apart(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """The arrays of a run: those that are only read, then those that are written.

        Raises:
            ValueError: one that is written overlaps another one.
        """
        arrays, read = [*inputs, *outputs], self._inputs
        check_apart(arrays[:read], arrays[read:])
        return arrays

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """All rows are computed."""

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


def check_apart(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Check that no output overlaps another array.

    Raises:
        ValueError: one does.
    """
    for position, output in enumerate(outputs):
        for other in (*inputs, *outputs[:position]):
            if may_share_memory(output, other):
                raise ValueError(f"output {position} overlaps another array in memory")
