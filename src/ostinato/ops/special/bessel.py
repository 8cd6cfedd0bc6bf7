"""Bessel functions of orders 0 and 1, ordinary and modified.

Near 0 they are power series, or polynomials fitted to the square of the operand; further away, the
factors that vary slowly are polynomials of its inverse.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.lazy import LazyModule
from ostinato.ops.special.base import SpecialFunction, horner, normalised

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.ops.special import coefficients as table
else:
    table = LazyModule("ostinato.ops.special.coefficients")

__all__ = ["FAMILY"]

#: Beyond, asymptotic forms.
_FAR = 8.0

_EULER = 0.5772156649015329
_LOG_2 = math.log(2.0)

#: ``(x**2 / 4)**k`` in the series of order 0 and 1 of modified functions; all are positive.
_SERIES = tuple(
    [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(26)] for order in (0, 1)
)

#: The same in the regular part of the second kind: times sums of 1 / j.
_HARMONIC = [sum(1 / j for j in range(1, k + 1)) for k in range(16)]
_SECOND = (
    [h * c for h, c in zip(_HARMONIC[:14], _SERIES[0], strict=False)],
    [
        0.5 * (h + after) * c
        for h, after, c in zip(_HARMONIC[:14], _HARMONIC[1:15], _SERIES[1], strict=False)
    ],
)


class Wave(SpecialFunction):
    """A Bessel function ``J`` or ``Y``.

    Beyond 8 it is ``sqrt(2 / (pi x)) (P cos(c) - Q sin(c) / x)`` with ``c = x - (order / 2 + 1 / 4)
    pi`` for the first kind, and with ``sin`` and ``-cos`` for the second.
    """

    order: ClassVar[int]
    cost = 100

    def near(self, x: Any) -> Any:
        """The first kind up to 8."""
        square = normalised(x * x, 0.0, _FAR * _FAR)
        return (
            horner(square, table.BESSEL_J0)
            if self.order == 0
            else x * horner(square, table.BESSEL_J1)
        )

    def far(self, xp: Any, x: Any, *, second: bool) -> Any:
        inverse = 1.0 / x
        t = normalised(inverse * inverse, 0.0, 1 / (_FAR * _FAR))
        p = horner(t, table.BESSEL_P0 if self.order == 0 else table.BESSEL_P1)
        q = horner(t, table.BESSEL_Q0 if self.order == 0 else table.BESSEL_Q1) * inverse
        sin, cos = xp.sin(x), xp.cos(x)
        # The cosine and the sine of x - pi / 4, times sqrt(2); order 1 is a quarter turn later.
        along, across = sin + cos, sin - cos
        if self.order == 1:
            along, across = across, -along
        wave = p * across + q * along if second else p * along - q * across
        return xp.where(x == math.inf, 0.0, wave / xp.sqrt(math.pi * x))


class FirstKind(Wave):
    """A Bessel function of the first kind."""

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        size = xp.abs(x)
        near = self.near(xp.minimum(size, _FAR))
        result = xp.where(size < _FAR, near, self.far(xp, xp.maximum(size, _FAR), second=False))
        return xp.where(x < 0.0, -result, result) if self.order else result


class BesselJ0(FirstKind):
    """The Bessel function of the first kind of order 0."""

    name = "bessel_j0"
    order = 0


class BesselJ1(FirstKind):
    """The Bessel function of the first kind of order 1."""

    name = "bessel_j1"
    order = 1


class SecondKind(Wave):
    """A Bessel function of the second kind: minus infinity at 0, NaN below."""

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        limited = xp.minimum(x, _FAR)
        square = normalised(limited * limited, 0.0, _FAR * _FAR)
        waves = (xp.log(limited) - _LOG_2) * self.near(limited)
        if self.order == 0:
            near = (2 / math.pi) * waves + horner(square, table.BESSEL_Y0)
        else:
            near = (2 / math.pi) * (waves - 1.0 / limited) + limited * horner(
                square, table.BESSEL_Y1
            )
        result = xp.where(x < _FAR, near, self.far(xp, xp.maximum(x, _FAR), second=True))
        return xp.where(x == 0.0, -math.inf, xp.where(x < 0.0, math.nan, result))


class BesselY0(SecondKind):
    """The Bessel function of the second kind of order 0."""

    name = "bessel_y0"
    order = 0


class BesselY1(SecondKind):
    """The Bessel function of the second kind of order 1."""

    name = "bessel_y1"
    order = 1


class Modified(SpecialFunction):
    """A modified Bessel function; ``scaled``: times ``exp(-abs(x))``, or ``exp(x)`` for ``K``."""

    order: ClassVar[int]
    scaled: ClassVar[bool]


class ModifiedFirstKind(Modified):
    """A modified Bessel function of the first kind."""

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        size = xp.abs(x)
        limited = xp.minimum(size, _FAR)
        near = _first_series(limited, self.order)
        outside = xp.maximum(size, _FAR)
        t = normalised(1.0 / outside, 0.0, 1 / _FAR)
        far = horner(t, table.BESSEL_I0 if self.order == 0 else table.BESSEL_I1)
        far = far / xp.sqrt(outside)
        if self.scaled:
            near = near * xp.exp(-limited)
        else:
            # In two steps: the exponential overflows before the result does.
            half = xp.exp(size * 0.5)
            far = xp.where(size == math.inf, math.inf, far * half * half)
        result = xp.where(size < _FAR, near, far)
        return xp.where(x < 0.0, -result, result) if self.order else result


def _first_series(x: Any, order: int) -> Any:
    """The modified function of the first kind of ``0 <= x <= 8``."""
    result = horner(x * x * 0.25, _SERIES[order])
    return result * x * 0.5 if order else result


class I0(ModifiedFirstKind):
    """The modified Bessel function of the first kind of order 0."""

    name = "i0"
    order, scaled = 0, False


class I0e(ModifiedFirstKind):
    """``exp(-abs(x)) * i0(x)``."""

    name = "i0e"
    order, scaled = 0, True


class I1(ModifiedFirstKind):
    """The modified Bessel function of the first kind of order 1."""

    name = "i1"
    order, scaled = 1, False


class I1e(ModifiedFirstKind):
    """``exp(-abs(x)) * i1(x)``."""

    name = "i1e"
    order, scaled = 1, True


class ModifiedSecondKind(Modified):
    """A modified Bessel function of the second kind: infinite at 0, NaN below."""

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        limited = xp.minimum(x, 1.0)
        square = limited * limited * 0.25
        logarithm = xp.log(limited) + (_EULER - _LOG_2)
        near = logarithm * _first_series(limited, self.order)
        regular = horner(square, _SECOND[self.order])
        near = 1.0 / limited + near - limited * 0.5 * regular if self.order else regular - near
        outside = xp.maximum(x, 1.0)
        t = normalised(1.0 / outside, 0.0, 1.0)
        far = horner(t, table.BESSEL_K0 if self.order == 0 else table.BESSEL_K1)
        far = far / xp.sqrt(outside)
        if self.scaled:
            near = near * xp.exp(limited)
        else:
            far = far * xp.exp(-x)
        result = xp.where(x < 1.0, near, far)
        return xp.where(x == 0.0, math.inf, xp.where(x < 0.0, math.nan, result))


class K0(ModifiedSecondKind):
    """The modified Bessel function of the second kind of order 0."""

    name = "modified_bessel_k0"
    order, scaled = 0, False


class K1(ModifiedSecondKind):
    """The modified Bessel function of the second kind of order 1."""

    name = "modified_bessel_k1"
    order, scaled = 1, False


class ScaledK0(ModifiedSecondKind):
    """``exp(x) * modified_bessel_k0(x)``."""

    name = "scaled_modified_bessel_k0"
    order, scaled = 0, True


class ScaledK1(ModifiedSecondKind):
    """``exp(x) * modified_bessel_k1(x)``."""

    name = "scaled_modified_bessel_k1"
    order, scaled = 1, True


class SphericalBesselJ0(SpecialFunction):
    """``sin(x) / x``; 1 at 0, and 0 at infinity."""

    name = "spherical_bessel_j0"
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        result = xp.where(x == 0.0, 1.0, xp.sin(x) / x)
        return xp.where(xp.isinf(x), 0.0, result)


FAMILY: tuple[SpecialFunction, ...] = (
    BesselJ0(),
    BesselJ1(),
    BesselY0(),
    BesselY1(),
    I0(),
    I0e(),
    I1(),
    I1e(),
    K0(),
    K1(),
    ScaledK0(),
    ScaledK1(),
    SphericalBesselJ0(),
)
