"""Polynomials over symbols and what polynomials cannot hold: the expressions themselves."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from ostinato.errors import VariableError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Atom",
    "BoundVariable",
    "Composite",
    "DataVariable",
    "Dim",
    "Expr",
    "Maximum",
    "Minimum",
    "Monomial",
    "Quotient",
    "Remainder",
    "Symbol",
    "Variable",
    "as_expr",
    "atom_expr",
    "axis",
    "bounds",
    "collapse",
    "monomial_expr",
    "prod",
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
            :class:`DataVariable`.
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
                    m = tuple(sorted(m1 + m2, key=_atom_key)) if m1 and m2 else m1 or m2
                    terms[m] = terms.get(m, 0) + c1 * c2
        return collapse(terms, terms.pop((), 0))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        from ostinato.variables.division import floor_div

        return floor_div(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        from ostinato.variables.division import floor_div

        return floor_div(other, self)

    def __mod__(self, other: Dim) -> Dim:
        from ostinato.variables.division import remainder

        return remainder(self, other)

    def __rmod__(self, other: int) -> Dim:
        from ostinato.variables.division import remainder

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


class DataVariable(Variable):
    """A size that depends on data: a node of the graph gives it its value while the graph runs.

    Args:
        name: an identifier; within a graph one name means one variable.
        bound: its greatest value, an int or an expression of other Variables. Buffers are sized
            for it.

    Raises:
        VariableError: the name is no identifier, or the bound may be negative.
    """

    __slots__ = ()

    def __init__(self, name: str, bound: Dim) -> None:
        super().__init__(name, 0, max(bounds(bound)[1], 0))
        self.symbol = Symbol(name, 0, self.symbol.max, bound=bound)
        Expr.__init__(self, {(self.symbol,): 1}, 0)

    @property
    def bound(self) -> Dim:
        assert self.symbol.bound is not None
        return self.symbol.bound


def axis(name: str, extent: Dim) -> Expr:
    """A loop axis: a symbol that runs over ``0 <= name < extent``."""
    upper = max(bounds(extent)[1] - 1, 0)
    return Expr({(Symbol(name, 0, upper, extent),): 1}, 0)


def bounds(dim: Dim) -> tuple[int, int]:
    """The least and greatest value of ``dim``, inclusive."""
    return (dim, dim) if isinstance(dim, int) else dim.bounds()


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``; 1 when there are none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def collapse(terms: Mapping[Monomial, int], const: int) -> Dim:
    for coefficient in terms.values():
        if coefficient:
            return Expr(terms, const)
    return const


def atom_expr(atom: Atom) -> Expr:
    return Expr({(atom,): 1}, 0)


def as_expr(dim: Dim) -> Expr:
    return Expr({}, dim) if isinstance(dim, int) else dim


def _monomial_bounds(monomial: Monomial) -> tuple[int, int]:
    for atom in monomial:
        if isinstance(atom, Quotient) and (found := _multiple_bounds(atom, monomial)) is not None:
            return found
    low, high = monomial[0].bounds()
    for atom in monomial[1:]:
        a, b = atom.bounds()
        corners = (low * a, low * b, high * a, high * b)
        low, high = min(corners), max(corners)
    return low, high


def _multiple_bounds(quotient: Quotient, monomial: Monomial) -> tuple[int, int] | None:
    """The bounds of ``(a // b) * b * rest``, which is at most ``a * rest``.

    So it is of ``(a // max(b, 1)) * b``, where ``b`` may be 0.
    """
    right = quotient.right
    match right.terms:
        case (((Maximum(left=left, right=one),), 1),) if right.const == 0 and one == 1:
            right = left
    if right.const or len(right.terms) != 1 or quotient.left.bounds()[0] < 0:
        return None
    rest = list(monomial)
    rest.remove(quotient)
    divisor, factor = right.terms[0]
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    low, high = _monomial_bounds(tuple(rest)) if rest else (1, 1)
    return (0, quotient.left.bounds()[1] // factor * high) if low >= 0 else None


def monomial_expr(monomial: Monomial) -> Expr:
    return Expr({monomial: 1}, 0)


def _atom_key(atom: Atom) -> str:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[str, ...]:
    return tuple(atom.key for atom in term[0])


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
