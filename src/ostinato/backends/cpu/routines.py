"""Formulas of sessions to machine code: the way of graphs, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.context import DECODE_VARIABLES
from ostinato.backends.cpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cpu.compiler import KernelCompiler
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.options import CompileOptions
from ostinato.cache.objects import process_cache
from ostinato.passes.pipeline import run_passes
from ostinato.plan.routine import Routine
from ostinato.variables import Symbol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ostinato.plan.buffer import Buffer
    from ostinato.plan.formula import Formula

__all__ = ["compile_formula"]

#: The widest bounds of a decode variable; kernels that do not mention it take any.
_ANY_STATE = (0, (1 << 63) - 1)


def compile_formula(formula: Formula, upload: Callable[[np.ndarray[Any, Any]], Buffer]) -> Routine:
    """The routine of a formula. ``upload`` makes the buffers of its constants.

    Elementwise ops are compiled as they are written, one by one and fused alike, so that fusion
    changes no bit. Everything else is optimised like a graph.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    options = CompileOptions()
    target = TargetSpec.named(options.target)
    graph, _ = run_passes(
        formula.graph(), capabilities=CAPABILITIES, optimize=not formula.elementwise
    )
    settings = lowering_options(options, target)
    program, _ = lower_for_cpu(graph, settings, _kernel_variables(formula))
    kernels = program.kernels
    code = KernelCompiler(target, process_cache()).compile(kernels, (), program.variables)
    results = 0 if formula.in_place else len(formula.results)
    return Routine.of(program, len(formula.operands), results, code.kernel, upload)


def _kernel_variables(formula: Formula) -> tuple[Symbol, ...]:
    """All decode variables in their one order, if the formula uses any.

    So kernels of several formulas can share one array of values.
    """
    used = {symbol.name: symbol for symbol in formula.variables}
    if not used:
        return ()
    return tuple(used.get(name) or Symbol(name, *_ANY_STATE) for name in DECODE_VARIABLES)
