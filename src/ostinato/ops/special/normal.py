"""The error function's complement and inverse, and the normal distribution.

``erfc(x) = exp(-x**2) erfcx(x)`` for ``x >= 0``: the second factor varies slowly, and is one
polynomial of ``(x - k) / (x + k)`` (Shepherd and Laframboise, 1981). The inverse is a polynomial of
``w = -log(1 - x**2)``, or of its square root (Giles, 2010).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.lazy import LazyModule
from ostinato.ops.special.base import SpecialFunction, gaussian, horner, normalised

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.ops.special import coefficients as table
else:
    table = LazyModule("ostinato.ops.special.coefficients")

__all__ = ["FAMILY"]

_SQRT_2, _SQRT_HALF = math.sqrt(2.0), math.sqrt(0.5)
_LOG_2 = math.log(2.0)
_CENTER = 3.75

#: No float64 is less than the tail beyond this many standard deviations.
_FARTHEST = 40.0


def _scaled_tail(x: Any) -> Any:
    """``exp(x**2) erfc(x)`` for ``x >= 0``."""
    return horner(1.0 - 2.0 * _CENTER / (x + _CENTER), table.ERFCX) / (1.0 + 2.0 * x)


def _erfc(xp: Any, x: Any) -> Any:
    near = xp.minimum(xp.abs(x), _FARTHEST)
    tail = gaussian(xp, near, -1.0) * _scaled_tail(near)
    return xp.where(near < 0.5, 1.0 - xp.erf(x), xp.where(x < 0.0, 2.0 - tail, tail))


def _upper_tail(xp: Any, x: Any) -> Any:
    """The normal distribution beyond ``x >= 0``."""
    near = xp.minimum(x, _FARTHEST)
    return gaussian(xp, near, -0.5) * _scaled_tail(near * _SQRT_HALF) * 0.5


def _inverse(xp: Any, x: Any, w: Any) -> Any:
    """``erfinv(x)`` for ``w = -log(1 - x**2)``."""
    root = xp.sqrt(w)
    factor = horner(normalised(xp.minimum(w, 6.25), 0.0, 6.25), table.ERFINV_NEAR)
    pieces = (
        (2.5, 4.5, table.ERFINV_MIDDLE),
        (4.5, 9.0, table.ERFINV_FAR),
        (9.0, 28.0, table.ERFINV_FARTHEST),
    )
    for low, high, coefficients in pieces:
        inside = xp.minimum(xp.maximum(root, low), high)
        beyond = horner(normalised(inside, low, high), coefficients)
        factor = xp.where(root > low, beyond, factor)
    return xp.where(w == math.inf, xp.copysign(w, x), x * factor)


class Erfc(SpecialFunction):
    """``1 - erf(x)``, accurate where that is small."""

    name = "erfc"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _erfc(xp, operands[0])


class Erfcx(SpecialFunction):
    """``exp(x**2) * erfc(x)``."""

    name = "erfcx"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        right = _scaled_tail(xp.abs(x))
        # Beyond -27 the square's exponential overflows, as the result does.
        left = 2.0 * gaussian(xp, xp.minimum(xp.maximum(x, -_FARTHEST), 0.0), 1.0) - right
        return xp.where(x < 0.0, left, right)


class Erfinv(SpecialFunction):
    """The number whose error function is ``x``; NaN beyond -1 and 1."""

    name = "erfinv"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        rest = (1.0 - x) * (1.0 + x)
        return _inverse(xp, x, -xp.where(rest > 0.5, xp.log1p(-x * x), xp.log(rest)))


class Ndtr(SpecialFunction):
    """The normal distribution's cumulative."""

    name = "ndtr"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        tail = _upper_tail(xp, xp.abs(x))
        far = xp.where(x < 0.0, tail, 1.0 - tail)
        return xp.where(xp.abs(x) < 0.5, 0.5 + 0.5 * xp.erf(x * _SQRT_HALF), far)


class LogNdtr(SpecialFunction):
    """The logarithm of the normal distribution's cumulative."""

    name = "log_ndtr"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        far = xp.minimum(x, 0.0)
        left = far * far * -0.5 + xp.log(_scaled_tail(far * -_SQRT_HALF) * 0.5)
        # The tail beyond x, of -x where that is the smaller one.
        tail = _upper_tail(xp, xp.abs(x))
        right = xp.log1p(-xp.where(x < 0.0, 1.0 - tail, tail))
        return xp.where(x < -1.0, left, right)


class Ndtri(SpecialFunction):
    """The number at which the normal distribution's cumulative is ``p``; NaN beyond 0 and 1."""

    name = "ndtri"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (p,) = operands
        tail = xp.minimum(p, 1.0 - p)
        # erfinv(1 - 2 tail), where 1 - x**2 is 4 tail (1 - tail).
        away = 1.0 - 2.0 * tail
        near = xp.log1p(-away * away)
        w = -xp.where(away < 0.5, near, xp.log(tail) + xp.log1p(-tail) + 2.0 * _LOG_2)
        found = _SQRT_2 * _inverse(xp, away, w)
        return xp.where(p < 0.5, -found, found)


FAMILY: tuple[SpecialFunction, ...] = (Erfc(), Erfcx(), Erfinv(), Ndtr(), LogNdtr(), Ndtri())
