"""Scalar expressions in kernels that are no loop nest: their dependences, and points of a range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.scalars import Scalars
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.nodes import Stage, Store
from ostinato.lower.loopir.views import unravel
from ostinato.variables import axis, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.lower.loopir.nodes import Arg, Scalar
    from ostinato.variables import Dim, Symbol

__all__ = ["enter_point", "expression_scalars"]


def expression_scalars(
    kernel: KernelFunction,
    args: tuple[Arg, ...],
    values: Iterable[Scalar],
    stores: Iterable[Store] = (),
) -> Scalars:
    """An emitter of ``values`` and ``stores``, which read and write the kernel's arguments.

    Where they are evaluated is the caller's business: their axes are known to its scopes.
    """
    statements = (*(Store(0, 0, value) for value in values), *stores)
    dependences = Dependences((Stage((), statements),))
    return Scalars(kernel.builder, LaneNamespace(), kernel.buffers, dependences)


def enter_point(
    scalars: Scalars,
    outermost: Scope,
    parallel_axes: Sequence[tuple[Symbol, Dim]],
    step: ir.Value,
) -> Scope:
    """The scope of one step of a parallel range over ``parallel_axes``, the last of them fastest.

    Args:
        parallel_axes: axes with their extents.
    """
    extents = [extent for _, extent in parallel_axes]
    number = axis("step", prod(extents))
    point = outermost.child(symbols=dict.fromkeys(symbols(number), step))
    for (symbol, _), position in zip(parallel_axes, unravel(extents, number), strict=True):
        point.symbols[symbol] = scalars.indices.scalar(position, point)
    return point
