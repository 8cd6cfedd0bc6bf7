"""Parameters of binary floating-point formats, for algorithms that serve several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.common import coefficients as table
from ostinato.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.lanes import Lane

__all__ = ["DOUBLE", "DOUBLE_FOR_SINGLE", "SINGLE", "FloatFormat", "format_of"]

Split = tuple[float, float]
"""A constant as the sum of two floats of the format, the larger first."""


@dataclass(frozen=True)
class FloatFormat:
    """A format, its constants and its polynomials.

    The leading parts of ``ln2`` and ``log10_2`` end in enough zero bits that their product with
    any exponent is exact, so reduction stays accurate where there is no fused multiply-add.

    Attributes:
        dtype: the format.
        bits: the integer dtype of the same width.
        fraction: explicit significand bits.
        bias: the exponent bias.
        magic: adding it rounds to an integer, whose low bits are then the low bits of the sum.
        vanishing: numbers below 2 vanish when they are scaled by ``2**n`` for ``n`` below this.
        exp_range: beyond these arguments ``exp`` is 0 or infinity; at the lower one ``n`` is below
            :attr:`vanishing`.
        exp2_range: the same for ``exp2``.
        exp_normal: from this argument on ``exp`` is not subnormal.
        expm1_low: below it ``expm1`` is -1.
        tanh_high: above it ``tanh`` is 1.
        erf_high: above it ``erf`` is 1.
        tiny: below it ``expm1(x)`` is ``x``.
    """

    dtype: DType
    bits: DType
    fraction: int
    bias: int
    magic: float
    vanishing: float
    exp_range: tuple[float, float]
    exp_normal: float
    exp2_range: tuple[float, float]
    expm1_low: float
    tanh_high: float
    erf_high: float
    tiny: float
    ln2: Split
    log2_e: Split
    log10_e: Split
    log10_2: Split
    half_pi: Split
    exp_tail: tuple[float, ...]
    log_tail: tuple[float, ...]
    sin_tail: tuple[float, ...]
    cos_tail: tuple[float, ...]
    asin_tail: tuple[float, ...]
    atan_tail: tuple[float, ...]
    sinh_tail: tuple[float, ...]
    erf_tail: tuple[float, ...]
    erfc_bits: tuple[float, ...]

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, 1 - self.bias)


SINGLE = FloatFormat(
    dtype=FLOAT32,
    bits=INT32,
    fraction=23,
    bias=127,
    magic=1.5 * 2.0**23,
    vanishing=-150.5,
    exp_range=(-105.0, 89.0),
    exp_normal=-87.0,
    exp2_range=(-151.0, 129.0),
    expm1_low=-18.0,
    tanh_high=9.25,
    erf_high=3.94,
    tiny=2.0**-26,
    ln2=table.LN2_F32,
    log2_e=table.LOG2_E_F32,
    log10_e=table.LOG10_E_F32,
    log10_2=table.LOG10_2_F32,
    half_pi=table.HALF_PI_F32,
    exp_tail=table.EXP_F32,
    log_tail=table.LOG_F32,
    sin_tail=table.SIN_F32,
    cos_tail=table.COS_F32,
    asin_tail=table.ASIN_F32,
    atan_tail=table.ATAN_F32,
    sinh_tail=table.SINH_F32,
    erf_tail=table.ERF_F32,
    erfc_bits=table.ERFC_BITS_F32,
)

DOUBLE = FloatFormat(
    dtype=FLOAT64,
    bits=INT64,
    fraction=52,
    bias=1023,
    magic=1.5 * 2.0**52,
    vanishing=-1075.5,
    exp_range=(-746.0, 710.0),
    exp_normal=-708.0,
    exp2_range=(-1076.0, 1025.0),
    expm1_low=-38.0,
    tanh_high=19.5,
    erf_high=5.94,
    tiny=2.0**-55,
    ln2=table.LN2_F64,
    log2_e=table.LOG2_E_F64,
    log10_e=table.LOG10_E_F64,
    log10_2=table.LOG10_2_F64,
    half_pi=table.HALF_PI_F64,
    exp_tail=table.EXP_F64,
    log_tail=table.LOG_F64,
    sin_tail=table.SIN_F64,
    cos_tail=table.COS_F64,
    asin_tail=table.ASIN_F64,
    atan_tail=table.ATAN_F64,
    sinh_tail=table.SINH_F64,
    erf_tail=table.ERF_F64,
    erfc_bits=table.ERFC_BITS_F64,
)

DOUBLE_FOR_SINGLE = replace(DOUBLE, exp_tail=table.EXP_F32, log_tail=table.LOG_POW_F32)
"""float64 arithmetic carried only as far as a float32 result needs."""


def format_of(x: Lane) -> FloatFormat:
    """The format of a float32 or float64 lane."""
    return DOUBLE if x.dtype == FLOAT64 else SINGLE
