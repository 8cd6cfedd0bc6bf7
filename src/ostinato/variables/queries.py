"""Queries and rewrites of expressions: their symbols, their value, their form along a symbol."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from ostinato.errors import VariableError
from ostinato.variables.expr import (
    Atom,
    Composite,
    Dim,
    Expr,
    Maximum,
    Minimum,
    Monomial,
    Quotient,
    Remainder,
    Symbol,
    atom_expr,
    collapse,
    floor_div,
    remainder,
)
from ostinato.variables.extrema import maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["coefficient", "evaluate", "recombine", "substitute", "symbols"]


def symbols(dim: Dim) -> frozenset[Symbol]:
    """Every symbol that ``dim`` depends on."""
    found: set[Symbol] = set()
    _collect(dim, found)
    return frozenset(found)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of ``dim`` with every symbol's value taken from ``values`` by name.

    Raises:
        VariableError: a symbol has no value.
    """
    if isinstance(dim, int):
        return dim
    total = dim.const
    for monomial, factor in dim.terms:
        term = factor
        for atom in monomial:
            term *= _atom_value(atom, values)
        total += term
    return total


def substitute(dim: Dim, values: Mapping[Symbol, Dim]) -> Dim:
    """``dim`` with symbols replaced, simplified again."""
    if isinstance(dim, int) or not values:
        return dim
    total: Dim = dim.const
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            term = term * _substitute_atom(atom, values)
        total = total + term
    return total


def coefficient(dim: Dim, symbol: Symbol) -> tuple[Dim, Dim] | None:
    """``(c, rest)`` with ``dim == c * symbol + rest`` and ``symbol`` in neither, or ``None``."""
    if isinstance(dim, int):
        return 0, dim
    scale: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, factor in dim.terms:
        if symbol in monomial:
            others = list(monomial)
            others.remove(symbol)
            if any(
                symbol == a or (not isinstance(a, Symbol) and _mentions(a, symbol)) for a in others
            ):
                return None
            scale[tuple(others)] = factor
        elif any(not isinstance(a, Symbol) and _mentions(a, symbol) for a in monomial):
            return None
        else:
            rest[monomial] = factor
    return collapse(scale, scale.pop((), 0)), collapse(rest, dim.const)


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


_EVALUATE: dict[type[Composite], Callable[[int, int], int]] = {
    Quotient: operator.floordiv,
    Remainder: operator.mod,
    Minimum: min,
    Maximum: max,
}


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        if atom.name not in values:
            raise VariableError(f"Variable {atom.name!r} has no value")
        return values[atom.name]
    return _EVALUATE[type(atom)](evaluate(atom.left, values), evaluate(atom.right, values))


def _substitute_atom(atom: Atom, values: Mapping[Symbol, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values[atom] if atom in values else atom_expr(atom)
    left, right = substitute(atom.left, values), substitute(atom.right, values)
    return _REBUILD[type(atom)](left, right)


_REBUILD: dict[type[Composite], Callable[[Dim, Dim], Dim]] = {
    Quotient: floor_div,
    Remainder: remainder,
    Minimum: minimum,
    Maximum: maximum,
}


def _collect(dim: Dim, found: set[Symbol]) -> None:
    if isinstance(dim, int):
        return
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                found.add(atom)
            else:
                _collect(atom.left, found)
                _collect(atom.right, found)


def _mentions(atom: Composite, symbol: Symbol) -> bool:
    return symbol in symbols(atom.left) or symbol in symbols(atom.right)


def _quotient_of(dim: Expr, rest: Remainder, others: Monomial, factor: int) -> Dim | None:
    """``dim`` with the remainder's term and its quotient's merged, if it has both."""
    scale = Expr({others: factor}, 0) if others else factor
    quotient = scale * rest.right * Expr({(Quotient(rest.left, rest.right),): 1}, 0)
    if not isinstance(quotient, Expr) or len(quotient.terms) != 1:
        return None
    if quotient.terms[0] not in dim.terms:
        return None
    return dim - quotient - scale * atom_expr(rest) + scale * rest.left
