"""Quotients of float32 by one divisor: by its reciprocal, with the bits of a division.

A divider of 512 bits gives a vector in the time of ten or more multiply-adds. With ``r`` for
``1 / y`` rounded, ``q``, the product ``x * r`` rounded, is within one and a half units in its last
place of ``x / y``. The remainder ``x - q * y`` times ``r``, added to ``q``, gives one of the two
floats around ``x / y``. From there the remainder is exact, and adding it once more is rounded as
the quotient is (P. Markstein, Computation of elementary functions on the IBM RISC System/6000
processor, 1990). That holds where quotients and remainders are normal; others are divided.
"""

from __future__ import annotations

from contextlib import nullcontext

from llvmlite import ir

from ostinato.backends.cpu.llvm.types import I1, I32, call_intrinsic, vector_of

__all__ = ["UniformDivisor"]

_FLOAT = ir.FloatType()

#: Exponents that bound dividends and divisors: quotients are normal, and so are remainders, which
#: are multiples of 2**-46 times the power of two below the dividend.
_DIVIDENDS, _DIVISORS = 100, 26

_SIGN, _BIAS, _FRACTION = 1 << 31, 127, 23


class UniformDivisor:
    """A float32 that vectors of so many lanes are divided by.

    What does not depend on a dividend is emitted once, behind ``y``: before the loop that divides.

    Args:
        builder: of the function; its processor must have fused multiply-adds.
        y: the divisor.
        lanes: of a dividend.
    """

    def __init__(self, builder: ir.IRBuilder, y: ir.Value, lanes: int) -> None:
        self.builder = b = builder
        made_by = y if isinstance(y, ir.Instruction) else None
        with nullcontext() if made_by is None else b.goto_block(made_by.parent):
            reciprocal = b.fdiv(_FLOAT(1.0), y)
            self._divisors, self._factors = (_repeated(b, v, lanes) for v in (y, reciprocal))
            # Divisors out of range leave no dividend in range.
            width = b.select(_within(b, y, _DIVISORS), I32(_span(_DIVIDENDS)), I32(0))
            self._width = _repeated(b, width, lanes)

    def quotient(self, x: ir.Value) -> ir.Value:
        """``x / y``, correctly rounded; adds basic blocks."""
        b, lanes = self.builder, x.type.count
        usual = b.icmp_unsigned("<", _offset(b, x, _DIVIDENDS), self._width)
        all_usual = call_intrinsic(b, f"llvm.vector.reduce.and.v{lanes}i1", I1, [usual])
        with b.if_else(all_usual, likely=True) as (then, otherwise):
            with then:
                corrected = _corrected(b, x, self._divisors, self._factors)
                by_reciprocal = b.block
            with otherwise:
                divided = b.fdiv(x, self._divisors)
                by_division = b.block
        quotient = b.phi(x.type)
        quotient.add_incoming(corrected, by_reciprocal)
        quotient.add_incoming(divided, by_division)
        return quotient


def _corrected(b: ir.IRBuilder, x: ir.Value, y: ir.Value, reciprocal: ir.Value) -> ir.Value:
    quotient = b.fmul(x, reciprocal)
    for _ in range(2):
        remainder = _fma(b, [b.fneg(quotient), y, x])
        quotient = _fma(b, [remainder, reciprocal, quotient])
    return quotient


def _within(b: ir.IRBuilder, x: ir.Value, exponent: int) -> ir.Value:
    """Whether the magnitude is from ``2**-exponent`` to below ``2**exponent``."""
    return b.icmp_unsigned("<", _offset(b, x, exponent), I32(_span(exponent)))


def _offset(b: ir.IRBuilder, x: ir.Value, exponent: int) -> ir.Value:
    """The bits of the magnitude, counted from those of ``2**-exponent``; unsigned."""
    lanes = getattr(x.type, "count", 1)
    integers = vector_of(I32, lanes)
    magnitude = b.and_(b.bitcast(x, integers), _number(_SIGN - 1, lanes))
    return b.sub(magnitude, _number((_BIAS - exponent) << _FRACTION, lanes))


def _span(exponent: int) -> int:
    """The number of magnitudes from ``2**-exponent`` to below ``2**exponent``."""
    return 2 * exponent << _FRACTION


def _number(value: int, lanes: int) -> ir.Constant:
    return I32(value) if lanes == 1 else ir.Constant(vector_of(I32, lanes), [I32(value)] * lanes)


def _repeated(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    vector = vector_of(value.type, lanes)
    undefined = ir.Constant(vector, ir.Undefined)
    first = b.insert_element(undefined, value, I32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(vector_of(I32, lanes), None))


def _fma(b: ir.IRBuilder, operands: list[ir.Value]) -> ir.Value:
    kind = operands[0].type
    return call_intrinsic(b, f"llvm.fma.v{kind.count}f32", kind, operands)
