"""Element types in LLVM: in registers and in memory.

float16 and bfloat16 are storage formats only. They are widened to float32 when loaded, computed
on as float32, and rounded once per graph op, so fused and unfused code give the same bits.
Narrow types are storage formats too (:mod:`ostinato.backends.cpu.llvm.narrow`).
bool is ``i1`` in registers and one byte, 0 or 1, in memory. Everything else is the same in both.

bfloat16 is converted with integer arithmetic: LLVM's own ``bfloat`` type is legal on too few
processors to rely on. float16 goes through ``half``, which needs F16C or AVX-512 to be fast; where
the CPU has neither, :mod:`ostinato.backends.cpu.llvm.toolchain` supplies the conversion routines.
"""

from __future__ import annotations

import functools
import math
import struct

from llvmlite import ir

from ostinato.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8, DType

__all__ = [
    "BYTE_POINTER",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "Scalar",
    "call_intrinsic",
    "constant",
    "mask_type",
    "memory_type",
    "register_dtype",
    "register_type",
    "vector_of",
]

Scalar = bool | int | float

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
BYTE_POINTER = ir.PointerType()
"""The one pointer type in use: opaque, whatever it points at."""

# Types are made once: each object of llvmlite's spells itself once, too.


def vector_of(element: ir.Type, lanes: int) -> ir.Type:
    """``element`` itself when ``lanes`` is 1, else the vector of that many."""
    return element if lanes == 1 else ir.VectorType(element, lanes)


@functools.cache
def mask_type(lanes: int) -> ir.Type:
    """The type of a mask over ``lanes`` lanes: ``i1`` or a vector of it."""
    return vector_of(I1, lanes)


@functools.cache
def register_dtype(dtype: DType) -> DType:
    """The dtype of registers: float32 for floats of 16 bits and less, bytes for narrow integers."""
    if dtype.is_narrow:
        form = dtype.format
        return (INT8 if form.signed else UINT8) if form.is_integer else FLOAT32
    return FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype


@functools.cache
def register_type(dtype: DType, lanes: int = 1) -> ir.Type:
    """The LLVM type of ``lanes`` values of ``dtype`` held in a register."""
    held = register_dtype(dtype)
    if held == BOOL:
        return mask_type(lanes)
    if held.is_integer:
        return vector_of(ir.IntType(held.bits), lanes)
    return vector_of(ir.DoubleType() if held == FLOAT64 else ir.FloatType(), lanes)


@functools.cache
def memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of one ``dtype`` element in memory; 16-bit floats are plain ``i16``."""
    if dtype in (FLOAT16, BFLOAT16):
        return I16
    return I8 if dtype == BOOL or dtype.is_narrow else register_type(dtype)


def constant(dtype: DType, value: Scalar, lanes: int = 1) -> ir.Constant:
    """``value`` in all lanes of a register of ``dtype``.

    Integers wrap to the width of the dtype; floats round to the register format.
    """
    return _literal(dtype, _constant_text(register_dtype(dtype), value), lanes)


@functools.lru_cache(maxsize=4096)
def _literal(dtype: DType, text: str, lanes: int) -> ir.Constant:
    """A constant by its spelling: kernels share most of theirs, and each spells itself once."""
    element = register_type(dtype)
    if lanes == 1:
        return ir.FormattedConstant(element, text)
    splat = ir.FormattedConstant(ir.VectorType(element, lanes), "")
    # Set afterwards: the constructor would spell every lane out, and sixteen lanes of text per
    # coefficient are most of what LLVM would then have to parse.
    splat.constant = f"splat ({element} {text})"
    return splat


def _constant_text(dtype: DType, value: Scalar) -> str:
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        return str(wrapped)
    return _float_text(float(value), single=dtype == FLOAT32)


def _float_text(value: float, *, single: bool) -> str:
    """LLVM's exact spelling: the bits of the float64 that equals the constant."""
    if single and math.isfinite(value):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"0x{bits:016X}"


def call_intrinsic(
    builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Value]
) -> ir.Value:
    """Calls the intrinsic or external function with this full name, declaring it once."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(result, [a.type for a in arguments])
        function = ir.Function(module, signature, name)
    return builder.call(function, arguments)
