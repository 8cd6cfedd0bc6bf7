"""Matmuls with quantised weights: 8-bit integers per column, 4-bit integers per group.

Weights are integers times a scale. Activations become 8-bit integers at run time, and the integers
are multiplied and summed exactly. How activations are rounded is fixed to the bit, so that every
backend sums the same integers; each operation below is rounded to float32, ties go to even.

- Beside 8-bit weights, each row is taken from its least to its greatest element, both moved to 0 if
  it is beyond: ``scale = high / 255 - low / 255``, ``zero = round(-low / scale)``, and
  ``q = round(x / scale) + zero`` within 0..255 (as ONNX ``DynamicQuantizeLinear``, by rows).
- Beside 4-bit weights, each group of a row by its greatest magnitude: ``scale = max|x| / 127``, and
  ``q = round(x / scale)`` within -127..127.

Where ``scale`` underflows to zero, so does the product. A NaN or an infinity makes the scale NaN or
infinite, and so every result that it enters NaN.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.linalg import MATMUL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "BLOCKWISE_MATMUL",
    "FAMILY",
    "GROUPS",
    "INT4_MATMUL",
    "INTEGER_MATMUL",
    "MAX_DEPTH",
    "QUANTIZED_MATMUL",
    "BlockwiseMatmul",
    "Int4Matmul",
    "IntegerMatmul",
    "QuantizedMatmul",
    "by_magnitude",
]

#: Sizes of the groups of rows of a 4-bit weight that share a scale.
GROUPS: Final = (32, 64, 128)

#: Products of 8-bit integers that a 32-bit sum surely holds.
MAX_DEPTH: Final = 1 << 16

_BYTES = (INT8, UINT8)
_LARGEST = 127
_LARGEST_UNSIGNED = 255
_ZERO_CODE = 8
_SCALE_DTYPES = (FLOAT32, FLOAT16, BFLOAT16)


class IntegerMatmul(Op):
    """``a @ b`` of 8-bit integers with NumPy's batches, summed in int32.

    Either side is int8 or uint8; the dimension summed over is a known number. Sums wrap as int32
    does. (ONNX ``MatMulInteger`` without zero points.)
    """

    name = "integer_matmul"
    weight_operands = (1,)
    fuses_horizontally = True
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        for operand in operands:
            self.expect(operand.dtype in _BYTES, f"expected int8 or uint8, got {operand.dtype}")
        (result,) = MATMUL.infer(*(TensorType(INT32, operand.shape) for operand in operands))
        depth = operands[0].shape[-1]
        self.expect(isinstance(depth, int), f"sums over a known number of products, got {depth}")
        return (result,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        a, b = operands
        return xp.matmul(xp.cast(a, INT32), xp.cast(b, INT32))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands)
        return result.size * operands[0].shape[-1] * 2


class QuantizedMatmul(Op):
    """``x @ (w * scales)`` with ``x [..., K]`` rounded to 8 bits by rows: ``[..., N]``.

    ``w`` is int8 ``[K, N]``, ``scales`` a float ``[N]``. The result, in the dtype of ``x``, is
    ``float32((q - zero) @ w) * float32(scale * scales)``, where ``q``, ``zero`` and ``scale`` stand
    for ``x`` (see the module) and the product of integers is exact.
    """

    name = "quantized_matmul"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, w, scales = operands
        depth, columns = _matrix(self, "w", w)
        _expect_activations(self, x, depth)
        self.expect(w.dtype == INT8, f"w is int8, got {w.dtype}")
        self.expect(depth <= MAX_DEPTH, f"int32 sums hold {MAX_DEPTH} products, not {depth}")
        _expect_scales(self, scales, (columns,))
        return (TensorType(x.dtype, (*x.shape[:-1], columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self._rule(xp, partial(INTEGER_MATMUL.evaluate, xp), *operands)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, w, scales = operands
        wide = (g.cast(x, FLOAT32), w, g.cast(scales, FLOAT32))
        return g.cast(self._rule(g, g.integer_matmul, *wide), x.dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return _flops(operands[0], operands[1].shape[1])

    @staticmethod
    def _rule(xp: Any, matmul: Callable[..., Any], x: Any, w: Any, scales: Any) -> Any:
        q, zero, scale = _from_least_to_greatest(xp, x)
        # Processors multiply unsigned by signed bytes: the zero is taken off the sums.
        total = matmul(q, w) - zero * xp.sum(xp.cast(w, INT32), axis=0)
        return xp.cast(total, FLOAT32) * xp.cast(scale * scales, FLOAT32)


class BlockwiseMatmul(Op):
    """The sum over blocks of ``k`` of exact products of integers, times the scales of both sides.

    ``q [..., K]`` is int8, in blocks of ``group`` with ``q_scales [..., K / group]``; ``codes`` and
    ``scales`` are those of :class:`Int4Matmul`. Rows of codes that are missing stand for zeros.
    """

    name = "blockwise_matmul"
    weight_operands = (2, 3)
    fuses_horizontally = True
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4)
        q, q_scales, codes, scales = operands
        group = _group(self, attrs)
        self.expect(q.dtype == INT8 and q.ndim > 0, f"q is int8 with rows, got {q}")
        depth = q.shape[-1]
        whole = isinstance(depth, int) and depth > 0 and depth % group == 0
        self.expect(whole, f"the last dimension of q is a multiple of {group}, got {depth}")
        assert isinstance(depth, int)
        blocks = (*q.shape[:-1], depth // group)
        self.expect(
            q_scales.dtype == FLOAT32 and q_scales.shape == blocks,
            f"q_scales is {TensorType(FLOAT32, blocks)}, got {q_scales}",
        )
        rows, columns = _matrix(self, "codes", codes)
        self.expect(codes.dtype == UINT8, f"codes are uint8, got {codes.dtype}")
        fits = -(-2 * rows // group) == depth // group
        self.expect(fits, f"{rows} rows of codes do not make {depth // group} blocks of {group}")
        _expect_scales(self, scales, (depth // group, columns))
        return (TensorType(FLOAT32, (*q.shape[:-1], columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        q, q_scales, codes, scales = operands
        group: int = attrs["group"]
        lead, blocks = tuple(q.shape[:-1]), q.shape[-1] // group
        missing = q.shape[-1] // 2 - codes.shape[0]
        codes = xp.pad(codes, (0, 0), (missing, 0), _ZERO_CODE * 17)
        weights = xp.reshape(_unpacked(xp, codes), (blocks, group, codes.shape[1]))
        left = xp.reshape(xp.cast(q, INT32), (*lead, blocks, 1, group))
        sums = xp.reshape(xp.matmul(left, weights), (*lead, blocks, codes.shape[1]))
        scaled = sums * (xp.reshape(q_scales, (*lead, blocks, 1)) * scales)
        return xp.sum(scaled, axis=-2)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return _flops(operands[0], operands[2].shape[1])


class Int4Matmul(Op):
    """``x @ W`` with 4-bit weights and ``x [..., K]`` rounded to 8 bits by groups: ``[..., N]``.

    ``W[k, n] = (code(k, n) - 8) * scales[k // group, n]``, where byte ``(i, n)`` of ``codes``
    (uint8 ``[ceil(K / 2), N]``) has the code of ``k = 2 i`` in its low half and that of ``2 i + 1``
    in its high half; ``scales`` is a float ``[ceil(K / group), N]``. The result has the dtype of
    ``x``.

    Attributes:
        group: how many rows of ``W`` share a scale: one of :data:`GROUPS`.
    """

    name = "int4_matmul"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, codes, scales = operands
        group = _group(self, attrs)
        rows, columns = _matrix(self, "codes", codes)
        depth = x.shape[-1] if x.ndim else 0
        _expect_activations(self, x, depth)
        assert isinstance(depth, int)
        self.expect(codes.dtype == UINT8, f"codes are uint8, got {codes.dtype}")
        wanted = -(-depth // 2)
        self.expect(rows == wanted, f"{depth} weights take {wanted} rows of codes, got {rows}")
        _expect_scales(self, scales, (-(-depth // group), columns))
        return (TensorType(x.dtype, (*x.shape[:-1], columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *weights = operands
        none = (0,) * (x.ndim - 1)
        whole = xp.pad(x, (*none, 0), (*none, -x.shape[-1] % attrs["group"]), 0.0)
        return self._rule(xp, partial(BLOCKWISE_MATMUL.evaluate, xp), whole, *weights, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, *weights = operands
        missing = -x.shape[-1] % attrs["group"]
        whole = g.pad(g.cast(x, FLOAT32), [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        return g.cast(self._rule(g, g.blockwise_matmul, whole, *weights, **attrs), x.dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return _flops(operands[0], operands[1].shape[1])

    @staticmethod
    def _rule(
        xp: Any, blockwise: Callable[..., Any], x: Any, codes: Any, scales: Any, *, group: int
    ) -> Any:
        lead, blocks = tuple(x.shape[:-1]), x.shape[-1] // group
        q, scale = by_magnitude(xp, xp.reshape(x, (*lead, blocks, group)))
        q = xp.reshape(q, (*lead, blocks * group))
        return blockwise(q, xp.reshape(scale, (*lead, blocks)), codes, scales, group=group)


# The casts do nothing to what is float32; they make the oracle's float64 round as float32 does.
# Only in rows so small that their scale is a subnormal do codes have to be kept within their range.


def _from_least_to_greatest(xp: Any, x: Any) -> tuple[Any, Any, Any]:
    """``(q, zero, scale)``: rows of ``x`` as uint8, and the int32 that stands for zero in each."""
    largest = float(_LARGEST_UNSIGNED)
    low = xp.minimum(xp.min(x, axis=-1, keepdims=True), 0.0)
    high = xp.maximum(xp.max(x, axis=-1, keepdims=True), 0.0)
    scale = xp.cast(high / largest, FLOAT32) - xp.cast(low / largest, FLOAT32)
    scale = xp.cast(scale, FLOAT32)
    unit = xp.where(scale > 0, scale, 1.0)
    zero = xp.minimum(xp.round(xp.cast(-low / unit, FLOAT32)), largest)
    codes = xp.round(xp.cast(x / unit, FLOAT32)) + zero
    q = xp.minimum(xp.maximum(codes, 0.0), largest)
    return xp.cast(q, UINT8), xp.cast(zero, INT32), scale


def by_magnitude(xp: Any, x: Any) -> tuple[Any, Any]:
    """``(q, scale)``: rows of ``x``, float32, as int8 by their greatest magnitude.

    Args:
        xp: the functions of the vocabulary: an array namespace's, or a graph's methods.
        x: ``[..., elements]``; the scale has 1 in place of the last axis.
    """
    largest = float(_LARGEST)
    scale = xp.cast(xp.max(xp.abs(x), axis=-1, keepdims=True) / largest, FLOAT32)
    codes = xp.round(xp.cast(x / xp.where(scale > 0, scale, 1.0), FLOAT32))
    q = xp.minimum(xp.maximum(codes, -largest), largest)
    return xp.cast(q, INT8), scale


def _unpacked(xp: Any, codes: Any) -> Any:
    """The 4-bit integers in ``codes [R, N]``, zero being 8, as int32 ``[2 R, N]``."""
    rows, columns = codes.shape
    wide = xp.cast(codes, INT32)
    low = xp.reshape(xp.bitwise_and(wide, 15), (rows, 1, columns))
    high = xp.reshape(xp.bitwise_right_shift(wide, 4), (rows, 1, columns))
    return xp.reshape(xp.concat([low, high], 1), (2 * rows, columns)) - _ZERO_CODE


# -- what is checked -------------------------------------------------------------------------------


def _matrix(op: Op, what: str, type_: TensorType) -> tuple[int, int]:
    """The sizes of a weight, which are known numbers."""
    known = [dim for dim in type_.shape if isinstance(dim, int)]
    op.expect(type_.ndim == 2, f"{what} is a matrix, got {type_}")
    op.expect(len(known) == 2, f"{what} has known sizes, got {type_}")
    return known[0], known[1]


def _expect_activations(op: Op, x: TensorType, depth: Dim) -> None:
    op.expect(x.dtype in _SCALE_DTYPES, f"x is float32, float16 or bfloat16, got {x.dtype}")
    op.expect(x.ndim > 0, "expected rows, got a scalar")
    op.expect(isinstance(depth, int) and depth != 0, f"nothing to sum over: {depth} weights")
    op.expect(x.shape[-1] == depth, f"inner dimensions {x.shape[-1]} and {depth} differ")


def _expect_scales(op: Op, scales: TensorType, shape: tuple[Dim, ...]) -> None:
    fits = scales.dtype in _SCALE_DTYPES and scales.shape == shape
    op.expect(fits, f"scales are {TensorType(FLOAT32, shape)} (or 16 bits wide), got {scales}")


def _group(op: Op, attrs: dict[str, Attr]) -> int:
    group = attrs.get("group")
    op.expect(group in GROUPS, f"group is one of {GROUPS}, got {group!r}")
    assert isinstance(group, int)
    return group


def _flops(left: TensorType, columns: Dim) -> Dim:
    return left.size * columns * 2


INTEGER_MATMUL, QUANTIZED_MATMUL = IntegerMatmul(), QuantizedMatmul()
BLOCKWISE_MATMUL, INT4_MATMUL = BlockwiseMatmul(), Int4Matmul()
FAMILY: tuple[Op, ...] = (INTEGER_MATMUL, QUANTIZED_MATMUL, BLOCKWISE_MATMUL, INT4_MATMUL)
