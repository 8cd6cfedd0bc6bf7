"""The elementwise methods: arithmetic, activations, comparisons, bits, selection, conversion.

Operands broadcast and promote; NumPy arrays and Python scalars are accepted beside values, and a
scalar takes the dtype of what it meets. All methods raise :class:`~ostinato.errors.GraphError`
for shapes that do not broadcast and for dtypes that the op does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T, VocabularyCore

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.ops import elementwise
else:
    elementwise = LazyModule("ostinato.ops.elementwise")

__all__ = ["ElementwiseVocabulary"]


class ElementwiseVocabulary(VocabularyCore[T]):
    """Methods whose result at an index depends on their operands at that index alone."""

    def _map(self, name: str, *operands: Any, **attrs: Attr) -> T:
        """The elementwise op ``name`` on operands that are lifted first."""
        return self._one(elementwise.ELEMENTWISE[name], *self._lift(*operands), **attrs)

    def _round(self, name: str, x: Any) -> T:
        """A rounding to whole numbers, which integers are already."""
        lifted, type_ = self._typed(x)
        return lifted if type_.dtype.is_integer else self._map(name, lifted)

    # -- arithmetic -------------------------------------------------------------------------------

    def neg(self, x: Any) -> T:
        """``-x``."""
        return self._map("neg", x)

    def abs(self, x: Any) -> T:
        """The absolute value."""
        return self._map("abs", x)

    def sign(self, x: Any) -> T:
        """-1, 0 or 1 by the sign of ``x``."""
        return self._map("sign", x)

    def square(self, x: Any) -> T:
        """``x * x``."""
        return self._map("square", x)

    def reciprocal(self, x: Any) -> T:
        """``1 / x``; integers give float32."""
        return self._map("reciprocal", x)

    def negative(self, x: Any) -> T:
        """Short for :meth:`neg`."""
        return self.neg(x)

    def add(self, x: Any, y: Any) -> T:
        """``x + y``."""
        return self._map("add", x, y)

    def subtract(self, x: Any, y: Any) -> T:
        """``x - y``."""
        return self._map("subtract", x, y)

    def multiply(self, x: Any, y: Any) -> T:
        """``x * y``."""
        return self._map("multiply", x, y)

    def divide(self, x: Any, y: Any) -> T:
        """``x / y``; integers give float32."""
        return self._map("divide", x, y)

    def sub(self, x: Any, y: Any) -> T:
        """Short for :meth:`subtract`."""
        return self.subtract(x, y)

    def mul(self, x: Any, y: Any) -> T:
        """Short for :meth:`multiply`."""
        return self.multiply(x, y)

    def div(self, x: Any, y: Any) -> T:
        """Short for :meth:`divide`."""
        return self.divide(x, y)

    def floor_divide(self, x: Any, y: Any) -> T:
        """``x // y``; an integer divided by zero gives 0."""
        return self._map("floor_divide", x, y)

    def remainder(self, x: Any, y: Any) -> T:
        """``x % y`` with the sign of ``y``; 0 for an integer by zero."""
        return self._map("remainder", x, y)

    def fmod(self, x: Any, y: Any) -> T:
        """The remainder with the sign of ``x``; 0 for an integer by zero."""
        return self._map("fmod", x, y)

    def pow(self, x: Any, y: Any) -> T:
        """``x ** y``; negative powers of integers truncate to 0 or ±1."""
        return self._map("pow", x, y)

    def maximum(self, x: Any, y: Any) -> T:
        """The greater of two; NaN where either is NaN."""
        return self._map("maximum", x, y)

    def minimum(self, x: Any, y: Any) -> T:
        """The lesser of two; NaN where either is NaN."""
        return self._map("minimum", x, y)

    def logaddexp(self, x: Any, y: Any) -> T:
        """``log(exp(x) + exp(y))`` without overflow."""
        return self._map("logaddexp", x, y)

    # -- functions of real numbers (integers give float32) ----------------------------------------

    def exp(self, x: Any) -> T:
        """``e ** x``."""
        return self._map("exp", x)

    def exp2(self, x: Any) -> T:
        """``2 ** x``."""
        return self._map("exp2", x)

    def expm1(self, x: Any) -> T:
        """``exp(x) - 1``, exact near zero."""
        return self._map("expm1", x)

    def log(self, x: Any) -> T:
        """The natural logarithm."""
        return self._map("log", x)

    def log2(self, x: Any) -> T:
        """The logarithm to base 2."""
        return self._map("log2", x)

    def log10(self, x: Any) -> T:
        """The logarithm to base 10."""
        return self._map("log10", x)

    def log1p(self, x: Any) -> T:
        """``log(1 + x)``, exact near zero."""
        return self._map("log1p", x)

    def sqrt(self, x: Any) -> T:
        """The square root; NaN below zero."""
        return self._map("sqrt", x)

    def rsqrt(self, x: Any) -> T:
        """``1 / sqrt(x)``."""
        return self._map("rsqrt", x)

    def sin(self, x: Any) -> T:
        """The sine; radians."""
        return self._map("sin", x)

    def cos(self, x: Any) -> T:
        """The cosine; radians."""
        return self._map("cos", x)

    def tan(self, x: Any) -> T:
        """The tangent; radians."""
        return self._map("tan", x)

    def asin(self, x: Any) -> T:
        """The inverse sine."""
        return self._map("asin", x)

    def acos(self, x: Any) -> T:
        """The inverse cosine."""
        return self._map("acos", x)

    def atan(self, x: Any) -> T:
        """The inverse tangent."""
        return self._map("atan", x)

    def sinh(self, x: Any) -> T:
        """The hyperbolic sine."""
        return self._map("sinh", x)

    def cosh(self, x: Any) -> T:
        """The hyperbolic cosine."""
        return self._map("cosh", x)

    def tanh(self, x: Any) -> T:
        """The hyperbolic tangent."""
        return self._map("tanh", x)

    def asinh(self, x: Any) -> T:
        """The inverse hyperbolic sine."""
        return self._map("asinh", x)

    def acosh(self, x: Any) -> T:
        """The inverse hyperbolic cosine."""
        return self._map("acosh", x)

    def atanh(self, x: Any) -> T:
        """The inverse hyperbolic tangent."""
        return self._map("atanh", x)

    def erf(self, x: Any) -> T:
        """The error function."""
        return self._map("erf", x)

    def atan2(self, y: Any, x: Any) -> T:
        """The angle of the point ``(x, y)``, in its quadrant."""
        return self._map("atan2", y, x)

    def floor(self, x: Any) -> T:
        """The greatest whole number not above ``x``."""
        return self._round("floor", x)

    def ceil(self, x: Any) -> T:
        """The least whole number not below ``x``."""
        return self._round("ceil", x)

    def round(self, x: Any) -> T:
        """The nearest whole number, halves to even."""
        return self._round("round", x)

    def trunc(self, x: Any) -> T:
        """The whole number next to ``x`` towards zero."""
        return self._round("trunc", x)

    # -- activations ------------------------------------------------------------------------------

    def relu(self, x: Any) -> T:
        """``max(x, 0)``."""
        return self._map("relu", x)

    def relu6(self, x: Any) -> T:
        """``min(max(x, 0), 6)``."""
        return self._map("relu6", x)

    def leaky_relu(self, x: Any, alpha: float = 0.01) -> T:
        """``x`` above zero, ``alpha * x`` below."""
        return self._map("leaky_relu", x, alpha=_number("alpha", alpha))

    def prelu(self, x: Any, slope: Any) -> T:
        """``x`` above zero, ``slope * x`` below; ``slope`` broadcasts against ``x``."""
        return self._map("prelu", x, slope)

    def thresholded_relu(self, x: Any, alpha: float = 1.0) -> T:
        """``x`` above ``alpha``, else 0."""
        return self._map("thresholded_relu", x, alpha=_number("alpha", alpha))

    def elu(self, x: Any, alpha: float = 1.0) -> T:
        """``x`` above zero, ``alpha * (exp(x) - 1)`` below."""
        return self._map("elu", x, alpha=_number("alpha", alpha))

    def selu(self, x: Any) -> T:
        """``elu`` scaled for self-normalising networks."""
        return self._map("selu", x)

    def celu(self, x: Any, alpha: float = 1.0) -> T:
        """``x`` above zero, ``alpha * (exp(x / alpha) - 1)`` below; ``alpha`` is above zero."""
        return self._map("celu", x, alpha=_number("alpha", alpha))

    def sigmoid(self, x: Any) -> T:
        """``1 / (1 + exp(-x))``."""
        return self._map("sigmoid", x)

    def log_sigmoid(self, x: Any) -> T:
        """``log(sigmoid(x))`` without underflow."""
        return self._map("log_sigmoid", x)

    def hard_sigmoid(self, x: Any, alpha: float = 1 / 6, beta: float = 0.5) -> T:
        """``alpha * x + beta`` limited to 0..1."""
        attrs = {"alpha": _number("alpha", alpha), "beta": _number("beta", beta)}
        return self._map("hard_sigmoid", x, **attrs)

    def silu(self, x: Any) -> T:
        """``x * sigmoid(x)``."""
        return self._map("silu", x)

    def swish(self, x: Any) -> T:
        """Another name of :meth:`silu`."""
        return self.silu(x)

    def hard_swish(self, x: Any) -> T:
        """``x * relu6(x + 3) / 6``."""
        return self._map("hard_swish", x)

    def hard_tanh(self, x: Any, min: float = -1.0, max: float = 1.0) -> T:
        """``x`` limited to ``min..max``; integers give float32."""
        attrs = {"min": _number("min", min), "max": _number("max", max)}
        return self._map("hard_tanh", x, **attrs)

    def softplus(self, x: Any) -> T:
        """``log(1 + exp(x))`` without overflow."""
        return self._map("softplus", x)

    def softsign(self, x: Any) -> T:
        """``x / (1 + abs(x))``."""
        return self._map("softsign", x)

    def mish(self, x: Any) -> T:
        """``x * tanh(softplus(x))``."""
        return self._map("mish", x)

    def gelu(self, x: Any, approximate: bool = False) -> T:
        """``x`` times the normal cumulative at ``x``: through ``erf``, or ``tanh`` if approximate.

        Args:
            approximate: ``True`` (or ``"tanh"``) for the tanh form; ``False`` (or ``"none"``).
        """
        known: dict[Any, bool] = {False: False, True: True, "none": False, "tanh": True}
        if not isinstance(approximate, bool | str) or approximate not in known:
            raise GraphError(f"gelu: approximate is a bool, got {approximate!r}")
        return self._map("gelu", x, approximate=known[approximate])

    # -- comparisons and logic (the result is bool) -----------------------------------------------

    def equal(self, x: Any, y: Any) -> T:
        """``x == y``, elementwise."""
        return self._map("equal", x, y)

    def not_equal(self, x: Any, y: Any) -> T:
        """``x != y``, elementwise."""
        return self._map("not_equal", x, y)

    def less(self, x: Any, y: Any) -> T:
        """``x < y``."""
        return self._map("less", x, y)

    def less_equal(self, x: Any, y: Any) -> T:
        """``x <= y``."""
        return self._map("less_equal", x, y)

    def greater(self, x: Any, y: Any) -> T:
        """``x > y``."""
        return self._map("greater", x, y)

    def greater_equal(self, x: Any, y: Any) -> T:
        """``x >= y``."""
        return self._map("greater_equal", x, y)

    def isnan(self, x: Any) -> T:
        """Whether a float is NaN."""
        return self._map("isnan", x)

    def isinf(self, x: Any) -> T:
        """Whether a float is infinite."""
        return self._map("isinf", x)

    def isfinite(self, x: Any) -> T:
        """Whether a float is neither NaN nor infinite."""
        return self._map("isfinite", x)

    def logical_not(self, x: Any) -> T:
        """``not x``, of bools."""
        return self._map("logical_not", x)

    def logical_and(self, x: Any, y: Any) -> T:
        """``x and y``, of bools."""
        return self._map("logical_and", x, y)

    def logical_or(self, x: Any, y: Any) -> T:
        """``x or y``, of bools."""
        return self._map("logical_or", x, y)

    def logical_xor(self, x: Any, y: Any) -> T:
        """Whether two bools differ."""
        return self._map("logical_xor", x, y)

    # -- bits of integers; a bool is one bit ------------------------------------------------------

    def bitwise_invert(self, x: Any) -> T:
        """Every bit flipped."""
        return self._map("bitwise_invert", x)

    def bitwise_and(self, x: Any, y: Any) -> T:
        """Bits set in both."""
        return self._map("bitwise_and", x, y)

    def bitwise_or(self, x: Any, y: Any) -> T:
        """Bits set in either."""
        return self._map("bitwise_or", x, y)

    def bitwise_xor(self, x: Any, y: Any) -> T:
        """Bits set in one alone."""
        return self._map("bitwise_xor", x, y)

    def bitwise_left_shift(self, x: Any, y: Any) -> T:
        """``x << y``; 0 once every bit is out."""
        return self._map("bitwise_left_shift", x, y)

    def bitwise_right_shift(self, x: Any, y: Any) -> T:
        """``x >> y``, keeping the sign; 0 or -1 once every bit is out."""
        return self._map("bitwise_right_shift", x, y)

    # -- selection and conversion -----------------------------------------------------------------

    def where(self, condition: Any, x: Any, y: Any) -> T:
        """``x`` where the bool ``condition`` holds, else ``y``."""
        (flags,) = self._lift(condition)
        return self._one(elementwise.ELEMENTWISE["where"], flags, *self._lift(x, y))

    def clip(self, x: Any, min: Any = None, max: Any = None) -> T:
        """``x`` limited to ``min..max``; ``None`` is no limit. Limits may be values too."""
        lifted, type_ = self._typed(x)
        limits = {"min": min, "max": max}
        if all(_is_scalar(v, type_.dtype) for v in limits.values()):
            numbers = {name: _limit(v, type_.dtype) for name, v in limits.items()}
            return self._map("clip", lifted, **numbers)
        if min is not None:
            lifted = self._map("maximum", lifted, min)
        return lifted if max is None else self._map("minimum", lifted, max)

    def cast(self, x: Any, dtype: Any) -> T:
        """``x`` converted to ``dtype``; ``x`` itself where it has that dtype.

        Floats become integers by truncation: out of range saturates, NaN gives 0. Integers wrap.
        Anything becomes bool by ``!= 0``.

        Raises:
            GraphError: no such dtype.
        """
        lifted, type_ = self._typed(x)
        target = DType.parse(dtype)
        return lifted if type_.dtype == target else self._map("cast", lifted, dtype=target)

    def bitcast(self, x: Any, dtype: Any) -> T:
        """The bits of ``x`` read as elements of ``dtype``, which is as wide.

        Raises:
            GraphError: no such dtype, or not as wide.
        """
        lifted, type_ = self._typed(x)
        target = DType.parse(dtype)
        if type_.dtype == target:
            return lifted
        return self._map("bitcast", lifted, source=type_.dtype, dtype=target)

    def astype(self, x: Any, dtype: Any) -> T:
        """The array API's name of :meth:`cast`."""
        return self.cast(x, dtype)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise GraphError(f"{name} is a number, got {value!r}")
    return float(value)


def _is_scalar(value: Any, dtype: DType) -> bool:
    """Whether a limit of ``clip`` can be an attribute: it is nothing, or a plain number."""
    kinds = int if dtype.is_integer else int | float
    return value is None or (isinstance(value, kinds) and not isinstance(value, bool))


def _limit(value: float | None, dtype: DType) -> float | None:
    """A limit in ``dtype``'s own numbers; integers cannot exceed their range anyway."""
    if value is None or not dtype.is_integer:
        return None if value is None else float(value)
    info = np.iinfo(dtype.numpy)
    return min(max(int(value), int(info.min)), int(info.max))
