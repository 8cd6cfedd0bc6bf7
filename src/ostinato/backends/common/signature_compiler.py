"""Compile op signatures, by the pipeline of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ostinato.backends.common.compiled_op import CompiledOp
from ostinato.backends.common.decode_state import DECODE_VARIABLES
from ostinato.passes.pipeline import run_passes
from ostinato.variables import Symbol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ostinato.backends.base import Capabilities
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import KernelCode

__all__ = ["SignatureCompiler", "compile_signature"]

P = TypeVar("P", bound="Program")

#: The widest bounds of a decode variable, for kernels that do not use it.
_ANY_STATE = (0, (1 << 63) - 1)


class SignatureCompiler(Protocol[P]):
    """The steps of compiling a signature that are a device's own."""

    @property
    def capabilities(self) -> Capabilities:
        """The ops that are not rewritten."""

    def lower(self, graph: BaseGraph, variables: tuple[Symbol, ...]) -> P:
        """The kernels of a graph, which take the values of ``variables``.

        Raises:
            UnsupportedOpError: there is no kernel for an op.
        """

    def code(self, program: P, /) -> Callable[[Kernel], KernelCode]:
        """The code of a program's kernels."""


def compile_signature(
    signature: OpSignature,
    compiler: SignatureCompiler[P],
    upload: Callable[[np.ndarray[Any, Any]], Buffer],
) -> CompiledOp:
    """Compile a signature; ``upload`` makes the buffers of its constants.

    Elementwise ops are compiled without optimisation, single and fused ones alike, so that fusion
    changes no bit. All other ops are optimised like a graph.

    Raises:
        UnsupportedOpError: there is no kernel for an op, and no way to rewrite it.
    """
    graph, _ = run_passes(
        signature.graph(), capabilities=compiler.capabilities, optimize=not signature.elementwise
    )
    program = compiler.lower(graph, _kernel_variables(signature))
    results = 0 if signature.in_place else len(signature.results)
    return CompiledOp.of(program, len(signature.operands), results, compiler.code(program), upload)


def _kernel_variables(signature: OpSignature) -> tuple[Symbol, ...]:
    """All decode variables in their one order, if the signature uses any.

    Kernels of several signatures can then share one array of values.
    """
    used = {symbol.name: symbol for symbol in signature.variables}
    if not used:
        return ()
    return tuple(used.get(name) or Symbol(name, *_ANY_STATE) for name in DECODE_VARIABLES)
