"""Conversions between element types, on raw SSA values. None of them can trap or be poison."""

from __future__ import annotations

from llvmlite import ir

from ostinato.backends.cpu.llvm import narrow
from ostinato.backends.cpu.llvm.types import (
    I16,
    I32,
    I64,
    call_intrinsic,
    constant,
    register_dtype,
    register_type,
    vector_of,
)
from ostinato.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, DType

__all__ = [
    "convert",
    "from_memory",
    "overload_suffix",
    "round_register",
    "round_to_odd",
    "to_memory",
]


def overload_suffix(dtype: DType, lanes: int) -> str:
    """The suffix of overloaded intrinsics for the register type of ``dtype``: ``v16f32``."""
    held = register_dtype(dtype)
    element = f"f{held.bits}" if held.is_float else f"i{1 if held.is_bool else held.bits}"
    return element if lanes == 1 else f"v{lanes}{element}"


def convert(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    """``value`` as ``target``.

    Floats become integers by truncation, saturating at the ends of the range with NaN giving 0.
    Anything becomes bool by ``!= 0``. What becomes a 16-bit float is rounded to it once. Narrow
    integers are the low bits of an int32.
    """
    if source == target:
        return value
    if source.is_narrow:
        source = register_dtype(source)
    if target.is_narrow:
        return _to_narrow(builder, value, source, target, lanes)
    if target == BOOL:
        return _truth(builder, value, source, lanes)
    if source.is_float:
        if target.is_integer:
            return _float_to_integer(builder, value, source, target, lanes)
        return _float_to_float(builder, value, source, target, lanes)
    if target.is_integer:
        return _resize_integer(builder, value, source, target, lanes)
    cast = builder.sitofp if source.is_signed else builder.uitofp
    floating = cast(value, register_type(target, lanes))
    return round_register(builder, floating, target, lanes)


def round_register(builder: ir.IRBuilder, value: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """``value``, held as float32, rounded to float16 or bfloat16; other dtypes are untouched."""
    if dtype == FLOAT16:
        half = builder.fptrunc(value, vector_of(ir.HalfType(), lanes))
        return builder.fpext(half, value.type)
    if dtype == BFLOAT16:
        bits = _bfloat16_bits_in_place(builder, value, lanes)
        return builder.bitcast(bits, value.type)
    if dtype.is_narrow and not dtype.format.is_integer:
        code = narrow.encode(builder, value, dtype, lanes)
        return narrow.decode(builder, code, dtype, lanes)
    return value


def from_memory(builder: ir.IRBuilder, stored: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """``stored`` (of the memory type) in the form that registers have."""
    if dtype == BOOL:
        return builder.icmp_unsigned("!=", stored, stored.type(None))
    if dtype == FLOAT16:
        half = builder.bitcast(stored, vector_of(ir.HalfType(), lanes))
        return builder.fpext(half, register_type(dtype, lanes))
    if dtype == BFLOAT16:
        wide = builder.zext(stored, vector_of(I32, lanes))
        shifted = builder.shl(wide, constant(INT32, 16, lanes))
        return builder.bitcast(shifted, register_type(dtype, lanes))
    if dtype.is_narrow:
        form = narrow.low_bits if dtype.format.is_integer else narrow.decode
        return form(builder, stored, dtype, lanes)
    return stored


def to_memory(builder: ir.IRBuilder, value: ir.Value, dtype: DType, lanes: int) -> ir.Value:
    """``value`` in the form that memory has, 16-bit floats rounded to nearest even."""
    if dtype == BOOL:
        return builder.zext(value, vector_of(ir.IntType(8), lanes))
    if dtype == FLOAT16:
        half = builder.fptrunc(value, vector_of(ir.HalfType(), lanes))
        return builder.bitcast(half, vector_of(I16, lanes))
    if dtype == BFLOAT16:
        bits = _bfloat16_bits_in_place(builder, value, lanes)
        high = builder.lshr(bits, constant(INT32, 16, lanes))
        return builder.trunc(high, vector_of(I16, lanes))
    if dtype.is_narrow and not dtype.format.is_integer:
        return narrow.encode(builder, value, dtype, lanes)
    return value


def _to_narrow(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    if target.format.is_integer:
        whole = convert(builder, value, source, INT32, lanes)
        byte = builder.trunc(whole, register_type(target, lanes))
        return narrow.low_bits(builder, byte, target, lanes)
    if source == FLOAT64:
        value = round_to_odd(builder, value, lanes)
    else:
        value = convert(builder, value, source, FLOAT32, lanes)
    return round_register(builder, value, target, lanes)


def _truth(builder: ir.IRBuilder, value: ir.Value, source: DType, lanes: int) -> ir.Value:
    zero = constant(source, 0, lanes)
    if source.is_float:
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp_unsigned("!=", value, zero)


def _resize_integer(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    to = register_type(target, lanes)
    if source != BOOL and source.bits >= target.bits:
        return builder.trunc(value, to)
    return builder.sext(value, to) if source.is_signed else builder.zext(value, to)


def _float_to_integer(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    if target.bits < INT32.bits:
        return _float_to_narrow_integer(builder, value, source, target, lanes)
    operation = "fptosi" if target.is_signed else "fptoui"
    suffix = f"{overload_suffix(target, lanes)}.{overload_suffix(source, lanes)}"
    to = register_type(target, lanes)
    return call_intrinsic(builder, f"llvm.{operation}.sat.{suffix}", to, [value])


def _float_to_narrow_integer(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    """An integer of 8 or 16 bits, by way of 32: LLVM converts to those element by element."""
    b = builder
    largest = (1 << (target.bits - target.is_signed)) - 1
    least = -largest - 1 if target.is_signed else 0
    low, high = (constant(source, float(end), lanes) for end in (least, largest))
    # A comparison with NaN is false, and the processor's maximum and minimum are just these.
    limited = b.select(b.fcmp_ordered(">", value, low), value, low)
    limited = b.select(b.fcmp_ordered("<", limited, high), limited, high)
    if target.is_signed:
        is_nan = b.fcmp_unordered("uno", value, value)
        limited = b.select(is_nan, constant(source, 0.0, lanes), limited)
    wide = b.fptosi(limited, register_type(INT32, lanes))
    return b.trunc(wide, register_type(target, lanes))


def _float_to_float(
    builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType, lanes: int
) -> ir.Value:
    to = register_type(target, lanes)
    if source == FLOAT64 and target != FLOAT32:
        return round_register(builder, round_to_odd(builder, value, lanes), target, lanes)
    if source == FLOAT64:
        return builder.fptrunc(value, to)
    if target == FLOAT64:
        return builder.fpext(value, to)
    return round_register(builder, value, target, lanes)


def round_to_odd(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A float64 as a float32 that a further rounding cannot tell from the original.

    Rounding twice to nearest can be off by one. An inexact float32 whose last bit is forced to 1
    lies strictly between the same 16-bit floats as the float64 did, and on no midpoint.
    """
    b = builder
    nearest = b.fptrunc(value, register_type(FLOAT32, lanes))
    back = b.fpext(nearest, value.type)
    inexact = b.fcmp_ordered("!=", back, value)
    bits = b.bitcast(nearest, vector_of(I32, lanes))
    # The magnitude of a float and its bit pattern grow together, whatever the sign.
    magnitude = constant(INT64, (1 << 63) - 1, lanes)
    wide = vector_of(I64, lanes)
    too_large = b.icmp_unsigned(
        ">", b.and_(b.bitcast(back, wide), magnitude), b.and_(b.bitcast(value, wide), magnitude)
    )
    truncated = b.select(too_large, b.sub(bits, constant(INT32, 1, lanes)), bits)
    odd = b.or_(truncated, constant(INT32, 1, lanes))
    return b.bitcast(b.select(inexact, odd, bits), nearest.type)


def _bfloat16_bits_in_place(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """float32 bits rounded to nearest even at bit 16, the low half cleared; NaN stays quiet NaN."""
    b = builder
    bits = b.bitcast(value, vector_of(I32, lanes))
    lowest_kept = b.and_(b.lshr(bits, constant(INT32, 16, lanes)), constant(INT32, 1, lanes))
    rounded = b.add(bits, b.add(lowest_kept, constant(INT32, 0x7FFF, lanes)))
    quiet = b.or_(bits, constant(INT32, 0x0040_0000, lanes))
    is_nan = b.fcmp_unordered("uno", value, value)
    return b.and_(b.select(is_nan, quiet, rounded), constant(INT32, -0x1_0000, lanes))
