"""Symbolic integers: the sizes of dimensions and the index arithmetic of loops.

One representation serves both. An :class:`Expr` is a polynomial with integer coefficients over
*atoms*: symbols (a user's :class:`Variable`, a loop's axis), and quotients, remainders, minima and
maxima of other expressions. Polynomials are kept in canonical form, so two expressions that are
equal by the laws of a ring compare equal, and every atom carries bounds, so that
``(64 * i + j) // 64`` with ``0 <= j < 64`` simplifies to ``i``.

A *dim* is an ``int`` or an ``Expr``; the module's functions accept either and give back a plain
``int`` whenever the value is constant.
"""

from ostinato.variables.expr import (
    Composite,
    Dim,
    Expr,
    Maximum,
    Minimum,
    Quotient,
    Remainder,
    Symbol,
    bounds,
    ceil_div,
    floor_div,
    prod,
    provably_less,
    provably_nonnegative,
    remainder,
)
from ostinato.variables.extrema import difference, maximum, minimum, provably_at_most
from ostinato.variables.narrowing import Requirement, joint_narrowings, narrowings
from ostinato.variables.queries import (
    capacity,
    coefficient,
    data_symbols,
    evaluate,
    recombine,
    substitute,
    symbols,
)
from ostinato.variables.variable import BoundVariable, DataVariable, Variable, axis, axis_symbol

__all__ = [
    "BoundVariable",
    "Composite",
    "DataVariable",
    "Dim",
    "Expr",
    "Maximum",
    "Minimum",
    "Quotient",
    "Remainder",
    "Requirement",
    "Symbol",
    "Variable",
    "axis",
    "axis_symbol",
    "bounds",
    "capacity",
    "ceil_div",
    "coefficient",
    "data_symbols",
    "difference",
    "evaluate",
    "floor_div",
    "joint_narrowings",
    "maximum",
    "minimum",
    "narrowings",
    "prod",
    "provably_at_most",
    "provably_less",
    "provably_nonnegative",
    "recombine",
    "remainder",
    "substitute",
    "symbols",
]
