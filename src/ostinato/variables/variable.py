"""Named quantities as expressions: the symbolic sizes of users, and the axes of loops."""

from __future__ import annotations

import operator
from typing import NamedTuple

from ostinato.errors import VariableError
from ostinato.variables.expr import Dim, Expr, Symbol, bounds
from ostinato.variables.queries import symbols

__all__ = ["BoundVariable", "DataVariable", "Variable", "axis", "axis_symbol"]


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
        VariableError: the name is no identifier.
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


def axis_symbol(dim: Dim) -> Symbol:
    """The symbol that an axis of :func:`axis` consists of."""
    (symbol,) = symbols(dim)
    return symbol
