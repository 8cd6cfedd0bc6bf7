"""Compile op signatures to machine code, by the pipeline of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.compiled_op import CompiledOp
from ostinato.backends.common.context import DECODE_VARIABLES
from ostinato.backends.cpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cpu.compiler import KernelCompiler
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.options import CompileOptions
from ostinato.cache.objects import process_cache
from ostinato.passes.pipeline import run_passes
from ostinato.variables import Symbol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.plan.buffer import Buffer

__all__ = ["compile_op"]

#: The widest bounds of a decode variable, for kernels that do not use it.
_ANY_STATE = (0, (1 << 63) - 1)


def compile_op(
    signature: OpSignature, upload: Callable[[np.ndarray[Any, Any]], Buffer]
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Elementwise ops are compiled without optimisation, single and fused ones alike, so that fusion
    changes no bit. All other ops are optimised like a graph.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    options = CompileOptions()
    target = TargetSpec.named(options.target)
    graph, _ = run_passes(
        signature.graph(), capabilities=CAPABILITIES, optimize=not signature.elementwise
    )
    settings = lowering_options(options, target)
    program, _ = lower_for_cpu(graph, settings, _kernel_variables(signature))
    kernels = program.kernels
    code = KernelCompiler(target, process_cache()).compile(kernels, (), program.variables)
    results = 0 if signature.in_place else len(signature.results)
    return CompiledOp.of(program, len(signature.operands), results, code.code, upload)


def _kernel_variables(signature: OpSignature) -> tuple[Symbol, ...]:
    """All decode variables in their one order, if the signature uses any.

    Kernels of several signatures can then share one array of values.
    """
    used = {symbol.name: symbol for symbol in signature.variables}
    if not used:
        return ()
    return tuple(used.get(name) or Symbol(name, *_ANY_STATE) for name in DECODE_VARIABLES)
