"""Reading an image between its elements: positions, taps, and the sampling of grids.

Positions and weights are computed by elementwise ops; each tap is a gather along the flattened
spatial axes.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT64, INT64
from ostinato.errors import GraphError
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.variables import Dim

__all__ = [
    "Ends",
    "Tap",
    "affine_grid",
    "gathered",
    "grid_sample",
    "grid_taps",
    "read_tap",
    "size_of",
]

#: The interpolations of :func:`grid_sample`, and its readings of positions beyond the ends.
MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")

#: The parameter of Keys' cubic kernel.
_CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """One of the elements along an axis that contribute to a position.

    Attributes:
        index: where it is, within the axis.
        weight: its factor; ``None`` for 1.
    """

    index: Any
    weight: Any


def size_of(g: Any, dim: Dim, dtype: DType) -> Any:
    """A size as a number of ``dtype``."""
    return float(dim) if isinstance(dim, int) else g.cast(g.dim_value(dim), dtype)


def gathered(g: Any, x: Any, taps: Sequence[Sequence[Tap]], points: Sequence[Dim]) -> Any:
    """The weighted sum of all combinations of taps, one of each spatial axis.

    Args:
        g: the graph.
        x: ``[N, C, *spatial]``.
        taps: by spatial axis; of shapes that broadcast to ``[N, *points]``.
        points: the shape of the positions.

    Returns:
        ``[N, C, *points]``.
    """
    parts = [read_tap(g, x, combination, points) for combination in itertools.product(*taps)]
    total = parts[0]
    for part in parts[1:]:
        total = g.add(total, part)
    return total


def read_tap(g: Any, x: Any, taps: Sequence[Tap], points: Sequence[Dim]) -> Any:
    """The elements of ``x`` at one tap of each spatial axis, times their weights."""
    place: Any = None
    weight: Any = None
    batch, channels, *sizes = g.type_of(x).shape
    for size, tap in zip(sizes, taps, strict=True):
        step = size if isinstance(size, int) else g.dim_value(size)
        place = tap.index if place is None else g.add(g.multiply(place, step), tap.index)
        if tap.weight is not None:
            weight = tap.weight if weight is None else g.multiply(weight, tap.weight)
    assert place is not None
    count = prod(points)
    row = g.reshape(g.broadcast_to(place, (batch, *points)), (batch, 1, count))
    picked = g.take_along_axis(
        g.reshape(x, (batch, channels, prod(sizes))),
        g.broadcast_to(row, (batch, channels, count)),
        axis=2,
    )
    result = g.reshape(picked, (batch, channels, *points))
    return result if weight is None else g.multiply(result, g.expand_dims(weight, 1))


@dataclass(frozen=True)
class Ends:
    """The ends of an axis, and how positions beyond them are read.

    Attributes:
        g: the graph.
        size: of the axis.
        aligned: whether -1 and 1 name the centres of the outer elements, not their edges.
        padding: one of :data:`PADDINGS`.
        moves_centers: whether a position beyond the ends is moved inside before its neighbours are
            found, as ONNX has it for all modes; PyTorch moves the neighbours of cubic positions one
            by one, and rounds after moving.
    """

    g: Any
    size: Any
    aligned: bool
    padding: str
    moves_centers: bool = True

    @property
    def last(self) -> Any:
        return self.size - 1.0

    def denormalised(self, x: Any) -> Any:
        """Positions from -1..1 as positions of elements."""
        g = self.g
        if self.aligned:
            return g.multiply(g.multiply(g.add(x, 1.0), 0.5), self.last)
        return g.multiply(g.subtract(g.multiply(g.add(x, 1.0), self.size), 1.0), 0.5)

    def moved_inside(self, x: Any) -> Any:
        """Positions within the axis, unless what lies outside is zero."""
        g = self.g
        if self.padding == "border":  # the edge of the outer elements is within
            low, high = (0.0, self.last) if self.aligned else (-0.5, self.last + 0.5)
            outside = g.logical_or(g.less(x, low), g.greater(x, high))
            return g.where(outside, self._clamped(x), x)
        return self._reflected(x) if self.padding == "reflection" else x

    def tap(self, at: Any, weight: Any, dtype: DType) -> Tap:
        """The element at whole positions ``at``."""
        g = self.g
        if self.padding == "reflection":
            at = self._reflected(at)
        index = g.cast(self._clamped(at), INT64)
        if self.padding == "zeros":
            seen = g.logical_and(g.greater_equal(at, 0.0), g.less_equal(at, self.last))
            weight = g.cast(seen, dtype) if weight is None else g.where(seen, weight, 0.0)
        return Tap(index, weight)

    def _clamped(self, x: Any) -> Any:
        return self.g.minimum(self.g.maximum(x, 0.0), self.last)

    def _reflected(self, x: Any) -> Any:
        """Positions folded back at the ends as often as it takes."""
        g, low = self.g, 0.0 if self.aligned else -0.5
        span = self.last if self.aligned else self.size
        if isinstance(span, float) and span == 0:
            return g.multiply(x, 0.0)
        period = g.multiply(span, 2.0)
        away = g.abs(g.subtract(x, low))
        rest = g.subtract(away, g.multiply(g.floor(g.divide(away, period)), period))
        folded = g.add(g.minimum(rest, g.subtract(period, rest)), low)
        return folded if isinstance(span, float) else g.where(g.greater(period, 0.0), folded, 0.0)


def grid_taps(g: Any, at: Any, ends: Ends, mode: str, dtype: DType) -> list[Tap]:
    """The taps of one axis for positions ``at``."""
    if mode == "nearest":
        if ends.moves_centers:
            return [ends.tap(ends.moved_inside(g.round(at)), None, dtype)]
        return [ends.tap(g.round(ends.moved_inside(at)), None, dtype)]
    if mode == "linear" or ends.moves_centers:
        at = ends.moved_inside(at)
    first = g.floor(at)
    rest = g.cast(g.subtract(at, first), dtype)
    if mode == "linear":
        weights = {0: g.subtract(1.0, rest), 1: rest}
    else:
        weights = {i: _cubic_weight(g, g.abs(g.subtract(rest, float(i))), i) for i in range(-1, 3)}
    return [ends.tap(g.add(first, float(i)), weight, dtype) for i, weight in weights.items()]


def _cubic_weight(g: Any, distance: Any, tap: int) -> Any:
    """Keys' cubic kernel: one polynomial for the two inner taps, one for the outer ones."""
    a = _CUBIC
    if tap in (0, 1):
        inner = g.subtract(g.multiply(distance, a + 2), a + 3)
        return g.add(g.multiply(inner, g.square(distance)), 1.0)
    outer = g.add(g.multiply(g.subtract(distance, 5.0), g.multiply(distance, a)), 8 * a)
    return g.subtract(g.multiply(outer, distance), 4 * a)


def grid_sample(
    g: Any,
    x: Any,
    grid: Any,
    mode: str,
    padding: str,
    *,
    align_corners: bool,
    moves_centers: bool = False,
) -> Any:
    """``x [N, C, *spatial]`` at the positions of ``grid [N, *points, ndim]``: ``[N, C, *points]``.

    Args:
        g: the graph.
        x: the images.
        grid: positions from -1 to 1, the last axis of the image first.
        mode: one of :data:`MODES`.
        padding: one of :data:`PADDINGS`.
        align_corners, moves_centers: see :class:`Ends`.

    Raises:
        GraphError: an unknown mode, or shapes that do not fit.
    """
    source, positions = g.type_of(x), g.type_of(grid)
    ndim = source.ndim - 2
    if ndim < 1 or positions.ndim != source.ndim or positions.shape[-1] != ndim:
        raise GraphError(
            f"expected x [N, C, *spatial] and a grid [N, *points, {max(ndim, 1)}], "
            f"got {source} and {positions}"
        )
    if mode not in MODES:
        raise GraphError(f"the mode is one of {MODES}, got {mode!r}")
    if padding not in PADDINGS:
        raise GraphError(f"the padding mode is one of {PADDINGS}, got {padding!r}")
    if not (source.dtype.is_float and positions.dtype.is_float):
        raise GraphError(f"expected floats, got {source} and {positions}")
    dtype = source.dtype if mode == "nearest" else source.dtype.accumulator
    at = FLOAT64 if FLOAT64 in (source.dtype, positions.dtype) else positions.dtype.accumulator
    taps = []
    for axis, size in enumerate(source.shape[2:]):
        last = ndim - 1 - axis  # a point of the grid names the last axis first
        column = g.slice(grid, [last], [last + 1], axes=[ndim + 1])
        column = g.cast(g.reshape(column, positions.shape[:-1]), at)
        ends = Ends(g, size_of(g, size, at), align_corners, padding, moves_centers)
        taps.append(grid_taps(g, ends.denormalised(column), ends, mode, dtype))
    return g.cast(gathered(g, g.cast(x, dtype), taps, positions.shape[1:-1]), source.dtype)


def affine_grid(g: Any, theta: Any, sizes: Sequence[Dim], *, align_corners: bool) -> Any:
    """The positions of an image's elements under affine maps, for :func:`grid_sample`.

    Args:
        g: the graph.
        theta: ``[N, ndim, ndim + 1]``: a matrix and a shift for each image.
        sizes: of the spatial axes.
        align_corners: see :class:`Ends`.

    Returns:
        ``[N, *sizes, ndim]``.

    Raises:
        GraphError: ``theta`` does not fit the number of axes, or has no floats.
    """
    maps, ndim = g.type_of(theta), len(sizes)
    if maps.ndim != 3 or maps.shape[1:] != (ndim, ndim + 1) or not maps.dtype.is_float:
        raise GraphError(f"expected floats [N, {ndim}, {ndim + 1}], got {maps}")
    spread = (maps.shape[0], *(1,) * ndim, ndim)
    dtype = maps.dtype.accumulator
    wide = g.cast(theta, dtype)

    def column(index: int) -> Any:
        return g.reshape(g.slice(wide, [index], [index + 1], axes=[2]), spread)

    result = column(ndim)
    for axis, size in enumerate(sizes):
        line = _centers(g, size, dtype, align_corners)
        line = g.reshape(line, (1, *(size if a == axis else 1 for a in range(ndim)), 1))
        result = g.add(result, g.multiply(line, column(ndim - 1 - axis)))
    return g.cast(result, maps.dtype)


def _centers(g: Any, size: Dim, dtype: DType, align_corners: bool) -> Any:
    """The positions of the elements of an axis, between -1 and 1; that of a single one is 0."""
    line, count = g.iota((size,), 0, dtype), size_of(g, size, dtype)
    if not align_corners:
        return g.subtract(g.divide(g.add(g.multiply(line, 2.0), 1.0), count), 1.0)
    if isinstance(size, int):
        return g.subtract(g.multiply(line, 2.0 / max(size - 1, 1)), float(size > 1))
    last = g.subtract(count, 1.0)
    return g.divide(g.subtract(g.multiply(line, 2.0), last), g.maximum(last, 1.0))
