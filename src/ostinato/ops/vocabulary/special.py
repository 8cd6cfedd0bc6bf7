"""The methods for special functions, and for the parts of floats.

Operands are those of elementwise methods. Special functions are computed in float64 and rounded
once; integers give float32.
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, FLOAT64, promote
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.op import Attr
    from ostinato.ops import elementwise
    from ostinato.ops.special import formats
else:
    elementwise = LazyModule("ostinato.ops.elementwise")
    formats = LazyModule("ostinato.ops.special.formats")

__all__ = ["SpecialVocabulary"]


class SpecialVocabulary(ElementwiseVocabulary[T]):
    """Special functions and parts of floats, elementwise."""

    # -- error functions and the normal distribution ----------------------------------------------

    def erfc(self, x: Any) -> T:
        """``1 - erf(x)``, accurate where that is small."""
        return self._real_map("erfc", x)

    def erfcx(self, x: Any) -> T:
        """``exp(x**2) * erfc(x)``."""
        return self._real_map("erfcx", x)

    def erfinv(self, x: Any) -> T:
        """The number whose error function is ``x``; NaN beyond -1 and 1."""
        return self._real_map("erfinv", x)

    def ndtr(self, x: Any) -> T:
        """The normal distribution's cumulative."""
        return self._real_map("ndtr", x)

    def log_ndtr(self, x: Any) -> T:
        """The logarithm of :meth:`ndtr`, without underflow."""
        return self._real_map("log_ndtr", x)

    def ndtri(self, p: Any) -> T:
        """The inverse of :meth:`ndtr`; NaN beyond 0 and 1."""
        return self._real_map("ndtri", p)

    # -- the gamma function's relatives -----------------------------------------------------------

    def lgamma(self, x: Any) -> T:
        """The logarithm of the absolute value of the gamma function."""
        return self._real_map("lgamma", x)

    def digamma(self, x: Any) -> T:
        """The derivative of :meth:`lgamma`; NaN at negative whole numbers."""
        return self._real_map("digamma", x)

    def polygamma(self, x: Any, n: int) -> T:
        """The ``n``-th derivative of :meth:`digamma`, for an int from 0 to 150."""
        order = operator.index(n)
        return self._real_map("polygamma", x, n=order) if order else self.digamma(x)

    def zeta(self, s: Any, q: Any) -> T:
        """The Hurwitz zeta function: the sum of ``(q + k)**-s`` over all ``k >= 0``.

        Infinite for ``s = 1``, and where ``q`` is 0 or a negative whole number; NaN for ``s < 1``
        and other negative ``q``.
        """
        return self._real_map("zeta", s, q)

    def igamma(self, a: Any, x: Any) -> T:
        """The lower regularised incomplete gamma function; NaN where an operand is negative."""
        return self._real_map("igamma", a, x)

    def igammac(self, a: Any, x: Any) -> T:
        """The upper regularised incomplete gamma function; NaN where an operand is negative."""
        return self._real_map("igammac", a, x)

    # -- orthogonal polynomials -------------------------------------------------------------------

    def orthogonal_polynomial(self, x: Any, n: Any, family: str, most: int | None = None) -> T:
        """The polynomial of degree ``n`` of a family, at ``x``; 0 where ``n`` is negative.

        Args:
            n: an int, or integers that broadcast against ``x``.
            family: ``"chebyshev_t"``, ``"chebyshev_u"``, ``"chebyshev_v"``, ``"chebyshev_w"``,
                ``"hermite_h"``, ``"hermite_he"``, ``"laguerre_l"`` or ``"legendre_p"``.
            most: the highest degree, at most 256, and as which higher ones count; ``n`` unless
                given. Degrees that are computed need it.
        """
        lifted, type_ = self._typed(x)
        if not type_.dtype.is_float:
            lifted = self.cast(lifted, FLOAT32)
        if most is None:
            if self.type_of(n) is not None:
                raise GraphError("degrees that are computed need the highest one: most=")
            degrees = np.asarray(n)
            most = max(int(degrees.max(initial=0)), 0)
        degree = self._typed(n)[0]
        op = elementwise.ELEMENTWISE["orthogonal_polynomial"]
        return self._one(op, lifted, degree, family=family, most=operator.index(most))

    def chebyshev_polynomial_t(self, x: Any, n: Any, most: int | None = None) -> T:
        """Chebyshev's polynomial of the first kind: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "chebyshev_t", most)

    def chebyshev_polynomial_u(self, x: Any, n: Any, most: int | None = None) -> T:
        """Chebyshev's polynomial of the second kind: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "chebyshev_u", most)

    def chebyshev_polynomial_v(self, x: Any, n: Any, most: int | None = None) -> T:
        """Chebyshev's polynomial of the third kind: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "chebyshev_v", most)

    def chebyshev_polynomial_w(self, x: Any, n: Any, most: int | None = None) -> T:
        """Chebyshev's polynomial of the fourth kind: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "chebyshev_w", most)

    def hermite_polynomial_h(self, x: Any, n: Any, most: int | None = None) -> T:
        """The physicist's Hermite polynomial: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "hermite_h", most)

    def hermite_polynomial_he(self, x: Any, n: Any, most: int | None = None) -> T:
        """The probabilist's Hermite polynomial: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "hermite_he", most)

    def laguerre_polynomial_l(self, x: Any, n: Any, most: int | None = None) -> T:
        """Laguerre's polynomial: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "laguerre_l", most)

    def legendre_polynomial_p(self, x: Any, n: Any, most: int | None = None) -> T:
        """Legendre's polynomial: see :meth:`orthogonal_polynomial`."""
        return self.orthogonal_polynomial(x, n, "legendre_p", most)

    # -- Bessel functions -------------------------------------------------------------------------

    def bessel_j0(self, x: Any) -> T:
        """The Bessel function of the first kind of order 0."""
        return self._real_map("bessel_j0", x)

    def bessel_j1(self, x: Any) -> T:
        """The Bessel function of the first kind of order 1."""
        return self._real_map("bessel_j1", x)

    def bessel_y0(self, x: Any) -> T:
        """The Bessel function of the second kind of order 0; NaN below 0."""
        return self._real_map("bessel_y0", x)

    def bessel_y1(self, x: Any) -> T:
        """The Bessel function of the second kind of order 1; NaN below 0."""
        return self._real_map("bessel_y1", x)

    def i0(self, x: Any) -> T:
        """The modified Bessel function of the first kind of order 0."""
        return self._real_map("i0", x)

    def i0e(self, x: Any) -> T:
        """``exp(-abs(x)) * i0(x)``."""
        return self._real_map("i0e", x)

    def i1(self, x: Any) -> T:
        """The modified Bessel function of the first kind of order 1."""
        return self._real_map("i1", x)

    def i1e(self, x: Any) -> T:
        """``exp(-abs(x)) * i1(x)``."""
        return self._real_map("i1e", x)

    def modified_bessel_i0(self, x: Any) -> T:
        """PyTorch's name of :meth:`i0`."""
        return self.i0(x)

    def modified_bessel_i1(self, x: Any) -> T:
        """PyTorch's name of :meth:`i1`."""
        return self.i1(x)

    def modified_bessel_k0(self, x: Any) -> T:
        """The modified Bessel function of the second kind of order 0; NaN below 0."""
        return self._real_map("modified_bessel_k0", x)

    def modified_bessel_k1(self, x: Any) -> T:
        """The modified Bessel function of the second kind of order 1; NaN below 0."""
        return self._real_map("modified_bessel_k1", x)

    def scaled_modified_bessel_k0(self, x: Any) -> T:
        """``exp(x) * modified_bessel_k0(x)``."""
        return self._real_map("scaled_modified_bessel_k0", x)

    def scaled_modified_bessel_k1(self, x: Any) -> T:
        """``exp(x) * modified_bessel_k1(x)``."""
        return self._real_map("scaled_modified_bessel_k1", x)

    def spherical_bessel_j0(self, x: Any) -> T:
        """``sin(x) / x``; 1 at 0."""
        return self._real_map("spherical_bessel_j0", x)

    # -- elementary, with their limits ------------------------------------------------------------

    def entr(self, x: Any) -> T:
        """``-x * log(x)``; 0 at 0, minus infinity below."""
        return self._real_map("entr", x)

    def xlogy(self, x: Any, y: Any) -> T:
        """``x * log(y)``; 0 where ``x`` is 0, unless ``y`` is NaN."""
        return self._real_map("xlogy", x, y)

    def xlog1py(self, x: Any, y: Any) -> T:
        """``x * log(1 + y)``; 0 where ``x`` is 0, unless ``y`` is NaN."""
        return self._real_map("xlog1py", x, y)

    def sinc(self, x: Any) -> T:
        """``sin(pi x) / (pi x)``; 1 at 0."""
        return self._real_map("sinc", x)

    def logit(self, x: Any, eps: float | None = None) -> T:
        """``log(x / (1 - x))``; NaN beyond 0 and 1.

        Args:
            eps: the distance from 0 and 1 to which ``x`` is limited before.
        """
        if eps is not None:
            x = self.clip(x, float(eps), 1.0 - float(eps))
        return self._real_map("logit", x)

    def logaddexp2(self, x: Any, y: Any) -> T:
        """``log2(2**x + 2**y)`` without overflow."""
        return self._real_map("logaddexp2", x, y)

    def hypot(self, x: Any, y: Any) -> T:
        """``sqrt(x**2 + y**2)`` without overflow; infinite where either is, NaN or not."""
        return self._real_map("hypot", x, y)

    def float_power(self, x: Any, y: Any) -> T:
        """``x ** y`` in float64."""
        wide = (self.cast(v, FLOAT64) for v in self._lift(x, y))
        return self._map("pow", *wide)

    def exp10(self, x: Any) -> T:
        """``10 ** x``."""
        lifted, type_ = self._typed(x)
        return self._map("pow", 10.0, lifted if type_.dtype.is_float else self.cast(x, FLOAT32))

    def heaviside(self, x: Any, values: Any) -> T:
        """0 below zero, 1 above, ``values`` at zero; NaN stays NaN."""
        lifted, other = self._lift(x, values)
        dtype = self._typed(lifted)[1].dtype
        step = self.cast(self._map("greater", lifted, 0), dtype)
        result = self.where(self._map("equal", lifted, 0), other, step)
        return self.where(self._map("isnan", lifted), lifted, result) if dtype.is_float else result

    def deg2rad(self, x: Any) -> T:
        """Degrees as radians."""
        return self._scaled(x, math.pi / 180)

    def rad2deg(self, x: Any) -> T:
        """Radians as degrees."""
        return self._scaled(x, 180 / math.pi)

    # -- whole numbers ----------------------------------------------------------------------------

    def gcd(self, x: Any, y: Any) -> T:
        """The greatest common divisor of integers, which is not negative."""
        return self._map("gcd", x, y)

    def lcm(self, x: Any, y: Any) -> T:
        """The least common multiple of integers, which is not negative; 0 where either is 0."""
        left, right = self._lift(x, y)
        divisor = self._map("gcd", left, right)
        share = self._map("floor_divide", left, self._map("maximum", divisor, 1))
        return self.abs(self._map("multiply", share, right))

    # -- signs and parts of floats ----------------------------------------------------------------

    def copysign(self, x: Any, y: Any) -> T:
        """The magnitude of ``x`` with the sign of ``y``; integers give float32."""
        return self._real_map("copysign", x, y)

    def signbit(self, x: Any) -> T:
        """Whether the sign is minus: of -0 and of negative NaNs too."""
        return self._map("signbit", x)

    def isposinf(self, x: Any) -> T:
        """Whether ``x`` is infinity."""
        return self._is(x, math.inf)

    def isneginf(self, x: Any) -> T:
        """Whether ``x`` is minus infinity."""
        return self._is(x, -math.inf)

    def nan_to_num(
        self, x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> T:
        """``x`` with other numbers for NaN and infinities: by default 0 and the extreme numbers."""
        lifted, type_ = self._typed(x)
        if not type_.dtype.is_float:
            return lifted
        greatest = formats.of(type_.dtype).greatest
        high = greatest if posinf is None else float(posinf)
        low = -greatest if neginf is None else float(neginf)
        result = self.where(self._map("equal", lifted, math.inf), high, lifted)
        result = self.where(self._map("equal", lifted, -math.inf), low, result)
        return self.where(self._map("isnan", lifted), float(nan), result)

    def fmax(self, x: Any, y: Any) -> T:
        """The greater of two; the other one where one is NaN."""
        return self._but_for_nan("maximum", x, y)

    def fmin(self, x: Any, y: Any) -> T:
        """The lesser of two; the other one where one is NaN."""
        return self._but_for_nan("minimum", x, y)

    def nextafter(self, x: Any, y: Any) -> T:
        """The number next to ``x`` towards ``y``, in their dtype."""
        return formats.next_after(self, *self._floats("nextafter", x, y))  # type: ignore[no-any-return]

    def ldexp(self, x: Any, n: Any) -> T:
        """``x * 2**n`` for whole ``n``, rounded once; integer ``x`` gives float32."""
        lifted, type_ = self._typed(x)
        dtype = type_.dtype if type_.dtype.is_float else FLOAT32
        wide = self.cast(lifted, dtype.accumulator)
        return self.cast(formats.scaled_by_power(self, wide, self._typed(n)[0]), dtype)

    def frexp(self, x: Any) -> tuple[T, T]:
        """A fraction from 0.5 to 1, and the int32 power of 2 that it is to be multiplied by.

        Of 0, infinities and NaN the fraction is ``x`` and the power 0.
        """
        lifted, type_ = self._typed(x)
        dtype = type_.dtype if type_.dtype.is_float else FLOAT32
        fraction, power = formats.fraction_and_power(self, self.cast(lifted, dtype.accumulator))
        return self.cast(fraction, dtype), power

    # -- machinery --------------------------------------------------------------------------------

    def _scaled(self, x: Any, factor: float) -> T:
        lifted, type_ = self._typed(x)
        dtype = type_.dtype if type_.dtype.is_float else FLOAT32
        return self.cast(self._map("multiply", self.cast(lifted, dtype.accumulator), factor), dtype)

    def _is(self, x: Any, infinity: float) -> T:
        lifted, type_ = self._typed(x)
        if type_.dtype.is_float:
            return self._map("equal", lifted, infinity)
        return self._map("not_equal", lifted, lifted)

    def _but_for_nan(self, name: str, x: Any, y: Any) -> T:
        left, right = self._lift(x, y)
        result = self._map(name, left, right)
        for one, other in ((right, left), (left, right)):
            if self._typed(one)[1].dtype.is_float:
                result = self.where(self._map("isnan", one), other, result)
        return result

    def _real_map(self, name: str, *operands: Any, **attrs: Attr) -> T:
        """The function ``name`` of floats; integers and bools alone are float32."""
        lifted = self._lift(*operands)
        common = self._common(lifted)
        dtype = common if common.is_float else FLOAT32
        real = (v if self._typed(v)[1].dtype.is_float else self.cast(v, dtype) for v in lifted)
        return self._map(name, *real, **attrs)

    def _floats(self, name: str, *operands: Any) -> tuple[T, ...]:
        """Operands in the one float dtype that they promote to."""
        lifted = self._lift(*operands)
        common = self._common(lifted)
        if not common.is_float:
            raise GraphError(f"{name} takes floats, got {common}; cast them first")
        return tuple(self.cast(operand, common) for operand in lifted)

    def _common(self, operands: Sequence[T]) -> DType:
        return reduce(promote, (self._typed(operand)[1].dtype for operand in operands))
