"""The gamma function's logarithm, its derivatives, and the Hurwitz zeta function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.lazy import LazyModule
from ostinato.ops.special.base import SpecialFunction, horner, sin_pi

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.ops.special import coefficients as table
else:
    table = LazyModule("ostinato.ops.special.coefficients")

__all__ = ["FAMILY", "lgamma", "stirling_rest"]

#: Bernoulli's numbers B2, B4, ...
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)

#: Beyond, the asymptotic series of the logarithm of the gamma function and of its derivative.
_ASYMPTOTIC = 10.0

#: The zero of digamma, as two numbers.
_ROOT, _ROOT_REST = 1.4616321449683622, 9.549995429965697e-17

#: The terms of the zeta function that are summed one by one.
_TERMS = 10


def stirling_rest(xp: Any, x: Any) -> Any:
    """The difference of ``lgamma`` from Stirling's formula for ``x >= 10``."""
    inverse = 1.0 / xp.maximum(x, _ASYMPTOTIC)
    series = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:8], 1)]
    return horner(inverse * inverse, series) * inverse


def lgamma(xp: Any, x: Any) -> Any:
    """``log(abs(gamma(x)))``.

    Stirling's series from 10 on; below, ``lgamma(2 + z) = z P(z)`` after as many steps of the
    recurrence as lead to ``z`` within -0.5 and 0.5. Negative numbers are reflected.
    """
    positive = xp.abs(x)
    moved, product = xp.minimum(positive, _ASYMPTOTIC), positive * 0.0 + 1.0
    for _ in range(8):
        more = moved > 2.5
        moved = xp.where(more, moved - 1.0, moved)
        product = xp.where(more, product * moved, product)
    below = moved < 1.5
    far_below = moved < 0.5
    # Where one or two steps lead up, z is counted from 1 or from 0: it keeps its last bits.
    z = xp.where(far_below, moved, xp.where(below, moved - 1.0, moved - 2.0))
    near = z * horner(2.0 * z, table.LOG_GAMMA)
    near = xp.where(below, near - xp.log1p(z), near)
    near = xp.where(far_below, near - xp.log(moved), near) + xp.log(product)
    rest = stirling_rest(xp, positive)
    far = (positive - 0.5) * (xp.log(positive) - 1.0) + (_HALF_LOG_2_PI - 0.5) + rest
    result = xp.where(positive > _ASYMPTOTIC, far, near)
    reflected = xp.log(math.pi / (positive * xp.abs(sin_pi(xp, positive)))) - result
    result = xp.where(x < 0.0, reflected, result)
    return xp.where(xp.isinf(x), positive, result)


class Lgamma(SpecialFunction):
    """The logarithm of the absolute value of the gamma function."""

    name = "lgamma"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return lgamma(xp, operands[0])


class Digamma(SpecialFunction):
    """The derivative of the logarithm of the gamma function; NaN at negative whole numbers.

    At 0 it is an infinity of the opposite sign.
    """

    name = "digamma"

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        negative = x < 0.0
        positive = xp.where(negative, 1.0 - x, x)
        moved = xp.minimum(positive, _ASYMPTOTIC)
        below = moved < 1.0
        sums = xp.where(below, -1.0 / moved, 0.0)
        moved = xp.where(below, moved + 1.0, moved)
        for _ in range(8):
            more = moved > 2.0
            moved = xp.where(more, moved - 1.0, moved)
            sums = xp.where(more, sums + 1.0 / moved, sums)
        from_root = (moved - _ROOT) - _ROOT_REST
        near = from_root * horner(2.0 * moved - 3.0, table.DIGAMMA) + sums
        inverse = 1.0 / xp.maximum(positive, _ASYMPTOTIC)
        square = inverse * inverse
        series = [b / (2 * k) for k, b in enumerate(_BERNOULLI[:8], 1)]
        far = xp.log(positive) - 0.5 * inverse - square * horner(square, series)
        result = xp.where(positive > _ASYMPTOTIC, far, near)
        rest = x - xp.round(x)
        reflected = result - math.pi / xp.tan(rest * math.pi)
        reflected = xp.where(rest == 0.0, math.nan, reflected)
        result = xp.where(negative, reflected, result)
        return xp.where(x == 0.0, -1.0 / x, xp.where(x == -math.inf, math.nan, result))


def _zeta(xp: Any, s: Any, q: Any) -> Any:
    """``sum((q + k)**-s)`` for ``s > 1`` and ``q > 0``: Euler and Maclaurin's formula."""
    sums = xp.pow(q, -s)
    for k in range(1, _TERMS):
        sums = sums + xp.pow(q + float(k), -s)
    last = q + float(_TERMS)
    power = xp.pow(last, -s)
    rest = last / (s - 1.0) + 0.5
    inverse = 1.0 / (last * last)
    factor = s / last
    for k, b in enumerate(_BERNOULLI, 1):
        rest = rest + factor * (b / math.factorial(2 * k))
        factor = factor * (s + float(2 * k - 1)) * (s + float(2 * k)) * inverse
    # Where nothing is left of the power, the factors may have overflowed.
    return xp.where(power == 0.0, sums, sums + power * rest)


class Zeta(SpecialFunction):
    """The Hurwitz zeta function ``zeta(s, q)``, the sum of ``(q + k)**-s`` over all ``k >= 0``.

    Infinite for ``s = 1`` and where ``q`` is 0 or a negative whole number; NaN for ``s < 1`` and
    other negative ``q``.
    """

    name = "zeta"
    arity = 2
    cost = 600

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        s, q = operands
        found = _zeta(xp, xp.maximum(s, 1.0 + 2**-52), xp.maximum(q, 0.0))
        found = xp.where(q == math.inf, 0.0, found)
        pole = xp.where(xp.floor(q) == q, math.inf, math.nan * q)
        found = xp.where(q > 0.0, found, pole)
        found = xp.where(s == 1.0, math.inf, found)
        undefined = xp.logical_or(s < 1.0, xp.logical_or(xp.isnan(s), xp.isnan(q)))
        return xp.where(undefined, math.nan, found)


class Polygamma(SpecialFunction):
    """The ``n``-th derivative of digamma, for ``n >= 1``.

    ``(-1)**(n + 1) n! zeta(n + 1, x)``; negative numbers are reflected. At 0 and negative whole
    numbers it is infinite, with the sign of the factor before ``zeta``, as in SciPy and PyTorch.
    """

    name = "polygamma"
    parameters = ("n",)
    cost = 600

    def check_attrs(self, **attrs: Attr) -> None:
        n = attrs["n"]
        known = isinstance(n, int) and not isinstance(n, bool)
        self.expect(known and 1 <= n <= 150, f"n is an int from 1 to 150, got {n!r}")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        n: int = attrs["n"]
        negative = x < 0.0
        positive = xp.where(negative, 1.0 - x, x)
        order = positive * 0.0 + float(n + 1)
        sign = 1.0 if n % 2 else -1.0
        result = _zeta(xp, order, positive) * (sign * float(math.factorial(n)))
        result = xp.where(positive == math.inf, 0.0, result)
        rest = x - xp.round(x)
        cotangent = 1.0 / xp.tan(rest * math.pi)
        derivative = horner(cotangent, _cotangent_derivative(n)) * math.pi ** (n + 1)
        reflected = -sign * result - derivative
        pole = sign * math.inf
        reflected = xp.where(rest == 0.0, pole, reflected)
        result = xp.where(negative, reflected, result)
        return xp.where(x == 0.0, pole, result)


def _cotangent_derivative(n: int) -> list[float]:
    """The ``n``-th derivative of the cotangent as a polynomial of it, lowest power first."""
    powers = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(powers)][1:]
        powers = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return [float(c) for c in powers]


FAMILY: tuple[SpecialFunction, ...] = (Lgamma(), Digamma(), Zeta(), Polygamma())
