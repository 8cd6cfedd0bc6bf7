"""Matmuls of 8-bit floats for graphs that widen and scale both operands before they multiply.

``matmul(cast(x) * x_scale, cast(w) * w_scale)`` is ``scaled_matmul(x, w, x_scale, w_scale)`` where
the scales are numbers, or differ by rows of ``x`` and by columns of ``w``. Scales become factors of
the sums, so results differ by rounding. ONNX spells dequantised float8 so, around ``MatMul``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.dtypes import FLOAT8, FLOAT32
from ostinato.ops.affine import is_zero
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import made_by
from ostinato.passes.rewrite import Rewriter, noted
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["Float8Matmuls"]


class Float8Matmuls(Pass):
    """Multiplies 8-bit floats before they are scaled, not after."""

    name: ClassVar[str] = "float8_matmuls"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        return Rewriter(graph).run({"matmul": noted(self, report, _matmul)})


@dataclass(frozen=True)
class _Scaled:
    """8-bit floats and their scale; ``None``: it is 1."""

    codes: Value
    scale: Value | None


def _matmul(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    a, b = operands
    turned = made_by(b, "permute_dims")
    source = b if turned is None else turned.inputs[0]
    if b.ndim != 2 or (turned is not None and turned.attrs["axes"] != (1, 0)):
        return None
    left, right = _scaled(a), _scaled(source)
    if left is None or right is None or not all(isinstance(dim, int) for dim in b.shape):
        return None
    columns = b.shape[1]
    by_column = (1, columns) if turned is None else (columns, 1)
    x_scale = _over(g, left.scale, (*a.shape[:-1], 1), (*a.shape[:-1], 1))
    w_scale = _over(g, right.scale, by_column, (columns,))
    if x_scale is None or w_scale is None:
        return None
    w = right.codes if turned is None else g.permute_dims(right.codes, (1, 0))
    return g.scaled_matmul(left.codes, w, x_scale, w_scale)


def _scaled(value: Value) -> _Scaled | None:
    """The 8-bit floats behind float32, perhaps times a scale."""
    codes = _codes(value)
    if codes is not None:
        return _Scaled(codes, None)
    product = made_by(value, "multiply")
    if product is None:
        return None
    for wide, scale in (product.inputs, product.inputs[::-1]):
        codes = _codes(wide)
        if codes is not None and scale.dtype == FLOAT32 and codes.shape == value.shape:
            return _Scaled(codes, scale)
    return None


def _codes(value: Value) -> Value | None:
    """The 8-bit floats that were cast to ``value``, float32; a zero may have been taken off."""
    difference = made_by(value, "subtract")
    if difference is not None and is_zero(difference.inputs[1]):
        value = difference.inputs[0]
    widened = made_by(value, "cast")
    if widened is None or value.dtype != FLOAT32 or widened.inputs[0].dtype not in FLOAT8:
        return None
    return widened.inputs[0]


def _over(
    g: Graph, scale: Value | None, shape: tuple[Dim, ...], wanted: tuple[Dim, ...]
) -> Value | None:
    """A scale as a number, or in the shape that is wanted; ``None``: it is neither.

    Args:
        g: the graph.
        scale: broadcasts against the operand.
        shape: of the operand, but for 1 in place of the axis that is summed over.
        wanted: as ``scaled_matmul`` takes it.
    """
    if scale is None:
        return g.constant(1.0, FLOAT32)
    if prod(scale.shape) == 1:
        return g.reshape(scale, ())
    padded = (*(1,) * (len(shape) - scale.ndim), *scale.shape)
    return g.reshape(scale, wanted) if padded == shape else None
