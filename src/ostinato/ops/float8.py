"""Matmuls of 8-bit floats, scaled: by one number each, or by rows and columns.

The formats are those of the OCP 8-bit Floating Point Specification (revision 1.0): E4M3 (the dtype
``float8_e4m3fn``, up to 448, without infinities) and E5M2 (``float8_e5m2``, up to 57344). A product
of two such numbers is exact in float32. (PyTorch ``torch._scaled_mm``, cuBLASLt's scaled matmuls.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, FLOAT32
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["FAMILY", "GREATEST", "SCALED_MATMUL", "ScaledMatmul", "rows_by_magnitude"]

#: The greatest number of each format.
GREATEST: Final = {FLOAT8_E4M3FN: 448.0, FLOAT8_E5M2: 57344.0}

_RESULTS: Final = (FLOAT32, FLOAT16, BFLOAT16)


class ScaledMatmul(Op):
    """``(x @ w) * x_scale * w_scale`` of 8-bit floats ``x [..., K]`` and ``w [K, N]``.

    ``x_scale`` is float32, one number or one for each row (``[..., 1]``); ``w_scale`` one number or
    one for each column (``[N]``). Sums, and what the scales make of them, are float32 or wider; the
    result is rounded once. A NaN or an infinity of an operand is in its products.

    Attributes:
        dtype: of the result: float32, float16 or bfloat16.
    """

    name = "scaled_matmul"
    weight_operands = (1,)
    takes_epilogue = True
    takes_narrow = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4)
        x, w, x_scale, w_scale = operands
        dtype: DType = attrs["dtype"]
        names = " or ".join(map(str, GREATEST))
        for name, operand in (("x", x), ("w", w)):
            self.expect(operand.dtype in GREATEST, f"{name} is {names}, got {operand}")
        self.expect(dtype in _RESULTS, f"the result is float32, float16 or bfloat16, got {dtype}")
        self.expect(x.ndim > 0, "expected rows, got a scalar")
        known = w.ndim == 2 and all(isinstance(dim, int) for dim in w.shape)
        self.expect(known, f"w is a matrix of known sizes, got {w}")
        depth, columns = w.shape
        self.expect(x.shape[-1] == depth, f"inner dimensions {x.shape[-1]} and {depth} differ")
        self._expect_scale("x_scale", x_scale, (*x.shape[:-1], 1))
        self._expect_scale("w_scale", w_scale, (columns,))
        return (TensorType(dtype, (*x.shape[:-1], columns)),)

    def _expect_scale(self, name: str, scale: TensorType, shape: tuple[Dim, ...]) -> None:
        each = TensorType(FLOAT32, shape)
        fits = scale.dtype == FLOAT32 and scale.shape in ((), shape)
        self.expect(fits, f"{name} is {TensorType(FLOAT32, ())} or {each}, got {scale}")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, x_scale, w_scale = operands
        total = xp.matmul(xp.cast(x, FLOAT32), xp.cast(w, FLOAT32))
        return xp.cast(total * x_scale * w_scale, attrs["dtype"])

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return self.evaluate(g, *operands, **attrs)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * operands[1].shape[1] * 2


def rows_by_magnitude(xp: Any, x: Any, dtype: DType) -> tuple[Any, Any]:
    """``(q, scale)``: rows of ``x``, float32, as 8-bit floats by their greatest magnitude.

    Args:
        xp: the functions of the vocabulary: an array namespace's, or a graph's methods.
        x: ``[..., elements]``; the scale has 1 in place of the last axis.
        dtype: one of :data:`GREATEST`.
    """
    greatest = GREATEST[dtype]
    scale = xp.divide(xp.max(xp.abs(x), axis=-1, keepdims=True), greatest)
    unit = xp.where(xp.greater(scale, 0.0), scale, 1.0)
    codes = xp.minimum(xp.maximum(xp.divide(x, unit), -greatest), greatest)
    return xp.cast(codes, dtype), scale


SCALED_MATMUL = ScaledMatmul()
FAMILY: tuple[Op, ...] = (SCALED_MATMUL,)
