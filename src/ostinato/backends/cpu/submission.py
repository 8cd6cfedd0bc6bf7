"""Prepared ops as programs of the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.cpu import _core
from ostinato.errors import PlanError
from ostinato.plan.buffer import HostMemory
from ostinato.plan.order import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.compiler import BuiltinKernel, CompiledKernel
    from ostinato.plan.buffer import Storage

__all__ = [
    "RELEASED",
    "ProgramRunner",
    "allocate",
    "block",
    "copy_step",
    "discard_step",
    "kernel_step",
]

#: Bytes of a copy that one thread takes at a time.
_COPIED_AT_ONCE = 1 << 18

RELEASED = "the plan's buffers were released; prepare the graph again to run it"


def allocate(nbytes: int) -> HostMemory:
    """Zeroed host memory."""
    return HostMemory(_core.Arena(nbytes))


def kernel_step(
    compiled: CompiledKernel | BuiltinKernel, arguments: Sequence[_core.Argument]
) -> _core.Step:
    """The step that runs a kernel on arguments, each ``(slot, byte_offset)``."""
    return (compiled.address, arguments, *compiled.launch)


def copy_step(target: _core.Argument, source: _core.Argument, nbytes: int) -> _core.Step:
    """The step that copies bytes from ``source`` to ``target``, each ``(slot, byte_offset)``."""
    return (_core.memcpy_kernel, (target, source), nbytes, 0, _COPIED_AT_ONCE, 0)


def discard_step(place: _core.Argument, nbytes: int) -> _core.Step:
    """The step that gives pages back to the system; they read as zero afterwards."""
    return (_core.discard_kernel, (place,), nbytes, 0, max(1, nbytes), 0, False)


class ProgramRunner:
    """Runs a native program on memory of a plan.

    Args:
        program: its external slots are ``storages``.
        storages: the plan's inputs and outputs, where those are not fixed in the program.
        check: raises if the program can not run.
        discard: gives back the memory of intermediate buffers.
        close: stops the program and gives back all memory.
        live_sizes: gives the values of data-dependent Variables.
    """

    def __init__(
        self,
        program: _core.Program,
        storages: Sequence[Storage] = (),
        *,
        check: Callable[[], None] = lambda: None,
        discard: Callable[[], None] = lambda: None,
        close: Callable[[], None] | None = None,
        live_sizes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._program = program
        self._storages = tuple(storages)
        self._live_sizes = live_sizes
        self.check = check
        self.discard = discard
        self.close = close or (lambda: program.stop(PlanError(RELEASED)))

    @property
    def accesses(self) -> Accesses:
        spans = [storage.span(0, storage.nbytes, written=True) for storage in self._storages]
        return Accesses([*self._program.accesses, *spans])

    def run(self, variables: Sequence[int]) -> None:
        self._program.run(self._blocks(), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self._program.run_profiled(self._blocks(), variables)

    @property
    def live_sizes(self) -> Mapping[str, int]:
        return self._live_sizes()

    def _blocks(self) -> list[Any]:
        return [block(storage) for storage in self._storages]


def block(storage: Storage, *, written: bool = False) -> Any:
    """The object that exports the memory of a storage.

    Args:
        storage: the storage.
        written: whether it is going to be written.

    Raises:
        PlanError: it is no host memory, is smaller than the storage, or cannot be written.
    """
    memory = storage.memory
    if not isinstance(memory, HostMemory):
        raise PlanError(f"the CPU cannot run on memory of the kind {type(memory).__name__}")
    view = memoryview(memory.block)
    if view.nbytes < storage.nbytes:
        raise PlanError(f"a storage of {storage.nbytes} bytes was given only {view.nbytes}")
    if written and view.readonly:
        raise PlanError(f"a storage of {storage.nbytes} bytes, which an op writes, is read-only")
    return memory.block
