"""Taking floats apart into exponent and significand, and putting them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.conversion import overload_suffix
from ostinato.backends.cpu.llvm.lanes import Lane, where
from ostinato.backends.cpu.llvm.types import call_intrinsic
from ostinato.backends.cpu.llvm.vecmath.polynomial import mad

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.vecmath.formats import FloatFormat

__all__ = ["clamp", "power_of_two", "round_with_magic", "scale", "split_exponent"]


def clamp(x: Lane, low: float, high: float) -> Lane:
    """``x`` limited to a range; NaN passes. One minimum and one maximum instruction."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def round_with_magic(x: Lane, factor: float, form: FloatFormat) -> tuple[Lane, Lane]:
    """``n = round(x * factor)`` as a float, and the float whose low bits are those of ``n``."""
    shifted = mad(x, factor, form.magic)
    return shifted - form.magic, shifted


def power_of_two(n: Lane, form: FloatFormat) -> Lane:
    """``2**n`` for an integral float ``n`` within the range of normal exponents."""
    bits = (n + (form.magic + form.bias)).bitcast(form.bits)
    b = n.builder
    shifted = b.shl(bits.value, bits.full(form.fraction).value)
    return bits.like(shifted).bitcast(form.dtype)


def scale(x: Lane, n: Lane) -> Lane:
    """``x * 2**n``, rounded once, for an integral float ``n`` and ``x`` below 2.

    One instruction on AVX-512 and eight elsewhere, so the choice is left to the target:
    :mod:`ostinato.backends.cpu.llvm.target_library` defines the function called here.
    """
    name = f"ostinato.scale.{overload_suffix(x.dtype, x.lanes)}"
    return x.like(call_intrinsic(x.builder, name, x.value.type, [x.value, n.value]))


def split_exponent(x: Lane, form: FloatFormat) -> tuple[Lane, Lane]:
    """``(n, m)`` with ``x = 2**n * m`` and ``m`` from sqrt(1/2) to sqrt(2), for positive finite x.

    ``n`` is a float. Other arguments give some value.
    """
    b = x.builder
    subnormal = x < form.smallest_normal
    rescale = form.fraction + 2
    x = where(subnormal, x * 2.0**rescale, x)
    bits = x.bitcast(form.bits)
    root = bits.full(_ROOT_HALF_BITS[form.fraction])
    offset = bits - root
    # Biased to stay positive: no vector unit before AVX-512 shifts 64-bit integers with sign.
    biased = offset + (form.bias << form.fraction)
    exponent = bits.like(b.lshr(biased.value, bits.full(form.fraction).value))
    magic = bits.full(_MAGIC_BITS[form.fraction])
    n = (exponent + magic).bitcast(form.dtype) - (form.magic + form.bias)
    n = where(subnormal, n - float(rescale), n)
    significand = (offset & ((1 << form.fraction) - 1)) + root
    return n, significand.bitcast(form.dtype)


_ROOT_HALF_BITS = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCC}
"""The bits of sqrt(1/2) in each format, by its fraction bits."""

_MAGIC_BITS = {23: 0x4B400000, 52: 0x4338000000000000}
"""The bits of ``FloatFormat.magic``."""
