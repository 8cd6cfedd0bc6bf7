"""Affine quantisation: integers ``q`` that stand for ``(q - zero_point) * scale``.

The steps that ONNX's quantised operators are made of. How each rounds is fixed to the bit, so that
every device gives the same integers; each operation below is rounded to float32, and ties go to
even:

- ``quantize``: ``saturate(round(x / scale) + zero_point)``;
- ``dequantize``: ``float32(q - zero_point) * scale``, the difference in int32;
- ``requantize``: ``saturate(round(float32(sums) * scale) + zero_point)``;
- ``affine_matmul``, ``affine_conv``: sums of products of ``q - zero_point``, exact in int32.

Processors multiply unsigned by signed bytes. Products of other bytes are made of those: 128 is
added to signed left operands and taken from unsigned right ones, and to or from their zero points.
What the zero points add to a sum is a matter of the sums of each operand alone; those of weights
are computed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8, DType
from ostinato.ir.leaves import CONSTANT
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import Composite, broadcast_shapes
from ostinato.ops.convolution import CONV, INTEGER_CONV
from ostinato.ops.linalg import MATMUL
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "AFFINE_CONV",
    "AFFINE_MATMUL",
    "DEQUANTIZE",
    "FAMILY",
    "QUANTIZE",
    "REQUANTIZE",
    "AffineConv",
    "AffineMatmul",
    "Dequantize",
    "Quantize",
    "Requantize",
    "is_zero",
]

_BYTES: Final = (INT8, UINT8)

#: The distance between the zero points of int8 and uint8 that stand for the same numbers.
_HALF_RANGE: Final = 128


class Quantize(Composite):
    """``saturate(round(x / scale) + zero_point)``, in the dtype of ``zero_point``, an integer.

    ``scale`` and ``zero_point`` broadcast against ``x``. The division is one of float32; a NaN
    gives the integer 0.
    """

    name = "quantize"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, scale, zero_point = operands
        self.expect(x.dtype.is_float, f"x is of floats, got {x}; dequantize it first")
        _expect_scale(self, scale)
        _expect_integer(self, "zero_point", zero_point)
        return (TensorType(zero_point.dtype, _over(self, x, scale, zero_point)),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, scale, zero_point = operands
        codes = xp.cast(x, FLOAT32) / xp.cast(scale, FLOAT32)
        return _saturated(xp, xp.cast(codes, FLOAT32), zero_point)


class Dequantize(Composite):
    """``(q - zero_point) * scale``, in the dtype of ``scale``.

    ``q`` and ``zero_point`` are integers, ``scale`` and ``zero_point`` broadcast against ``q``.
    The difference is one of int32, the product one of float32.
    """

    name = "dequantize"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        q, scale, zero_point = operands
        _expect_integer(self, "q", q)
        _expect_scale(self, scale)
        _expect_integer(self, "zero_point", zero_point)
        return (TensorType(scale.dtype, _over(self, q, scale, zero_point)),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        q, scale, zero_point = operands
        distance = xp.cast(q, INT32) - xp.cast(zero_point, INT32)
        product = xp.cast(distance, FLOAT32) * xp.cast(scale, FLOAT32)
        return xp.cast(xp.cast(product, FLOAT32), DType.parse(scale.dtype))


class Requantize(Composite):
    """``saturate(round(sums * scale) + zero_point)``, in the dtype of ``zero_point``, an integer.

    ``sums`` is int32; ``scale``, float32, and ``zero_point`` broadcast against it.
    """

    name = "requantize"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        sums, scale, zero_point = operands
        self.expect(sums.dtype == INT32, f"sums are int32, got {sums}")
        _expect_scale(self, scale)
        _expect_integer(self, "zero_point", zero_point)
        return (TensorType(zero_point.dtype, _over(self, sums, scale, zero_point)),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        sums, scale, zero_point = operands
        scaled = xp.cast(sums, FLOAT32) * xp.cast(scale, FLOAT32)
        return _saturated(xp, xp.cast(scaled, FLOAT32), zero_point)


class AffineMatmul(Op):
    """``(a - a_zero) @ (b - b_zero)`` of 8-bit integers, in int32, with NumPy's batches.

    ``a_zero`` broadcasts against ``a`` and has one element along its last axis; ``b_zero``
    against ``b``, with one element along its second to last axis. Sums wrap.
    """

    name = "affine_matmul"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4)
        a, b, a_zero, b_zero = operands
        _expect_zero_point(self, "a", a, a_zero, -1)
        _expect_zero_point(self, "b", b, b_zero, -2)
        return MATMUL.infer(*(TensorType(INT32, operand.shape) for operand in (a, b)))

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        a, b, a_zero, b_zero = (xp.cast(operand, INT32) for operand in operands)
        return xp.matmul(a - a_zero, b - b_zero)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        a, b, a_zero, b_zero = operands
        if not isinstance(a.shape[-1], int):  # panels of bytes have a known depth
            return self.evaluate(g, *operands)
        (result,) = self.infer(*(operand.type for operand in operands))
        a_zero, a = _as_matrix(g, a_zero, a, (1, -1)), _as_matrix(g, a, a, (1, -1))
        b_zero, b = _as_matrix(g, b_zero, b, (-1, 1)), _as_matrix(g, b, b, (-1, 1))
        a, a_zero = _unsigned(g, a, a_zero)
        b, b_zero = _signed(g, b, b_zero)
        total = g.integer_matmul(a, b)
        if not is_zero(a_zero):
            total = total - a_zero * g.sum(g.cast(b, INT32), axis=-2, keepdims=True)
        if not is_zero(b_zero):
            rows = g.sum(g.cast(a, INT32), axis=-1, keepdims=True)
            rows = rows if is_zero(a_zero) else rows - a_zero * a.shape[-1]
            total = total - rows * b_zero
        return g.reshape(total, result.shape)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands)
        return result.size * operands[0].shape[-1] * 2


class AffineConv(Op):
    """A convolution of ``x - x_zero`` with ``w - w_zero``, 8-bit integers, in int32.

    Shapes and attributes are those of ``conv``, without a bias. ``x_zero`` is a scalar, ``w_zero``
    a scalar or one element for each filter. Padding stands for the number zero. Sums wrap.
    """

    name = "affine_conv"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4)
        x, w, x_zero, w_zero = operands
        (result,) = INTEGER_CONV.infer(x, w, **attrs)
        for name, of, zero in (("x", x, x_zero), ("w", w, w_zero)):
            same = zero.dtype == of.dtype
            self.expect(same, f"{name} is {of.dtype}, and its zero point {zero.dtype}")
        self.expect(x_zero.ndim == 0, f"x_zero is a scalar, got {x_zero}")
        fits = w_zero.shape in ((), (w.shape[0],))
        self.expect(fits, f"w_zero is a scalar or has {w.shape[0]} elements, got {w_zero}")
        return (result,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, x_zero, w_zero = (xp.cast(operand, INT32) for operand in operands)
        w_zero = xp.reshape(w_zero, (-1, *(1,) * (w.ndim - 1)))
        return CONV.evaluate(xp, x - x_zero, w - w_zero, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, w, x_zero, w_zero = operands
        x, x_zero, padding = _padded(g, x, x_zero, attrs["padding"])
        w, w_zero = _signed(g, w, w_zero)
        w_zero = g.reshape(w_zero, (1, -1, *(1,) * (w.ndim - 2)))
        geometry = {**attrs, "padding": padding}
        total = g.integer_conv(x, w, **geometry)
        spatial = (1,) * (w.ndim - 2)
        if not is_zero(x_zero):
            sums = g.sum(g.cast(w, INT32), axis=tuple(range(1, w.ndim)))
            total = total - x_zero * g.reshape(sums, (1, -1, *spatial))
        if not is_zero(w_zero):
            total = total - self._window_sums(g, x, x_zero, w, geometry) * w_zero
        return total

    @staticmethod
    def _window_sums(g: Any, x: Value, x_zero: Value, w: Value, geometry: dict[str, Attr]) -> Value:
        """The sum of ``x - x_zero`` over each filter's window."""
        groups: int = geometry["groups"]
        ones = g.broadcast_to(g.constant(1, INT8), (groups, *w.shape[1:]))
        sums = g.integer_conv(x, ones, **geometry)
        if not is_zero(x_zero):
            sums = sums - x_zero * prod(w.shape[1:])
        if groups == 1:
            return sums  # type: ignore[no-any-return]
        n, _, *spatial = sums.shape
        per_group = w.shape[0] // groups
        apart = g.reshape(sums, (n, groups, 1, *spatial))
        shared = g.broadcast_to(apart, (n, groups, per_group, *spatial))
        return g.reshape(shared, (n, w.shape[0], *spatial))  # type: ignore[no-any-return]

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return INTEGER_CONV.flops(operands[:2], attrs)


def is_zero(zero_point: Value) -> bool:
    """Whether a zero point is known to be 0 throughout."""
    while zero_point.node.op.name in ("cast", "reshape", "broadcast_to"):
        (zero_point,) = zero_point.node.inputs
    node = zero_point.node
    return node.op is CONSTANT and not node.attrs["array"].any()


def _saturated(xp: Any, codes: Any, zero_point: Any) -> Any:
    """Codes, not rounded yet, as the integers of ``zero_point``: a cast saturates."""
    moved = xp.round(codes) + xp.cast(zero_point, FLOAT32)
    return xp.cast(xp.cast(moved, FLOAT32), DType.parse(zero_point.dtype))


# -- unsigned by signed bytes ----------------------------------------------------------------------


def _unsigned(g: Any, q: Value, zero: Value) -> tuple[Value, Value]:
    """``q`` as uint8, and its zero point in int32."""
    if q.dtype == UINT8:
        return q, _moved_zero(g, zero, 0)
    moved = g.bitwise_xor(g.cast(q, UINT8), _HALF_RANGE)
    return moved, _moved_zero(g, zero, _HALF_RANGE)


def _signed(g: Any, q: Value, zero: Value) -> tuple[Value, Value]:
    """``q`` as int8, and its zero point in int32."""
    if q.dtype == INT8:
        return q, _moved_zero(g, zero, 0)
    moved = g.cast(g.bitwise_xor(q, _HALF_RANGE), INT8)
    return moved, _moved_zero(g, zero, -_HALF_RANGE)


def _moved_zero(g: Any, zero: Value, distance: int) -> Value:
    """``zero + distance`` in int32: a constant where ``zero`` is one, for :func:`is_zero`."""
    if zero.node.op is CONSTANT:
        array = zero.node.attrs["array"]
        return g.constant(array.astype(INT32.numpy) + distance, INT32)  # type: ignore[no-any-return]
    wide: Value = g.cast(zero, INT32)
    return wide + distance if distance else wide


def _padded(g: Any, x: Value, zero: Value, padding: Any) -> tuple[Value, Value, Any]:
    """``x`` as uint8, its zero point in int32, and the padding that is still to be made.

    Zeros are what ``integer_conv`` pads with, so other zero points are padded here. One that is
    not known yet is combined with ``x`` by exclusive or, which makes it 0, and taken out again.
    """
    plain = ((0, 0),) * len(padding)
    widths = ((0, 0), (0, 0), *padding)
    if padding == plain or (x.dtype == UINT8 and is_zero(zero)):
        return *_unsigned(g, x, zero), padding
    unsigned, moved = _unsigned(g, x, zero)
    if moved.node.op is CONSTANT:
        number = moved.node.attrs["array"].item()
        return g.pad(unsigned, widths, value=number), moved, plain
    bits = g.cast(moved, UINT8)
    cleared = g.pad(g.bitwise_xor(unsigned, bits), widths)
    return g.bitwise_xor(cleared, bits), moved, plain


def _as_matrix(g: Any, operand: Value, side: Value, shape: tuple[int, int]) -> Value:
    """A side of a matmul, or its zero point, as a matrix of ``shape`` where the side is 1-D."""
    if side.ndim > 1 or operand.ndim == 0:
        return operand
    return g.reshape(operand, shape)  # type: ignore[no-any-return]


# -- conditions on operands ------------------------------------------------------------------------


def _expect_scale(op: Op, scale: TensorType) -> None:
    op.expect(scale.dtype.is_float, f"scale is of floats, got {scale}")


def _expect_integer(op: Op, what: str, type_: TensorType) -> None:
    op.expect(type_.dtype.is_integer, f"{what} is of integers, got {type_}")


def _over(op: Op, x: TensorType, scale: TensorType, zero_point: TensorType) -> tuple[Dim, ...]:
    """The shape of ``x``, against which the others broadcast."""
    fits = broadcast_shapes(x.shape, scale.shape, zero_point.shape) == x.shape
    op.expect(fits, f"scale {scale} and zero_point {zero_point} do not broadcast to {x}")
    return x.shape


def _expect_zero_point(op: Op, what: str, of: TensorType, zero: TensorType, axis: int) -> None:
    """A zero point for the slices of ``of`` across ``axis``, the one that is summed over."""
    op.expect(of.dtype in _BYTES, f"expected int8 or uint8, got {of.dtype}")
    op.expect(zero.dtype == of.dtype, f"{what} is {of.dtype}, and its zero point {zero.dtype}")
    axis = axis if of.ndim > 1 else -1
    alike = zero.ndim == 0 or (zero.ndim == of.ndim and zero.shape[axis] == 1)
    fits = alike and broadcast_shapes(of.shape, zero.shape) == of.shape
    op.expect(fits, f"{what}_zero, {zero}, has no element for each slice of {of} summed over")


QUANTIZE, DEQUANTIZE, REQUANTIZE = Quantize(), Dequantize(), Requantize()
AFFINE_MATMUL, AFFINE_CONV = AffineMatmul(), AffineConv()
FAMILY: tuple[Op, ...] = (QUANTIZE, DEQUANTIZE, REQUANTIZE, AFFINE_MATMUL, AFFINE_CONV)
