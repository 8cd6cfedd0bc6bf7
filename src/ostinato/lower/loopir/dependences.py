"""Dependences of scalar expressions, by which renderers move them out of loops; and accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.errors import OstinatoError
from ostinato.lower.loopir.kernel import Access
from ostinato.lower.loopir.nodes import (
    Guard,
    IndexValue,
    Load,
    Ref,
    Scalar,
    Scan,
    Stage,
    Statement,
    Store,
    operands,
)
from ostinato.variables import Dim, Symbol, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Dependence",
    "Dependences",
    "accesses_of_scalars",
    "accesses_of_statements",
    "reached",
    "roots",
    "written_buffers",
]

Dependence: TypeAlias = Symbol | int | str
"""An axis or Variable; the contents of a buffer, by number; an earlier reduction, by name."""

_NOTHING: frozenset[Dependence] = frozenset()


def roots(statement: Statement) -> Iterator[Scalar]:
    """The expressions that a statement evaluates: its value, then its bindings'."""
    yield statement.value
    if isinstance(statement, Store):
        for binding in statement.bindings:
            yield binding.value


def reached(starts: Iterable[Scalar]) -> Iterator[Scalar]:
    """Every expression under ``starts``, once each, an expression before its operands."""
    seen: set[int] = set()
    waiting = list(starts)
    while waiting:
        scalar = waiting.pop()
        if id(scalar) not in seen:
            seen.add(id(scalar))
            yield scalar
            waiting.extend(operands(scalar))


def written_buffers(stage: Stage) -> frozenset[int]:
    """The numbers of the arguments and temps that a stage writes."""
    return frozenset(s.buffer for s in stage.statements if isinstance(s, Store | Scan))


def accesses_of_statements(statements: Iterable[Statement]) -> Iterator[Access]:
    """The elements that statements read and write, in temps too."""
    for statement in statements:
        yield from accesses_of_scalars(roots(statement))
        if isinstance(statement, Store | Scan):
            yield Access(statement.buffer, statement.index, writes=True)
            if isinstance(statement, Store) and statement.update != "set":
                yield Access(statement.buffer, statement.index, writes=False)


def accesses_of_scalars(scalars: Iterable[Scalar]) -> Iterator[Access]:
    """The elements that expressions read."""
    for scalar in reached(scalars):
        if isinstance(scalar, Load):
            yield Access(scalar.buffer, scalar.index, writes=False)


class Dependences:
    """The dependences of the expressions in some stages, which are distinguished by identity."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._known: dict[int, frozenset[Dependence]] = {}
        self._data: dict[Symbol, Scalar] = {}
        statements = [s for stage in stages for s in stage.statements]
        for statement in statements:
            if isinstance(statement, Store):
                self._data.update((b.symbol, b.value) for b in statement.bindings)
        for scalar in reached(root for s in statements for root in roots(s)):
            if isinstance(scalar, Load | IndexValue | Guard):
                self._data.update((b.symbol, b.value) for b in scalar.bindings)

    @property
    def data(self) -> Mapping[Symbol, Scalar]:
        """The scalar that gives each data symbol its value."""
        return self._data

    def of(self, scalar: Scalar) -> frozenset[Dependence]:
        """Everything that the value of ``scalar`` depends on, data symbols seen through."""
        found = self._known.get(id(scalar))
        if found is None:
            found = self._known[id(scalar)] = self._own(scalar).union(
                *(self.of(operand) for operand in operands(scalar))
            )
        return found

    def of_index(self, index: Dim) -> frozenset[Dependence]:
        """Everything that an index expression depends on, data symbols seen through."""
        found: set[Dependence] = set()
        for symbol in symbols(index):
            if symbol in self._data:
                found |= self.of(self._data[symbol])
            else:
                found.add(symbol)
        return frozenset(found)

    def value_of(self, symbol: Symbol) -> Scalar:
        """The scalar that gives a data symbol its value.

        Raises:
            OstinatoError: ``symbol`` is no axis, no Variable and bound nowhere: a bug of lowering.
        """
        if symbol not in self._data:
            raise OstinatoError(f"a kernel's index mentions {symbol.name!r}, which nothing defines")
        return self._data[symbol]

    def _own(self, scalar: Scalar) -> frozenset[Dependence]:
        match scalar:
            case Load():
                return self.of_index(scalar.index) | {scalar.buffer}
            case IndexValue():
                return self.of_index(scalar.index)
            case Guard():
                return _NOTHING.union(*(self.of_index(c) for c in scalar.conditions))
            case Ref():
                return frozenset((scalar.name,))
        return _NOTHING
