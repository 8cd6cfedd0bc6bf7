"""Facts: conditions on symbolic sizes that ops rely on, checked when the sizes are known.

An op states once, in :meth:`ostinato.ir.op.Op.facts`, which sizes it cannot do without: ``argmax``
needs an element along its axis. Where the sizes are fixed, type inference refuses what breaks a
fact. Where they are symbolic, the facts of a graph are a part of its interface, and a run whose
sizes break one raises before anything is dispatched.

A fact is an expression and its least value. An equality is two facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.errors import VariableError
from ostinato.variables import (
    Symbol,
    bounds,
    evaluate,
    provably_less,
    provably_nonnegative,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ostinato.variables import Dim

__all__ = ["Fact", "bind_size", "check_facts", "least_values", "size_problem"]


class Fact(NamedTuple):
    """A condition of a node: ``size >= least``.

    Attributes:
        size: an expression of Variables.
        least: its least value.
        problem: the words for sizes that break it, with the tensor and the axis.
        elements: elements of the result; where there are none the node computes nothing, and the
            condition is void.
        node: the op and the label of the node, once it is known.
    """

    size: Dim
    least: int
    problem: str
    elements: Dim = 1
    node: str = ""

    @property
    def certain(self) -> bool:
        """Whether the condition holds for all values within the Variables' bounds."""
        return bounds(self.elements)[1] <= 0 or provably_nonnegative(self.size - self.least)

    @property
    def impossible(self) -> bool:
        """Whether it holds for none of them."""
        return bounds(self.elements)[1] > 0 and provably_less(self.size, self.least)

    @property
    def names(self) -> frozenset[str]:
        """The Variables that have to be known before it can be checked."""
        return frozenset(s.name for dim in (self.size, self.elements) for s in symbols(dim))

    def check(self, values: Mapping[str, int]) -> None:
        """Check the condition at values of Variables.

        Raises:
            VariableError: it does not hold.
        """
        if evaluate(self.size, values) >= self.least or evaluate(self.elements, values) == 0:
            return
        names = sorted(symbol.name for symbol in symbols(self.size))
        given = ", ".join(f"{name} = {values[name]}" for name in names)
        raise VariableError(
            f"{self.node}: {self.problem}; a run needs {self.size} >= {self.least}, got {given}"
        )


def bind_size(node: str, size: Symbol, value: int, values: Mapping[str, int]) -> None:
    """Check the value that a node computed for a data-dependent size.

    Args:
        node: the op and the label of the node.
        size: the Variable.
        value: its value.
        values: those of the Variables in its bound.

    Raises:
        VariableError: the value is negative, or beyond the bound.
    """
    assert size.bound is not None
    if not 0 <= value <= evaluate(size.bound, values):
        raise VariableError(f"{size_problem(node, size)}, got {value}")


def size_problem(node: str, size: Symbol) -> str:
    """The words for a value that a data-dependent size can not have."""
    return f"{node}: the size {size.name!r} is at least 0 and at most {size.bound}"


def check_facts(facts: Iterable[Fact], values: Mapping[str, int]) -> None:
    """Check facts at values of Variables; those that mention others are left for later.

    Raises:
        VariableError: one does not hold.
    """
    for fact in facts:
        if fact.names <= values.keys():
            fact.check(values)


def least_values(facts: Iterable[Fact]) -> dict[str, int]:
    """By Variable, the least value that facts about that Variable alone allow.

    A device that reads a Variable from its own memory can check that much, and no expressions.
    """
    least: dict[str, int] = {}
    for fact in facts:
        if isinstance(fact.size, int) or not provably_less(0, fact.elements):
            continue
        match fact.size.terms:
            case (((Symbol(name=name, bound=None),), 1),):
                least[name] = max(least.get(name, 0), fact.least - fact.size.const)
    return least
