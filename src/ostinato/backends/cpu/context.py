"""The CPU's command queue."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.command_context import CommandContext
from ostinato.backends.common.decode_state import DECODE_VARIABLES
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.mutex import Mutex
from ostinato.backends.common.program_runner import RELEASED, host_block
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.submission import allocate, copy_step, kernel_step
from ostinato.errors import CaptureError, PlanError, VariableError
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import HostMemory, LentStorage
from ostinato.plan.order import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common import op_encoding
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.device import Device
    from ostinato.lower.rules import sizes
    from ostinato.plan import prepared
    from ostinato.plan.order import Accesses
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    op_encoding = LazyModule("ostinato.backends.common.op_encoding")
    prepared = LazyModule("ostinato.plan.prepared")
    sizes = LazyModule("ostinato.lower.rules.sizes")

__all__ = ["CpuContext"]


class CpuContext(CommandContext):
    """See :class:`~ostinato.backends.common.context.Context`. A recording is one native program.

    Args:
        device: the CPU.
        pool: the threads that run kernels.

    Attributes:
        pool: the threads that run kernels.
        commands: records the bound calls of programs, and holds the variable block.
    """

    commands: _core.CommandQueue

    def __init__(self, device: Device, pool: _core.ThreadPool) -> None:
        super().__init__(device)
        self.pool = pool
        self.commands = _core.CommandQueue(CaptureError, VariableError, self.label)
        self._encoded_mutex = Mutex()
        self._encoded: weakref.WeakSet[CpuEncoded] = weakref.WeakSet()

    def _capture_uses(self, memory: object) -> bool:
        return self.commands.uses(_core_object(memory))

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        super().memory_changed(_core_object(memory), replaced=replaced)
        if replaced:
            with self._encoded_mutex:
                encoded = list(self._encoded)
            for user in encoded:
                if user.program.uses(_core_object(memory)):
                    user.stop()

    # -- the variable block ------------------------------------------------------------------------

    @cached_property
    def _block_accesses(self) -> Accesses:
        return self.commands.accesses

    # -- programs ----------------------------------------------------------------------------------

    def program(
        self,
        slots: Sequence[_core.Slot],
        steps: Sequence[_core.Step | _core.SizeStep],
        variables: Sequence[tuple[str, int, int]],
        *,
        owner: object,
        touches: Sequence[tuple[int, int, bool]] = (),
        sources: tuple[object, ...] = (),
        limit_slot: int = -1,
    ) -> _core.Program:
        """A native program whose bound calls can be recorded, and can read the variable block.

        Args:
            slots, steps, owner, touches, sources, limit_slot: see the core's ``Program``.
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
            touches=touches,
            sources=sources,
            limit_slot=limit_slot,
        )

    # -- ops ---------------------------------------------------------------------------------------

    def _allocate(self, nbytes: int) -> HostMemory:
        return allocate(nbytes)

    def _compile(self, signature: OpSignature) -> CompiledOp:
        from ostinato.backends.cpu.op_compiler import compile_op  # LLVM, only where it is needed

        return compile_op(signature, self.constant)

    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        slots = [(target.nbytes, True), (target.nbytes, False)]
        program = self.program(slots, [copy_step((0, 0), (1, 0), target.nbytes)], (), owner=None)
        return program.bind([target, source])

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        touched = op_encoding.OpMemory.of(ops, variables, self.device)
        storages, written = touched.storages, touched.written
        steps = [_step(op, touched) for op in ops if not isinstance(op, prepared.View)]
        owner = tuple(op.kernel.code for op in ops if isinstance(op, prepared.KernelCall))
        memory = [host_block(storage, written=storage in written) for storage in storages]
        named = [(v.name, v.min, v.max) for v in variables]
        lent = tuple(storage for storage in storages if isinstance(storage, LentStorage))
        program = self.program(
            memory, steps, named, owner=owner, touches=touched.spans, sources=lent
        )
        encoded = CpuEncoded(program)
        with self._encoded_mutex:
            self._encoded.add(encoded)
        return encoded


class CpuEncoded(Encoded):
    """Prepared ops as a program of the native core.

    Attributes:
        program: that program.
    """

    def __init__(self, program: _core.Program) -> None:
        self.program = program
        self._call = program.bind()

    @property
    def accesses(self) -> Accesses:
        return self.program.accesses

    def launch(self) -> None:
        self._call()

    def run(self, variables: Sequence[int]) -> None:
        self.program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self.program.run_profiled((), variables)

    def check(self) -> None:
        """Do nothing: released buffers were found when the program was made."""

    def discard(self) -> None:
        """Do nothing: all buffers are the caller's."""

    def stop(self) -> None:
        """Make later runs raise, since memory is gone."""
        self.program.stop(PlanError(RELEASED))

    def close(self) -> None:
        self.stop()
        ORDER.memory_changes(self.program, replaced=True)


def _core_object(memory: object) -> object:
    """The object by which programs of the core identify memory."""
    if isinstance(memory, tuple):
        return tuple(map(_core_object, memory))
    return memory.block if isinstance(memory, HostMemory) else memory


def _step(op: PreparedOp, memory: op_encoding.OpMemory) -> _core.Step:
    match op:
        case prepared.KernelCall():
            code: Any = op.kernel.code
            if isinstance(op.kernel.kernel, sizes.SizeStep):
                raise PlanError(f"{op.name} binds or checks a size, which only its own plan can do")
            return kernel_step(code, [memory.place(b) for b in op.buffers])
        case prepared.Copy():
            return copy_step(memory.place(op.target), memory.place(op.source), op.source.nbytes)
    raise PlanError(f"the CPU has no way to run {op}")
