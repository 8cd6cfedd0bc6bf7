"""Rebuilding statements with other indices or buffers, keeping what they share shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Scan,
    Statement,
    Store,
)
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.variables import Dim

__all__ = ["Rewriter", "index_expressions"]


class Rewriter:
    """Applies functions to every index and every buffer number of the statements given to it.

    Args:
        index: what an index expression becomes.
        buffer: what a buffer number becomes.
        scalars: what scalars become as a whole, rewritten already.
    """

    def __init__(
        self,
        index: Callable[[Dim], Dim] = lambda dim: dim,
        buffer: Callable[[int], int] = lambda number: number,
        scalars: Mapping[Scalar, Scalar] | None = None,
    ) -> None:
        self._index = index
        self._buffer = buffer
        self._scalars: dict[Scalar, Scalar] = dict(scalars or {})
        self._bindings: dict[Binding, Binding] = {}

    def statement(self, statement: Statement) -> Statement:
        value = self.scalar(statement.value)
        index = self._index(statement.index)
        match statement:
            case Store():
                return replace(
                    statement,
                    buffer=self._buffer(statement.buffer),
                    index=index,
                    value=value,
                    bindings=self._bound(statement.bindings),
                    conditions=tuple(map(self._index, statement.conditions)),
                )
            case Scan():
                number = self._buffer(statement.buffer)
                return replace(statement, buffer=number, index=index, value=value)
            case Reduce():
                return replace(statement, index=index, value=value)

    def scalar(self, scalar: Scalar) -> Scalar:
        known = self._scalars.get(scalar)
        if known is None:
            known = self._scalars[scalar] = self._rebuild(scalar)
        return known

    def _rebuild(self, scalar: Scalar) -> Scalar:
        match scalar:
            case Load():
                return Load(
                    self._buffer(scalar.buffer),
                    self._index(scalar.index),
                    scalar.dtype,
                    self._bound(scalar.bindings),
                )
            case IndexValue():
                bindings = self._bound(scalar.bindings)
                return IndexValue(self._index(scalar.index), scalar.dtype, bindings)
            case Apply():
                return replace(scalar, operands=tuple(map(self.scalar, scalar.operands)))
            case Guard():
                conditions = tuple(map(self._index, scalar.conditions))
                body, otherwise = self.scalar(scalar.body), self.scalar(scalar.otherwise)
                bindings = self._bound(scalar.bindings)
                return Guard(conditions, body, otherwise, scalar.dtype, bindings)
            case Number() | Ref() | Accumulator():
                return scalar

    def _bound(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        return tuple(self._binding(b) for b in bindings)

    def _binding(self, binding: Binding) -> Binding:
        known = self._bindings.get(binding)
        if known is None:
            known = Binding(binding.symbol, self.scalar(binding.value))
            self._bindings[binding] = known
        return known


def index_expressions(statements: tuple[Statement, ...]) -> list[Dim]:
    """Every index expression that the statements mention."""
    found: list[Dim] = []

    def note(dim: Dim) -> Dim:
        found.append(dim)
        return dim

    rewriter = Rewriter(index=note)
    for statement in statements:
        rewriter.statement(statement)
    return found
