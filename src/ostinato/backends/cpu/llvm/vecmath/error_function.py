"""The error function, and the normal distribution."""

from __future__ import annotations

from ostinato.backends.common.coefficients import NORMAL_BITS_F32
from ostinato.backends.cpu.llvm.lanes import Lane, intrinsic, where
from ostinato.backends.cpu.llvm.vecmath.exponential import exp2_reduced
from ostinato.backends.cpu.llvm.vecmath.formats import format_of
from ostinato.backends.cpu.llvm.vecmath.polynomial import horner, mad
from ostinato.backends.cpu.llvm.vecmath.scaling import power_of_two
from ostinato.dtypes import FLOAT32

__all__ = ["erf", "normal_cdf"]

_HALF_LOG2_E = 0.7213475204444817
_SQRT_HALF = 0.7071067811865476
_NORMAL_HIGH = 5.5
"""End of the polynomial of the normal tail; beyond, what is left of the tail is below 1e-7."""


def erf(x: Lane) -> Lane:
    """The error function, without a division.

    Up to 1, ``x + x E(x**2)``. Beyond, ``1 - 2**-h(|x|)``: the logarithm of erfc is smooth enough
    for one polynomial, and its error counts for less the smaller erfc is.
    """
    form = format_of(x)
    magnitude = abs(x)
    near = mad(magnitude, horner(magnitude * magnitude, form.erf_tail), magnitude)
    limited = where(magnitude > form.erf_high, form.erf_high, magnitude)
    n, power = exp2_reduced(-horner(limited, form.erfc_bits), form)
    far = 1.0 - power * power_of_two(n, form)
    return intrinsic("copysign", where(magnitude > 1.0, far, near), x)


def normal_cdf(x: Lane) -> Lane:
    """The normal distribution's cumulative at ``x``.

    In float32 the tail beyond ``|x|`` is ``2**-(x**2 log2(e) / 2 + q(|x|))`` with one polynomial q,
    to within 2**-25 of 1/2; the smaller the tail, the more digits of it are right that the error
    function has lost.
    """
    form = format_of(x)
    if form.dtype != FLOAT32:
        return (erf(x * _SQRT_HALF) + 1.0) * 0.5
    magnitude = abs(x)
    limited = where(magnitude > _NORMAL_HIGH, _NORMAL_HIGH, magnitude)
    rest = horner(limited, [-c for c in NORMAL_BITS_F32])
    exponent = mad(x * x, -_HALF_LOG2_E, rest)
    n, power = exp2_reduced(exponent, form)
    tail = where(exponent > -126.0, power * power_of_two(n, form), 0.0)
    return where(x < 0.0, tail, 1.0 - tail)
