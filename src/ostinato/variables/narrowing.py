"""Conditions on sizes, and ways to make them hold for all values of a Variable.

A condition that holds for some values only is often one about a single Variable: it has to be
within narrower bounds, or a multiple of a number. With such a Variable in its place, expressions
simplify, and what followed from nothing before follows from the bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.variables.expr import (
    Composite,
    Dim,
    Expr,
    Maximum,
    Minimum,
    Symbol,
    atom_expr,
    bounds,
    provably_nonnegative,
)
from ostinato.variables.queries import coefficient, evaluate, substitute, symbols
from ostinato.variables.variable import Variable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Requirement", "joint_narrowings", "narrowings"]

#: The numbers that sizes are tried as multiples of: strides of networks, and their products.
_MULTIPLES = (2, 4, 8, 16, 32, 64)


class Requirement(NamedTuple):
    """A condition on sizes that does not hold for all values of the Variables.

    Attributes:
        size: an expression of Variables.
        equal: whether it has to be 0; else it must not be negative.
    """

    size: Dim
    equal: bool

    @property
    def certain(self) -> bool:
        """Whether it holds for all values within the Variables' bounds."""
        return self.size == 0 or (not self.equal and provably_nonnegative(self.size))

    def at(self, symbol: Symbol, dim: Dim) -> Requirement:
        """The condition with a dim for a Variable."""
        return Requirement(substitute(self.size, {symbol: dim}), self.equal)


def narrowings(requirement: Requirement, symbol: Symbol) -> Iterator[Dim]:
    """Dims for a Variable with which a condition holds, or may be found to hold further on.

    The first ones make a condition on one Variable certain: what it has to be equal to, or the
    Variable within narrower bounds. Of several Variables, one is taken from where on the sizes that
    depend on it are positive. Where sizes have to be equal, multiples of Variables of other names
    follow. These may help or not.
    """
    if requirement.equal and (solution := _solution(requirement.size, symbol)) is not None:
        yield solution
    if symbols(requirement.size) == {symbol}:
        for low, high in _ranges(requirement, symbol):
            narrowed = Variable(symbol.name, low, high)
            if requirement.at(symbol, narrowed).certain:
                yield narrowed
    elif (least := _positive_from(requirement.size, symbol)) is not None:
        yield Variable(symbol.name, least, symbol.max)
    for factor in _MULTIPLES if requirement.equal else ():
        if dim := _multiple(symbol, factor):
            yield dim


def joint_narrowings(
    requirement: Requirement, among: Collection[Symbol]
) -> Iterator[dict[Symbol, Dim]]:
    """Dims for several Variables at once, with which a condition may hold.

    A condition on an area mentions height and width alike: neither alone makes it certain. First
    each is taken from where on the sizes that depend on it are positive; then, where sizes have to
    be equal, as multiples of one number, if that makes the condition certain.
    """
    mentioned = sorted(symbols(requirement.size) & set(among), key=lambda symbol: symbol.name)
    positive: dict[Symbol, Dim] = {
        symbol: Variable(symbol.name, least, symbol.max)
        for symbol in mentioned
        if (least := _positive_from(requirement.size, symbol)) is not None
    }
    if len(positive) > 1:
        yield positive
    rounded = [symbol for symbol in mentioned if _is_rounded(requirement.size, symbol)]
    for factor in _MULTIPLES if requirement.equal and len(rounded) > 1 else ():
        multiples = {symbol: dim for symbol in rounded if (dim := _multiple(symbol, factor))}
        if len(multiples) == len(rounded) and substitute(requirement.size, multiples) == 0:
            yield multiples


def _multiple(symbol: Symbol, factor: int) -> Dim:
    """A Variable of another name, times ``factor``; 0 where that has less than two values."""
    low, high = -(-symbol.min // factor), symbol.max // factor
    return factor * Variable(f"{symbol.name}_by_{factor}", low, high) if low < high else 0


def _is_rounded(size: Dim, symbol: Symbol) -> bool:
    """Whether an expression has quotients or the like of a Variable."""
    return isinstance(size, Expr) and any(
        isinstance(atom, Composite) and symbol in symbols(atom_expr(atom))
        for monomial, _ in size.terms
        for atom in monomial
    )


def _solution(size: Dim, symbol: Symbol) -> Dim | None:
    """The dim of which a Variable is the same, where ``size`` is 0, if there is just one."""
    parts = coefficient(size, symbol)
    if parts is None:
        return None
    scale, rest = parts
    if not isinstance(scale, int) or scale == 0:
        return None
    solution = rest * -1 if scale == 1 else rest if scale == -1 else None
    if solution is None and isinstance(rest, int) and rest % scale == 0:
        solution = -rest // scale
    if solution is None:
        return None
    low, high = bounds(solution)
    return solution if low >= 0 and high >= symbol.min and low <= symbol.max else None


def _ranges(requirement: Requirement, symbol: Symbol) -> Iterator[tuple[int, int]]:
    """Ranges of a Variable between the values at which something changes, the largest first."""
    size = requirement.size
    parts = [size, *([size - 1] if requirement.equal else []), *_differences(size)]
    places = {place for part in parts if (place := _sign_change(part, symbol)) is not None}
    starts = [symbol.min, *sorted(places)]
    ends = [*(place - 1 for place in sorted(places)), symbol.max]
    found = [(low, high) for i, low in enumerate(starts) for high in ends[i:] if low <= high]
    yield from sorted(found, key=lambda range_: range_[0] - range_[1])


def _positive_from(size: Dim, symbol: Symbol) -> int | None:
    """The least value of a Variable from which on ``max(e, 0)`` is a positive ``e`` throughout."""
    alone = [part - 1 for part in _differences(size) if symbols(part) == {symbol}]
    rising = [part for part in alone if evaluate(part, {symbol.name: symbol.max}) >= 0]
    places = [place for part in rising if (place := _sign_change(part, symbol)) is not None]
    return max(places, default=None)


def _differences(size: Dim) -> Iterator[Dim]:
    """The differences that decide minima and maxima within an expression of one Variable."""
    if not isinstance(size, Expr):
        return
    for monomial, _ in size.terms:
        for atom in monomial:
            if isinstance(atom, Composite):
                yield from _differences(atom.left)
                yield from _differences(atom.right)
                if isinstance(atom, Minimum | Maximum):
                    yield atom.left - atom.right
                    yield atom.right - atom.left


def _sign_change(size: Dim, symbol: Symbol) -> int | None:
    """The first value at which an expression changes its sign, as if it did so once."""
    low, high = symbol.min, symbol.max
    negative = evaluate(size, {symbol.name: low}) < 0
    if negative == (evaluate(size, {symbol.name: high}) < 0):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if (evaluate(size, {symbol.name: middle}) < 0) == negative:
            low = middle
        else:
            high = middle
    return high
