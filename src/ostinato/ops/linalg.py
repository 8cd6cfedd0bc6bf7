"""Matmuls of numbers. ``einsum`` is planned in :mod:`ostinato.ops.einsum`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import broadcast_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["FAMILY", "MATMUL", "WIDENING_MATMUL", "Matmul", "WideningMatmul"]


class Matmul(Op):
    """``a @ b`` with NumPy's rules: leading dims broadcast, a 1-D side is a row or a column.

    ``[..., M, K] @ [..., K, N] -> [..., M, N]``; both sides have one numeric dtype. Floats
    accumulate in float32 or wider, integers wrap. (NumPy ``matmul``, array API ``matmul``.)
    """

    name = "matmul"
    weight_operands = (1,)
    fuses_horizontally = True
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        a, b = operands
        self.expect(a.dtype == b.dtype, f"operands are {a.dtype} and {b.dtype}; cast one of them")
        self.expect(not a.dtype.is_bool, "expected numeric operands, got bool; cast them first")
        self.expect(
            a.ndim > 0 and b.ndim > 0, "expected rank 1 or more, got a scalar; use multiply"
        )
        inner_a, inner_b = a.shape[-1], b.shape[-2 if b.ndim > 1 else -1]
        self.expect_equal(inner_a, inner_b, f"inner dimensions {inner_a} and {inner_b} differ")
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        rows = a.shape[-2:-1]
        columns = b.shape[-1:] if b.ndim > 1 else ()
        return (TensorType(a.dtype, (*batch, *rows, *columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.matmul(*operands)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands, **attrs)
        return result.size * operands[0].shape[-1] * 2


MATMUL = Matmul()


class WideningMatmul(Op):
    """``a @ b`` of 16-bit floats with NumPy's batches, summed in float32 and left that wide.

    Both sides are float16 or both bfloat16; the result is float32. (PyTorch ``mm`` with
    ``out_dtype``, JAX ``matmul`` with ``preferred_element_type``.)
    """

    name = "widening_matmul"
    weight_operands = (1,)
    fuses_horizontally = True
    takes_epilogue = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        for operand in operands:
            narrow = operand.dtype in (FLOAT16, BFLOAT16)
            self.expect(narrow, f"expected float16 or bfloat16, got {operand.dtype}")
        (result,) = MATMUL.infer(*operands)
        return (TensorType(FLOAT32, result.shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.matmul(*(xp.cast(operand, FLOAT32) for operand in operands))

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return g.matmul(*(g.cast(operand, FLOAT32) for operand in operands))

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return MATMUL.flops(operands, attrs)


WIDENING_MATMUL = WideningMatmul()
FAMILY: tuple[Op, ...] = (MATMUL, WIDENING_MATMUL)
