"""Python's slice conventions over dims that may be symbolic."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ostinato.errors import GraphError
from ostinato.variables import Dim, Expr, bounds, ceil_div, maximum, minimum

__all__ = ["Range", "as_dim", "resolve_range"]


class Range(NamedTuple):
    """Positions ``start``, ``start + step``, … before ``stop``, all within the axis.

    Attributes:
        backwards: whether the positions are to be read from the last to the first.
    """

    start: Dim
    stop: Dim
    step: int
    backwards: bool


def as_dim(value: Any, what: str) -> Dim:
    """``value`` as a dim.

    Raises:
        GraphError: it is no int and no expression of Variables.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise GraphError(f"{what} is an int or an expression of Variables, got {value!r}")
    return operator.index(value)


def resolve_range(start: Any, stop: Any, step: Any, size: Dim) -> Range:
    """Resolve ``start:stop:step`` on an axis of ``size``.

    Raises:
        GraphError: a bound is no dim, or the step no int other than 0.
    """
    stride = 1 if step is None else as_dim(step, "a step")
    if not isinstance(stride, int) or stride == 0:
        raise GraphError(f"a step is an int other than 0, got {stride}")
    if stride > 0:
        first = 0 if start is None else _position(start, size, 0, size)
        last = size if stop is None else _position(stop, size, 0, size)
        return Range(first, maximum(first, last), stride, False)
    # Counted down from `first`, `last` excluded, where -1 stands for "before the beginning".
    first = size - 1 if start is None else _position(start, size, -1, size - 1)
    last = -1 if stop is None else _position(stop, size, -1, size - 1)
    count = ceil_div(maximum(first - last, 0), -stride)
    lowest = minimum(first + (count - 1) * stride, first + 1)
    return Range(lowest, first + 1, -stride, True)


def _position(bound: Any, size: Dim, low: Dim, high: Dim) -> Dim:
    """A bound counted from the start and clamped to ``low..high``; negative ones from the end."""
    dim = as_dim(bound, "a bound")
    if bounds(dim)[1] < 0:
        dim = dim + size
    return minimum(maximum(dim, low), high)
