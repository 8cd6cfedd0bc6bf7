"""Adaptive pooling: an axis divided into so many bins, which may overlap by an element.

Bin ``i`` of ``n`` reaches from ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``. Equal bins
are an axis of their own; others are gathered as rows of the greatest length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.records import dataclass
from ostinato.variables import bounds, ceil_div, floor_div, prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["bin_maxima", "bin_maximum", "bin_means", "equal_lengths"]


def equal_lengths(sizes: Sequence[Dim], counts: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The length of the bins of each axis; ``None`` where those of an axis differ, or are empty."""
    lengths = [_equal_length(*pair) for pair in zip(sizes, counts, strict=True)]
    found = tuple(length for length in lengths if length is not None)
    return found if len(found) == len(lengths) else None


def _equal_length(size: Dim, count: Dim) -> Dim | None:
    if isinstance(count, int):
        length = floor_div(size, count) if count else 0
    else:
        length = bounds(size)[1] // max(bounds(count)[1], 1)
    return length if bounds(length)[1] > 0 and length * count == size else None


def bin_means(g: Any, x: Any, axis: int, count: Dim) -> Any:
    """The mean of each bin of an axis.

    Raises:
        GraphError: the axis is empty.
    """
    shape = g.type_of(x).shape
    if (split := _split(g, x, axis, count)) is not None:
        return g.mean(split, axis=axis + 1)
    rows = _Rows.of(g, shape[axis], count)
    spread = (count, rows.length, *(1,) * (len(shape) - axis - 1))
    dtype = g.type_of(x).dtype
    # Selected rather than multiplied: what is not finite stays within its bin.
    taken = g.where(g.reshape(rows.inside, spread), g.take(x, rows.positions, axis=axis), 0.0)
    lengths = g.reshape(g.cast(rows.lengths, dtype), (count, *spread[2:]))
    return g.divide(g.sum(taken, axis=axis + 1), lengths)


def bin_maximum(g: Any, x: Any, axis: int, count: Dim) -> Any:
    """The greatest element of each bin of an axis.

    Raises:
        GraphError: the axis is empty.
    """
    split = _split(g, x, axis, count)
    if split is None:
        rows = _Rows.of(g, g.type_of(x).shape[axis], count)
        split = g.take(x, rows.positions, axis=axis)
    return g.max(split, axis=axis + 1)


def bin_maxima(g: Any, x: Any, counts: Sequence[Dim]) -> tuple[Any, Any]:
    """The greatest element of each bin of all spatial axes, and its position in the plane.

    Raises:
        GraphError: an axis is empty.
    """
    shape = g.type_of(x).shape
    ndim = len(counts)
    sizes = shape[2:]
    rows = [_Rows.of(g, size, count) for size, count in zip(sizes, counts, strict=True)]
    taken = x
    place: Any = g.constant(0, INT64)
    for index, (size, count, row) in enumerate(zip(sizes, counts, rows, strict=True)):
        taken = g.take(taken, row.positions, axis=2 + 2 * index)
        column: list[Dim] = [1] * (2 * ndim)
        column[2 * index : 2 * index + 2] = [count, row.length]
        step = g.reshape(row.positions, column)
        place = g.add(g.multiply(place, g.dim_value(size)), step)
    bins_first = [*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)]
    taken = g.permute_dims(taken, [0, 1, *(2 + axis for axis in bins_first)])
    elements = prod([row.length for row in rows])
    taken = g.reshape(taken, (*shape[:2], *counts, elements))
    place = g.reshape(g.permute_dims(place, bins_first), (1, 1, *counts, elements))
    place = g.broadcast_to(place, (*shape[:2], *counts, elements))
    # The last element of a bin may be there several times: the first of equal ones is found.
    found = g.argmax(taken, axis=-1, keepdims=True)
    best, at = (g.take_along_axis(v, found, axis=-1) for v in (taken, place))
    return g.squeeze(best, axis=-1), g.squeeze(at, axis=-1)


def _split(g: Any, x: Any, axis: int, count: Dim) -> Any:
    """``x`` with an axis of equal bins as two; ``None`` where the bins differ."""
    shape = g.type_of(x).shape
    size = shape[axis]
    if bounds(size)[1] < 1:
        raise GraphError(f"axis {axis} of {g.type_of(x)} is empty: its bins have no elements")
    length = _equal_length(size, count)
    if length is None:
        return None
    return g.reshape(x, (*shape[:axis], count, length, *shape[axis + 1 :]))


@dataclass(frozen=True)
class _Rows:
    """The elements of bins, in rows of the same length.

    Attributes:
        length: of a row: the greatest of a bin.
        positions: ``[count, length]``: of elements; the last of a bin is repeated.
        inside: ``[count, length]``: whether the bin has such an element.
        lengths: ``[count]``: of the bins.
    """

    length: Dim
    positions: Any
    inside: Any
    lengths: Any

    @classmethod
    def of(cls, g: Any, size: Dim, count: Dim) -> _Rows:
        if isinstance(size, int) and isinstance(count, int):
            line = np.arange(count, dtype=np.int64)
            starts, stops = line * size // max(count, 1), -(-(line + 1) * size // max(count, 1))
            length = int((stops - starts).max(initial=1))
            at = starts[:, None] + np.arange(length)
            positions = g.constant(np.minimum(at, stops[:, None] - 1))
            return cls(
                length, positions, g.constant(at < stops[:, None]), g.constant(stops - starts)
            )
        if not isinstance(count, int):
            raise GraphError(f"the number of bins depends on a Variable: {count}; fix it")
        longest = ceil_div(size, count) + 1
        total, steps = g.dim_value(size), g.iota((count,))
        starts = g.floor_divide(g.multiply(steps, total), count)
        stops = g.neg(g.floor_divide(g.multiply(g.neg(g.add(steps, 1)), total), count))
        at = g.add(g.expand_dims(starts, 1), g.iota((1, longest), 1))
        ends = g.expand_dims(stops, 1)
        positions = g.minimum(at, g.subtract(ends, 1))
        return cls(longest, positions, g.less(at, ends), g.subtract(stops, starts))
