"""Polynomials as terms over any atoms: their order, bounds, division and text.

A *monomial* is a sorted tuple of atoms, empty for the constant 1. *Terms* pair monomials with
integer coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Factor",
    "bounds_of_sum",
    "divide_by_int",
    "divide_by_term",
    "format_sum",
    "leading_term",
    "multiply_monomials",
    "sorted_terms",
]


class Factor(Protocol):
    """An integer quantity with a name to sort by and inclusive bounds."""

    @property
    def key(self) -> str:
        """The text, which differs between atoms that differ."""

    def bounds(self) -> tuple[int, int]:
        """The least and greatest value, inclusive."""


F = TypeVar("F", bound=Factor)


def sorted_terms(
    terms: Iterable[tuple[tuple[F, ...], int]],
) -> tuple[tuple[tuple[F, ...], int], ...]:
    """The terms that are not zero, in canonical order."""
    kept = [(m, c) for m, c in terms if c]
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return tuple(kept)


def multiply_monomials(a: tuple[F, ...], b: tuple[F, ...]) -> tuple[F, ...]:
    """The product of two monomials."""
    return tuple(sorted(a + b, key=_atom_key)) if a and b else a or b


def bounds_of_sum(terms: Iterable[tuple[Sequence[Factor], int]], const: int) -> tuple[int, int]:
    """The least and greatest value of a polynomial, inclusive; safe, not always tight."""
    low = high = const
    for monomial, coefficient in terms:
        a, b = _monomial_bounds(monomial)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return low, high


def divide_by_int(
    terms: Iterable[tuple[tuple[F, ...], int]], divisor: int
) -> tuple[dict[tuple[F, ...], int], dict[tuple[F, ...], int]]:
    """The terms that ``divisor`` divides, divided by it, and the others."""
    quotient: dict[tuple[F, ...], int] = {}
    rest: dict[tuple[F, ...], int] = {}
    for monomial, factor in terms:
        if factor % divisor:
            rest[monomial] = factor
        else:
            quotient[monomial] = factor // divisor
    return quotient, rest


def divide_by_term(
    terms: Iterable[tuple[tuple[F, ...], int]], divisor: tuple[F, ...], scale: int
) -> tuple[dict[tuple[F, ...], int], dict[tuple[F, ...], int]]:
    """The terms that ``scale * divisor`` divides, divided by it, and the others.

    A term that equals the divisor leaves a constant, under the empty monomial.
    """
    quotient: dict[tuple[F, ...], int] = {}
    rest: dict[tuple[F, ...], int] = {}
    for monomial, factor in terms:
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
    return quotient, rest


def leading_term(terms: Iterable[tuple[tuple[F, ...], int]]) -> tuple[tuple[F, ...], int]:
    """The greatest term by degree, then by how often the first atoms occur.

    A multiple of a polynomial leads with that multiple of its leading term.
    """
    return min(terms, key=lambda term: (-len(term[0]), _term_key(term)))


def format_sum(terms: Iterable[tuple[Sequence[Factor], int]], const: int) -> str:
    """A polynomial as Python would write it: ``2*n - m + 1``."""
    parts: list[str] = []
    for monomial, factor in terms:
        product = "*".join(atom.key for atom in monomial)
        sign = "-" if factor < 0 else "+"
        text = product if abs(factor) == 1 else f"{abs(factor)}*{product}"
        parts.append(f" {sign} {text}" if parts else (f"-{text}" if factor < 0 else text))
    if const or not parts:
        parts.append(f" {'-' if const < 0 else '+'} {abs(const)}" if parts else str(const))
    return "".join(parts)


def _monomial_bounds(monomial: Sequence[Factor]) -> tuple[int, int]:
    low, high = monomial[0].bounds()
    for atom in monomial[1:]:
        a, b = atom.bounds()
        corners = (low * a, low * b, high * a, high * b)
        low, high = min(corners), max(corners)
    return low, high


def _atom_key(atom: Factor) -> str:
    return atom.key


def _term_key(term: tuple[tuple[Factor, ...], int]) -> tuple[str, ...]:
    return tuple(atom.key for atom in term[0])
