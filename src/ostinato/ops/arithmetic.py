"""Elementwise arithmetic and transcendental functions.

Each is a primitive of the array namespace: its rule is the namespace's function of that name.
Integers wrap; an integer divided by zero gives 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.ops.base import Domain, Elementwise

if TYPE_CHECKING:
    from ostinato.ir.op import Attr

__all__ = ["FAMILY", "Primitive"]


class Primitive(Elementwise):
    """An elementwise op that every array namespace has under the op's own name."""

    domain: ClassVar[Domain] = "numeric"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return getattr(xp, self.name)(*operands, **attrs)


class FloatFunction(Primitive):
    """A function of real numbers; integers are computed as float32."""

    result = "float"


class Neg(Primitive):
    """``-x``; unsigned integers wrap."""

    name = "neg"
    short = True


class Abs(Primitive):
    """The absolute value; the least signed integer wraps to itself."""

    name = "abs"
    short = True


class Sign(Primitive):
    """-1, 0 or 1; NaN stays NaN."""

    name = "sign"


class Square(Primitive):
    """``x * x``."""

    name = "square"
    short = True


class Reciprocal(FloatFunction):
    """``1 / x``."""

    name = "reciprocal"


class Exp(FloatFunction):
    """``e`` to the power of ``x``."""

    name = "exp"


class Exp2(FloatFunction):
    """2 to the power of ``x``."""

    name = "exp2"


class Expm1(FloatFunction):
    """``exp(x) - 1``, exact near zero."""

    name = "expm1"


class Log(FloatFunction):
    """The natural logarithm."""

    name = "log"


class Log2(FloatFunction):
    """The logarithm to base 2."""

    name = "log2"


class Log10(FloatFunction):
    """The logarithm to base 10."""

    name = "log10"


class Log1p(FloatFunction):
    """``log(1 + x)``, exact near zero."""

    name = "log1p"


class Sqrt(FloatFunction):
    """The square root; NaN below zero."""

    name = "sqrt"
    short = True


class Rsqrt(FloatFunction):
    """``1 / sqrt(x)``."""

    name = "rsqrt"
    short = True


class Sin(FloatFunction):
    """The sine of an angle in radians."""

    name = "sin"


class Cos(FloatFunction):
    """The cosine of an angle in radians."""

    name = "cos"


class Tan(FloatFunction):
    """The tangent of an angle in radians."""

    name = "tan"


class Asin(FloatFunction):
    """The inverse sine."""

    name = "asin"


class Acos(FloatFunction):
    """The inverse cosine."""

    name = "acos"


class Atan(FloatFunction):
    """The inverse tangent."""

    name = "atan"


class Sinh(FloatFunction):
    """The hyperbolic sine."""

    name = "sinh"


class Cosh(FloatFunction):
    """The hyperbolic cosine."""

    name = "cosh"


class Tanh(FloatFunction):
    """The hyperbolic tangent."""

    name = "tanh"


class Asinh(FloatFunction):
    """The inverse hyperbolic sine."""

    name = "asinh"


class Acosh(FloatFunction):
    """The inverse hyperbolic cosine."""

    name = "acosh"


class Atanh(FloatFunction):
    """The inverse hyperbolic tangent."""

    name = "atanh"


class Erf(FloatFunction):
    """The error function."""

    name = "erf"


class Rounding(Primitive):
    """A rounding of floats to whole numbers; the vocabulary returns integers unchanged."""

    domain = "float"


class Floor(Rounding):
    """The greatest whole number that is not above ``x``."""

    name = "floor"
    short = True


class Ceil(Rounding):
    """The least whole number that is not below ``x``."""

    name = "ceil"
    short = True


class Round(Rounding):
    """The nearest whole number, halves to even."""

    name = "round"
    short = True


class Trunc(Rounding):
    """The whole number next to ``x`` towards zero."""

    name = "trunc"
    short = True


class Binary(Primitive):
    """An arithmetic function of two numbers of one dtype."""

    arity = 2


class FloatBinary(Binary):
    """A binary function of real numbers; integers are computed as float32."""

    result = "float"


class Add(Binary):
    """``x + y``."""

    name = "add"
    short = True


class Subtract(Binary):
    """``x - y``."""

    name = "subtract"
    short = True


class Multiply(Binary):
    """``x * y``."""

    name = "multiply"
    short = True


class Divide(FloatBinary):
    """True division: integers give float32."""

    name = "divide"
    short = True


class FloorDivide(Binary):
    """``x / y`` rounded towards minus infinity; an integer divided by zero gives 0."""

    name = "floor_divide"


class Remainder(Binary):
    """The remainder with the sign of ``y``, as Python's ``%``; 0 for an integer by zero."""

    name = "remainder"


class Fmod(Binary):
    """The remainder with the sign of ``x``, as C's; 0 for an integer by zero."""

    name = "fmod"


class Pow(Binary):
    """``x`` to the power of ``y``. Integers wrap, and their negative powers truncate to 0 or ±1."""

    name = "pow"


class Maximum(Binary):
    """The greater of two; NaN where either is NaN."""

    name = "maximum"
    short = True


class Minimum(Binary):
    """The lesser of two; NaN where either is NaN."""

    name = "minimum"
    short = True


class Atan2(FloatBinary):
    """``atan2(y, x)``: the angle of the point ``(x, y)``, in its quadrant."""

    name = "atan2"


class Logaddexp(FloatBinary):
    """``log(exp(x) + exp(y))`` without overflow."""

    name = "logaddexp"
    cost = 6

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = operands
        # Equal infinities have no difference: their distance counts as 0.
        distance = xp.where(xp.equal(x, y), 0.0, xp.abs(x - y))
        return xp.maximum(x, y) + xp.log1p(xp.exp(-distance))


FAMILY: tuple[Elementwise, ...] = (
    Neg(),
    Abs(),
    Sign(),
    Square(),
    Reciprocal(),
    Exp(),
    Exp2(),
    Expm1(),
    Log(),
    Log2(),
    Log10(),
    Log1p(),
    Sqrt(),
    Rsqrt(),
    Sin(),
    Cos(),
    Tan(),
    Asin(),
    Acos(),
    Atan(),
    Sinh(),
    Cosh(),
    Tanh(),
    Asinh(),
    Acosh(),
    Atanh(),
    Erf(),
    Floor(),
    Ceil(),
    Round(),
    Trunc(),
    Add(),
    Subtract(),
    Multiply(),
    Divide(),
    FloorDivide(),
    Remainder(),
    Fmod(),
    Pow(),
    Maximum(),
    Minimum(),
    Atan2(),
    Logaddexp(),
)
