"""``Det``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]

#: Elimination is written out step by step; a larger matrix would be a graph of its own.
_LARGEST = 64


def convert_det(call: Call) -> Result:
    """Convert ``Det``: Gaussian elimination with partial pivoting, one node sequence a column."""
    g, rest = call.g, call.value(0)
    if rest.ndim < 2 or rest.shape[-1] != rest.shape[-2]:
        call.malformed(f"expected square matrices, got {rest.type}")
    size, batch = rest.shape[-1], rest.shape[:-2]
    if not isinstance(size, int) or size > _LARGEST:
        call.unsupported(f"its matrices have {size} rows; at most {_LARGEST}, and a fixed number")
    result = g.ones(batch, rest.dtype)
    for step in range(size):
        left = size - step
        column = g.slice(rest, [0], [1], axes=[-1])  # [..., left, 1]
        chosen = g.argmax(g.abs(column), axis=-2, keepdims=True)  # [..., 1, 1]
        is_pivot = g.equal(g.iota((left, 1), 0, INT64), chosen)
        # A sum with all but one row taken out is that row.
        pivot_row = g.sum(g.where(is_pivot, rest, 0.0), axis=-2, keepdims=True)
        first_row = g.slice(rest, [0], [1], axes=[-2])
        swapped = g.slice(g.where(is_pivot, first_row, rest), [1], [left], axes=[-2])
        pivot = g.slice(pivot_row, [0], [1], axes=[-1])
        signed = g.where(g.equal(chosen, 0), pivot, g.neg(pivot))
        result = g.multiply(result, g.reshape(signed, batch))
        factors = g.divide(
            g.slice(swapped, [0], [1], axes=[-1]), g.where(g.equal(pivot, 0.0), 1.0, pivot)
        )
        rest = g.subtract(
            g.slice(swapped, [1], [left], axes=[-1]),
            g.multiply(factors, g.slice(pivot_row, [1], [left], axes=[-1])),
        )
    return result


CONVERTERS: Mapping[str, Converter] = {"Det": convert_det}
