"""Logarithms, from ``x = 2**n * (1 + f)`` and a polynomial for ``log(1 + f)``.

``log(1 + f)`` is kept as ``f + t`` with a small ``t``, so that scaling to other bases loses
nothing of the leading term.
"""

from __future__ import annotations

import math

from ostinato.backends.cpu.llvm.lanes import Lane, where
from ostinato.backends.cpu.llvm.vecmath.formats import FloatFormat, Split, format_of
from ostinato.backends.cpu.llvm.vecmath.polynomial import horner, mad
from ostinato.backends.cpu.llvm.vecmath.scaling import power_of_two, split_exponent

__all__ = ["log", "log1p", "log2", "log10"]


def log(x: Lane, form: FloatFormat | None = None) -> Lane:
    """Natural logarithm: NaN below 0, minus infinity at 0."""
    form = form or format_of(x)
    n, m = split_exponent(x, form)
    return _with_limits(x, _natural(n, m - 1.0, form))


def log2(x: Lane, form: FloatFormat | None = None) -> Lane:
    """Logarithm to base 2, exact for powers of two."""
    form = form or format_of(x)
    n, m = split_exponent(x, form)
    return _with_limits(x, n + _scaled_log1p(m - 1.0, form.log2_e, n.full(0.0), form))


def log10(x: Lane) -> Lane:
    """Logarithm to base 10."""
    form = format_of(x)
    n, m = split_exponent(x, form)
    high, low = form.log10_2
    return _with_limits(x, mad(n, high, _scaled_log1p(m - 1.0, form.log10_e, n * low, form)))


def log1p(x: Lane) -> Lane:
    """``log(1 + x)`` without cancellation.

    The exponent comes from the rounded ``1 + x``, the significand from ``x`` itself:
    ``f = x 2**-n + (2**-n - 1)`` has one rounding where ``(1 + x) 2**-n - 1`` would have two.
    """
    form = format_of(x)
    u = x + 1.0
    n, m = split_exponent(u, form)
    shrink = power_of_two(-n, form)
    exact_below = 2.0 ** (form.fraction + 2)
    f = where(x < exact_below, mad(x, shrink, shrink - 1.0), m - 1.0)
    return where(x == 0.0, x, _with_limits(u, _natural(n, f, form)))


def _natural(n: Lane, f: Lane, form: FloatFormat) -> Lane:
    high, low = form.ln2
    return mad(n, high, f + mad(n, low, _tail(f, form)))


def _scaled_log1p(f: Lane, factor: Split, extra: Lane, form: FloatFormat) -> Lane:
    """``log(1 + f) * factor + extra`` with ``extra`` small."""
    high, low = factor
    return mad(f, high, mad(f, low, mad(_tail(f, form), high, extra)))


def _tail(f: Lane, form: FloatFormat) -> Lane:
    """``log(1 + f) - f``."""
    return f * f * mad(f, horner(f, form.log_tail), -0.5)


def _with_limits(x: Lane, result: Lane) -> Lane:
    """``result`` for positive finite ``x``, and what a logarithm is elsewhere."""
    result = where(x == math.inf, math.inf, result)
    return where(x > 0.0, result, where(x == 0.0, x.full(-math.inf), math.nan))
