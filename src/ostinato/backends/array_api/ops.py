"""Single ops: their compile, and their runs on the buffers of a session or a plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.arrays import host_view
from ostinato.backends.array_api.functions import StageFunctions
from ostinato.backends.array_api.lowering import lower_in_stages
from ostinato.backends.array_api.program import true_or_false
from ostinato.backends.array_api.run import Run
from ostinato.backends.array_api.stage_code import StageCode
from ostinato.backends.array_api.stages import Part
from ostinato.backends.common.signature_compiler import compile_signature
from ostinato.errors import PlanError
from ostinato.plan.buffer import HostMemory, bytes_of
from ostinato.plan.order import Accesses
from ostinato.plan.prepared import Copy, KernelCall
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.array_api.lowering import StagedProgram
    from ostinato.backends.base import Capabilities
    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_encoding import OpMemory
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.buffer import Buffer, Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol

__all__ = ["OpProgram", "compile_op"]

#: The sizes that an op of a session is kept compiled for.
_SIZES = 16


class _OpCompiler:
    """See :class:`~ostinato.backends.common.signature_compiler.SignatureCompiler`."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    @property
    def capabilities(self) -> Capabilities:
        return self._framework.capabilities

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> StagedProgram:
        return lower_in_stages(graph, self._framework.on_host, variables)[0]

    def code(self, program: StagedProgram) -> Callable[[Kernel], StageCode]:
        functions = StageFunctions(self._framework, _SIZES)
        for stage in program.stages:
            if not stage.sizes:
                functions.get(stage, {})
        return lambda kernel: StageCode(functions, kernel)


def compile_op(
    signature: OpSignature,
    framework: Framework,
    upload: Callable[[np.ndarray[Any, Any]], Buffer],
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Raises:
        UnsupportedOpError: the framework has no way to compute an op, nor can it be rewritten.
    """
    return compile_signature(signature, _OpCompiler(framework), upload)


class OpProgram:
    """See :class:`~ostinato.backends.common.program_runner.RunnableProgram`: ops on their buffers.

    Args:
        framework: computes.
        ops: the ops, in order.
        memory: their storages.
        variables: in the order in which a run gives their values.
        blocks: returns the present memory of the storages.
        touches: further memory that every run touches.
    """

    def __init__(
        self,
        framework: Framework,
        ops: Sequence[PreparedOp],
        memory: OpMemory,
        variables: Sequence[Symbol],
        blocks: Callable[[], list[Memory]],
        touches: Sequence[tuple[int, int, bool]] = (),
    ) -> None:
        self._framework = framework
        self._ops = [op for op in ops if isinstance(op, KernelCall | Copy)]
        self._memory = memory
        self._names = [symbol.name for symbol in variables]
        self._blocks = blocks
        self.accesses = Accesses([(id(self), 1, True), *touches])
        for op in self._ops:
            if isinstance(op, KernelCall) and not _stands_alone(op):
                raise PlanError(f"{op.name} binds or checks a size, which only its own plan can do")

    def run(self, blocks: Sequence[Any], variables: Sequence[int]) -> None:
        self.run_profiled(blocks, variables)

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int]) -> Sequence[float]:
        memory = self._blocks()
        sizes = dict(zip(self._names, variables, strict=True))
        seconds = []
        with self._framework.scope():
            for op in self._ops:
                start = time.perf_counter()
                if isinstance(op, KernelCall):
                    self._kernel(op, memory, sizes)
                else:
                    self._write(memory, op.target, self._read(memory, op.source).copy())
                seconds.append(time.perf_counter() - start)
        return seconds

    def _kernel(self, op: KernelCall, memory: list[Memory], sizes: dict[str, int]) -> None:
        part, code = op.kernel.kernel, op.kernel.code
        assert isinstance(part, Part) and isinstance(code, StageCode)
        values = {}
        for value, position in zip(part.operands, part.reads, strict=True):
            shape = tuple([evaluate(dim, sizes) for dim in value.shape])
            held = host_view(self._read(memory, op.buffers[position]), value.dtype, shape)
            values[value] = self._framework.from_host(true_or_false(held), copy=False)
        Run(code.functions, dict(sizes)).parts([part], values)
        results = [values[value] for value in part.results]
        self._framework.wait(results)
        for result, positions in zip(results, part.writes, strict=True):
            array = np.ascontiguousarray(self._framework.to_host(result))
            octets = array.reshape(-1).view(np.uint8)
            for position in positions:
                self._write(memory, op.buffers[position], octets)

    def _read(self, memory: list[Memory], buffer: Buffer) -> np.ndarray[Any, Any]:
        """The bytes of a buffer: where they are, if that is memory of the host."""
        slot, offset = self._memory.place(buffer)
        held = memory[slot]
        if isinstance(held, HostMemory):
            return np.frombuffer(held.block, np.uint8)[offset : offset + buffer.nbytes]
        octets = np.empty(buffer.nbytes, np.uint8)
        held.read(offset, bytes_of(octets))
        return octets

    def _write(self, memory: list[Memory], buffer: Buffer, octets: np.ndarray[Any, Any]) -> None:
        slot, offset = self._memory.place(buffer)
        memory[slot].write(offset, bytes_of(octets))


def _stands_alone(op: KernelCall) -> bool:
    part = op.kernel.kernel
    return isinstance(part, Part) and not any(node.op.binds_size for node in part.nodes)
