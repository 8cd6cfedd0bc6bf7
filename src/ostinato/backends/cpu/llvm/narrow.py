"""Narrow element types in LLVM: floats of 4 and 8 bits, integers of 2 and 4.

An element takes a byte of memory. Floats are held, like those of 16 bits, as float32, integers as
bytes. Conversions are integer arithmetic, exact one way and rounded to nearest even the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.types import I8, I32, constant, register_type, vector_of
from ostinato.dtypes import FLOAT32, INT8, INT32

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.dtypes import DType, NarrowFormat

__all__ = ["decode", "decode_numbers", "encode", "low_bits"]

_SIGN = 1 << 31
_QUIET_NAN = 0x7FC0_0000
_MANTISSA = 23  # bits of a float32
_BIAS = 127


def low_bits(builder: ir.IRBuilder, value: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """The integer of ``dtype`` that the low bits of the byte ``value`` stand for."""
    count = constant(INT8, 8 - dtype.format.mantissa, lanes)
    shifted = builder.shl(value, count)
    back = builder.ashr if dtype.format.signed else builder.lshr
    return back(shifted, count)


def decode(builder: ir.IRBuilder, code: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """The float32 that the byte ``code`` stands for."""
    b, form = builder, dtype.format
    wide = b.zext(code, vector_of(I32, lanes))
    if not form.signed:
        return _decode_exponent(b, wide, lanes)
    magnitude = b.and_(wide, _int(_magnitudes(form), lanes))
    # As the bits of a float32 it has an exponent that is too small, subnormals too.
    small = _as_float(b, b.shl(magnitude, _int(_MANTISSA - form.mantissa, lanes)), lanes)
    scaled = b.fmul(small, constant(FLOAT32, 2.0 ** (_BIAS - form.bias), lanes))
    bits = _as_bits(b, scaled, lanes)
    if form.infinity is not None:
        endless = b.icmp_unsigned("==", magnitude, _int(form.infinity, lanes))
        bits = b.select(endless, _int(0x7F80_0000, lanes), bits)
    width = form.exponent + form.mantissa
    sign = b.and_(b.shl(wide, _int(31 - width, lanes)), _int(_SIGN, lanes))
    bits = b.or_(bits, sign)
    if form.nan is not None:
        compared = wide if form.zero_is_positive else magnitude
        is_nan = b.icmp_unsigned(
            "==" if form.zero_is_positive else ">=", compared, _int(form.nan, lanes)
        )
        bits = b.select(is_nan, _int(_QUIET_NAN, lanes), bits)
    return _as_float(b, bits, lanes)


def decode_numbers(b: ir.IRBuilder, code: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """The float32 that ``code`` stands for if it is a number: one of a format that fills the byte.

    The byte is extended by its sign, so that one shift moves sign, exponent and mantissa to where a
    float32 has them.
    """
    form = dtype.format
    assert _fills_byte(form)
    shift = _MANTISSA - form.mantissa
    moved = b.shl(b.sext(code, vector_of(I32, lanes)), _int(shift, lanes))
    # An exponent that is too small, as in :func:`decode`; the product has the sign.
    kept = b.and_(moved, _int(_SIGN | _magnitudes(form) << shift, lanes))
    factor = constant(FLOAT32, 2.0 ** (_BIAS - form.bias), lanes)
    return b.fmul(_as_float(b, kept, lanes), factor)


def encode(builder: ir.IRBuilder, value: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """The byte that stands for the float32 ``value``, rounded to nearest even.

    Numbers out of range become infinite, NaN where there is no infinity, or the greatest number
    where there is neither.
    """
    b, form = builder, dtype.format
    bits = _as_bits(b, value, lanes)
    is_nan = b.fcmp_unordered("uno", value, value)
    if not form.signed:
        return _encode_exponent(b, value, bits, is_nan, lanes)
    magnitude = b.and_(bits, _int(_SIGN - 1, lanes))
    code = b.select(
        b.icmp_unsigned("<", magnitude, _int((_BIAS + 1 - form.bias) << _MANTISSA, lanes)),
        _subnormal(b, magnitude, form, lanes),
        _normal(b, magnitude, form, lanes),
    )
    greatest, beyond = _greatest(form), _beyond(form)
    code = b.select(b.icmp_unsigned(">", code, _int(greatest, lanes)), _int(beyond, lanes), code)
    width = form.exponent + form.mantissa
    sign = b.and_(b.lshr(bits, _int(31 - width, lanes)), _int(1 << width, lanes))
    if form.zero_is_positive:
        # The code of a negative zero is the NaN: neither has another sign.
        whole = b.icmp_unsigned("==", b.and_(code, _int(_magnitudes(form), lanes)), _int(0, lanes))
        sign = b.select(whole, _int(0, lanes), sign)
    signed = b.or_(code, sign)
    if form.zero_is_positive:
        nan = _int(form.nan or 0, lanes)
    elif form.nan is not None:
        nan = b.or_(_int(_quiet(form), lanes), sign)
    else:
        nan = _int(1 << width, lanes)  # a negative zero, as ml_dtypes has it
    return b.trunc(b.select(is_nan, nan, signed), vector_of(I8, lanes))


def _normal(b: ir.IRBuilder, magnitude: ir.Value, form: NarrowFormat, lanes: int) -> ir.Value:
    """The code of a number with a hidden one: its bits, rounded and moved."""
    dropped = _MANTISSA - form.mantissa
    lowest_kept = b.and_(b.lshr(magnitude, _int(dropped, lanes)), _int(1, lanes))
    rounded = b.add(magnitude, b.add(lowest_kept, _int((1 << dropped - 1) - 1, lanes)))
    shifted = b.lshr(rounded, _int(dropped, lanes))
    return b.sub(shifted, _int(_BIAS - form.bias << form.mantissa, lanes))


def _subnormal(b: ir.IRBuilder, magnitude: ir.Value, form: NarrowFormat, lanes: int) -> ir.Value:
    """The code of a number without a hidden one: a sum that has no room for its other bits."""
    exponent = 1 - form.bias - form.mantissa + _MANTISSA
    offset = constant(FLOAT32, 2.0**exponent, lanes)
    total = _as_bits(b, b.fadd(_as_float(b, magnitude, lanes), offset), lanes)
    return b.sub(total, _int(exponent + _BIAS << _MANTISSA, lanes))


def _decode_exponent(b: ir.IRBuilder, code: ir.Value, lanes: int) -> ir.Value:
    """The power of two whose exponent is ``code - 127``; 255 is NaN."""
    bits = b.shl(code, _int(_MANTISSA, lanes))
    lowest = b.icmp_unsigned("==", code, _int(0, lanes))
    bits = b.select(lowest, _int(1 << _MANTISSA - 1, lanes), bits)
    is_nan = b.icmp_unsigned("==", code, _int(0xFF, lanes))
    return _as_float(b, b.select(is_nan, _int(_QUIET_NAN, lanes), bits), lanes)


def _encode_exponent(
    b: ir.IRBuilder, value: ir.Value, bits: ir.Value, is_nan: ir.Value, lanes: int
) -> ir.Value:
    """The nearest power of two, the greater of two; NaN for what has none."""
    rounded = b.lshr(b.add(bits, _int(1 << _MANTISSA - 1, lanes)), _int(_MANTISSA, lanes))
    least = b.icmp_unsigned("<", bits, _int(3 << _MANTISSA - 2, lanes))
    rounded = b.select(least, _int(0, lanes), rounded)
    positive = b.fcmp_ordered(">", value, constant(FLOAT32, 0.0, lanes))
    valid = b.and_(positive, b.icmp_unsigned("<", rounded, _int(0xFF, lanes)))
    valid = b.and_(valid, b.not_(is_nan))
    return b.trunc(b.select(valid, rounded, _int(0xFF, lanes)), vector_of(I8, lanes))


def _fills_byte(form: NarrowFormat) -> bool:
    """Whether the sign is the highest bit of the byte, and NaNs are the greatest magnitudes."""
    width = form.exponent + form.mantissa
    return form.signed and width == 7 and form.nan is not None and not form.zero_is_positive


def _magnitudes(form: NarrowFormat) -> int:
    """A mask of all bits but the sign."""
    return (1 << form.exponent + form.mantissa) - 1


def _greatest(form: NarrowFormat) -> int:
    """The code of the greatest number."""
    if form.infinity is not None:
        return form.infinity - 1
    return _magnitudes(form) - (form.nan == _magnitudes(form))


def _beyond(form: NarrowFormat) -> int:
    """The code of what is greater than the greatest number."""
    if form.infinity is not None:
        return form.infinity
    return _greatest(form) if form.nan is None else form.nan


def _quiet(form: NarrowFormat) -> int:
    """The code of a quiet NaN without a sign."""
    assert form.nan is not None
    return form.nan if form.infinity is None else form.infinity | 1 << form.mantissa - 1


def _int(value: int, lanes: int) -> ir.Constant:
    return constant(INT32, value, lanes)


def _as_bits(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    return b.bitcast(value, vector_of(I32, lanes))


def _as_float(b: ir.IRBuilder, bits: ir.Value, lanes: int) -> ir.Value:
    return b.bitcast(bits, register_type(FLOAT32, lanes))
