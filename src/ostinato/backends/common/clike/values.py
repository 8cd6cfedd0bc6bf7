"""``CValue``: an element in a local variable, that writes C.

See :mod:`ostinato.backends.common.elements`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.elements import Element, Number, chosen_dtype, scalar_dtype
from ostinato.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, DType, promote
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.common.clike.dialect import Dialect
    from ostinato.backends.common.clike.writer import Writer

__all__ = [
    "CValue",
    "Code",
    "Operand",
    "align",
    "align_numeric",
    "function",
    "is_nan",
    "round_to",
    "where",
]


@dataclass(frozen=True, eq=False)
class Code:
    """A function's text, and the language that it is written in."""

    writer: Writer
    dialect: Dialect

    def keep(self, dtype: DType, text: str, *, rounded: bool = False) -> CValue:
        """The value of an expression, in a new local variable."""
        name = self.writer.fresh("t")
        self.writer.line(self.dialect.declare(self.dialect.register_type(dtype), name, text))
        return CValue(self, name, dtype, rounded)

    def constant(self, dtype: DType, value: Number) -> CValue:
        """A constant."""
        return CValue(self, self.dialect.literal(dtype, value), dtype)


@dataclass(frozen=True, eq=False)
class CValue(Element):
    """A value of one dtype: the name of a local variable, or a literal.

    Attributes:
        code: the function that it belongs to.
        text: an expression that is as cheap as a variable.
        dtype: the element type. A 16-bit float is held, and computed on, as float32.
        rounded: whether it is known to be a number of its dtype, though registers could hold more.
    """

    code: Code
    text: str
    dtype: DType
    rounded: bool = False

    __hash__ = object.__hash__

    def like(self, text: str) -> CValue:
        """The value of an expression of this value's dtype."""
        return self.code.keep(self.dtype, text)

    def full(self, value: Number) -> CValue:
        """The constant ``value`` in this value's dtype."""
        return self.code.constant(self.dtype, value)

    def of(self, operand: Operand) -> CValue:
        """An operand as a value; a Python scalar takes this one's dtype if it can."""
        if isinstance(operand, CValue):
            return operand
        return self.code.constant(scalar_dtype(operand, self.dtype), operand)

    def astype(self, dtype: DType) -> CValue:
        """Converted to ``dtype``, by the rule of the op ``cast``."""
        if dtype == self.dtype:
            return self
        text = self.code.dialect.convert(self.text, self.dtype, dtype)
        if text == self.text:
            return CValue(self.code, text, dtype)
        return self.code.keep(dtype, text, rounded=True)

    @property
    def stored(self) -> str:
        """The value in the form that arrays of its dtype have."""
        return self.code.dialect.to_memory(self.text, self.dtype, rounded=self.rounded)

    def bitcast(self, dtype: DType) -> CValue:
        """The same bits in memory read as a dtype of the same width."""
        return self.code.keep(dtype, self.code.dialect.bitcast(self.text, self.dtype, dtype))

    # Arithmetic ------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> CValue:
        return _called("add", self, other)

    def __sub__(self, other: Operand) -> CValue:
        return _called("subtract", self, other)

    def __mul__(self, other: Operand) -> CValue:
        return _called("multiply", self, other)

    def __truediv__(self, other: Operand) -> CValue:
        x, y = align(self, other)
        if not x.dtype.is_float:
            x, y = x.astype(FLOAT32), y.astype(FLOAT32)
        return x.like(x.code.dialect.operator("/", x.dtype, x.text, y.text))

    def __floordiv__(self, other: Operand) -> CValue:
        return function("floor_divide", *align_numeric(self, other))

    def __mod__(self, other: Operand) -> CValue:
        return function("floor_remainder", *align_numeric(self, other))

    def __neg__(self) -> CValue:
        return self if self.dtype.is_bool else function("negate", self)

    def __abs__(self) -> CValue:
        return function("absolute", self) if self.dtype.is_signed else self

    # Comparisons -----------------------------------------------------------------------------

    def __eq__(self, other: Operand) -> CValue:  # type: ignore[override]
        return _compared(self, other, "==")

    def __ne__(self, other: Operand) -> CValue:  # type: ignore[override]
        return _compared(self, other, "!=")

    def __lt__(self, other: Operand) -> CValue:
        return _compared(self, other, "<")

    def __le__(self, other: Operand) -> CValue:
        return _compared(self, other, "<=")

    def __gt__(self, other: Operand) -> CValue:
        return _compared(self, other, ">")

    def __ge__(self, other: Operand) -> CValue:
        return _compared(self, other, ">=")

    # Bits ------------------------------------------------------------------------------------

    def __and__(self, other: Operand) -> CValue:
        return _bitwise(self, other, "&")

    def __or__(self, other: Operand) -> CValue:
        return _bitwise(self, other, "|")

    def __xor__(self, other: Operand) -> CValue:
        return _bitwise(self, other, "^")

    def __lshift__(self, other: Operand) -> CValue:
        return function("shift_left", *align_numeric(self, other))

    def __rshift__(self, other: Operand) -> CValue:
        return function("shift_right", *align_numeric(self, other))


Operand = CValue | Number
"""Operand of an operator: a value or a Python scalar."""


def align(x: Operand, y: Operand) -> tuple[CValue, CValue]:
    """Both operands in their common dtype.

    Raises:
        GraphError: the dtypes have no common dtype.
        TypeError: neither operand is a value.
    """
    if not isinstance(x, CValue):
        if not isinstance(y, CValue):
            raise TypeError(f"one of {x!r} and {y!r} must be a value")
        x = y.of(x)
    y = x.of(y)
    dtype = promote(x.dtype, y.dtype)
    return _widened(x, dtype), _widened(y, dtype)


def align_numeric(x: Operand, y: Operand) -> tuple[CValue, CValue]:
    """Like :func:`align`; bools count as int8, as in NumPy where bool lacks the operation."""
    left, right = align(x, y)
    if left.dtype.is_bool:
        return left.astype(INT8), right.astype(INT8)
    return left, right


def function(name: str, first: CValue, *rest: CValue) -> CValue:
    """A function of the dialect's library whose operands and result have one dtype."""
    texts = [value.text for value in (first, *rest)]
    return first.like(first.code.dialect.call(name, first.dtype, *texts))


def is_nan(x: CValue) -> CValue:
    """Whether ``x`` is NaN; never for an integer."""
    if not x.dtype.is_float:
        return x.code.constant(BOOL, False)
    return x.code.keep(BOOL, x.code.dialect.is_nan(x.text, x.dtype))


def where(condition: CValue, x: Operand, y: Operand) -> CValue:
    """``x`` where the bool ``condition`` holds, else ``y``."""
    if not isinstance(x, CValue) and not isinstance(y, CValue):
        x = condition.code.constant(chosen_dtype(x, y), x)
    chosen, other = align(x, y)
    flag = condition.astype(BOOL)
    return chosen.like(chosen.code.dialect.select(flag.text, chosen.text, other.text))


def round_to(value: CValue, dtype: DType) -> CValue:
    """The result of a graph op as ``dtype``: converted if need be, rounded if a 16-bit float.

    Kernels call this once per graph op; float32 arithmetic inside one op is not rounded.
    """
    if value.dtype == dtype or (dtype in (FLOAT16, BFLOAT16) and value.dtype == FLOAT32):
        if value.dtype == dtype and value.rounded:
            return value
        text = value.code.dialect.round(value.text, dtype)
        if text == value.text:
            return CValue(value.code, text, dtype)
        return value.code.keep(dtype, text, rounded=True)
    return value.astype(dtype)


def _widened(value: CValue, dtype: DType) -> CValue:
    """``value`` promoted to ``dtype``; integers meeting a 16-bit float stay unrounded float32."""
    if dtype in (FLOAT16, BFLOAT16) and value.dtype != dtype:
        return CValue(value.code, value.astype(FLOAT32).text, dtype)  # not rounded
    return value.astype(dtype)


def _called(name: str, x: CValue, y: Operand) -> CValue:
    return function(name, *align(x, y))


def _bitwise(x: CValue, y: Operand, operator: str) -> CValue:
    left, right = align(x, y)
    return left.like(left.code.dialect.operator(operator, left.dtype, left.text, right.text))


def _compared(x: CValue, y: Operand, operator: str) -> CValue:
    left, right = align(x, y)
    compared = left.code.dialect.operator(operator, left.dtype, left.text, right.text)
    return left.code.keep(BOOL, compared)
