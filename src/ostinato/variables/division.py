"""Quotients, remainders, minima and maxima, simplified by what the atoms' bounds prove."""

from __future__ import annotations

from ostinato.variables.expr import (
    Dim,
    Expr,
    Maximum,
    Minimum,
    Monomial,
    Quotient,
    Remainder,
    as_expr,
    atom_expr,
    bounds,
    collapse,
    monomial_expr,
    prod,
)

__all__ = [
    "ceil_div",
    "floor_div",
    "maximum",
    "minimum",
    "provably_less",
    "provably_nonnegative",
    "recombine",
    "remainder",
]


def floor_div(a: Dim, b: Dim) -> Dim:
    """``a // b`` for a positive ``b``, simplified with the bounds of the atoms."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    quotient, rest = _split_multiples(a, b)
    if _within(rest, b):
        return quotient
    if isinstance(b, int):
        low, high = bounds(rest)
        if low // b == high // b:
            return quotient + low // b
        inner = _nested_quotient(rest, b)
        if inner is not None:
            return quotient + inner
    return quotient + atom_expr(Quotient(as_expr(rest), as_expr(b)))


def remainder(a: Dim, b: Dim) -> Dim:
    """``a % b`` for a positive ``b``, simplified with the bounds of the atoms."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b in (1, a):
        return 0
    _, rest = _split_multiples(a, b)
    if _within(rest, b):
        return rest
    return atom_expr(Remainder(as_expr(rest), as_expr(b)))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, for a positive ``b``."""
    return floor_div(a + b - 1, b)


def minimum(a: Dim, b: Dim) -> Dim:
    """The lesser of two dims."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if provably_nonnegative(b - a):
        return a
    if provably_nonnegative(a - b):
        return b
    return atom_expr(Minimum(as_expr(a), as_expr(b)))


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of two dims."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if provably_nonnegative(a - b):
        return a
    if provably_nonnegative(b - a):
        return b
    return atom_expr(Maximum(as_expr(a), as_expr(b)))


def provably_nonnegative(dim: Dim) -> bool:
    """Whether ``dim >= 0`` follows from the bounds of its atoms."""
    return _least(dim) >= 0


def provably_less(a: Dim, b: Dim) -> bool:
    """Whether ``a < b`` follows from the bounds of the atoms of both."""
    return _least(b - a - 1) >= 0


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


def recombine(dim: Dim) -> Dim:
    """``dim`` with every ``c * (x // c) + x % c`` put together again as ``x``."""
    if isinstance(dim, int):
        return dim
    for monomial, factor in dim.terms:
        for position, atom in enumerate(monomial):
            if isinstance(atom, Remainder):
                others = monomial[:position] + monomial[position + 1 :]
                whole = _quotient_of(dim, atom, others, factor)
                if whole is not None:
                    return recombine(whole)
    return dim


def _least(dim: Dim) -> int:
    """A lower bound that replaces axes by their symbolic ends before the numeric bounds."""
    if isinstance(dim, int):
        return dim
    numeric = dim.bounds()[0]
    if numeric >= 0:
        return numeric
    total: Dim = dim.const
    changed = False
    for monomial, factor in dim.terms:
        ends: list[Dim] = []
        for atom in monomial:
            upper = atom.upper()
            if isinstance(upper, Expr) and atom.bounds()[0] >= 0:
                ends.append(upper if factor < 0 else atom.bounds()[0])
                changed = True
            else:
                ends.append(atom_expr(atom))
        nonnegative = all(atom.bounds()[0] >= 0 for atom in monomial)
        total = total + factor * (prod(ends) if nonnegative else monomial_expr(monomial))
    return max(numeric, bounds(total)[0]) if changed else numeric


def _within(rest: Dim, b: Dim) -> bool:
    return provably_nonnegative(rest) and provably_less(rest, b)


def _split_multiples(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q * b + r``, taking out of ``a`` every term that ``b`` divides."""
    if isinstance(a, int):
        return 0, a
    if isinstance(b, int):
        quotient = {m: c // b for m, c in a.terms if c % b == 0}
        rest = {m: c for m, c in a.terms if c % b}
        return collapse(quotient, a.const // b), collapse(rest, a.const % b)
    if len(b.terms) == 1 and b.const == 0:
        return _split_monomial(a, *b.terms[0])
    return _split_polynomial(a, b)


def _split_monomial(a: Expr, divisor: Monomial, scale: int) -> tuple[Dim, Dim]:
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, factor in a.terms:
        left = list(monomial)
        divisible = factor % scale == 0
        for atom in divisor:
            if divisible and atom in left:
                left.remove(atom)
            else:
                divisible = False
        if divisible:
            quotient[tuple(left)] = factor // scale
        else:
            rest[monomial] = factor
    return collapse(quotient, quotient.pop((), 0)), collapse(rest, a.const)


def _split_polynomial(a: Expr, b: Expr) -> tuple[Dim, Dim]:
    """Polynomial long division by the leading term of ``b`` where that empties ``a``'s terms."""
    lead, scale = b.terms[0]
    quotient, _ = _split_monomial(a, lead, scale)
    if quotient == 0:
        return 0, a
    rest = a - quotient * b
    return (quotient, rest) if _within(rest, b) else (0, a)


def _nested_quotient(a: Dim, b: int) -> Dim | None:
    """``(x // c) // b`` as ``x // (c * b)``, for a lone quotient."""
    if not isinstance(a, Expr) or a.const or len(a.terms) != 1:
        return None
    monomial, factor = a.terms[0]
    atom = monomial[0]
    if factor != 1 or len(monomial) != 1 or not isinstance(atom, Quotient) or atom.right.terms:
        return None
    return floor_div(atom.left, atom.right.const * b)


def _quotient_of(dim: Expr, rest: Remainder, others: Monomial, factor: int) -> Dim | None:
    """``dim`` with the remainder's term and its quotient's merged, if it has both."""
    scale = Expr({others: factor}, 0) if others else factor
    quotient = scale * rest.right * Expr({(Quotient(rest.left, rest.right),): 1}, 0)
    if not isinstance(quotient, Expr) or len(quotient.terms) != 1:
        return None
    if quotient.terms[0] not in dim.terms:
        return None
    return dim - quotient - scale * atom_expr(rest) + scale * rest.left
