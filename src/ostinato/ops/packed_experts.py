"""Grouped matmuls with packed weights: each row times the matrix of the expert that it goes to.

``w`` is uint8 ``[experts, N, bytes]``: for each expert the rows of a matrix, as
:mod:`ostinato.ops.packed_weights` has them. Activations are rounded as there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.moe import GROUPED_MATMUL
from ostinato.ops.packed.formats import FORMATS, BlockFormat
from ostinato.ops.packed_weights import (
    ACTIVATION_DTYPES,
    bitcast,
    bits_as_float16,
    expect_format,
    matrix_rows,
    rounded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "FAMILY",
    "PACKED_GROUPED_BLOCK_MATMUL",
    "PACKED_GROUPED_MATMUL",
    "PackedGroupedBlockMatmul",
    "PackedGroupedMatmul",
]


class PackedGroupedBlockMatmul(Op):
    """``packed_grouped_matmul`` of activations that are 8-bit integers already, in float32.

    ``q [R, K]`` is int8, ``q_scales [R, K / size]`` float32, a scale for each block of the format
    of ``w``; ``q_sums [R, K / group]`` are the int32 sums of ``q`` over each group. ``w`` and the
    expert ids follow. The result is ``[R, N]``.

    Attributes:
        format: of ``w``.
    """

    name = "packed_grouped_block_matmul"
    weight_operands = (3,)
    takes_epilogue = True
    decodes_weights = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 5)
        q, q_scales, q_sums, w, ids = operands
        form = expect_format(self, attrs)
        columns, depth = _matrices(self, w, form)
        self.expect(q.dtype == INT8 and q.ndim == 2, f"q is int8 [rows, K], got {q}")
        self.expect(q.shape[1] == depth, f"q has rows of {q.shape[1]}, w of {depth} elements")
        _expect_ids(self, ids, q)
        rows = q.shape[0]
        scales = TensorType(FLOAT32, (rows, depth // form.size))
        self.expect(q_scales == scales, f"q_scales is {scales}, got {q_scales}")
        sums = TensorType(INT32, (rows, depth // form.group))
        self.expect(q_sums == sums, f"q_sums is {sums}, got {q_sums}")
        return (TensorType(FLOAT32, (rows, columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        multiply = partial(GROUPED_MATMUL.evaluate, xp)
        return self._rule(xp, partial(bits_as_float16, xp), multiply, *operands, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return self._rule(g, partial(bitcast, g), g.grouped_matmul, *operands, **attrs)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * operands[3].shape[1] * 2

    @staticmethod
    def _rule(
        xp: Any,
        as_float16: Callable[[Any], Any],
        multiply: Callable[[Any, Any, Any], Any],
        q: Any,
        q_scales: Any,
        q_sums: Any,
        w: Any,
        ids: Any,
        *,
        format: str,
    ) -> Any:
        form = FORMATS[format]
        rows, depth = q.shape
        experts, columns, _ = w.shape
        blocks = (rows, depth // form.size)
        parts = xp.reshape(xp.cast(q, FLOAT32), (*blocks, form.size))
        left = xp.reshape(parts * xp.reshape(q_scales, (*blocks, 1)), (rows, depth))
        weights = matrix_rows(xp, as_float16, w, form, (experts, columns, depth))
        return multiply(left, xp.permute_dims(weights, (0, 2, 1)), ids)


class PackedGroupedMatmul(Op):
    """Row ``i`` of ``x [R, K]``, rounded to 8 bits, times ``w[expert_ids[i]].T``: ``[R, N]``.

    ``w`` is uint8 ``[experts, N, bytes]``. Ids are taken as :meth:`take` takes indices. Each run of
    ``x``, as long as a block of ``w``, is rounded by its greatest magnitude. The result has the
    dtype of ``x``. A row is what ``packed_matmul`` gives with its matrix, whatever the others are.

    Attributes:
        format: of ``w``.
    """

    name = "packed_grouped_matmul"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        (x, w, ids), form = operands, expect_format(self, attrs)
        columns, depth = _matrices(self, w, form)
        fits = x.dtype in ACTIVATION_DTYPES
        self.expect(fits, f"x is float32, float16 or bfloat16, got {x.dtype}")
        self.expect(x.ndim == 2, f"x is [rows, K], got {x}")
        self.expect(x.shape[1] == depth, f"x has rows of {x.shape[1]}, w of {depth} elements")
        _expect_ids(self, ids, x)
        return (TensorType(x.dtype, (x.shape[0], columns)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, w, ids = operands
        form = FORMATS[str(attrs["format"])]
        left = rounded(xp, x, form)
        return PACKED_GROUPED_BLOCK_MATMUL.evaluate(xp, *left, w, ids, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        x, w, ids = operands
        left = rounded(g, g.cast(x, FLOAT32), FORMATS[str(attrs["format"])])
        (result,) = g.apply(PACKED_GROUPED_BLOCK_MATMUL, (*left, w, ids), attrs)
        return g.cast(result, x.dtype)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * operands[1].shape[1] * 2


# -- what is checked -------------------------------------------------------------------------------


def _matrices(op: Op, w: TensorType, form: BlockFormat) -> tuple[int, int]:
    """The columns of the result, and the elements that each sums over."""
    known = [dim for dim in w.shape if isinstance(dim, int)]
    fits = w.dtype == UINT8 and w.ndim == 3 and len(known) == 3
    op.expect(fits, f"w is uint8 [experts, N, bytes] of known sizes, got {w}")
    experts, columns, nbytes = known
    op.expect(experts > 0, f"w {w} holds no expert")
    op.expect(
        nbytes % form.nbytes == 0,
        f"rows of {form.name} are blocks of {form.nbytes} bytes, got {nbytes} bytes",
    )
    op.expect(nbytes > 0, "nothing to sum over: w has no elements")
    return columns, nbytes // form.nbytes * form.size


def _expect_ids(op: Op, ids: TensorType, rows: TensorType) -> None:
    op.expect(ids.dtype.is_integer, f"expert_ids are integers, got {ids}")
    op.expect(ids.shape == rows.shape[:1], f"expert_ids are one for each row of {rows}, got {ids}")


PACKED_GROUPED_BLOCK_MATMUL = PackedGroupedBlockMatmul()
PACKED_GROUPED_MATMUL = PackedGroupedMatmul()
FAMILY: tuple[Op, ...] = (PACKED_GROUPED_BLOCK_MATMUL, PACKED_GROUPED_MATMUL)
