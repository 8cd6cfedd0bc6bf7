"""Minima and maxima, and comparisons that see through them."""

from __future__ import annotations

from ostinato.variables.expr import (
    Dim,
    Expr,
    Maximum,
    Minimum,
    as_expr,
    atom_expr,
    provably_nonnegative,
)

__all__ = ["difference", "maximum", "minimum", "provably_at_most"]


def minimum(a: Dim, b: Dim) -> Dim:
    """The lesser of two dims."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if provably_at_most(a, b):
        return a
    if provably_at_most(b, a):
        return b
    return atom_expr(Minimum(as_expr(a), as_expr(b)))


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of two dims."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if provably_at_most(b, a):
        return a
    if provably_at_most(a, b):
        return b
    return atom_expr(Maximum(as_expr(a), as_expr(b)))


def difference(a: Dim, b: Dim) -> Dim:
    """``a - b``; of a number and an end that is clamped, the clamped number.

    ``n - max(n - 3, 0)`` is ``min(3, n)``, which is seen to be positive where ``n`` is.
    """
    clamped = _extremum(b)
    if clamped is not None:
        left, right = a - clamped.left, a - clamped.right
        if isinstance(left, int) or isinstance(right, int):
            return (minimum if isinstance(clamped, Maximum) else maximum)(left, right)
    return a - b


def provably_at_most(a: Dim, b: Dim) -> bool:
    """Whether ``a <= b`` follows from the bounds of atoms, or from minima and maxima.

    ``min(n, 5) <= n`` needs no bounds of ``n``.
    """
    if provably_nonnegative(b - a):
        return True
    match _extremum(a), _extremum(b):
        case Minimum(left=left, right=right), _ if provably_at_most(left, b) or provably_at_most(
            right, b
        ):
            return True
        case Maximum(left=left, right=right), _:
            return provably_at_most(left, b) and provably_at_most(right, b)
        case _, Maximum(left=left, right=right):
            return provably_at_most(a, left) or provably_at_most(a, right)
        case _, Minimum(left=left, right=right):
            return provably_at_most(a, left) and provably_at_most(a, right)
    return False


def _extremum(dim: Dim) -> Minimum | Maximum | None:
    """The minimum or maximum that ``dim`` is, if it is one."""
    if isinstance(dim, Expr) and dim.const == 0:
        match dim.terms:
            case (((Minimum() | Maximum() as atom,), 1),):
                return atom
    return None
