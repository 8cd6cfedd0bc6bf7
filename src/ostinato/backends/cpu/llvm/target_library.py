"""Routines whose best form depends on the processor, supplied when a module is compiled.

Emitters stay ignorant of the target: they call ``ostinato.scale.v16f32`` by name, or convert
float16 and leave it to LLVM to call its runtime where the CPU cannot. What a module calls and
does not define is defined here, in a module to be linked into it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.conversion import round_to_odd
from ostinato.backends.cpu.llvm.lanes import Lane, where
from ostinato.backends.cpu.llvm.types import I8, I16, I32, call_intrinsic, register_type
from ostinato.backends.cpu.llvm.vecmath.formats import format_of
from ostinato.backends.cpu.llvm.vecmath.polynomial import mad
from ostinato.backends.cpu.llvm.vecmath.scaling import power_of_two
from ostinato.dtypes import BOOL, FLOAT32, FLOAT64, INT32

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["define_half_conversions", "define_half_of_double", "define_scaling"]

_SCALE = re.compile(r"ostinato\.scale\.(?:v(\d+))?f(32|64)")


def define_scaling(
    library: ir.Module, names: Iterable[str], *, avx512: bool, slow_underflow: bool
) -> None:
    """Defines those of ``names`` that are ``ostinato.scale`` functions.

    ``scale(x, n)`` is ``x * 2**n`` rounded once, for ``x`` below 2 and integral ``n`` of magnitude
    up to twice the exponent bias; NaN in ``x`` or ``n`` stays NaN.

    Args:
        avx512: whether one instruction does it.
        slow_underflow: whether what vanishes is to be zero without underflow.
    """
    for name in names:
        match = _SCALE.fullmatch(name)
        if match is None:
            continue
        lanes = int(match[1] or 1)
        dtype = FLOAT32 if match[2] == "32" else FLOAT64
        vector = register_type(dtype, lanes)
        function = ir.Function(library, ir.FunctionType(vector, [vector, vector]), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
        builder = ir.IRBuilder(function.append_basic_block())
        x, n = (Lane(builder, argument, dtype, lanes) for argument in function.args)
        present = _is_present(n) if slow_underflow else None
        if avx512:
            result = _scale_in_hardware(x, n, present)
        else:
            x = x if present is None else where(present, x, 0.0)
            result = _scale_in_two_steps(x, n)
        builder.ret(result.value)


def define_half_conversions(library: ir.Module) -> None:
    """LLVM's runtime routines for float16 on processors without F16C.

    They belong to a compiler's runtime library, which a Python process need not have loaded.
    """
    builder, argument = _runtime_function(library, "__extendhfsf2", ir.FloatType(), ir.HalfType())
    stored = builder.zext(builder.bitcast(argument, I16), I32)
    builder.ret(_extend_half(Lane(builder, stored, INT32, 1)).value)
    builder, argument = _runtime_function(library, "__truncsfhf2", ir.HalfType(), ir.FloatType())
    rounded = _round_to_half(Lane(builder, argument, FLOAT32, 1))
    builder.ret(builder.bitcast(builder.trunc(rounded.value, I16), ir.HalfType()))


def define_half_of_double(library: ir.Module) -> None:
    """LLVM's runtime routine for float16 of float64, where no instruction converts that.

    LLVM calls it of its own accord: the sign of a float16 that was a float32, and that a float64
    before, it takes from a direct conversion.
    """
    builder, argument = _runtime_function(library, "__truncdfhf2", ir.HalfType(), ir.DoubleType())
    builder.ret(builder.fptrunc(round_to_odd(builder, argument, 1), ir.HalfType()))


def _runtime_function(
    library: ir.Module, name: str, result: ir.Type, parameter: ir.Type
) -> tuple[ir.IRBuilder, ir.Value]:
    function = ir.Function(library, ir.FunctionType(result, [parameter]), name)
    function.linkage = "weak_odr"  # kept although the calls to it appear only later
    return ir.IRBuilder(function.append_basic_block()), function.args[0]


def _extend_half(stored: Lane) -> Lane:
    sign = (stored & 0x8000) << 16
    shifted = (stored & 0x7FFF) << 13
    rebias = (127 - 15) << 23
    normal = shifted + rebias
    special = normal + rebias
    # Subnormals: as the fraction of a number whose leading 1 is then subtracted.
    lowest = 2.0**-14
    subnormal = ((shifted + (rebias + (1 << 23))).bitcast(FLOAT32) - lowest).bitcast(INT32)
    magnitude = where(shifted >= (31 << 23), special, normal)
    magnitude = where(shifted < (1 << 23), subnormal, magnitude)
    return (magnitude | sign).bitcast(FLOAT32)


def _round_to_half(x: Lane) -> Lane:
    bits = x.bitcast(INT32)
    magnitude = bits & 0x7FFF_FFFF
    sign = (bits >> 16) & 0x8000
    tie_to_even = (magnitude >> 13) & 1
    normal = (magnitude - ((127 - 15) << 23) + 0xFFF + tie_to_even) >> 13
    # Added to 1/2, a subnormal half is rounded by the hardware at its last bit.
    half = magnitude.bitcast(FLOAT32) + 0.5
    subnormal = half.bitcast(INT32) - (126 << 23)
    not_a_number = ((magnitude >> 13) & 0x3FF) | 0x7E00
    special = where(magnitude > (255 << 23), not_a_number, 0x7C00)
    result = where(magnitude < ((127 - 14) << 23), subnormal, normal)
    return where(magnitude >= ((127 + 16) << 23), special, result) | sign


def _scale_in_two_steps(x: Lane, n: Lane) -> Lane:
    """Two exact powers of two, so that only the last product rounds."""
    form = format_of(x)
    first = mad(n, 0.5, form.magic) - form.magic
    return x * power_of_two(first, form) * power_of_two(n - first, form)


def _is_present(n: Lane) -> Lane:
    """Whether what is scaled by ``2**n`` does not vanish, or is NaN."""
    b, least = n.builder, n.full(format_of(n).vanishing)
    return Lane(b, b.fcmp_unordered(">", n.value, least.value), BOOL, n.lanes)


def _scale_in_hardware(x: Lane, n: Lane, present: Lane | None) -> Lane:
    """``vscalef`` on registers of 128, 256 or 512 bits, other widths in such pieces."""
    bits = x.lanes * x.dtype.bits
    if bits in (128, 256, 512):
        return _scalef(x, n, present)

    def part(start: int, lanes: int) -> Lane:
        """Some lanes; those past the end are undefined."""
        mask = None if present is None else _resized(present, start, lanes)
        return _scale_in_hardware(_resized(x, start, lanes), _resized(n, start, lanes), mask)

    if bits < 128:
        return _resized(part(0, 128 // x.dtype.bits), 0, x.lanes)
    half = 1 << ((x.lanes - 1).bit_length() - 1)
    return _joined(part(0, half), part(half, x.lanes - half))


def _scalef(x: Lane, n: Lane, present: Lane | None) -> Lane:
    b = x.builder
    bits = x.lanes * x.dtype.bits
    kind = "ps" if x.dtype == FLOAT32 else "pd"
    mask_type = I16 if x.lanes == 16 else I8
    mask, otherwise = mask_type(-1), x.value
    if present is not None:
        otherwise = x.full(0.0).value
        mask = b.bitcast(present.value, ir.IntType(x.lanes))
        mask = mask if x.lanes >= 8 else b.zext(mask, mask_type)
    arguments = [x.value, n.value, otherwise, mask]
    if bits == 512:
        arguments.append(I32(4))  # round as the current mode says
    name = f"llvm.x86.avx512.mask.scalef.{kind}.{bits}"
    return x.like(call_intrinsic(b, name, x.value.type, arguments))


def _resized(x: Lane, start: int, lanes: int) -> Lane:
    """``lanes`` lanes of ``x`` from ``start``; those past the end are undefined."""
    b = x.builder
    if lanes == 1:
        return Lane(b, b.extract_element(x.value, I32(start)), x.dtype, 1)
    if x.lanes == 1:
        empty = ir.Constant(register_type(x.dtype, lanes), ir.Undefined)
        return Lane(b, b.insert_element(empty, x.value, I32(0)), x.dtype, lanes)
    return Lane(b, _shuffle(x, x, range(start, start + lanes)), x.dtype, lanes)


def _joined(low: Lane, high: Lane) -> Lane:
    lanes = low.lanes + high.lanes
    widened = _resized(high, 0, low.lanes)
    return Lane(low.builder, _shuffle(low, widened, range(lanes)), low.dtype, lanes)


def _shuffle(x: Lane, y: Lane, selection: range) -> ir.Value:
    limit = 2 * x.lanes
    mask = ir.Constant(
        ir.VectorType(I32, len(selection)), [I32(k if k < limit else 0) for k in selection]
    )
    return x.builder.shuffle_vector(x.value, y.value, mask)
