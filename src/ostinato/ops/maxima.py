"""The positions of the greatest elements of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import INT64
from ostinato.ops.shape import SLICE
from ostinato.ops.windows import whole_windows, window_offsets, windowed_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.dtypes import DType
    from ostinato.ops.windows import Padding
    from ostinato.variables import Dim

__all__ = ["plane_positions", "window_positions"]


def window_positions(
    g: Any,
    x: Any,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> Any:
    """The position of each window's maximum in the flattened spatial axes of ``x``.

    It is that of the first of equal elements, and of the last NaN, as PyTorch has it.
    """
    type_ = g.type_of(x)
    sizes = type_.shape[2:]
    counts = windowed_shape(sizes, kernel, stride, padding, dilation, ceil_mode)
    padded = [(0, 0), (0, 0), *whole_windows(padding, stride, ceil_mode)]
    elements = g.pad(x, padded, value=_least(type_.dtype))
    places = g.pad(plane_positions(g, sizes), padded, value=-1)
    geometry = (kernel, stride, dilation, counts)
    best: Any = None
    place: Any = None
    for seen, at in zip(_taps(g, elements, *geometry), _taps(g, places, *geometry), strict=True):
        if best is None:
            best, place = seen, at
            continue
        better = g.logical_or(g.greater(seen, best), g.less(place, 0))
        if type_.dtype.is_float:
            better = g.logical_or(better, g.isnan(seen))
        # Any element beats padding, however small; padding never beats an element.
        better = g.logical_and(better, g.greater_equal(at, 0))
        best, place = g.where(better, seen, best), g.where(better, at, place)
    return g.broadcast_to(place, (*type_.shape[:2], *counts))


def plane_positions(g: Any, sizes: Sequence[Dim]) -> Any:
    """The number of each element of a plane: ``[1, 1, *sizes]`` of int64."""
    place: Any = None
    for axis, size in enumerate(sizes):
        step = g.iota(tuple(n if a == axis else 1 for a, n in enumerate(sizes)), axis, INT64)
        place = step if place is None else g.add(g.multiply(place, g.dim_value(size)), step)
    return g.reshape(place, (1, 1, *sizes))


def _taps(
    g: Any,
    padded: Any,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    counts: tuple[Dim, ...],
) -> Iterator[Any]:
    """The elements of all windows at each position of the kernel."""
    lead = g.type_of(padded).shape[:2]
    for offsets in window_offsets(kernel, dilation):
        stops = [
            offset + (count - 1) * step + 1
            for offset, count, step in zip(offsets, counts, stride, strict=True)
        ]
        attrs = {
            "starts": (0, 0, *offsets),
            "stops": (*lead, *stops),
            "steps": (1, 1, *stride),
        }
        yield g.apply(SLICE, (padded,), attrs)[0]


def _least(dtype: DType) -> float:
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)
