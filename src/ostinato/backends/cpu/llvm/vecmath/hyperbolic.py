"""Inverse hyperbolic functions.

float32 is computed in float64, where the textbook formulas lose nothing that a float32 could
show. float64 goes to the system's functions, lane by lane.
"""

from __future__ import annotations

import math

from ostinato.backends.cpu.llvm.lanes import Lane, intrinsic, where
from ostinato.backends.cpu.llvm.vecmath.formats import DOUBLE_FOR_SINGLE
from ostinato.backends.cpu.llvm.vecmath.libm import each_lane
from ostinato.backends.cpu.llvm.vecmath.logarithm import log
from ostinato.backends.cpu.llvm.vecmath.polynomial import mad
from ostinato.dtypes import FLOAT32, FLOAT64

__all__ = ["acosh", "asinh", "atanh"]

_IDENTITY_BELOW = 2.0**-13
"""Below this asinh(x) and atanh(x) differ from x by less than half a float32 ulp."""


def asinh(x: Lane) -> Lane:
    """Inverse hyperbolic sine."""
    if x.dtype == FLOAT64:
        return each_lane("asinh", x)
    wide = abs(x).astype(FLOAT64)
    root = intrinsic("sqrt", mad(wide, wide, 1.0))
    result = log(wide + root, DOUBLE_FOR_SINGLE).astype(FLOAT32)
    return where(abs(x) < _IDENTITY_BELOW, x, intrinsic("copysign", result, x))


def acosh(x: Lane) -> Lane:
    """Inverse hyperbolic cosine; NaN below 1."""
    if x.dtype == FLOAT64:
        return each_lane("acosh", x)
    wide = x.astype(FLOAT64)
    root = intrinsic("sqrt", mad(wide, wide, -1.0))
    result = log(wide + root, DOUBLE_FOR_SINGLE).astype(FLOAT32)
    return where(x < 1.0, math.nan, result)


def atanh(x: Lane) -> Lane:
    """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond."""
    if x.dtype == FLOAT64:
        return each_lane("atanh", x)
    wide = x.astype(FLOAT64)
    doubled = log((1.0 + wide) / (1.0 - wide), DOUBLE_FOR_SINGLE)
    return where(abs(x) < _IDENTITY_BELOW, x, (doubled * 0.5).astype(FLOAT32))
