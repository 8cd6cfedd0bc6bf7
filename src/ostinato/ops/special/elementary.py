"""Functions that are elementary, but for their limits and the accuracy near them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import DType
from ostinato.ops.arithmetic import Binary, Primitive
from ostinato.ops.special.base import SpecialFunction, sin_pi

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.ops.base import Elementwise

__all__ = ["FAMILY"]

_GOLDEN = (1 + math.sqrt(5.0)) / 2


class Entr(SpecialFunction):
    """``-x * log(x)``; 0 at 0, minus infinity below."""

    name = "entr"
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        result = xp.where(x == 0.0, 0.0, -x * xp.log(x))
        return xp.where(x < 0.0, -math.inf, result)


class Xlogy(SpecialFunction):
    """``x * log(y)``; 0 where ``x`` is 0, unless ``y`` is NaN."""

    name = "xlogy"
    arity = 2
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = operands
        zero = xp.logical_and(x == 0.0, xp.logical_not(xp.isnan(y)))
        return xp.where(zero, 0.0, x * xp.log(y))


class Xlog1py(SpecialFunction):
    """``x * log(1 + y)``; 0 where ``x`` is 0, unless ``y`` is NaN."""

    name = "xlog1py"
    arity = 2
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = operands
        zero = xp.logical_and(x == 0.0, xp.logical_not(xp.isnan(y)))
        return xp.where(zero, 0.0, x * xp.log1p(y))


class Sinc(SpecialFunction):
    """``sin(pi x) / (pi x)``; 1 at 0."""

    name = "sinc"
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        return xp.where(x == 0.0, 1.0, sin_pi(xp, x) / (x * math.pi))


class Logit(SpecialFunction):
    """``log(x / (1 - x))``; NaN beyond 0 and 1."""

    name = "logit"
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        rest = 1.0 - x
        middle = xp.logical_and(x > 0.25, x < 0.75)
        return xp.where(middle, xp.log1p((2.0 * x - 1.0) / rest), xp.log(x / rest))


class Logaddexp2(SpecialFunction):
    """``log2(2**x + 2**y)`` without overflow."""

    name = "logaddexp2"
    arity = 2
    cost = 10

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = operands
        # Of equal operands the sum is one more than either. Computed, it could be off where the
        # result is 0 and a compiler fuses the product with the sum, or NaN for infinities.
        rest = xp.log1p(xp.exp2(-xp.abs(x - y))) * (1 / math.log(2.0))
        return xp.maximum(x, y) + xp.where(xp.equal(x, y), 1.0, rest)


class Hypot(Binary):
    """``sqrt(x**2 + y**2)`` without overflow; infinite where either is, NaN or not."""

    name = "hypot"
    domain = "float"
    cost = 6

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = (xp.abs(operand) for operand in operands)
        larger, smaller = xp.maximum(x, y), xp.minimum(x, y)
        ratio = smaller / xp.where(larger == 0.0, 1.0, larger)
        length = larger * xp.sqrt(1.0 + ratio * ratio)
        infinite = xp.logical_or(x == math.inf, y == math.inf)
        return xp.where(infinite, math.inf, length)


class Copysign(Binary):
    """The magnitude of ``x`` with the sign of ``y``."""

    name = "copysign"
    domain = "float"
    short = True


class Signbit(Primitive):
    """Whether the sign is minus: of -0 and of negative NaNs too."""

    name = "signbit"
    result = "bool"
    short = True


class Gcd(Binary):
    """The greatest common divisor, which is not negative; the least integers wrap."""

    name = "gcd"
    domain = "integer"
    cost = 0

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, y = operands
        # Euclid's algorithm takes the most steps for Fibonacci's numbers.
        bits = DType.parse(x.dtype).bits
        for _ in range(math.ceil(bits * math.log(2.0, _GOLDEN)) + 1):
            done = xp.equal(y, 0)
            x, y = xp.where(done, x, y), xp.where(done, y, xp.fmod(x, y))
        return xp.abs(x)


FAMILY: tuple[Elementwise, ...] = (
    Entr(),
    Xlogy(),
    Xlog1py(),
    Sinc(),
    Logit(),
    Logaddexp2(),
    Hypot(),
    Copysign(),
    Signbit(),
    Gcd(),
)
