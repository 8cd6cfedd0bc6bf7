"""The array namespace ``xp`` that op rules receive when they generate code.

It has the names of the array API standard, and the few more that rules use, over
:class:`~ostinato.backends.common.elements.Element` instead of arrays. Functions accept Python
scalars beside elements as operators do. A 16-bit float is computed on as float32 and not rounded
in between; kernels round once per graph op.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from ostinato import dtypes
from ostinato.backends.common.elements import Element, Number
from ostinato.dtypes import BOOL, FLOAT32, DType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ElementNamespace", "as_float"]

E = TypeVar("E", bound=Element)


def _mathematics(name: str) -> Callable[[ElementNamespace[E], E], E]:
    """A namespace method computing a function of floats; bools and integers become float32."""

    def method(self: ElementNamespace[E], x: E) -> E:
        return self.mathematics(name, as_float(x))

    method.__name__ = method.__qualname__ = name
    return method


def _rounding(name: str, doc: str) -> Callable[[ElementNamespace[E], E], E]:
    """A namespace method rounding floats to integral values; integers stay as they are."""

    def method(self: ElementNamespace[E], x: E) -> E:
        return self.rounded(name, x) if x.dtype.is_float else x

    method.__doc__ = doc
    return method


def as_float(x: E) -> E:
    """``x`` for a function of floats: bools and integers become float32."""
    return x if x.dtype.is_float else x.astype(FLOAT32)


class ElementNamespace(ABC, Generic[E]):
    """``xp`` over elements of one kind. It has no state; one instance serves all kernels."""

    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
    bool = dtypes.BOOL
    int8, int16, int32, int64 = dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64
    uint8, uint16, uint32, uint64 = dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64
    float16, bfloat16 = dtypes.FLOAT16, dtypes.BFLOAT16
    float32, float64 = dtypes.FLOAT32, dtypes.FLOAT64

    # Functions of one kind of elements -----------------------------------------------------------

    @abstractmethod
    def align(self, x: E | Number, y: E | Number) -> tuple[E, E]:
        """Both operands in their common dtype.

        Raises:
            GraphError: the dtypes have no common dtype.
            TypeError: neither operand is an element.
        """

    @abstractmethod
    def operand(self, x: E | Number, y: E | Number) -> E:
        """The first of two operands as an element, so that its operators can be used."""

    @abstractmethod
    def mathematics(self, name: str, x: E) -> E:
        """An elementary function of a float."""

    @abstractmethod
    def rounded(self, name: str, x: E) -> E:
        """A float rounded by ``floor``, ``ceil``, ``round`` or ``trunc``."""

    @abstractmethod
    def flag(self, like: E, value: Number) -> E:
        """A constant bool, or as many as ``like`` has values."""

    @abstractmethod
    def where(self, condition: E, x: E | Number, y: E | Number) -> E:
        """``x`` where the bool ``condition`` holds, else ``y``."""

    @abstractmethod
    def fmod(self, x: E | Number, y: E | Number) -> E:
        """The remainder with the sign of ``x``, as in C."""

    @abstractmethod
    def pow(self, x: E | Number, y: E | Number) -> E:
        """``x ** y``; small constant exponents of floats become multiplications."""

    @abstractmethod
    def reciprocal(self, x: E) -> E:
        """``1 / x``, in the dtype of ``x``: 0 for integers but for 1 and -1."""

    @abstractmethod
    def sign(self, x: E) -> E:
        """-1, 0 or 1; NaN for NaN."""

    @abstractmethod
    def copysign(self, x: E | Number, y: E | Number) -> E:
        """``x`` with the sign of ``y``."""

    @abstractmethod
    def maximum(self, x: E | Number, y: E | Number) -> E:
        """The larger; NaN if either is NaN."""

    @abstractmethod
    def minimum(self, x: E | Number, y: E | Number) -> E:
        """The smaller; NaN if either is NaN."""

    @abstractmethod
    def atan2(self, y: E | Number, x: E | Number) -> E:
        """The angle of the point (x, y)."""

    @abstractmethod
    def isnan(self, x: E) -> E:
        """Whether ``x`` is NaN; never for an integer."""

    # Elementary functions ------------------------------------------------------------------------

    exp = _mathematics("exp")
    exp2 = _mathematics("exp2")
    expm1 = _mathematics("expm1")
    sinh = _mathematics("sinh")
    cosh = _mathematics("cosh")
    tanh = _mathematics("tanh")
    log = _mathematics("log")
    log2 = _mathematics("log2")
    log10 = _mathematics("log10")
    log1p = _mathematics("log1p")
    sin = _mathematics("sin")
    cos = _mathematics("cos")
    tan = _mathematics("tan")
    asin = _mathematics("asin")
    acos = _mathematics("acos")
    atan = _mathematics("atan")
    asinh = _mathematics("asinh")
    acosh = _mathematics("acosh")
    atanh = _mathematics("atanh")
    erf = _mathematics("erf")
    normal_cdf = _mathematics("normal_cdf")
    sqrt = _mathematics("sqrt")

    floor = _rounding("floor", "The largest integral value not above ``x``.")
    ceil = _rounding("ceil", "The smallest integral value not below ``x``.")
    round = _rounding("round", "The nearest integral value; halves go to the even one.")
    trunc = _rounding("trunc", "``x`` without its fraction.")

    # Arithmetic ----------------------------------------------------------------------------------

    def add(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) + y

    def subtract(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) - y

    def multiply(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) * y

    def divide(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) / y

    def floor_divide(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) // y

    def remainder(self, x: E | Number, y: E | Number) -> E:
        """The remainder with the sign of ``y``."""
        return self.operand(x, y) % y

    def neg(self, x: E) -> E:
        return -x

    def positive(self, x: E) -> E:
        return x

    def abs(self, x: E) -> E:
        return x.__abs__()

    def square(self, x: E) -> E:
        return x * x

    def silu(self, x: E) -> E:
        """``x`` times its logistic function."""
        return x / (1.0 + self.exp(-x))

    def rsqrt(self, x: E) -> E:
        return 1.0 / self.sqrt(x)

    def clip(self, x: E, min: E | Number | None = None, max: E | Number | None = None) -> E:
        """``x`` limited from below, then from above; NaN stays."""
        if min is not None:
            x = self.maximum(x, min)
        return x if max is None else self.minimum(x, max)

    def logaddexp(self, x: E | Number, y: E | Number) -> E:
        """``log(exp(x) + exp(y))`` without overflow."""
        left, right = self.align(x, y)
        left, right = as_float(left), as_float(right)
        larger = self.maximum(left, right)
        result = larger + self.log1p(self.exp(-self.abs(left - right)))
        # Equal infinities have no difference.
        return self.where(left == right, left + math.log(2.0), result)

    # Comparison and logic ------------------------------------------------------------------------

    def equal(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) == y

    def not_equal(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) != y

    def less(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) < y

    def less_equal(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) <= y

    def greater(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) > y

    def greater_equal(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) >= y

    def logical_not(self, x: E) -> E:
        return ~x.astype(BOOL)

    def logical_and(self, x: E | Number, y: E | Number) -> E:
        left, right = self.align(x, y)
        return left.astype(BOOL) & right.astype(BOOL)

    def logical_or(self, x: E | Number, y: E | Number) -> E:
        left, right = self.align(x, y)
        return left.astype(BOOL) | right.astype(BOOL)

    def logical_xor(self, x: E | Number, y: E | Number) -> E:
        left, right = self.align(x, y)
        return left.astype(BOOL) ^ right.astype(BOOL)

    def isinf(self, x: E) -> E:
        return self.equal(self.abs(x), math.inf) if x.dtype.is_float else self.flag(x, False)

    def isfinite(self, x: E) -> E:
        return self.abs(x) < math.inf if x.dtype.is_float else self.flag(x, True)

    def signbit(self, x: E) -> E:
        """Whether the sign is minus; true for -0."""
        if x.dtype.is_float:
            return self.copysign(x.full(1.0), x) < 0.0
        return x < 0 if x.dtype.is_signed else self.flag(x, False)

    # Bits ----------------------------------------------------------------------------------------

    def bitwise_invert(self, x: E) -> E:
        return ~x

    def bitwise_and(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) & y

    def bitwise_or(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) | y

    def bitwise_xor(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) ^ y

    def bitwise_left_shift(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) << y

    def bitwise_right_shift(self, x: E | Number, y: E | Number) -> E:
        return self.operand(x, y) >> y

    # Types ---------------------------------------------------------------------------------------

    def astype(self, x: E, dtype: DType | str) -> E:
        """``x`` converted by the rule of the op ``cast``."""
        return x.astype(DType.parse(dtype))

    def bitcast(self, x: E, source: DType, dtype: DType) -> E:
        """The bits of ``x``, of ``source``, read as ``dtype``."""
        return x.bitcast(dtype)

    def full_like(self, x: E, value: Number) -> E:
        return x.full(value)

    def zeros_like(self, x: E) -> E:
        return x.full(0)

    def ones_like(self, x: E) -> E:
        return x.full(1)

    # Other names of the same functions -----------------------------------------------------------

    def power(self, x: E | Number, y: E | Number) -> E:
        return self.pow(x, y)

    def arctan2(self, y: E | Number, x: E | Number) -> E:
        return self.atan2(y, x)

    negative = neg
    true_divide = divide
    mod = remainder
    cast = astype
    rint = round
    absolute = abs
    bitwise_not = bitwise_invert
    left_shift = bitwise_left_shift
    right_shift = bitwise_right_shift
    arcsin, arccos, arctan = asin, acos, atan
    arcsinh, arccosh, arctanh = asinh, acosh, atanh
