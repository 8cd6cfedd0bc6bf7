"""The command queue: it runs ops one by one, and records nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ostinato.backends.common.compiled_op import CompiledOp
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.host_context import HostContext
from ostinato.backends.common.lowering_options import lowering_options
from ostinato.backends.common.op_encoding import OpMemory
from ostinato.backends.common.op_signature import OpSignature
from ostinato.backends.common.program_runner import RELEASED, host_block
from ostinato.backends.common.signature_compiler import compile_signature
from ostinato.backends.options import CompileOptions
from ostinato.errors import PlanError
from ostinato.ir.graph import BaseGraph
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.lowering import lower
from ostinato.lower.program import Program
from ostinato.plan.order import ORDER, Accesses, Submission
from ostinato.plan.prepared import Copy, KernelCall, PreparedOp
from ostinato.variables import Symbol

from .program import LoopsCode, LoopsProgram, Step, octets
from .rules import CAPABILITIES, TABLE

__all__ = ["LoopsContext"]


class LoopsContext(HostContext):
    """See :class:`~ostinato.backends.common.context.Context`."""

    def _compile(self, signature: OpSignature) -> CompiledOp:
        return compile_signature(signature, OpCompiler(), self.constant)

    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        return LoopsEncoded(OpMemory.of(ops, variables, self.device), ops, variables)


class OpCompiler:
    """See :class:`~ostinato.backends.common.signature_compiler.SignatureCompiler`."""

    capabilities = CAPABILITIES

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> Program:
        return lower(graph, TABLE, lowering_options(CompileOptions()), variables)[0]

    def code(self, program: Program) -> Callable[[Kernel], LoopsCode]:
        return LoopsCode


class LoopsEncoded(Encoded):
    """Prepared ops as a program."""

    def __init__(
        self, memory: OpMemory, ops: Sequence[PreparedOp], variables: Sequence[Symbol]
    ) -> None:
        self._memory = memory
        steps = [step for op in ops for step in _steps(op, memory)]
        self._program = LoopsProgram(steps, variables, self._blocks)
        self._closed = False

    def _blocks(self) -> list[np.ndarray]:
        if self._closed:
            raise PlanError(RELEASED)
        written = self._memory.written
        return [octets(host_block(s, written=s in written)) for s in self._memory.storages]

    @property
    def accesses(self) -> Accesses:
        return Accesses(self._memory.spans)

    def launch(self) -> None:
        with Submission(self.accesses):
            self.run(())

    def run(self, variables: Sequence[int]) -> None:
        self._program.run((), variables)

    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        return self._program.run_profiled((), variables)

    def check(self) -> None:
        self._blocks()

    def discard(self) -> None:
        """Do nothing: all buffers are the caller's."""

    def close(self) -> None:
        self._closed = True
        ORDER.memory_changes(self._program, replaced=True)


def _steps(op: PreparedOp, memory: OpMemory) -> list[Step]:
    """The step of an op; none for a view."""
    match op:
        case KernelCall():
            places = [memory.place(buffer) for buffer in op.buffers]
            sizes = [argument.type.size for argument in op.kernel.arguments]
            return [Step.of(op.kernel.kernel, places, sizes)]
        case Copy():
            target, source = memory.place(op.target), memory.place(op.source)
            return [Step.copy(target, source, op.source.nbytes)]
    return []
