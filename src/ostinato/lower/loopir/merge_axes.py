"""Merging loop axes that walk memory as one, so that loops are long and few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import Statement, extent_of
from ostinato.lower.loopir.rewrite import Rewriter, index_expressions
from ostinato.variables import Dim, Expr, Symbol, axis, coefficient, substitute

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["merge_axes"]


def merge_axes(
    axes: Sequence[Symbol], statements: Sequence[Statement]
) -> tuple[tuple[Symbol, ...], tuple[Statement, ...]]:
    """Axes and statements with every mergeable pair of neighbouring axes made one.

    An outer axis ``a`` and the next inner axis ``b`` merge if each index expression is
    ``c · (a · extent(b) + b) + rest``: one axis of both extents then runs over the same elements
    in the same order.
    """
    merged = list(axes)
    result = tuple(statements)
    position = len(merged) - 2
    while position >= 0:
        outer, inner = merged[position], merged[position + 1]
        if _mergeable(index_expressions(result), outer, inner):
            both = axis(outer.name, extent_of(outer) * extent_of(inner))
            assert isinstance(both, Expr)
            result = _substituted(result, outer, inner, both)
            merged[position : position + 2] = [_only_symbol(both)]
        position -= 1
    return tuple(merged), result


def _mergeable(indices: Iterable[Dim], outer: Symbol, inner: Symbol) -> bool:
    size = extent_of(inner)
    for index in set(indices):
        slow, fast = coefficient(index, outer), coefficient(index, inner)
        if slow is None or fast is None or slow[0] != fast[0] * size:
            return False
    return True


def _substituted(
    statements: tuple[Statement, ...], outer: Symbol, inner: Symbol, both: Dim
) -> tuple[Statement, ...]:
    values: dict[Symbol, Dim] = {outer: 0, inner: both}
    rewriter = Rewriter(index=lambda dim: substitute(dim, values))
    return tuple(rewriter.statement(s) for s in statements)


def _only_symbol(expr: Expr) -> Symbol:
    (symbol,) = expr.terms[0][0]
    assert isinstance(symbol, Symbol)
    return symbol
