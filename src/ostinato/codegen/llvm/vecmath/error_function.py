"""The error function."""

from __future__ import annotations

from ostinato.codegen.llvm.lanes import Lane, intrinsic, where
from ostinato.codegen.llvm.vecmath.exponential import exp2_reduced
from ostinato.codegen.llvm.vecmath.formats import format_of
from ostinato.codegen.llvm.vecmath.polynomial import horner, mad
from ostinato.codegen.llvm.vecmath.scaling import power_of_two

__all__ = ["erf"]


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
