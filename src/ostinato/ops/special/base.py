"""The class of special functions, and the polynomials that they are made of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, FLOAT64, DType
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr

__all__ = ["SpecialFunction", "gaussian", "horner", "normalised", "sin_pi"]


class SpecialFunction(Elementwise):
    """A function that is computed in float64, whatever the dtype of its operands.

    So results are rounded once, and their accuracy does not depend on how a formula cancels: few
    formulas of these functions are good enough in float32.
    """

    domain = "float"
    cost = 60

    def operand_dtypes(self, *dtypes: DType, **attrs: Attr) -> tuple[DType, ...]:
        return (FLOAT64,) * len(dtypes)


def horner(x: Any, coefficients: Sequence[float]) -> Any:
    """The polynomial with these coefficients, lowest power first."""
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        result = result * x + coefficient
    return result


def normalised(x: Any, low: float, high: float) -> Any:
    """``x`` within ``low..high`` as a number from -1 to 1."""
    return (x - (low + high) / 2) * (2 / (high - low))


def gaussian(xp: Any, x: Any, scale: float) -> Any:
    """``exp(scale * x**2)`` without the rounding error of the square; ``x`` is less than 1e18."""
    head = xp.cast(xp.cast(x, FLOAT32), FLOAT64)  # its square is exact
    return xp.exp(head * head * scale) * xp.exp((x - head) * (x + head) * scale)


def sin_pi(xp: Any, x: Any) -> Any:
    """``sin(pi x)``, exact at whole numbers."""
    rest = x - 2.0 * xp.round(x * 0.5)
    near = xp.abs(rest)
    near = xp.where(near > 0.5, 1.0 - near, near)
    return xp.copysign(xp.sin(near * math.pi), rest)
