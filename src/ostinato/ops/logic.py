"""Comparisons, logic, bits, selection, conversion: elementwise, but no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, DType
from ostinato.ops.arithmetic import Primitive
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from ostinato.ir.op import Attr

__all__ = ["FAMILY"]


class Comparison(Primitive):
    """A bool for each pair of elements; false where either is NaN, but for ``not_equal``."""

    arity = 2
    result = "bool"
    domain = "any"


class Equal(Comparison):
    """``x == y``."""

    name = "equal"
    short = True


class NotEqual(Comparison):
    """``x != y``."""

    name = "not_equal"
    short = True


class Less(Comparison):
    """``x < y``."""

    name = "less"
    short = True


class LessEqual(Comparison):
    """``x <= y``."""

    name = "less_equal"
    short = True


class Greater(Comparison):
    """``x > y``."""

    name = "greater"
    short = True


class GreaterEqual(Comparison):
    """``x >= y``."""

    name = "greater_equal"
    short = True


class FloatTest(Primitive):
    """A bool for each float."""

    result = "bool"
    domain = "float"


class IsNan(FloatTest):
    """Whether ``x`` is NaN."""

    name = "isnan"
    short = True


class IsInf(FloatTest):
    """Whether ``x`` is an infinity of either sign."""

    name = "isinf"


class IsFinite(FloatTest):
    """Whether ``x`` is neither NaN nor infinite."""

    name = "isfinite"


class Logical(Primitive):
    """A function of truth values."""

    result = "bool"
    domain = "bool"


class LogicalNot(Logical):
    """``not x``."""

    name = "logical_not"
    short = True


class LogicalAnd(Logical):
    """``x and y``."""

    name = "logical_and"
    short = True
    arity = 2


class LogicalOr(Logical):
    """``x or y``."""

    name = "logical_or"
    short = True
    arity = 2


class LogicalXor(Logical):
    """``x != y``, for truth values."""

    name = "logical_xor"
    short = True
    arity = 2


class Bitwise(Primitive):
    """A function of the bits of integers; a bool is one bit."""

    domain = "integral"


class BitwiseInvert(Bitwise):
    """Every bit flipped."""

    name = "bitwise_invert"
    short = True


class BitwiseAnd(Bitwise):
    """Bits set in both."""

    name = "bitwise_and"
    short = True
    arity = 2


class BitwiseOr(Bitwise):
    """Bits set in either."""

    name = "bitwise_or"
    short = True
    arity = 2


class BitwiseXor(Bitwise):
    """Bits set in one alone."""

    name = "bitwise_xor"
    short = True
    arity = 2


class Shift(Primitive):
    """Bits moved by a count; a negative count, or one past the width, moves every bit out."""

    arity = 2
    domain = "integer"


class BitwiseLeftShift(Shift):
    """``x << y``."""

    name = "bitwise_left_shift"


class BitwiseRightShift(Shift):
    """``x >> y``; signed integers keep their sign."""

    name = "bitwise_right_shift"


class Where(Elementwise):
    """``x`` where a bool condition holds, else ``y``."""

    takes_narrow = True
    name = "where"
    short = True
    arity = 3

    def common_dtype(self, *dtypes: DType) -> DType:
        return super().common_dtype(*dtypes[1:])

    def result_dtype(self, *dtypes: DType, **attrs: Attr) -> DType:
        self.expect(dtypes[0].is_bool, f"the condition is bool, got {dtypes[0]}; compare it first")
        return super().result_dtype(*dtypes, **attrs)

    def operand_dtypes(self, *dtypes: DType, **attrs: Attr) -> tuple[DType, ...]:
        common = self.common_dtype(*dtypes)
        return (BOOL, common, common)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.where(*operands)


class Cast(Primitive):
    """``x`` converted to ``dtype``.

    Floats become integers by truncation: out of range saturates, NaN gives 0. Integers wrap.
    Anything becomes bool by ``!= 0``. What becomes a float is rounded to nearest, ties to even; out
    of the range of a narrow one it becomes infinite, NaN where the format has no infinity, or the
    greatest number where it has neither. Narrow integers are the low bits of an int32.
    """

    takes_narrow = True
    name = "cast"
    short = True
    parameters = ("dtype",)
    domain = "any"

    def result_dtype(self, *dtypes: DType, **attrs: Attr) -> DType:
        return attrs["dtype"]  # type: ignore[no-any-return]

    def check_attrs(self, **attrs: Attr) -> None:
        dtype = attrs["dtype"]
        self.expect(isinstance(dtype, DType), f"dtype is a DType, got {dtype!r}")


class Bitcast(Elementwise):
    """The bits of ``x``, a tensor of ``source``, read as elements of ``dtype``, which is as wide.

    A NaN of 16 bits or less may become another one on the way.
    """

    name = "bitcast"
    takes_narrow = True
    short = True
    parameters = ("source", "dtype")

    def result_dtype(self, *dtypes: DType, **attrs: Attr) -> DType:
        source, dtype = attrs["source"], attrs["dtype"]
        self.expect(dtypes == (source,), f"x is {dtypes[0]}, said to be {source}")
        self.expect(
            source.itemsize == dtype.itemsize, f"{source} and {dtype} are not of the same width"
        )
        return dtype  # type: ignore[no-any-return]

    def operand_dtypes(self, *dtypes: DType, **attrs: Attr) -> tuple[DType, ...]:
        return dtypes

    def check_attrs(self, **attrs: Attr) -> None:
        for name, dtype in attrs.items():
            self.expect(isinstance(dtype, DType), f"{name} is a DType, got {dtype!r}")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.bitcast(*operands, attrs["source"], attrs["dtype"])


class Clip(Elementwise):
    """``x`` limited to ``min..max``, either of which may be ``None``; NaN stays NaN."""

    name = "clip"
    short = True
    parameters = ("min", "max")
    domain = "numeric"
    cost = 2

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        if attrs["min"] is not None:
            x = xp.maximum(x, attrs["min"])
        return x if attrs["max"] is None else xp.minimum(x, attrs["max"])

    def check_attrs(self, **attrs: Attr) -> None:
        super().check_attrs(**{name: v for name, v in attrs.items() if v is not None})


FAMILY: tuple[Elementwise, ...] = (
    Equal(),
    NotEqual(),
    Less(),
    LessEqual(),
    Greater(),
    GreaterEqual(),
    IsNan(),
    IsInf(),
    IsFinite(),
    LogicalNot(),
    LogicalAnd(),
    LogicalOr(),
    LogicalXor(),
    BitwiseInvert(),
    BitwiseAnd(),
    BitwiseOr(),
    BitwiseXor(),
    BitwiseLeftShift(),
    BitwiseRightShift(),
    Where(),
    Cast(),
    Bitcast(),
    Clip(),
)
