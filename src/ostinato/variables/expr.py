"""Integer expressions: polynomials over symbols, quotients, remainders, minima and maxima.

Division simplifies by what the bounds of the atoms prove.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

from ostinato.records import dataclass
from ostinato.variables.polynomial import (
    bounds_of_sum,
    divide_by_int,
    divide_by_term,
    format_sum,
    leading_term,
    multiply_monomials,
    sorted_terms,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Atom",
    "Composite",
    "Dim",
    "Expr",
    "Maximum",
    "Minimum",
    "Monomial",
    "Quotient",
    "Remainder",
    "Symbol",
    "as_expr",
    "atom_expr",
    "bounds",
    "ceil_div",
    "collapse",
    "floor_div",
    "prod",
    "provably_less",
    "provably_nonnegative",
    "remainder",
]

Dim: TypeAlias = Union[int, "Expr"]


@dataclass(frozen=True)
class Symbol:
    """A named integer with inclusive bounds.

    Attributes:
        name: unique within the graph or the kernel that uses it.
        min: the least value, inclusive.
        max: the greatest value, inclusive.
        extent: for a loop axis, the exclusive upper bound, which may itself be symbolic.
        bound: for a size that depends on data, its greatest value, which may be symbolic; see
            :class:`~ostinato.variables.variable.DataVariable`.
    """

    name: str
    min: int
    max: int
    extent: Dim | None = None
    bound: Dim | None = None

    @cached_property
    def key(self) -> str:
        return self.name

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.min, self.max))

    def __hash__(self) -> int:
        return self._hash

    def bounds(self) -> tuple[int, int]:
        return self.min, self.max

    def upper(self) -> Dim:
        """The greatest value, as a dim: symbolic where the extent, or the bound, is."""
        if self.bound is not None:
            return self.bound
        return self.max if self.extent is None else self.extent - 1


@dataclass(frozen=True)
class Composite:
    """An atom made of two expressions that the polynomial form cannot hold."""

    left: Expr
    right: Expr

    symbol = ""

    @cached_property
    def key(self) -> str:
        return f"({_operand(self.left)} {self.symbol} {_divisor(self.right)})"

    @cached_property
    def _hash(self) -> int:
        return hash((self.symbol, self.left, self.right))

    def __hash__(self) -> int:
        return self._hash

    def upper(self) -> Dim:
        return self.bounds()[1]

    def bounds(self) -> tuple[int, int]:
        raise NotImplementedError


class Quotient(Composite):
    """``left // right``, rounding towards minus infinity; ``right`` is positive."""

    symbol = "//"
    __hash__ = Composite.__hash__

    def bounds(self) -> tuple[int, int]:
        (a, b), (c, d) = self.left.bounds(), self.right.bounds()
        c = max(c, 1)
        corners = [a // c, a // d, b // c, b // d]
        return min(corners), max(corners)


class Remainder(Composite):
    """``left % right`` with the sign of ``right``; ``right`` is positive."""

    symbol = "%"
    __hash__ = Composite.__hash__

    def bounds(self) -> tuple[int, int]:
        return 0, max(self.right.bounds()[1] - 1, 0)

    def upper(self) -> Dim:
        return self.right - 1


class Minimum(Composite):
    """The lesser of two expressions."""

    symbol = "min"
    __hash__ = Composite.__hash__

    @cached_property
    def key(self) -> str:
        return f"min({self.left}, {self.right})"

    def bounds(self) -> tuple[int, int]:
        (a, b), (c, d) = self.left.bounds(), self.right.bounds()
        return min(a, c), min(b, d)


class Maximum(Composite):
    """The greater of two expressions."""

    symbol = "max"
    __hash__ = Composite.__hash__

    @cached_property
    def key(self) -> str:
        return f"max({self.left}, {self.right})"

    def bounds(self) -> tuple[int, int]:
        (a, b), (c, d) = self.left.bounds(), self.right.bounds()
        return max(a, c), max(b, d)


Atom: TypeAlias = Symbol | Composite


Monomial: TypeAlias = tuple[Atom, ...]


class Expr:
    """A polynomial over atoms, in canonical form.

    Attributes:
        terms: ``(monomial, coefficient)`` pairs, sorted; no coefficient is zero.
        const: the constant term.
    """

    __slots__ = ("_bounds", "_hash", "_text", "const", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    const: int

    def __init__(self, terms: Mapping[Monomial, int], const: int) -> None:
        self.terms = sorted_terms(terms.items())
        self.const = const
        self._hash: int | None = None
        self._bounds: tuple[int, int] | None = None
        self._text: str | None = None

    # -- identity ---------------------------------------------------------------------------

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.terms, self.const))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expr):
            return self is other or (self.const == other.const and self.terms == other.terms)
        if isinstance(other, int):
            return not self.terms and self.const == other
        return NotImplemented

    def __str__(self) -> str:
        if self._text is None:
            self._text = format_sum(self.terms, self.const)
        return self._text

    def __repr__(self) -> str:
        return str(self)

    # -- bounds -----------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """The least and greatest value, inclusive; safe, not always tight."""
        if self._bounds is None:
            self._bounds = bounds_of_sum([(_factors(m), c) for m, c in self.terms], self.const)
        return self._bounds

    # -- arithmetic -------------------------------------------------------------------------

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return self if other == 0 else Expr(dict(self.terms), self.const + other)
        if not isinstance(other, Expr):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return collapse(terms, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        if not isinstance(other, int | Expr):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            if other == 1:
                return self
            return collapse({m: c * other for m, c in self.terms}, self.const * other)
        if not isinstance(other, Expr):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for m1, c1 in (*self.terms, ((), self.const)):
            for m2, c2 in (*other.terms, ((), other.const)):
                if c1 and c2:
                    m = multiply_monomials(m1, m2)
                    terms[m] = terms.get(m, 0) + c1 * c2
        return collapse(terms, terms.pop((), 0))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_div(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floor_div(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)

    def __rmod__(self, other: int) -> Dim:
        return remainder(other, self)


def _factors(monomial: Monomial) -> Monomial:
    """``monomial`` with ``(a // b) * b`` as one factor, which is at most ``a``.

    So is ``(a // max(b, 1)) * b``, where ``b`` may be 0.
    """
    for quotient in monomial:
        if isinstance(quotient, Quotient) and quotient.left.bounds()[0] >= 0:
            divisor = quotient.right
            match divisor.terms:
                case (((Maximum(left=left, right=one),), 1),) if divisor.const == 0 and one == 1:
                    divisor = left
            rest = list(monomial)
            rest.remove(quotient)
            if divisor.const or len(divisor.terms) != 1:
                continue
            ((atoms, scale),) = divisor.terms
            if all(rest.count(atom) >= atoms.count(atom) for atom in atoms):
                for atom in atoms:
                    rest.remove(atom)
                most = quotient.left.bounds()[1] // max(scale, 1)
                return (Symbol("", 0, most), *_factors(tuple(rest)))
    return monomial


def bounds(dim: Dim) -> tuple[int, int]:
    """The least and greatest value of ``dim``, inclusive."""
    return (dim, dim) if isinstance(dim, int) else dim.bounds()


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``; 1 when there are none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def floor_div(a: Dim, b: Dim) -> Dim:
    """``a // b`` for a positive ``b``, simplified with the bounds of the atoms."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    quotient, rest = _split_multiples(a, b)
    if rest == 0 or _within(rest, b):
        return quotient
    if provably_less(rest, 0) and provably_nonnegative(rest + b):
        return quotient - 1
    if isinstance(b, Expr) and (ratio := _whole_ratio(rest, b)):
        return quotient + ratio
    if isinstance(b, int):
        low, high = bounds(rest)
        if low // b == high // b:
            return quotient + low // b
        if high <= 0:
            return quotient - ceil_div(-rest, b)
        inner = _nested_quotient(rest, b)
        if inner is not None:
            return quotient + inner
    return quotient + atom_expr(Quotient(as_expr(rest), as_expr(b)))


def _whole_ratio(a: Dim, b: Expr) -> int:
    """``a / b`` where that is a whole number for all values; else 0."""
    if not isinstance(a, Expr) or not a.terms or not b.terms:
        return 0
    ratio, left = divmod(a.terms[0][1], b.terms[0][1])
    return ratio if left == 0 and a == b * ratio else 0


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


def provably_nonnegative(dim: Dim) -> bool:
    """Whether ``dim >= 0`` follows from the bounds of its atoms."""
    return _least(dim) >= 0


def provably_less(a: Dim, b: Dim) -> bool:
    """Whether ``a < b`` follows from the bounds of the atoms of both."""
    return _least(b - a - 1) >= 0


def collapse(terms: Mapping[Monomial, int], const: int) -> Dim:
    for coefficient in terms.values():
        if coefficient:
            return Expr(terms, const)
    return const


def atom_expr(atom: Atom) -> Expr:
    return Expr({(atom,): 1}, 0)


def as_expr(dim: Dim) -> Expr:
    return Expr({}, dim) if isinstance(dim, int) else dim


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
        total = total + factor * (prod(ends) if nonnegative else Expr({monomial: 1}, 0))
    return max(numeric, bounds(total)[0]) if changed else numeric


def _within(rest: Dim, b: Dim) -> bool:
    return provably_nonnegative(rest) and provably_less(rest, b)


def _split_multiples(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q * b + r``, taking out of ``a`` every term that ``b`` divides."""
    if isinstance(a, int):
        return 0, a
    if isinstance(b, int):
        quotient, rest = divide_by_int(a.terms, b)
        return collapse(quotient, a.const // b), collapse(rest, a.const % b)
    if len(b.terms) == 1 and b.const == 0:
        return _split_by_term(a, *b.terms[0])
    return _split_by_sum(a, b)


def _split_by_term(a: Expr, divisor: Monomial, scale: int) -> tuple[Dim, Dim]:
    quotient, rest = divide_by_term(a.terms, divisor, scale)
    return collapse(quotient, quotient.pop((), 0)), collapse(rest, a.const)


def _split_by_sum(a: Expr, b: Expr) -> tuple[Dim, Dim]:
    """Polynomial long division where that empties ``a``'s terms."""
    quotient, _ = _split_by_term(a, *b.terms[0])
    rest = a - quotient * b
    if quotient != 0 and _within(rest, b):
        return quotient, rest
    quotient, rest = _long_division(a, b)
    return (quotient, rest) if _within(rest, b) else (0, a)


def _long_division(a: Expr, b: Expr) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q * b + r``, as far as leading terms can be divided."""
    divisor, scale = leading_term(b.terms)
    quotient: Dim = 0
    rest: Dim = a
    while isinstance(rest, Expr):
        part, _ = _split_by_term(Expr(dict([leading_term(rest.terms)]), 0), divisor, scale)
        if part == 0:
            break
        quotient, rest = quotient + part, rest - part * b
    return quotient, rest


def _nested_quotient(a: Dim, b: int) -> Dim | None:
    """``(x // c + k) // b`` as ``(x + k * c) // (c * b)``, for a lone quotient and a number."""
    if not isinstance(a, Expr) or len(a.terms) != 1:
        return None
    monomial, factor = a.terms[0]
    atom = monomial[0]
    if factor != 1 or len(monomial) != 1 or not isinstance(atom, Quotient) or atom.right.terms:
        return None
    step = atom.right.const
    return floor_div(atom.left + a.const * step, step * b)


def _operand(expr: Expr) -> str:
    return f"({expr})" if len(expr.terms) + bool(expr.const) > 1 else str(expr)


def _divisor(expr: Expr) -> str:
    """As an operand, with parentheses around products too: ``n // (2*m)`` is not ``n // 2*m``."""
    text = _operand(expr)
    return f"({text})" if "*" in text and text == str(expr) else text
