"""The processor as a command queue."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ostinato.backends.context import DECODE_VARIABLES, Context, Encoded
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.submission import RELEASED, allocate, block, copy_step, kernel_step
from ostinato.errors import CaptureError, PlanError, VariableError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import HostMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.context import Recording
    from ostinato.backends.device import Device
    from ostinato.plan import prepared
    from ostinato.plan.buffer import Buffer, Storage
    from ostinato.plan.formula import Formula
    from ostinato.plan.prepared import PreparedOp
    from ostinato.plan.routine import Routine
    from ostinato.variables import Symbol
else:
    prepared = LazyModule("ostinato.plan.prepared")

__all__ = ["CpuContext"]


class CpuContext(Context):
    """See :class:`~ostinato.backends.context.Context`. A recording is one native program.

    Args:
        device: the CPU.
        pool: whose threads run kernels.

    Attributes:
        pool: whose threads run kernels.
        commands: records the bound calls of programs, and holds the variable block.
    """

    def __init__(self, device: Device, pool: _core.ThreadPool) -> None:
        super().__init__(device)
        self.pool = pool
        self.commands = _core.CommandQueue(CaptureError, VariableError)
        self._encoded: weakref.WeakSet[CpuEncoded] = weakref.WeakSet()

    # -- recording ---------------------------------------------------------------------------------

    @property
    def capturing(self) -> bool:
        return self.commands.recording

    def _begin(self) -> None:
        self.commands.begin()

    def _end(self) -> Recording:
        return self.commands.end()

    def _cancel(self) -> None:
        self.commands.cancel()

    def forget_users(self, memory: object) -> None:
        if not isinstance(memory, HostMemory):
            super().forget_users(memory)
            return
        super().forget_users(memory.block)
        with self._shelf:
            users = [e for e in self._encoded if e.program.uses(memory.block)]
        for encoded in users:
            encoded.close()

    # -- the variable block ------------------------------------------------------------------------

    @property
    def dev_state_mode(self) -> bool:
        return self.commands.from_block

    def _set_mode(self, enable: bool) -> None:
        self.commands.from_block = enable

    def _write_state(self, values: tuple[int, int, int]) -> None:
        self.commands.block = values

    def _read_state(self) -> tuple[int, int, int]:
        return self.commands.block

    # -- programs ----------------------------------------------------------------------------------

    def program(
        self,
        slots: Sequence[_core.Slot],
        steps: Sequence[_core.Step],
        variables: Sequence[tuple[str, int, int]],
        *,
        owner: object,
    ) -> _core.Program:
        """A native program whose bound calls can be recorded, and can read the variable block.

        Args:
            slots, steps, owner: see the core's ``Program``.
            variables: names and bounds, in the order of the kernels' ``vars``.
        """
        resident = [
            (number, DECODE_VARIABLES.index(name), least, greatest)
            for number, (name, least, greatest) in enumerate(variables)
            if name in DECODE_VARIABLES
        ]
        return _core.Program(
            self.pool,
            slots,
            steps,
            len(variables),
            owner=owner,
            queue=self.commands,
            resident=resident,
        )

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> HostMemory:
        return allocate(nbytes)

    def _compile(self, formula: Formula) -> Routine:
        from ostinato.backends.cpu.routines import compile_formula  # LLVM, only where it is needed

        return compile_formula(formula, self.constant)

    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        slots = [(target.nbytes, True), (target.nbytes, False)]
        program = self.program(slots, [copy_step((0, 0), (1, 0), target.nbytes)], (), owner=None)
        return program.bind([target, source])

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        buffers = [b for op in ops for b in _touched(op)]
        for buffer in buffers:
            if buffer.device != self.device:
                raise PlanError(f"{buffer!r} cannot be used on {self.device}")
        prepared.check_ops(ops, variables)
        storages = list(dict.fromkeys(b.storage for b in buffers))
        slots = {storage: number for number, storage in enumerate(storages)}
        steps = [_step(op, slots) for op in ops if not isinstance(op, prepared.View)]
        owner = tuple(op.kernel.code for op in ops if isinstance(op, prepared.KernelCall))
        written = {b.storage for op in ops for b in op.writes}
        memory = [block(storage, written=storage in written) for storage in storages]
        named = [(v.name, v.min, v.max) for v in variables]
        encoded = CpuEncoded(self, self.program(memory, steps, named, owner=owner))
        with self._shelf:
            self._encoded.add(encoded)
        return encoded


class CpuEncoded(Encoded):
    """Prepared ops as a program of the native core.

    Attributes:
        program: that program.
    """

    def __init__(self, context: CpuContext, program: _core.Program) -> None:
        self._context = context
        self.program = program
        self._call = program.bind()

    def launch(self) -> None:
        self._call()

    def run(self, variables: Sequence[int]) -> None:
        self.program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self.program.run_profiled((), variables)

    def check(self) -> None:
        """Buffers that are gone were missed when the program was made."""

    def discard(self) -> None:
        """All buffers are the caller's."""

    def close(self) -> None:
        self.program.stop(PlanError(RELEASED))
        self._context.forget_users(self.program)


def _touched(op: PreparedOp) -> tuple[Buffer, ...]:
    return op.buffers if isinstance(op, prepared.KernelCall) else (*op.reads, *op.writes)


def _step(op: PreparedOp, slots: Mapping[Storage, int]) -> _core.Step:
    def place(buffer: Buffer) -> _core.Argument:
        return slots[buffer.storage], buffer.offset

    match op:
        case prepared.KernelCall():
            code: Any = op.kernel.code
            return kernel_step(code, [place(b) for b in op.buffers])
        case prepared.Copy():
            return copy_step(place(op.target), place(op.source), op.source.nbytes)
    raise PlanError(f"the CPU has no way to run {op}")
