"""Integer arithmetic with every case defined: nothing here traps, and nothing is poison.

Tail lanes hold whatever they hold, so ``x // 0``, ``INT_MIN // -1`` and a shift by 99 must be as
harmless as any other input. The results are NumPy's: division by zero gives 0, overflow wraps,
shifting everything out gives 0 (or -1 for a negative value shifted right).

Functions take and return raw SSA values, scalars or vectors, of one integer type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.types import call_intrinsic, constant, vector_of
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["IntegerArithmetic"]


@dataclass(frozen=True)
class IntegerArithmetic:
    """Emits integer operations of one dtype and lane count at a builder's position."""

    builder: ir.IRBuilder
    dtype: DType
    lanes: int

    @property
    def signed(self) -> bool:
        return self.dtype.is_signed

    def constant(self, value: int) -> ir.Constant:
        return constant(self.dtype, value, self.lanes)

    def less(self, x: ir.Value, y: ir.Value) -> ir.Value:
        compare = self.builder.icmp_signed if self.signed else self.builder.icmp_unsigned
        return compare("<", x, y)

    def is_zero(self, x: ir.Value) -> ir.Value:
        return self.builder.icmp_signed("==", x, self.constant(0))

    def divide_truncated(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """C's ``x / y``; 0 where ``y`` is 0."""
        quotient = self._divide(x, self._safe_divisor(x, y))
        return self.builder.select(self.is_zero(y), self.constant(0), quotient)

    def remainder_truncated(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """C's ``x % y``, with the sign of ``x``; 0 where ``y`` is 0."""
        b = self.builder
        divisor = self._safe_divisor(x, y)
        remainder = b.sub(x, b.mul(self._divide(x, divisor), divisor))
        return b.select(self.is_zero(y), self.constant(0), remainder)

    def divide_floor(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Python's ``x // y``; 0 where ``y`` is 0."""
        return self._divide_floor(x, y)[0]

    def remainder_floor(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Python's ``x % y``, with the sign of ``y``; 0 where ``y`` is 0."""
        return self._divide_floor(x, y)[1]

    def shift_left(self, x: ir.Value, count: ir.Value) -> ir.Value:
        """``x << count``; 0 once everything is shifted out."""
        b = self.builder
        defined = b.icmp_unsigned("<", count, self.constant(self.dtype.bits))
        shifted = b.shl(x, b.select(defined, count, self.constant(0)))
        return b.select(defined, shifted, self.constant(0))

    def shift_right(self, x: ir.Value, count: ir.Value) -> ir.Value:
        """``x >> count``, arithmetic for signed types; 0 or -1 once everything is out."""
        b = self.builder
        defined = b.icmp_unsigned("<", count, self.constant(self.dtype.bits))
        if self.signed:
            return b.ashr(x, b.select(defined, count, self.constant(self.dtype.bits - 1)))
        shifted = b.lshr(x, b.select(defined, count, self.constant(0)))
        return b.select(defined, shifted, self.constant(0))

    def power(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """``x ** y`` by repeated squaring, wrapping.

        A negative exponent gives the exact result where it is an integer (bases 1 and -1) and
        0 elsewhere. One step per bit of the exponent type: the count cannot depend on a lane.
        """
        b = self.builder
        one, zero = self.constant(1), self.constant(0)
        result, base = one, x
        for bit in range(self.dtype.bits - int(self.signed)):
            taken = b.icmp_signed("!=", b.and_(y, self.constant(1 << bit)), zero)
            result = b.select(taken, b.mul(result, base), result)
            base = b.mul(base, base)
        return self._negative_power(x, y, result) if self.signed else result

    def power_by_constant(self, x: ir.Value, exponent: int) -> ir.Value:
        """``x ** exponent`` with only the multiplications that this exponent needs."""
        if exponent < 0:
            return self._negative_power(x, self.constant(exponent), self.constant(1))
        b = self.builder
        result: ir.Value = self.constant(1)
        base = x
        while exponent:
            if exponent & 1:
                result = b.mul(result, base)
            exponent >>= 1
            if exponent:
                base = b.mul(base, base)
        return result

    def extremum(self, which: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """The ``"max"`` or ``"min"`` of two values."""
        prefix = "s" if self.signed else "u"
        element = f"i{self.dtype.bits}"
        suffix = element if self.lanes == 1 else f"v{self.lanes}{element}"
        return call_intrinsic(self.builder, f"llvm.{prefix}{which}.{suffix}", x.type, [x, y])

    def _negative_power(self, x: ir.Value, y: ir.Value, otherwise: ir.Value) -> ir.Value:
        b = self.builder
        one, zero, minus_one = self.constant(1), self.constant(0), self.constant(-1)
        odd = b.icmp_signed("!=", b.and_(y, one), zero)
        of_minus_one = b.select(odd, minus_one, one)
        is_one = b.icmp_signed("==", x, one)
        is_minus_one = b.icmp_signed("==", x, minus_one)
        reciprocal = b.select(is_minus_one, of_minus_one, b.select(is_one, one, zero))
        return b.select(self.less(y, zero), reciprocal, otherwise)

    def _safe_divisor(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """``y``, or 1 where dividing by ``y`` would trap (0, and INT_MIN by -1)."""
        b = self.builder
        traps = self.is_zero(y)
        if self.signed:
            lowest = self.constant(-1 << (self.dtype.bits - 1))
            overflows = b.and_(
                b.icmp_signed("==", x, lowest), b.icmp_signed("==", y, self.constant(-1))
            )
            traps = b.or_(traps, overflows)
        return b.select(traps, self.constant(1), y)

    def _divide(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Truncated division by a divisor known to be safe.

        No vector unit divides integers, so LLVM would divide lane by lane. Up to 32 bits the
        float64 quotient is exact after truncation (float32 up to 16 bits): two such integers'
        quotient is at least 2**-32 away from the next integer unless it is one.
        """
        b = self.builder
        if self.lanes == 1 or self.dtype.bits == 64:
            return b.sdiv(x, y) if self.signed else b.udiv(x, y)
        wide = vector_of(ir.DoubleType() if self.dtype.bits == 32 else ir.FloatType(), self.lanes)
        to_float = b.sitofp if self.signed else b.uitofp
        from_float = b.fptosi if self.signed else b.fptoui
        return from_float(b.fdiv(to_float(x, wide), to_float(y, wide)), x.type)

    def _divide_floor(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        b = self.builder
        zero = self.constant(0)
        divisor = self._safe_divisor(x, y)
        quotient = self._divide(x, divisor)
        remainder = b.sub(x, b.mul(quotient, divisor))
        if self.signed:
            signs_differ = self.less(b.xor(remainder, divisor), zero)
            inexact = b.icmp_signed("!=", remainder, zero)
            adjust = b.and_(signs_differ, inexact)
            quotient = b.select(adjust, b.sub(quotient, self.constant(1)), quotient)
            remainder = b.select(adjust, b.add(remainder, divisor), remainder)
        by_zero = self.is_zero(y)
        return b.select(by_zero, zero, quotient), b.select(by_zero, zero, remainder)
