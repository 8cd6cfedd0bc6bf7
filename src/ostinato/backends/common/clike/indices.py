"""Index expressions as code: of 32 bits wherever no intermediate value needs more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.dtypes import INT32, INT64
from ostinato.variables import (
    Composite,
    Dim,
    Expr,
    Maximum,
    Minimum,
    Quotient,
    Symbol,
    bounds,
    provably_nonnegative,
)

if TYPE_CHECKING:
    from ostinato.backends.common.clike.dialect import Dialect
    from ostinato.backends.common.clike.values import Code

__all__ = ["DataSymbols", "Indices", "is_wide"]

_INT32_MAX = (1 << 31) - 1


class DataSymbols(Protocol):
    """Gives integers that are read from memory their values."""

    def data(self, symbol: Symbol, scope: Scope) -> Index:
        """The value of ``symbol``."""


class Indices:
    """Writes index expressions.

    Args:
        code: where they are written.
        data: gives the values of data symbols.
    """

    def __init__(self, code: Code, data: DataSymbols) -> None:
        self._code = code
        self._data = data

    @property
    def _dialect(self) -> Dialect:
        return self._code.dialect

    def value(self, dim: Dim, scope: Scope) -> Index:
        """``dim`` in ``scope``: computed once, and found again in the scopes beneath."""
        if isinstance(dim, int):
            wide = is_wide(dim)
            return Index(self._dialect.index_literal(dim, wide), wide)
        known = scope.find(lambda s: s.indices.get(dim))
        if known is None:
            known = scope.indices[dim] = self._computed(dim, scope)
        return known

    def _computed(self, dim: Expr, scope: Scope) -> Index:
        lone = _lone_symbol(dim)
        if lone is not None:
            return self.symbol(lone, scope)
        wide = is_wide(dim)
        type_ = self._dialect.index_type(wide)
        text = self._sum(dim, scope, wide)
        name = self._code.writer.fresh("x")
        self._code.writer.line(self._dialect.declare(type_, name, text))
        return Index(name, wide)

    def symbol(self, symbol: Symbol, scope: Scope) -> Index:
        """The value of an axis, a Variable or a data symbol."""
        known = scope.find(lambda s: s.symbols.get(symbol))
        return self._data.data(symbol, scope) if known is None else known

    def as_wide(self, index: Index, wide: bool) -> str:
        """An index as an expression of the given width."""
        if index.wide == wide:
            return index.text
        return self._dialect.resize_index(index.text, wide)

    def _sum(self, dim: Expr, scope: Scope, wide: bool) -> str:
        terms: list[tuple[bool, list[str]]] = []
        for monomial, factor in dim.terms:
            factors = [self._atom(atom, scope, wide) for atom in monomial]
            size = abs(factor)
            if size != 1:
                factors.insert(0, self._dialect.index_literal(size, wide))
            terms.append((factor < 0, factors))
        if dim.const or not terms:
            literal = self._dialect.index_literal(abs(dim.const), wide)
            terms.append((dim.const < 0, [literal]))
        return self._dialect.index_sum(terms, wide)

    def _atom(self, atom: Symbol | Composite, scope: Scope, wide: bool) -> str:
        if isinstance(atom, Symbol):
            return self.as_wide(self.symbol(atom, scope), wide)
        dim = Expr({(atom,): 1}, 0)
        known = scope.find(lambda s: s.indices.get(dim))
        if known is None:
            known = scope.indices[dim] = self._composite(atom, scope, is_wide(dim))
        return self.as_wide(known, wide)

    def _composite(self, atom: Composite, scope: Scope, wide: bool) -> Index:
        left = self.as_wide(self.value(atom.left, scope), wide)
        right = self.as_wide(self.value(atom.right, scope), wide)
        dtype = INT64 if wide else INT32
        text = self._dialect.call(_function(atom), dtype, left, right)
        name = self._code.writer.fresh("x")
        self._code.writer.line(self._dialect.declare(self._dialect.index_type(wide), name, text))
        return Index(name, wide)


def _function(atom: Composite) -> str:
    if isinstance(atom, Minimum | Maximum):
        return "minimum" if isinstance(atom, Minimum) else "maximum"
    quotient = isinstance(atom, Quotient)
    if provably_nonnegative(atom.left) and bounds(atom.right)[0] >= 1:
        return "index_divide" if quotient else "index_remainder"
    return "floor_divide" if quotient else "floor_remainder"


def is_wide(dim: Dim) -> bool:
    """Whether ``dim``, or anything that it is computed from, may not be an int32."""
    return _magnitude(dim) > _INT32_MAX


def _magnitude(dim: Dim) -> int:
    """A bound on the magnitude of all intermediate values of ``dim``."""
    if isinstance(dim, int):
        return abs(dim)
    total, deepest = abs(dim.const), 0
    for monomial, factor in dim.terms:
        product = abs(factor)
        for atom in monomial:
            low, high = atom.bounds()
            product *= max(abs(low), abs(high), 1)
            if isinstance(atom, Composite):
                deepest = max(deepest, _magnitude(atom.left), _magnitude(atom.right))
        total += product
    return max(total, deepest)


def _lone_symbol(dim: Expr) -> Symbol | None:
    """The symbol that ``dim`` is."""
    if dim.const == 0 and len(dim.terms) == 1:
        monomial, factor = dim.terms[0]
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None
