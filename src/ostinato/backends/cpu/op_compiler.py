"""Compile op signatures to machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.signature_compiler import compile_signature
from ostinato.backends.cpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cpu.compiler import KernelCompiler
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.options import CompileOptions
from ostinato.cache.objects import process_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.backends.cpu.rules.table import CpuProgram
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import KernelCode
    from ostinato.variables import Symbol

__all__ = ["compile_op"]


class _CpuCompiler:
    """See :class:`~ostinato.backends.common.signature_compiler.SignatureCompiler`."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._options = CompileOptions()
        self._target = TargetSpec.of(self._options)

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> CpuProgram:
        settings = lowering_options(self._options, self._target)
        return lower_for_cpu(graph, settings, variables)[0]

    def code(self, program: CpuProgram) -> Callable[[Kernel], KernelCode]:
        compiler = KernelCompiler(self._target, process_cache())
        return compiler.compile(program.kernels, (), program.variables).code


def compile_op(
    signature: OpSignature, upload: Callable[[np.ndarray[Any, Any]], Buffer]
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    return compile_signature(signature, _CpuCompiler(), upload)
