"""Prepared ops as programs of the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.cpu import _core
from ostinato.errors import PlanError
from ostinato.plan.buffer import Buffer, HostMemory, Storage
from ostinato.plan.prepared import Copy, KernelCall, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.compiler import CompiledKernel
    from ostinato.ir.types import TensorType
    from ostinato.plan.prepared import PreparedOp

__all__ = ["CpuContext", "ProgramRunner", "allocate", "copy_step", "discard_step", "kernel_step"]

#: Bytes that one thread copies before it looks for more.
_COPIED_AT_ONCE = 1 << 18

RELEASED = "the plan's buffers were released; prepare the graph again to run it"


def allocate(nbytes: int) -> HostMemory:
    """Zeroed memory of the processor's own."""
    return HostMemory(_core.Arena(nbytes))


def kernel_step(compiled: CompiledKernel, arguments: Sequence[_core.Argument]) -> _core.Step:
    """The step that runs a kernel on arguments, each ``(slot, byte_offset)``."""
    kernel = compiled.kernel
    return (
        compiled.address,
        arguments,
        kernel.extent if isinstance(kernel.extent, int) else 0,
        compiled.extent_address,
        kernel.grain,
        kernel.scratch_bytes,
        kernel.parallel,
    )


def copy_step(target: _core.Argument, source: _core.Argument, nbytes: int) -> _core.Step:
    """The step that copies bytes from one place to another."""
    return (_core.memcpy_kernel, (target, source), nbytes, 0, _COPIED_AT_ONCE, 0)


def discard_step(place: _core.Argument, nbytes: int) -> _core.Step:
    """The step that gives bytes back to the system; they are zero when they are used again."""
    return (_core.discard_kernel, (place,), nbytes, 0, max(1, nbytes), 0, False)


class ProgramRunner:
    """Runs a native program on memory of a plan.

    Args:
        program: its external slots are ``storages``.
        storages: the plan's inputs and outputs, where those are not fixed in the program.
        check: raises what keeps the program from running.
        discard: gives back the memory of what lives within a run.
        close: stops the program and gives back all memory.
    """

    def __init__(
        self,
        program: _core.Program,
        storages: Sequence[Storage] = (),
        *,
        check: Callable[[], None] = lambda: None,
        discard: Callable[[], None] = lambda: None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._program = program
        self._storages = tuple(storages)
        self.check = check
        self.discard = discard
        self.close = close or (lambda: program.stop(PlanError(RELEASED)))

    def run(self, variables: Sequence[int]) -> None:
        self._program.run(self._blocks(), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self._program.run_profiled(self._blocks(), variables)

    def _blocks(self) -> list[Any]:
        return [_block(storage) for storage in self._storages]


class CpuContext:
    """Where prepared ops run that no graph was compiled for.

    Args:
        device: the CPU.
        pool: whose threads run kernels.
    """

    def __init__(self, device: Any, pool: _core.ThreadPool) -> None:
        self.device = device
        self._pool = pool

    def empty(self, type: TensorType) -> Buffer:
        """A buffer on zeroed memory of its own."""
        return Buffer(Storage(self.device, type.max_bytes, allocate), 0, type)

    def runner(self, ops: Sequence[PreparedOp], n_variables: int = 0) -> ProgramRunner:
        """``ops``, in this order, ready to run on their buffers.

        Raises:
            PlanError: a buffer is another device's.
        """
        buffers = [b for op in ops for b in _touched(op)]
        for buffer in buffers:
            if buffer.device != self.device:
                raise PlanError(f"{buffer!r} cannot be used on {self.device}")
        storages = list(dict.fromkeys(b.storage for b in buffers))
        slots = {storage: number for number, storage in enumerate(storages)}
        steps = [_step(op, slots) for op in ops if not isinstance(op, View)]
        owner = tuple(op.kernel.code for op in ops if isinstance(op, KernelCall))
        return ProgramRunner(
            _core.Program(
                self._pool, [_block(s) for s in storages], steps, n_variables, owner=owner
            )
        )


def _touched(op: PreparedOp) -> tuple[Buffer, ...]:
    return op.buffers if isinstance(op, KernelCall) else (*op.reads, *op.writes)


def _step(op: PreparedOp, slots: Mapping[Storage, int]) -> _core.Step:
    def place(buffer: Buffer) -> _core.Argument:
        return slots[buffer.storage], buffer.offset

    match op:
        case KernelCall():
            code: Any = op.kernel.code
            return kernel_step(code, [place(b) for b in op.buffers])
        case Copy():
            return copy_step(place(op.target), place(op.source), op.source.nbytes)
    raise PlanError(f"the CPU has no way to run {op}")


def _block(storage: Storage) -> Any:
    memory = storage.memory
    assert isinstance(memory, HostMemory)
    return memory.block
