"""The regularised incomplete gamma functions.

Up to ``a = 30`` the lower one is a series, and the upper one Legendre's continued fraction. Beyond,
both are integrals of ``exp(a y - x expm1(y))`` over negative or positive ``y``, by a rule of nodes
that crowd at both ends (Takahasi and Mori, 1974). All have as many terms as any operands take.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.ops.special.base import SpecialFunction
from ostinato.ops.special.gamma import lgamma, stirling_rest

if TYPE_CHECKING:
    from ostinato.ir.op import Attr

__all__ = ["FAMILY"]

#: Beyond, integrals; series and fractions take more terms the greater ``a`` is.
_LARGE = 30.0

#: The least ``x`` of the continued fraction, which takes more terms the less ``x`` is.
_FRACTION = 3.0

_SERIES_TERMS, _FRACTION_TERMS = 60, 40

#: The nodes of the integrals: the distance between two, the first, and how many there are.
_STEP, _FIRST, _COUNT = 0.125, -3.45, 58


def _node(index: int) -> tuple[float, float]:
    """A node between 0 and infinity, and its weight, for what decays like ``exp(-v)``."""
    s = _FIRST + _STEP * index
    v = math.exp(s - math.exp(-s))
    return v, v * (1.0 + math.exp(-s)) * _STEP


def _power(xp: Any, a: Any, x: Any) -> Any:
    """``x**a exp(-x) / gamma(a)``; for large ``a``, without the cancellation of its logarithms."""
    near = xp.exp(a * xp.log(x) - x - lgamma(xp, xp.minimum(a, _LARGE)))
    large = xp.maximum(a, 10.0)
    ratio = (x - large) / large
    change = xp.where(xp.abs(ratio) < 0.5, xp.log1p(ratio), xp.log(x / large)) - ratio
    far = xp.sqrt(large * (0.5 / math.pi)) * xp.exp(large * change - stirling_rest(xp, large))
    return xp.where(a > 10.0, far, near)


def _series(a: Any, x: Any) -> Any:
    """The lower function over the power."""
    result = x / (a + float(_SERIES_TERMS)) + 1.0
    for n in range(_SERIES_TERMS - 1, 0, -1):
        result = result * x / (a + float(n)) + 1.0
    return result / a


def _fraction(a: Any, x: Any) -> Any:
    """The upper function over the power."""
    distance = x - a
    result = distance + float(2 * _FRACTION_TERMS + 1)
    for n in range(_FRACTION_TERMS, 0, -1):
        result = (distance + float(2 * n - 1)) - (float(n) - a) * float(n) / result
    return 1.0 / result


def _integral(xp: Any, a: Any, x: Any) -> Any:
    """The lower function over the power where ``x < a``, else the upper one."""
    below = x < a
    width = xp.minimum(1.0 / xp.abs(x - a), 1.0 / xp.sqrt(x))
    toward = xp.where(below, -width, width)
    total = x * 0.0
    for index in range(_COUNT):
        v, weight = _node(index)
        y = toward * v
        total = total + xp.exp(a * y - x * xp.expm1(y)) * weight
    return total * width


class IncompleteGamma(SpecialFunction):
    """A regularised incomplete gamma function of ``a`` and ``x``; NaN where either is negative."""

    arity = 2
    cost = 2000
    upper: ClassVar[bool]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        a, x = operands
        small = a <= _LARGE
        # The form that each regime computes: the other one is 1 minus that.
        split = xp.maximum(xp.minimum(a, _LARGE) + 1.0, _FRACTION)
        is_lower = xp.where(small, x <= split, x < a)
        near = xp.where(
            x <= split,
            _series(xp.minimum(a, _LARGE), xp.minimum(x, split)),
            _fraction(xp.minimum(a, _LARGE), xp.maximum(x, split)),
        )
        far = _integral(xp, xp.maximum(a, _LARGE), x)
        part = xp.where(small, near, far) * _power(xp, a, x)
        result = (
            xp.where(is_lower, 1.0 - part, part)
            if self.upper
            else xp.where(is_lower, part, 1.0 - part)
        )
        below, above = (1.0, 0.0) if self.upper else (0.0, 1.0)
        result = xp.where(xp.logical_or(x == 0.0, a == math.inf), below, result)
        result = xp.where(xp.logical_or(a == 0.0, x == math.inf), above, result)
        both = xp.logical_or(
            xp.logical_and(a == 0.0, x == 0.0), xp.logical_and(a == math.inf, x == math.inf)
        )
        undefined = xp.logical_or(both, xp.logical_or(a < 0.0, x < 0.0))
        undefined = xp.logical_or(undefined, xp.logical_or(xp.isnan(a), xp.isnan(x)))
        return xp.where(undefined, math.nan, result)


class Igamma(IncompleteGamma):
    """The lower regularised incomplete gamma function of ``a`` and ``x``."""

    name = "igamma"
    upper = False


class Igammac(IncompleteGamma):
    """The upper regularised incomplete gamma function of ``a`` and ``x``."""

    name = "igammac"
    upper = True


FAMILY: tuple[SpecialFunction, ...] = (Igamma(), Igammac())
