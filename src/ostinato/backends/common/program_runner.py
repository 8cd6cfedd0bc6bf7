"""Run a device's program on the memory of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ostinato.errors import PlanError
from ostinato.plan.buffer import HostMemory
from ostinato.plan.order import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.plan.buffer import Storage
    from ostinato.plan.profile import StepTime

__all__ = ["RELEASED", "ProgramRunner", "RunnableProgram", "host_block"]

RELEASED = "the plan's buffers were released; prepare the graph again to run it"


class RunnableProgram(Protocol):
    """A device's form of a compiled program. Every run touches the address ``id(program)``."""

    @property
    def accesses(self) -> Accesses:
        """The memory that every run touches, besides the blocks that it is given."""

    def run(self, blocks: Sequence[Any], variables: Sequence[int], /) -> None:
        """Run on inputs, then outputs: memory as the device takes it."""

    def run_profiled(
        self, blocks: Sequence[Any], variables: Sequence[int], /
    ) -> Sequence[StepTime]:
        """Run; return the time of each step."""


class ProgramRunner:
    """A plan's :class:`~ostinato.plan.execution_plan.Runner` of a program.

    Args:
        program: the program.
        storages: the plan's inputs and outputs.
        check: raises if the program can not run.
        discard: gives back the memory of intermediate buffers.
        close: stops the program and gives back all memory.
        live_sizes: returns the values of data-dependent Variables.
        block: returns the memory of a storage, as the program takes it.
    """

    def __init__(
        self,
        program: RunnableProgram,
        storages: Sequence[Storage],
        *,
        check: Callable[[], None],
        discard: Callable[[], None],
        close: Callable[[], None],
        live_sizes: Callable[[], Mapping[str, int]],
        block: Callable[[Storage], Any] | None = None,
    ) -> None:
        self._program = program
        self._storages = tuple(storages)
        self.check = check
        self.discard = discard
        self.close = close
        self._live_sizes = live_sizes
        self._block = block or host_block

    @property
    def accesses(self) -> Accesses:
        return self._accesses(self._storages)

    @property
    def held(self) -> Accesses:
        return self._accesses(storage for storage in self._storages if storage.taken)

    def _accesses(self, storages: Iterable[Storage]) -> Accesses:
        spans = [storage.span(0, storage.nbytes, written=True) for storage in storages]
        return Accesses([*self._program.accesses, *spans])

    def run(self, variables: Sequence[int]) -> None:
        self._program.run(self._blocks(), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[StepTime]:
        return self._program.run_profiled(self._blocks(), variables)

    @property
    def live_sizes(self) -> Mapping[str, int]:
        return self._live_sizes()

    def _blocks(self) -> list[Any]:
        return [self._block(storage) for storage in self._storages]


def host_block(storage: Storage, *, written: bool = False) -> Any:
    """The object that exports the memory of a storage, for devices that run on host memory.

    Args:
        storage: the storage.
        written: whether it is going to be written.

    Raises:
        PlanError: it is no host memory, is smaller than the storage, or cannot be written.
    """
    memory = storage.memory
    if not isinstance(memory, HostMemory):
        kind = type(memory).__name__
        raise PlanError(f"{storage.device} cannot run on memory of the kind {kind}")
    view = memoryview(memory.block)
    if view.nbytes < storage.nbytes:
        raise PlanError(f"a storage of {storage.nbytes} bytes was given only {view.nbytes}")
    if written and view.readonly:
        raise PlanError(f"a storage of {storage.nbytes} bytes, which an op writes, is read-only")
    return memory.block
