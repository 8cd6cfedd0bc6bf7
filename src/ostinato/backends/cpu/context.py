"""The processor as a command queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.context import Context, Encoded
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.submission import RELEASED, allocate, block, copy_step, kernel_step
from ostinato.errors import CaptureError, PlanError
from ostinato.plan.prepared import Copy, KernelCall, View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.context import Recording
    from ostinato.plan.buffer import Buffer, HostMemory, Storage
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["CpuContext"]


class CpuContext(Context):
    """See :class:`~ostinato.backends.context.Context`. A recording is one native program.

    Args:
        device: the CPU.
        pool: whose threads run kernels.
    """

    def __init__(self, device: Any, pool: _core.ThreadPool) -> None:
        super().__init__(device)
        self._pool = pool
        self._block = (0, 0, 1)

    # -- recording ---------------------------------------------------------------------------------

    capturing = False
    dev_state_mode = False

    def _begin(self) -> None:
        raise CaptureError("not yet")

    def _end(self) -> Recording:
        raise CaptureError("not yet")

    def _cancel(self) -> None:
        raise CaptureError("not yet")

    def _write_state(self, values: tuple[int, int, int]) -> None:
        self._block = values

    def _read_state(self) -> tuple[int, int, int]:
        return self._block

    def _set_mode(self, enable: bool) -> None:
        raise CaptureError("not yet")

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> HostMemory:
        return allocate(nbytes)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        buffers = [b for op in ops for b in _touched(op)]
        for buffer in buffers:
            if buffer.device != self.device:
                raise PlanError(f"{buffer!r} cannot be used on {self.device}")
        storages = list(dict.fromkeys(b.storage for b in buffers))
        slots = {storage: number for number, storage in enumerate(storages)}
        steps = [_step(op, slots) for op in ops if not isinstance(op, View)]
        owner = tuple(op.kernel.code for op in ops if isinstance(op, KernelCall))
        memory = [block(storage) for storage in storages]
        program = _core.Program(self._pool, memory, steps, len(variables), owner=owner)
        return CpuEncoded(program)


class CpuEncoded(Encoded):
    """Prepared ops as a program of the native core."""

    def __init__(self, program: _core.Program) -> None:
        self._program = program
        self._call = program.bind()

    def launch(self) -> None:
        self._call()

    def run(self, variables: Sequence[int]) -> None:
        self._program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self._program.run_profiled((), variables)

    def check(self) -> None:
        """Buffers that are gone were missed when the program was made."""

    def discard(self) -> None:
        """All buffers are the caller's."""

    def close(self) -> None:
        self._program.stop(PlanError(RELEASED))


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
