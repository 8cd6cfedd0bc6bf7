"""Proofs that points of a loop nest touch different elements, so that they need no order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Load, Number, Reduce, Store, extent_of
from ostinato.variables import Dim, Expr, Symbol, bounds, coefficient, provably_less, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Stage, Statement

__all__ = ["distinct_axes", "have_any_order", "is_concurrent", "only_store", "reads_its_writes"]


def distinct_axes(
    index: Dim, conditions: Sequence[Dim], axes: Sequence[Symbol], dependences: Dependences
) -> frozenset[Symbol]:
    """The axes whose different values lead to different elements, whatever the others are.

    The index is a number with digits of several weights: where the digits of lesser weight cannot
    reach the weight of the next one, numbers are equal only if all of their digits are.

    Args:
        index: of the element.
        conditions: all of them are ``>= 0`` where the element is touched at all.
        axes: the loops around it.
        dependences: of the nest.
    """
    digits: list[tuple[Dim, Dim, Symbol]] = []  # weight, greatest value, symbol
    rest = index
    for symbol in sorted(symbols(index), key=lambda s: s.name):
        is_axis = symbol in axes
        if not is_axis and symbol not in dependences.data:
            continue  # a Variable: the same for all points
        found = coefficient(rest, symbol)
        greatest = extent_of(symbol) - 1 if is_axis else _greatest(symbol, conditions)
        if found is None or greatest is None:
            return frozenset()
        weight, rest = found
        if bounds(weight)[1] < 0:
            weight = weight * -1  # the digit counts down
        digits.append((weight, greatest, symbol))
    if any(_moves(weight, axes, dependences) for weight, _, _ in digits):
        return frozenset()
    reach: Dim = 0
    for weight, greatest, _ in sorted(digits, key=lambda digit: bounds(digit[0])):
        if not provably_less(reach, weight):
            return frozenset()
        reach = reach + weight * greatest
    return frozenset(symbol for _, _, symbol in digits if symbol in axes)


def only_store(nest: LoopNest) -> Store | None:
    """The one store of a nest whose points touch nothing but their own elements."""
    if nest.temps or len(nest.stages) != 1:
        return None
    (stage,) = nest.stages
    if stage.axes or len(stage.statements) != 1:
        return None
    (statement,) = stage.statements
    if not isinstance(statement, Store) or reads_its_writes([statement]):
        return None
    return statement


def is_concurrent(stage: Stage, dependences: Dependences) -> bool:
    """Whether the points of a stage may run at the same time: none touches what another writes."""
    if reads_its_writes(stage.statements):
        return False
    written: set[int] = set()
    for statement in stage.statements:
        if isinstance(statement, Reduce):
            continue
        conditions = statement.conditions if isinstance(statement, Store) else ()
        distinct = distinct_axes(statement.index, conditions, stage.axes, dependences)
        if statement.buffer in written or not distinct.issuperset(stage.axes):
            return False
        written.add(statement.buffer)
    return True


def reads_its_writes(statements: Iterable[Statement]) -> bool:
    """Whether a statement loads from a buffer that one of them writes, but at another index.

    The element that an update combines with is no such load.
    """
    statements = list(statements)
    written: dict[int, set[Dim]] = {}
    for statement in statements:
        if not isinstance(statement, Reduce):
            written.setdefault(statement.buffer, set()).add(statement.index)
    return any(
        load.buffer in written and written[load.buffer] != {load.index}
        for load in _loads(statements)
    )


def have_any_order(stages: Sequence[Stage]) -> bool:
    """Whether all points of all stages may run in any order: all of them store one constant."""
    statements = [statement for stage in stages for statement in stage.statements]
    constants = set()
    for statement in statements:
        if not isinstance(statement, Store) or statement.update != "set" or statement.bindings:
            return False
        if not isinstance(statement.value, Number):
            return False
        constants.add((repr(statement.value.value), statement.value.dtype))
    return len(constants) == 1


def _loads(statements: Iterable[Statement]) -> list[Load]:
    starts = [root for statement in statements for root in roots(statement)]
    return [scalar for scalar in reached(starts) if isinstance(scalar, Load)]


def _moves(dim: Dim, axes: Sequence[Symbol], dependences: Dependences) -> bool:
    """Whether a weight differs from point to point."""
    return any(symbol in axes or symbol in dependences.data for symbol in symbols(dim))


def _greatest(symbol: Symbol, conditions: Sequence[Dim]) -> Dim | None:
    """The greatest value of a data symbol; ``None`` where it may be negative, or is not known."""
    value = Expr({(symbol,): 1}, 0)
    if symbol.min < 0 and value not in conditions:
        return None
    for condition in conditions:
        limit = condition + value
        if symbol not in symbols(limit):
            return limit
    return None if symbol.min < 0 else symbol.upper()
