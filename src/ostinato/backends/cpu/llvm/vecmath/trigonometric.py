"""sin, cos, tan and their inverses.

Arguments are reduced to an eighth of a turn around a multiple of pi/2. float32 is reduced in
float64, whose 53 bits hold the product with 2/pi with room to spare; float64 by pi/2 in three
parts, each product subtracted with one rounding. Both hold up to 2**40, and beyond that (and for
infinities) lanes go to the system's functions.
"""

from __future__ import annotations

import math

from ostinato.backends.common import coefficients as table
from ostinato.backends.cpu.llvm.lanes import Lane, intrinsic, is_nan, where
from ostinato.backends.cpu.llvm.vecmath.formats import (
    DOUBLE,
    DOUBLE_FOR_SINGLE,
    SINGLE,
    FloatFormat,
    format_of,
)
from ostinato.backends.cpu.llvm.vecmath.libm import unless_any
from ostinato.backends.cpu.llvm.vecmath.polynomial import exact_fma, horner, mad, odd
from ostinato.backends.cpu.llvm.vecmath.scaling import round_with_magic
from ostinato.dtypes import FLOAT32, FLOAT64, INT32

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]


def sin(x: Lane) -> Lane:
    """Sine of an angle in radians."""
    sine, cosine, quadrant = _sine_and_cosine(x)
    chosen = where(quadrant & 1 != 0, cosine, sine)
    result = where(quadrant & 2 != 0, -chosen, chosen)
    # The one argument whose sign the reduction loses.
    return _beyond_reduction("sin", x, where(x == 0.0, x, result))


def cos(x: Lane) -> Lane:
    """Cosine of an angle in radians."""
    sine, cosine, quadrant = _sine_and_cosine(x)
    chosen = where(quadrant & 1 != 0, sine, cosine)
    result = where((quadrant + 1) & 2 != 0, -chosen, chosen)
    return _beyond_reduction("cos", x, result)


def tan(x: Lane) -> Lane:
    """Tangent of an angle in radians, as a quotient; that of a float32 is taken in float64."""
    form = DOUBLE_FOR_SINGLE if x.dtype == FLOAT32 else DOUBLE
    r, quadrant = _reduce(x)
    sine, cosine = _near_zero(r, form)
    odd_quadrant = quadrant & 1 != 0
    quotient = where(odd_quadrant, -cosine, sine) / where(odd_quadrant, sine, cosine)
    # C's function for float32 is off by more than one unit in the last place.
    quotient = _beyond_reduction("tan", x.astype(FLOAT64), quotient)
    return where(x == 0.0, x, quotient.astype(x.dtype))


def asin(x: Lane) -> Lane:
    """The angle from -pi/2 to pi/2 whose sine is ``x``; NaN outside [-1, 1]."""
    form = format_of(x)
    far, base, excess = _asin_core(abs(x), form)
    high, low = form.half_pi
    # high - 2 base is exact where it matters, so only the square root's rounding comes through.
    complement = (high - base * 2.0) - (excess * 2.0 - low)
    return intrinsic("copysign", where(far, complement, base + excess), x)


def acos(x: Lane) -> Lane:
    """The angle from 0 to pi whose cosine is ``x``; NaN outside [-1, 1]."""
    form = format_of(x)
    far, base, excess = _asin_core(abs(x), form)
    angle = base + excess
    high, low = form.half_pi
    negative = x < 0.0
    near = high - (where(negative, -angle, angle) - low)
    doubled = angle * 2.0
    beyond = where(negative, 2.0 * high - (doubled - 2.0 * low), doubled)
    return where(far, beyond, near)


def atan(x: Lane) -> Lane:
    """The angle from -pi/2 to pi/2 whose tangent is ``x``."""
    form = format_of(x)
    magnitude = abs(x)
    steep = magnitude > 1.0
    t = where(steep, 1.0 / magnitude, magnitude)
    angle = odd(t, t * t, form.atan_tail)
    high, low = form.half_pi
    return intrinsic("copysign", where(steep, high - (angle - low), angle), x)


def atan2(y: Lane, x: Lane) -> Lane:
    """The angle of the point (x, y), from -pi to pi, with C's treatment of zeros and infinities."""
    form = format_of(x)
    run, rise = abs(x), abs(y)
    steep = rise > run
    longer = where(steep, rise, run)
    shorter = where(steep, run, rise)
    ratio = where(longer == 0.0, 0.0, shorter / longer)
    ratio = where(shorter == math.inf, 1.0, ratio)
    angle = odd(ratio, ratio * ratio, form.atan_tail)
    high, low = form.half_pi
    angle = where(steep, high - (angle - low), angle)
    leftward = intrinsic("copysign", x.full(1.0), x) < 0.0
    angle = where(leftward, 2.0 * high - (angle - 2.0 * low), angle)
    return where(is_nan(x) | is_nan(y), math.nan, intrinsic("copysign", angle, y))


_REDUCIBLE = 2.0**40
_TWO_OVER_PI = 0.6366197723675814


def _sine_and_cosine(x: Lane) -> tuple[Lane, Lane, Lane]:
    """Sine and cosine of the reduced angle, and how many quarter turns (mod 4) were taken off."""
    form = format_of(x)
    r, quadrant = _reduce(x)
    if form is SINGLE:
        r, quadrant = r.astype(FLOAT32), quadrant.astype(INT32)
    return *_near_zero(r, form), quadrant


def _reduce(x: Lane) -> tuple[Lane, Lane]:
    """``x - n pi/2`` in float64, accurate relative to itself, and an int64 equal to ``n`` mod 4."""
    r = x.astype(FLOAT64)
    n, shifted = round_with_magic(r, _TWO_OVER_PI, DOUBLE)
    # A float32 is never so close to a multiple of pi/2 that the third part would show.
    parts = table.HALF_PI_PARTS[:2] if x.dtype == FLOAT32 else table.HALF_PI_PARTS
    for part in parts:
        r = exact_fma(n, -part, r)
    return r, shifted.bitcast(DOUBLE.bits)


def _near_zero(r: Lane, form: FloatFormat) -> tuple[Lane, Lane]:
    """Sine and cosine of an angle of at most an eighth of a turn."""
    square = r * r
    sine = odd(r, square, form.sin_tail)
    cosine = mad(square, mad(square, horner(square, form.cos_tail), -0.5), 1.0)
    return sine, cosine


def _beyond_reduction(name: str, x: Lane, usual: Lane) -> Lane:
    return unless_any(abs(x) >= _REDUCIBLE, usual, name, x)


def _asin_core(magnitude: Lane, form: FloatFormat) -> tuple[Lane, Lane, Lane]:
    """``(far, base, excess)`` with ``base + excess`` an arcsine.

    It is that of ``magnitude``, or if that is ``far`` from 0 (above 1/2) the arcsine of
    ``base = sqrt((1 - magnitude) / 2)``: half the angle that is missing to pi/2.
    """
    far = magnitude > 0.5
    square = where(far, (1.0 - magnitude) * 0.5, magnitude * magnitude)
    base = where(far, intrinsic("sqrt", square), magnitude)
    return far, base, base * square * horner(square, form.asin_tail)
