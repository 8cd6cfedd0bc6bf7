"""Polynomials and fused multiply-adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.lanes import Lane, Operand, intrinsic

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["exact_fma", "horner", "mad", "odd"]


def mad(x: Lane, y: Operand, z: Operand) -> Lane:
    """``x * y + z``, fused where that is fast."""
    return intrinsic("fmuladd", x, x.of(y), x.of(z))


def exact_fma(x: Lane, y: Operand, z: Operand) -> Lane:
    """``x * y + z`` with one rounding, even where the CPU has no instruction for it."""
    return intrinsic("fma", x, x.of(y), x.of(z))


def horner(x: Lane, coefficients: Sequence[float]) -> Lane:
    """The polynomial with these coefficients, lowest power first."""
    result = x.full(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = mad(result, x, coefficient)
    return result


def odd(x: Lane, square: Lane, tail: Sequence[float]) -> Lane:
    """``x + x**3 * tail(x**2)``, the usual form of an odd function near 0."""
    return mad(x * square, horner(square, tail), x)
