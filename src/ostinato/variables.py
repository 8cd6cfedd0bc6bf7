"""Symbolic integers: the sizes of dimensions and the index arithmetic of loops.

One representation serves both. An :class:`Expr` is a polynomial with integer coefficients over
*atoms*: symbols (a user's :class:`Variable`, a loop's axis), and quotients, remainders, minima and
maxima of other expressions. Polynomials are kept in canonical form, so two expressions that are
equal by the laws of a ring compare equal, and every atom carries bounds, so that
``(64 * i + j) // 64`` with ``0 <= j < 64`` simplifies to ``i``.

A *dim* is an ``int`` or an ``Expr``; the module's functions accept either and give back a plain
``int`` whenever the value is constant.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from ostinato.errors import VariableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "BoundVariable",
    "Dim",
    "Expr",
    "Symbol",
    "Variable",
    "axis",
    "bounds",
    "ceil_div",
    "coefficient",
    "evaluate",
    "floor_div",
    "maximum",
    "minimum",
    "prod",
    "provably_less",
    "provably_nonnegative",
    "recombine",
    "remainder",
    "substitute",
    "symbols",
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
    """

    name: str
    min: int
    max: int
    extent: Dim | None = None

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
        """The greatest value, as a dim: symbolic where the extent is."""
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

_EVALUATE: dict[type[Composite], Callable[[int, int], int]] = {
    Quotient: operator.floordiv,
    Remainder: operator.mod,
    Minimum: min,
    Maximum: max,
}


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
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=_term_key)
        self.terms = tuple(kept)
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
            self._text = _format(self)
        return self._text

    def __repr__(self) -> str:
        return str(self)

    # -- bounds -----------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """The least and greatest value, inclusive; safe, not always tight."""
        if self._bounds is None:
            low = high = self.const
            for monomial, coefficient in self.terms:
                a, b = _monomial_bounds(monomial)
                low += coefficient * (a if coefficient > 0 else b)
                high += coefficient * (b if coefficient > 0 else a)
            self._bounds = (low, high)
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
        return _collapse(terms, self.const + other.const)

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
            return _collapse({m: c * other for m, c in self.terms}, self.const * other)
        if not isinstance(other, Expr):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for m1, c1 in (*self.terms, ((), self.const)):
            for m2, c2 in (*other.terms, ((), other.const)):
                if c1 and c2:
                    m = tuple(sorted(m1 + m2, key=_atom_key)) if m1 and m2 else m1 or m2
                    terms[m] = terms.get(m, 0) + c1 * c2
        return _collapse(terms, terms.pop((), 0))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_div(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floor_div(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return remainder(self, other)

    def __rmod__(self, other: int) -> Dim:
        return remainder(other, self)


class BoundVariable(NamedTuple):
    """A variable together with a value inside its bounds."""

    variable: Variable
    value: int


class Variable(Expr):
    """A symbolic size, known only when the compiled graph runs.

    Args:
        name: an identifier; within a graph one name means one variable.
        min: the least value, inclusive, not negative.
        max: the greatest value, inclusive; buffers are sized for it.

    Raises:
        VariableError: the name is no identifier, or the bounds are not ``0 <= min <= max``.
    """

    __slots__ = ("symbol",)

    def __init__(self, name: str, min: int, max: int) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise VariableError(f"a Variable's name must be an identifier, got {name!r}")
        for bound in (min, max):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise VariableError(f"Variable {name!r}: bounds must be ints, got {bound!r}")
        if not 0 <= min <= max:
            raise VariableError(
                f"Variable {name!r}: expected 0 <= min <= max, got min={min}, max={max}"
            )
        self.symbol = Symbol(name, min, max)
        super().__init__({(self.symbol,): 1}, 0)

    @property
    def name(self) -> str:
        return self.symbol.name

    @property
    def min(self) -> int:
        return self.symbol.min

    @property
    def max(self) -> int:
        return self.symbol.max

    def bind(self, value: int) -> BoundVariable:
        """This variable at ``value``.

        Raises:
            VariableError: ``value`` is not an int within ``min..max``.
        """
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise VariableError(f"Variable {self.name!r} takes an int, got {value!r}")
        value = operator.index(value)
        if not self.min <= value <= self.max:
            raise VariableError(
                f"Variable {self.name!r} is bounded by {self.min}..{self.max}, got {value}"
            )
        return BoundVariable(self, value)


def axis(name: str, extent: Dim) -> Expr:
    """A loop axis: a symbol that runs over ``0 <= name < extent``."""
    upper = max(bounds(extent)[1] - 1, 0)
    return Expr({(Symbol(name, 0, upper, extent),): 1}, 0)


# -- functions over dims -------------------------------------------------------------------------


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
    if _within(rest, b):
        return quotient
    if isinstance(b, int):
        inner = _nested_quotient(rest, b)
        if inner is not None:
            return quotient + inner
    return quotient + _atom(Quotient(_expr(rest), _expr(b)))


def remainder(a: Dim, b: Dim) -> Dim:
    """``a % b`` for a positive ``b``, simplified with the bounds of the atoms."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b in (1, a):
        return 0
    _, rest = _split_multiples(a, b)
    if _within(rest, b):
        return rest
    return _atom(Remainder(_expr(rest), _expr(b)))


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
    return _atom(Minimum(_expr(a), _expr(b)))


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of two dims."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if provably_nonnegative(a - b):
        return a
    if provably_nonnegative(b - a):
        return b
    return _atom(Maximum(_expr(a), _expr(b)))


def provably_nonnegative(dim: Dim) -> bool:
    """Whether ``dim >= 0`` follows from the bounds of its atoms."""
    return _least(dim) >= 0


def provably_less(a: Dim, b: Dim) -> bool:
    """Whether ``a < b`` follows from the bounds of the atoms of both."""
    return _least(b - a - 1) >= 0


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


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        if atom.name not in values:
            raise VariableError(f"Variable {atom.name!r} has no value")
        return values[atom.name]
    return _EVALUATE[type(atom)](evaluate(atom.left, values), evaluate(atom.right, values))


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
    return _collapse(scale, scale.pop((), 0)), _collapse(rest, dim.const)


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


# -- the canonical form's machinery -----------------------------------------------------------


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[str, ...]:
    return tuple(atom.key for atom in term[0])


def _collapse(terms: Mapping[Monomial, int], const: int) -> Dim:
    for coefficient in terms.values():
        if coefficient:
            return Expr(terms, const)
    return const


def _atom(atom: Atom) -> Expr:
    return Expr({(atom,): 1}, 0)


def _expr(dim: Dim) -> Expr:
    return Expr({}, dim) if isinstance(dim, int) else dim


def _monomial_bounds(monomial: Monomial) -> tuple[int, int]:
    low, high = monomial[0].bounds()
    for atom in monomial[1:]:
        a, b = atom.bounds()
        corners = (low * a, low * b, high * a, high * b)
        low, high = min(corners), max(corners)
    return low, high


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
                ends.append(_atom(atom))
        nonnegative = all(atom.bounds()[0] >= 0 for atom in monomial)
        total = total + factor * (prod(ends) if nonnegative else _atom_product(monomial))
    return max(numeric, bounds(total)[0]) if changed else numeric


def _atom_product(monomial: Monomial) -> Expr:
    return Expr({monomial: 1}, 0)


def _within(rest: Dim, b: Dim) -> bool:
    return provably_nonnegative(rest) and provably_less(rest, b)


def _split_multiples(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """``(q, r)`` with ``a == q * b + r``, taking out of ``a`` every term that ``b`` divides."""
    if isinstance(a, int):
        return 0, a
    if isinstance(b, int):
        quotient = {m: c // b for m, c in a.terms if c % b == 0}
        rest = {m: c for m, c in a.terms if c % b}
        return _collapse(quotient, a.const // b), _collapse(rest, a.const % b)
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
    return _collapse(quotient, quotient.pop((), 0)), _collapse(rest, a.const)


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
    return dim - quotient - scale * _atom(rest) + scale * rest.left


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


def _substitute_atom(atom: Atom, values: Mapping[Symbol, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values[atom] if atom in values else _atom(atom)
    left, right = substitute(atom.left, values), substitute(atom.right, values)
    return _REBUILD[type(atom)](left, right)


_REBUILD: dict[type[Composite], Callable[[Dim, Dim], Dim]] = {
    Quotient: floor_div,
    Remainder: remainder,
    Minimum: minimum,
    Maximum: maximum,
}


def _operand(expr: Expr) -> str:
    return f"({expr})" if len(expr.terms) + bool(expr.const) > 1 else str(expr)


def _divisor(expr: Expr) -> str:
    """As an operand, with parentheses around products too: ``n // (2*m)`` is not ``n // 2*m``."""
    text = _operand(expr)
    return f"({text})" if "*" in text and text == str(expr) else text


def _format(expr: Expr) -> str:
    parts: list[str] = []
    for monomial, factor in expr.terms:
        product = "*".join(atom.key for atom in monomial)
        sign = "-" if factor < 0 else "+"
        text = product if abs(factor) == 1 else f"{abs(factor)}*{product}"
        parts.append(f" {sign} {text}" if parts else (f"-{text}" if factor < 0 else text))
    if expr.const or not parts:
        parts.append(
            f" {'-' if expr.const < 0 else '+'} {abs(expr.const)}" if parts else str(expr.const)
        )
    return "".join(parts)
