"""Stores of floats as bytes by whole numbers of steps, for which packs have code of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32, INT8, UINT8
from ostinato.lower.loopir.nodes import Apply, Number
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.op import Attr
    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nodes import Scalar, Store
    from ostinato.variables import Symbol

__all__ = ["Quantised"]


@dataclass(frozen=True)
class Quantised:
    """``clip(round(x / step) + zero, low, high)`` as a byte.

    Attributes:
        x: the float.
        step: what it is divided by, the same for neighbours.
        zero: a whole number, the same for neighbours; ``None``: 0.
        low: the least result, whole.
        high: the greatest one, whole.
    """

    x: Scalar
    step: Scalar
    zero: Scalar | None
    low: float
    high: float

    @staticmethod
    def of(store: Store, dtype: DType, axis: Symbol, dependences: Dependences) -> Quantised | None:
        """The form of a store of elements of a dtype, if its value has it.

        Args:
            store: the statement.
            dtype: of the array.
            axis: along which steps and zeros are the same.
            dependences: of the nest.
        """
        value = store.value
        if dtype not in (INT8, UINT8):
            return None
        if isinstance(value, Apply) and value.op == "cast" and value.dtype == dtype:
            (value,) = value.operands
        if not isinstance(value, Apply) or value.op != "clip" or value.dtype != FLOAT32:
            return None
        bounds = dict(value.attrs)
        low, high = (_whole(bounds.get(name), dtype) for name in ("min", "max"))
        (sum_,) = value.operands
        if low is None or high is None or sum_.dtype != FLOAT32:
            return None
        zero: Scalar | None = None
        rounded = sum_
        if _is(sum_, "add"):
            assert isinstance(sum_, Apply)
            rounded, zero = sum_.operands
            if not _is_rounded(zero):
                return None
        if not _is(rounded, "round"):
            return None
        assert isinstance(rounded, Apply)
        (quotient,) = rounded.operands
        if not _is(quotient, "divide"):
            return None
        assert isinstance(quotient, Apply)
        x, step = quotient.operands
        if any(axis in dependences.of(scalar) for scalar in (step, zero) if scalar is not None):
            return None
        return Quantised(x, step, zero, low, high)


def _is(scalar: Scalar | None, op: str) -> bool:
    """Whether a scalar is the result of an op of float32."""
    return (
        isinstance(scalar, Apply)
        and scalar.op == op
        and all(each.dtype == FLOAT32 for each in (scalar, *scalar.operands))
    )


def _whole(bound: Attr | None, dtype: DType) -> float | None:
    """A bound as a float, if it is a whole number of a dtype's range."""
    if not isinstance(bound, int | float):
        return None
    whole = float(bound).is_integer() and dtype.lowest <= bound <= dtype.highest
    return float(bound) if whole else None


def _is_rounded(scalar: Scalar) -> bool:
    """Whether a float is whole, infinite or NaN: a rounded one, perhaps between whole bounds."""
    while isinstance(scalar, Apply) and scalar.op in ("minimum", "maximum"):
        inner, bound = scalar.operands
        if not isinstance(bound, Number) or not float(bound.value).is_integer():
            return False
        scalar = inner
    return _is(scalar, "round")
