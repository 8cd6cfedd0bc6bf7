"""``Lane``: an element in a register, that emits instructions.

See :mod:`ostinato.backends.common.elements`. One lane meets many by being repeated.
Plain arithmetic carries no fast-math flags: what the user wrote is what runs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.common.elements import Element, chosen_dtype, scalar_dtype
from ostinato.backends.cpu.llvm.conversion import (
    convert,
    from_memory,
    overload_suffix,
    round_register,
    to_memory,
)
from ostinato.backends.cpu.llvm.integers import IntegerArithmetic
from ostinato.backends.cpu.llvm.types import (
    I32,
    Scalar,
    call_intrinsic,
    constant,
    memory_type,
    register_type,
    vector_of,
)
from ostinato.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, DType, promote
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Lane",
    "Operand",
    "align",
    "align_numeric",
    "broadcast",
    "intrinsic",
    "is_nan",
    "round_to",
    "where",
]

_FIRST = I32(0)


@dataclass(frozen=True, eq=False)
class Lane(Element):
    """``lanes`` values of one dtype in a register.

    Attributes:
        builder: where instructions on this value are emitted.
        value: the SSA value, of type ``register_type(dtype, lanes)``.
        dtype: the element type. A 16-bit float is held, and computed on, as float32.
        lanes: how many values; 1 is a scalar register.
    """

    builder: ir.IRBuilder
    value: ir.Value
    dtype: DType
    lanes: int

    __hash__ = object.__hash__

    def like(self, value: ir.Value) -> Lane:
        """``value``, of this lane's type, as a lane."""
        return Lane(self.builder, value, self.dtype, self.lanes)

    def flags(self, value: ir.Value) -> Lane:
        """``value``, one ``i1`` per lane, as a bool lane."""
        return Lane(self.builder, value, BOOL, self.lanes)

    def full(self, value: Scalar) -> Lane:
        """The constant ``value`` in this lane's dtype and width."""
        return self.like(constant(self.dtype, value, self.lanes))

    def of(self, operand: Operand) -> Lane:
        """An operand as a lane; a Python scalar takes this one's dtype if it can, and its width."""
        if isinstance(operand, Lane):
            return operand
        dtype = scalar_dtype(operand, self.dtype)
        return Lane(self.builder, constant(dtype, operand, self.lanes), dtype, self.lanes)

    def astype(self, dtype: DType) -> Lane:
        """Converted to ``dtype`` (see :func:`ostinato.backends.cpu.llvm.conversion.convert`)."""
        value = convert(self.builder, self.value, self.dtype, dtype, self.lanes)
        return Lane(self.builder, value, dtype, self.lanes)

    def bitcast(self, dtype: DType) -> Lane:
        """The same bits in memory read as a dtype of the same width."""
        stored = to_memory(self.builder, self.value, self.dtype, self.lanes)
        stored = self.builder.bitcast(stored, vector_of(memory_type(dtype), self.lanes))
        value = from_memory(self.builder, stored, dtype, self.lanes)
        return Lane(self.builder, value, dtype, self.lanes)

    @property
    def integers(self) -> IntegerArithmetic:
        """The integer arithmetic of this lane's dtype and width."""
        return IntegerArithmetic(self.builder, self.dtype, self.lanes)

    # Arithmetic ------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Lane:
        return _arithmetic(self, other, "fadd", "add", "or_")

    def __sub__(self, other: Operand) -> Lane:
        return _arithmetic(self, other, "fsub", "sub", "xor")

    def __mul__(self, other: Operand) -> Lane:
        return _arithmetic(self, other, "fmul", "mul", "and_")

    def __truediv__(self, other: Operand) -> Lane:
        x, y = align(self, other)
        if not x.dtype.is_float:
            x, y = x.astype(FLOAT32), y.astype(FLOAT32)
        return x.like(x.builder.fdiv(x.value, y.value))

    def __floordiv__(self, other: Operand) -> Lane:
        x, y = align_numeric(self, other)
        if x.dtype.is_float:
            return _float_divmod(x, y)[0]
        return x.like(x.integers.divide_floor(x.value, y.value))

    def __mod__(self, other: Operand) -> Lane:
        x, y = align_numeric(self, other)
        if x.dtype.is_float:
            return _float_divmod(x, y)[1]
        return x.like(x.integers.remainder_floor(x.value, y.value))

    def __neg__(self) -> Lane:
        if self.dtype.is_float:
            return self.like(self.builder.fneg(self.value))
        return self if self.dtype.is_bool else self.like(self.builder.neg(self.value))

    def __abs__(self) -> Lane:
        if self.dtype.is_float:
            return intrinsic("fabs", self)
        return where(self < 0, -self, self) if self.dtype.is_signed else self

    # Comparisons -----------------------------------------------------------------------------

    def __eq__(self, other: Operand) -> Lane:  # type: ignore[override]
        return _compare(self, other, "==")

    def __ne__(self, other: Operand) -> Lane:  # type: ignore[override]
        return _compare(self, other, "!=")

    def __lt__(self, other: Operand) -> Lane:
        return _compare(self, other, "<")

    def __le__(self, other: Operand) -> Lane:
        return _compare(self, other, "<=")

    def __gt__(self, other: Operand) -> Lane:
        return _compare(self, other, ">")

    def __ge__(self, other: Operand) -> Lane:
        return _compare(self, other, ">=")

    # Bits ------------------------------------------------------------------------------------

    def __and__(self, other: Operand) -> Lane:
        return _bitwise(self, other, "and_")

    def __or__(self, other: Operand) -> Lane:
        return _bitwise(self, other, "or_")

    def __xor__(self, other: Operand) -> Lane:
        return _bitwise(self, other, "xor")

    def __lshift__(self, other: Operand) -> Lane:
        x, y = align_numeric(self, other)
        return x.like(x.integers.shift_left(x.value, y.value))

    def __rshift__(self, other: Operand) -> Lane:
        x, y = align_numeric(self, other)
        return x.like(x.integers.shift_right(x.value, y.value))


Operand = Lane | Scalar
"""Operand of an operator: a lane or a Python scalar."""


def broadcast(lane: Lane, lanes: int) -> Lane:
    """One value repeated in ``lanes`` lanes; a lane of that width already is returned as it is."""
    if lane.lanes == lanes:
        return lane
    b = lane.builder
    undefined, selector = _repetition(lane.dtype, lanes)
    first = b.insert_element(undefined, lane.value, _FIRST)
    return Lane(b, b.shuffle_vector(first, undefined, selector), lane.dtype, lanes)


@functools.cache
def _repetition(dtype: DType, lanes: int) -> tuple[ir.Constant, ir.Constant]:
    """The vector that one value is put into, and the selector of that value for all lanes."""
    undefined = ir.Constant(register_type(dtype, lanes), ir.Undefined)
    return undefined, ir.Constant(ir.VectorType(I32, lanes), None)


def align(x: Operand, y: Operand) -> tuple[Lane, Lane]:
    """Both operands in their common dtype and lane count.

    Raises:
        GraphError: the dtypes have no common dtype.
        TypeError: neither operand is a lane.
    """
    if not isinstance(x, Lane):
        if not isinstance(y, Lane):
            raise TypeError(f"one of {x!r} and {y!r} must be a lane")
        x = y.of(x)
    y = x.of(y)
    lanes = max(x.lanes, y.lanes)
    dtype = promote(x.dtype, y.dtype)
    return broadcast(_widened(x, dtype), lanes), broadcast(_widened(y, dtype), lanes)


def intrinsic(name: str, first: Lane, *rest: Lane) -> Lane:
    """Calls ``llvm.<name>`` overloaded on one type shared by operands and result."""
    suffix = overload_suffix(first.dtype, first.lanes)
    values = [first.value, *(lane.value for lane in rest)]
    return first.like(
        call_intrinsic(first.builder, f"llvm.{name}.{suffix}", first.value.type, values)
    )


def is_nan(x: Lane) -> Lane:
    """A mask of the lanes that are NaN; none of an integer."""
    if not x.dtype.is_float:
        return x.flags(constant(BOOL, False, x.lanes))
    return x.flags(x.builder.fcmp_unordered("uno", x.value, x.value))


def where(condition: Lane, x: Operand, y: Operand) -> Lane:
    """``x`` where the bool ``condition`` holds, else ``y``."""
    if not isinstance(x, Lane) and not isinstance(y, Lane):
        dtype = chosen_dtype(x, y)
        x = Lane(condition.builder, constant(dtype, x, condition.lanes), dtype, condition.lanes)
    chosen, other = align(x, y)
    lanes = max(condition.lanes, chosen.lanes)
    chosen, other = broadcast(chosen, lanes), broadcast(other, lanes)
    # A select on one i1 picks whole vectors, so a scalar condition needs no repeating.
    flags = condition if condition.dtype.is_bool else condition.astype(BOOL)
    return chosen.like(chosen.builder.select(flags.value, chosen.value, other.value))


def round_to(lane: Lane, dtype: DType) -> Lane:
    """The result of a graph op as ``dtype``: converted if need be, rounded if a 16-bit float.

    Kernels call this once per graph op; float32 arithmetic inside one op is not rounded.
    """
    if lane.dtype == dtype or (dtype in (FLOAT16, BFLOAT16) and lane.dtype == FLOAT32):
        value = round_register(lane.builder, lane.value, dtype, lane.lanes)
        return Lane(lane.builder, value, dtype, lane.lanes)
    return lane.astype(dtype)


def _widened(lane: Lane, dtype: DType) -> Lane:
    """``lane`` promoted to ``dtype``; integers meeting a 16-bit float stay unrounded float32."""
    if dtype in (FLOAT16, BFLOAT16) and lane.dtype != dtype:
        return Lane(lane.builder, lane.astype(FLOAT32).value, dtype, lane.lanes)
    return lane.astype(dtype)


def align_numeric(x: Operand, y: Operand) -> tuple[Lane, Lane]:
    """Like :func:`align`; bools count as int8, as in NumPy where bool lacks the operation."""
    left, right = align(x, y)
    if left.dtype.is_bool:
        return left.astype(INT8), right.astype(INT8)
    return left, right


def _arithmetic(x: Lane, y: Operand, on_floats: str, on_integers: str, on_bools: str) -> Lane:
    left, right = align(x, y)
    name = on_floats if left.dtype.is_float else on_integers
    if left.dtype.is_bool:
        name = on_bools
    return left.like(getattr(left.builder, name)(left.value, right.value))


def _bitwise(x: Lane, y: Operand, name: str) -> Lane:
    left, right = align(x, y)
    return left.like(getattr(left.builder, name)(left.value, right.value))


def _compare(x: Lane, y: Operand, operator: str) -> Lane:
    left, right = align(x, y)
    b = left.builder
    compare: Callable[..., ir.Value]
    if left.dtype.is_float:
        # Only != holds when an operand is NaN.
        compare = b.fcmp_unordered if operator == "!=" else b.fcmp_ordered
    else:
        signed = left.dtype.is_signed
        compare = b.icmp_signed if signed else b.icmp_unsigned
    return left.flags(compare(operator, left.value, right.value))


def _float_divmod(x: Lane, y: Lane) -> tuple[Lane, Lane]:
    """Python's ``divmod`` on floats, with NumPy's treatment of zeros and infinities."""
    b = x.builder
    remainder = x.like(b.frem(x.value, y.value))
    quotient = (x - remainder) / y
    exact = remainder == 0.0
    adjust = ((y < 0.0) ^ (remainder < 0.0)) & ~exact
    modulo = where(adjust, remainder + y, remainder)
    modulo = where(exact, intrinsic("copysign", remainder.full(0.0), y), modulo)
    quotient = where(adjust, quotient - 1.0, quotient)
    floored = intrinsic("floor", quotient)
    # The quotient is an integer but for rounding; one just below it must not be floored away.
    floored = where(quotient - floored > 0.5, floored + 1.0, floored)
    signed_zero = intrinsic("copysign", quotient.full(0.0), x / y)
    floored = where(quotient == 0.0, signed_zero, floored)
    by_zero = y == 0.0
    return where(by_zero, x / y, floored), where(by_zero, remainder, modulo)
