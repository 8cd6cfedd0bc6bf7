"""Orthogonal polynomials, whose degree is an operand, by their recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.ops.special.base import SpecialFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.dtypes import DType
    from ostinato.ir.op import Attr

__all__ = ["FAMILIES", "FAMILY", "HIGHEST"]

#: The highest degree: every degree up to it is a step of the kernel.
HIGHEST = 256


def _chebyshev(x: Any, p: Any, q: Any, k: int) -> Any:
    return x * 2.0 * q - p


def _hermite(x: Any, p: Any, q: Any, k: int) -> Any:
    return x * 2.0 * q - p * float(2 * k)


def _hermite_e(x: Any, p: Any, q: Any, k: int) -> Any:
    return x * q - p * float(k)


def _laguerre(x: Any, p: Any, q: Any, k: int) -> Any:
    return ((float(2 * k + 1) - x) * q - p * float(k)) / float(k + 1)


def _legendre(x: Any, p: Any, q: Any, k: int) -> Any:
    return (x * q * float(2 * k + 1) - p * float(k)) / float(k + 1)


#: By family, the factor and the addend of the polynomial of degree 1, and the recurrence: it has
#: ``x``, the last two polynomials, and the degree of the last.
FAMILIES: Final[dict[str, tuple[float, float, Callable[[Any, Any, Any, int], Any]]]] = {
    "chebyshev_t": (1.0, 0.0, _chebyshev),
    "chebyshev_u": (2.0, 0.0, _chebyshev),
    "chebyshev_v": (2.0, -1.0, _chebyshev),
    "chebyshev_w": (2.0, 1.0, _chebyshev),
    "hermite_h": (2.0, 0.0, _hermite),
    "hermite_he": (1.0, 0.0, _hermite_e),
    "laguerre_l": (-1.0, 1.0, _laguerre),
    "legendre_p": (1.0, 0.0, _legendre),
}


class OrthogonalPolynomial(SpecialFunction):
    """The polynomial of a family of degree ``n`` at ``x``; 0 where ``n`` is negative.

    ``family`` is one of :data:`FAMILIES`; no degree is above ``most``, where the result is that of
    ``most``.
    """

    name = "orthogonal_polynomial"
    arity = 2
    parameters = ("family", "most")

    def check_attrs(self, **attrs: Attr) -> None:
        family, most = attrs["family"], attrs["most"]
        self.expect(family in FAMILIES, f"the family is one of {(*FAMILIES,)}, got {family!r}")
        known = isinstance(most, int) and not isinstance(most, bool)
        fits = known and 0 <= most <= HIGHEST
        self.expect(fits, f"the highest degree is an int from 0 to {HIGHEST}, got {most!r}")

    def common_dtype(self, *dtypes: DType) -> DType:
        return dtypes[0]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, n = operands
        factor, addend, step = FAMILIES[attrs["family"]]
        before, result = x * 0.0 + 1.0, x * factor + addend
        result = xp.where(n < 1.0, before, result)
        current = x * factor + addend
        for k in range(1, attrs["most"]):
            before, current = current, step(x, before, current, k)
            result = xp.where(n < float(k + 1), result, current)
        return xp.where(n < 0.0, 0.0, result)


FAMILY: tuple[SpecialFunction, ...] = (OrthogonalPolynomial(),)
