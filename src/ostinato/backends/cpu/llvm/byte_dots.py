"""Sums of products of bytes, as the processor has them.

``total[i] + Σ_j left[steps * i + j] * right[steps * i + j]`` in 32 bits, exactly, wrapping. Four at
a time need AVX-512 VNNI or AVX-VNNI, whose instruction takes unsigned by signed bytes. Two at a
time any x86 does, after widening to 16 bits; elsewhere they are multiplied one by one.

AVX2 also adds two products of unsigned by signed bytes in 16 bits, saturating. Where numbers are
small enough that several such sums fit, this takes half as many instructions or fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.types import I1, I16, I32, call_intrinsic

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.dtypes import DType

__all__ = [
    "add_pairs",
    "add_products",
    "in_order",
    "magnitudes_of",
    "multiply_pairs",
    "pairs_of_products",
    "with_signs_of",
    "with_unsigned_left",
]

_MULTIPLY_PAIRS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
"""By lanes of the sum."""


def add_products(
    builder: ir.IRBuilder,
    target: TargetSpec,
    total: ir.Value,
    factors: tuple[ir.Value, ir.Value],
    dtypes: tuple[DType, DType],
    steps: int,
) -> ir.Value:
    """``total``, a vector of i32, plus the products of ``steps`` bytes for each of its lanes.

    Args:
        factors: two vectors of ``steps`` times as many bytes.
        dtypes: int8 or uint8 each.
        steps: 4 only where the target has the instruction, and for unlike dtypes.
    """
    lanes = total.type.count
    if steps == 4:
        left, right = factors if dtypes[1].is_signed else reversed(factors)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return call_intrinsic(builder, name, total.type, [total, left, right])
    if target.triple.startswith("x86") and lanes in _MULTIPLY_PAIRS:
        wide = [_widened(builder, f, d, I16) for f, d in zip(factors, dtypes, strict=True)]
        pairs = call_intrinsic(builder, _MULTIPLY_PAIRS[lanes], total.type, wide)
        return builder.add(total, pairs)
    for step in range(steps):
        parts = (_every(builder, factor, steps, step) for factor in factors)
        wide = [_widened(builder, p, d, I32) for p, d in zip(parts, dtypes, strict=True)]
        total = builder.add(total, builder.mul(*wide))
    return total


def pairs_of_products(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """The sums of two neighbouring products each, in 16 bits, saturating (AVX2).

    Args:
        left: 32 unsigned bytes.
        right: 32 signed bytes.
    """
    kind = ir.VectorType(I16, left.type.count // 2)
    return call_intrinsic(builder, "llvm.x86.avx2.pmadd.ub.sw", kind, [left, right])


def add_pairs(builder: ir.IRBuilder, total: ir.Value, pairs: ir.Value) -> ir.Value:
    """``total``, a vector of i32, plus two neighbouring 16-bit integers for each of its lanes."""
    return builder.add(total, multiply_pairs(builder, pairs, None))


def multiply_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value | None) -> ir.Value:
    """The sums of two neighbouring products of 16-bit integers each, in 32 bits.

    Args:
        right: ``None``: ones.
    """
    if right is None:
        right = ir.Constant(left.type, [1] * left.type.count)
    lanes = left.type.count // 2
    kind = ir.VectorType(I32, lanes)
    return call_intrinsic(builder, _MULTIPLY_PAIRS[lanes], kind, [left, right])


def in_order(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """``value``, a vector register of x86, computed before the next one that is passed here.

    LLVM else reorders the sums of a tile freely, and where it has 16 registers, keeps operands of
    many steps on the stack.
    """
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", "=x,0", [value], side_effect=True)


def with_unsigned_left(
    builder: ir.IRBuilder, left: ir.Value, right: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Bytes with the products of ``left`` and ``right``, both signed: the first ones unsigned.

    ``right`` is not -128, whose opposite is none of 8 bits.
    """
    return magnitudes_of(builder, left), with_signs_of(builder, left, right)


def magnitudes_of(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Signed bytes without their signs, as unsigned ones."""
    kind = value.type
    return call_intrinsic(builder, f"llvm.abs.v{kind.count}i8", kind, [value, I1(0)])


def with_signs_of(builder: ir.IRBuilder, signs: ir.Value, value: ir.Value) -> ir.Value:
    """Signed bytes other than -128, times the signs of others (AVX2)."""
    return call_intrinsic(builder, "llvm.x86.avx2.psign.b", value.type, [value, signs])


def _every(builder: ir.IRBuilder, value: ir.Value, steps: int, first: int) -> ir.Value:
    """Every ``steps``-th byte, from ``first`` on."""
    places = list(range(first, value.type.count, steps))
    selector = ir.Constant(ir.VectorType(I32, len(places)), places)
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), selector)


def _widened(builder: ir.IRBuilder, value: ir.Value, dtype: DType, element: ir.Type) -> ir.Value:
    to = ir.VectorType(element, value.type.count)
    return builder.sext(value, to) if dtype.is_signed else builder.zext(value, to)
