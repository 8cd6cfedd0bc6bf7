"""Accesses of neighbouring elements along an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import roots
from ostinato.lower.loopir.nodes import Guard, Load, Scalar, operands
from ostinato.variables import Dim, Expr, Quotient, Remainder, Symbol, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nodes import Statement
    from ostinato.variables.expr import Atom

__all__ = ["begins_aligned", "is_same", "loads_along"]


def loads_along(
    statements: Iterable[Statement], axis: Symbol, dependences: Dependences
) -> list[Load] | None:
    """The loads that differ along ``axis``.

    ``None``, if one stands under a guard, or at a place that follows from data along the axis.
    """
    seen: dict[tuple[Scalar, bool], None] = {}
    waiting = [(root, False) for statement in statements for root in roots(statement)]
    while waiting:
        scalar, guarded = waiting.pop()
        if axis not in dependences.of(scalar) or (scalar, guarded) in seen:
            continue
        seen[scalar, guarded] = None
        if isinstance(scalar, Load):
            found = any(axis in dependences.of(binding.value) for binding in scalar.bindings)
            if guarded or found:
                return None
        inner = guarded or isinstance(scalar, Guard)
        waiting.extend((operand, inner) for operand in operands(scalar))
    return [scalar for scalar, _ in seen if isinstance(scalar, Load)]


def begins_aligned(index: Dim, axis: Symbol, lanes: int) -> bool:
    """Whether elements at an index are neighbours along ``axis``, from a multiple of ``lanes`` on.

    The axis itself begins at a multiple of ``lanes``. So does its remainder by a multiple of them,
    and its quotient by one is the same for all: halves of a row may be read across.
    """
    if isinstance(index, int):
        return False
    runs = 0
    for monomial, factor in index.terms:
        run = factor == 1 and len(monomial) == 1 and _is_run(monomial[0], axis, lanes)
        runs += run
        if not run and (factor % lanes or any(_varies(a, axis, lanes) for a in monomial)):
            return False
    return runs == 1 and index.const % lanes == 0


def is_same(index: Dim, axis: Symbol, lanes: int) -> bool:
    """Whether an index is the same for all neighbours: see :func:`begins_aligned`."""
    if isinstance(index, int):
        return True
    return not any(_varies(atom, axis, lanes) for monomial, _ in index.terms for atom in monomial)


def _is_run(atom: Atom, axis: Symbol, lanes: int) -> bool:
    """Whether an atom is one more at each neighbour, and begins at a multiple of ``lanes``."""
    if isinstance(atom, Remainder):
        whole = not atom.right.terms and atom.right.const % lanes == 0
        return whole and begins_aligned(atom.left, axis, lanes)
    return atom == axis


def _varies(atom: Atom, axis: Symbol, lanes: int) -> bool:
    """Whether an atom may differ between the neighbours of a pack."""
    if isinstance(atom, Quotient) and not atom.right.terms and atom.right.const % lanes == 0:
        return axis in symbols(atom.left) and not begins_aligned(atom.left, axis, lanes)
    return axis in symbols(Expr({(atom,): 1}, 0))
