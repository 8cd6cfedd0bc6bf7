"""exp and its kin.

The argument is reduced to ``x = n ln 2 + r`` with ``|r| <= ln(2) / 2``; ``exp(r)`` is a polynomial
and ``2**n`` an operation on the exponent.
"""

from __future__ import annotations

from ostinato.backends.cpu.llvm.lanes import Lane, intrinsic, where
from ostinato.backends.cpu.llvm.vecmath.formats import FloatFormat, format_of
from ostinato.backends.cpu.llvm.vecmath.polynomial import horner, mad, odd
from ostinato.backends.cpu.llvm.vecmath.scaling import clamp, power_of_two, round_with_magic, scale

__all__ = ["cosh", "exp", "exp2", "exp2_reduced", "expm1", "normal_exp", "sinh", "tanh"]


def exp(x: Lane) -> Lane:
    """e to the power ``x``."""
    form = format_of(x)
    n, r = _reduce(clamp(x, *form.exp_range), form)
    return scale(_exp_of_reduced(r, form), n)


def normal_exp(x: Lane) -> Lane:
    """e to the power ``x <= 0``, and 0 where that would be subnormal, or nearly.

    For weights of a softmax, the greatest of which is 1. Products with subnormal numbers take more
    than a hundred cycles on Intel's processors: attention of 512 rows whose scores lie far apart
    took 20 times as long.
    """
    form = format_of(x)
    n, r = _reduce(where(x < form.exp_normal, form.exp_normal, x), form)
    return where(x < form.exp_normal, 0.0, scale(_exp_of_reduced(r, form), n))


def exp2(x: Lane, form: FloatFormat | None = None) -> Lane:
    """2 to the power ``x``."""
    form = form or format_of(x)
    n, fraction_power = exp2_reduced(clamp(x, *form.exp2_range), form)
    return scale(fraction_power, n)


def exp2_reduced(x: Lane, form: FloatFormat) -> tuple[Lane, Lane]:
    """``(n, 2**(x - n))`` with ``n`` the integer nearest to ``x``."""
    n, _ = round_with_magic(x, 1.0, form)
    return n, _exp_of_reduced((x - n) * _LN2, form)


def expm1(x: Lane) -> Lane:
    """``exp(x) - 1`` without cancellation."""
    form = format_of(x)
    n, r = _reduce(clamp(x, form.expm1_low, form.exp_range[1]), form)
    # Halved until the end: 2**n itself may overflow where the result does not.
    half_power = power_of_two(n - 1.0, form)
    result = mad(_expm1_of_reduced(r, form), half_power, half_power - 0.5) * 2.0
    return where(abs(x) < form.tiny, x, result)


def tanh(x: Lane) -> Lane:
    """Hyperbolic tangent, as ``t / (t + 2)`` with ``t = expm1(2|x|)``.

    This form needs one division and no case distinction: near 0 ``t`` is accurate, and far from
    0, where the quotient is nearly 1, its errors cancel.
    """
    form = format_of(x)
    magnitude = abs(x)
    doubled = where(magnitude > form.tanh_high, form.tanh_high, magnitude) * 2.0
    n, r = _reduce(doubled, form)
    power = power_of_two(n, form)
    t = mad(_expm1_of_reduced(r, form), power, power - 1.0)
    return intrinsic("copysign", t / (t + 2.0), x)


def sinh(x: Lane) -> Lane:
    """Hyperbolic sine: a polynomial up to 1, then from ``exp``."""
    form = format_of(x)
    magnitude = abs(x)
    half = _half_exp(magnitude, form)
    large = half - 0.25 / half
    small = odd(magnitude, magnitude * magnitude, form.sinh_tail)
    return intrinsic("copysign", where(magnitude < 1.0, small, large), x)


def cosh(x: Lane) -> Lane:
    """Hyperbolic cosine."""
    half = _half_exp(abs(x), format_of(x))
    return half + 0.25 / half


_LN2 = 0.6931471805599453


def _half_exp(x: Lane, form: FloatFormat) -> Lane:
    """``exp(x) / 2``, which overflows only where sinh and cosh do, for ``x >= 0``."""
    high = form.exp_range[1] + 1.0
    n, r = _reduce(where(x > high, high, x), form)
    return scale(_exp_of_reduced(r, form), n - 1.0)


def _reduce(x: Lane, form: FloatFormat) -> tuple[Lane, Lane]:
    n, _ = round_with_magic(x, form.log2_e[0], form)
    high, low = form.ln2
    return n, mad(n, -low, mad(n, -high, x))


def _exp_of_reduced(r: Lane, form: FloatFormat) -> Lane:
    return horner(r, (1.0, 1.0, *form.exp_tail))


def _expm1_of_reduced(r: Lane, form: FloatFormat) -> Lane:
    return mad(r * r, horner(r, form.exp_tail), r)
