"""Ops that read an image between its elements, or in regions: ``GridSample``, ``RoiAlign``,
``MaxRoiPool``, ``DeformConv``.

Positions and weights are computed by elementwise ops; each tap is a gather along the flattened
spatial axes.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import FLOAT64, INT64
from ostinato.frontends.onnx.converters.windows import per_axis, window_padding
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]

#: The names that ``GridSample`` has for its modes before operator set 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}

#: The parameter of Keys' cubic kernel.
_CUBIC = -0.75


@dataclass(frozen=True)
class _Tap:
    """One of the elements along an axis that contribute to a position.

    Attributes:
        index: where it is, within the axis.
        weight: its factor; ``None`` for 1.
    """

    index: Value
    weight: Value | None


def _number(g: Graph, dim: Dim, dtype: DType) -> Value | float:
    """A size as a number of ``dtype``."""
    return float(dim) if isinstance(dim, int) else g.cast(g.dim_value(dim), dtype)


def _gathered(g: Graph, x: Value, taps: Sequence[Sequence[_Tap]], points: Sequence[Dim]) -> Value:
    """The weighted sum of all combinations of taps, one of each spatial axis.

    Args:
        g: the graph.
        x: ``[N, C, *spatial]``.
        taps: by spatial axis; of shapes that broadcast to ``[N, *points]``.
        points: the shape of the positions.

    Returns:
        ``[N, C, *points]``.
    """
    parts = [_tap(g, x, combination, points) for combination in itertools.product(*taps)]
    total = parts[0]
    for part in parts[1:]:
        total = g.add(total, part)
    return total


def _tap(g: Graph, x: Value, taps: Sequence[_Tap], points: Sequence[Dim]) -> Value:
    """The elements of ``x`` at one tap of each spatial axis, times their weights."""
    place: Value | None = None
    weight: Value | None = None
    for size, tap in zip(x.shape[2:], taps, strict=True):
        step = size if isinstance(size, int) else g.dim_value(size)
        place = tap.index if place is None else g.add(g.multiply(place, step), tap.index)
        if tap.weight is not None:
            weight = tap.weight if weight is None else g.multiply(weight, tap.weight)
    assert place is not None
    count = prod(points)
    row = g.reshape(g.broadcast_to(place, (x.shape[0], *points)), (x.shape[0], 1, count))
    picked = g.take_along_axis(
        g.reshape(x, (*x.shape[:2], prod(x.shape[2:]))),
        g.broadcast_to(row, (*x.shape[:2], count)),
        axis=2,
    )
    result = g.reshape(picked, (*x.shape[:2], *points))
    return result if weight is None else g.multiply(result, g.expand_dims(weight, 1))


# -- GridSample ------------------------------------------------------------------------------------


def convert_grid_sample(call: Call) -> Result:
    g, x, grid = call.g, call.value(0), call.value(1)
    ndim = x.ndim - 2
    if ndim < 1 or grid.ndim != x.ndim or grid.shape[-1] != ndim:
        call.malformed(f"expected x [N,C,...] and a grid [N,...,{ndim}], got {x.type}, {grid.type}")
    mode = call.text("mode", "linear" if call.opset >= 20 else "bilinear")
    mode, padding = _MODES.get(mode, mode), call.text("padding_mode", "zeros")
    if mode not in ("linear", "nearest", "cubic"):
        call.malformed(f"unknown mode {mode!r}")
    if padding not in ("zeros", "border", "reflection"):
        call.malformed(f"unknown padding_mode {padding!r}")
    dtype = x.dtype if mode == "nearest" else x.dtype.accumulator
    at = FLOAT64 if FLOAT64 in (x.dtype, grid.dtype) else grid.dtype.accumulator
    points = grid.shape[1:-1]
    taps = []
    for axis, size in enumerate(x.shape[2:]):
        last = ndim - 1 - axis  # a point of the grid names the last axis first
        column = g.slice(grid, [last], [last + 1], axes=[ndim + 1])
        column = g.cast(g.reshape(column, grid.shape[:-1]), at)
        aligned = call.flag("align_corners", 0)
        ends = _Ends(g, _number(g, size, at), aligned, padding)
        taps.append(_grid_taps(g, ends.denormalised(column), ends, mode, dtype))
    return g.cast(_gathered(g, g.cast(x, dtype), taps, points), x.dtype)


@dataclass(frozen=True)
class _Ends:
    """The ends of an axis, and how positions beyond them are read.

    Attributes:
        g: the graph.
        size: of the axis.
        aligned: whether -1 and 1 name the centres of the outer elements, not their edges.
        padding: ``"zeros"``, ``"border"`` or ``"reflection"``.
    """

    g: Graph
    size: Value | float
    aligned: bool
    padding: str

    @property
    def last(self) -> Value | float:
        return self.size - 1.0

    def denormalised(self, x: Value) -> Value:
        """Positions from -1..1 as positions of elements."""
        g = self.g
        if self.aligned:
            return g.multiply(g.multiply(g.add(x, 1.0), 0.5), self.last)
        return g.multiply(g.subtract(g.multiply(g.add(x, 1.0), self.size), 1.0), 0.5)

    def moved_inside(self, x: Value) -> Value:
        """Positions within the axis, unless what lies outside is zero."""
        g = self.g
        if self.padding == "border":  # the edge of the outer elements is within
            low, high = (0.0, self.last) if self.aligned else (-0.5, self.last + 0.5)
            outside = g.logical_or(g.less(x, low), g.greater(x, high))
            return g.where(outside, self._clamped(x), x)
        return self._reflected(x) if self.padding == "reflection" else x

    def tap(self, at: Value, weight: Value | None, dtype: DType) -> _Tap:
        """The element at whole positions ``at``."""
        g = self.g
        if self.padding == "reflection":
            at = self._reflected(at)
        index = g.cast(self._clamped(at), INT64)
        if self.padding == "zeros":
            seen = g.logical_and(g.greater_equal(at, 0.0), g.less_equal(at, self.last))
            weight = g.cast(seen, dtype) if weight is None else g.where(seen, weight, 0.0)
        return _Tap(index, weight)

    def _clamped(self, x: Value) -> Value:
        return self.g.minimum(self.g.maximum(x, 0.0), self.last)

    def _reflected(self, x: Value) -> Value:
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


def _grid_taps(g: Graph, at: Value, ends: _Ends, mode: str, dtype: DType) -> list[_Tap]:
    """The taps of one axis for positions ``at``."""
    if mode == "nearest":
        return [ends.tap(ends.moved_inside(g.round(at)), None, dtype)]
    at = ends.moved_inside(at)
    first = g.floor(at)
    rest = g.cast(g.subtract(at, first), dtype)
    if mode == "linear":
        weights = {0: g.subtract(1.0, rest), 1: rest}
    else:
        weights = {i: _cubic_weight(g, g.abs(g.subtract(rest, float(i))), i) for i in range(-1, 3)}
    return [ends.tap(g.add(first, float(i)), weight, dtype) for i, weight in weights.items()]


def _cubic_weight(g: Graph, distance: Value, tap: int) -> Value:
    """Keys' cubic kernel: one polynomial for the two inner taps, one for the outer ones."""
    a = _CUBIC
    if tap in (0, 1):
        inner = g.subtract(g.multiply(distance, a + 2), a + 3)
        return g.add(g.multiply(inner, g.square(distance)), 1.0)
    outer = g.add(g.multiply(g.subtract(distance, 5.0), g.multiply(distance, a)), 8 * a)
    return g.subtract(g.multiply(outer, distance), 4 * a)


# -- regions ---------------------------------------------------------------------------------------


def convert_roi_align(call: Call) -> Result:
    """Convert ``RoiAlign``: the mean or the maximum of samples in each bin of each region."""
    g, x, regions = call.g, call.value(0), call.value(1)
    if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 4 or call.rank(2) != 1:
        call.malformed(f"expected x [N,C,H,W] and regions [R,4], got {x.type}, {regions.type}")
    mode = call.text("mode", "avg")
    if mode not in ("avg", "max"):
        call.malformed(f"mode should be avg or max, got {mode!r}")
    bins = _bins(call, "output_height", "output_width")
    samples = call.integer("sampling_ratio", 0)
    if samples < 0:
        call.malformed(f"a negative sampling_ratio: {samples}")
    image = g.take(x, call.value(2), axis=0)
    if samples == 0:
        if mode == "max":
            call.unsupported("its maxima are of as many samples as a region is large")
        return _adaptive_means(call, image, regions, bins)
    taps: list[list[_Tap]] = []
    for axis in (0, 1):
        start, extent = _region(call, regions, axis)
        count = bins[axis] * samples
        steps = g.multiply(g.add(g.iota((1, count), 1, x.dtype), 0.5), 1 / count)
        at = g.expand_dims(g.add(start, g.multiply(extent, steps)), 2 - axis)
        taps.append(_region_taps(g, at, x.shape[2 + axis]))
    points = (bins[0] * samples, bins[1] * samples)
    shape = (*image.shape[:2], bins[0], samples, bins[1], samples)
    if mode == "avg":
        return g.mean(g.reshape(_gathered(g, image, taps, points), shape), axis=(3, 5))
    parts = [_tap(g, image, combination, points) for combination in itertools.product(*taps)]
    greatest = parts[0]
    for part in parts[1:]:
        greatest = g.maximum(greatest, part)
    return g.max(g.reshape(greatest, shape), axis=(3, 5))


def _bins(call: Call, *names: str) -> tuple[int, ...]:
    bins = tuple(call.integer(name, 1) for name in names)
    if min(bins) < 1:
        call.malformed(f"an output of {bins} bins")
    return bins


def _region(call: Call, regions: Value, axis: int) -> tuple[Value, Value]:
    """The start of each region along a spatial axis, and its extent: both ``[R, 1]``."""
    g, scale = call.g, call.real("spatial_scale", 1.0)
    # Before operator set 16 there was no offset of half a pixel.
    mode = "coordinate_transformation_mode"
    half = call.opset >= 16 and call.text(mode, "half_pixel") == "half_pixel"
    ends = []
    for column in (1 - axis, 3 - axis):
        end = g.multiply(g.slice(regions, [column], [column + 1], axes=[1]), scale)
        ends.append(g.subtract(end, 0.5) if half else end)
    extent = g.subtract(ends[1], ends[0])
    return ends[0], extent if half else g.maximum(extent, 1.0)


def _region_taps(g: Graph, at: Value, size: Dim) -> list[_Tap]:
    """The two neighbours of each position; none counts beyond a pixel from the image."""
    end = _number(g, size, at.dtype)
    seen = g.logical_and(g.greater_equal(at, -1.0), g.less_equal(at, end))
    last = end - 1.0
    inside = g.minimum(g.maximum(at, 0.0), last)
    first = g.floor(inside)
    rest = g.subtract(inside, first)
    second = g.minimum(g.add(first, 1.0), last)
    return [
        _Tap(g.cast(index, INT64), g.where(seen, weight, 0.0))
        for index, weight in ((first, g.subtract(1.0, rest)), (second, rest))
    ]


def _adaptive_means(call: Call, image: Value, regions: Value, bins: Sequence[int]) -> Value:
    """Means of as many samples as a bin has pixels, rounded up.

    A mean of bilinear samples on a grid is separable: rows of the image are weighted by one matrix
    for each region, columns by another.
    """
    g = call.g
    rows, row_count = _sample_weights(call, regions, 0, bins[0], image.shape[2])
    columns, column_count = _sample_weights(call, regions, 1, bins[1], image.shape[3])
    sums = g.matmul(
        g.matmul(g.expand_dims(rows, 1), image),
        g.permute_dims(g.expand_dims(columns, 1), (0, 1, 3, 2)),
    )
    count = g.maximum(g.multiply(row_count, column_count), 1.0)
    return g.divide(sums, g.reshape(count, (regions.shape[0], 1, 1, 1)))


def _sample_weights(
    call: Call, regions: Value, axis: int, bins: int, size: Dim
) -> tuple[Value, Value]:
    """The weight of each element of an axis for each bin ``[R, bins, size]``, and the samples.

    Samples are at most a pixel apart and more than half a pixel, so those within the image are
    fewer than twice its size; the first of them is found by division.
    """
    g, dtype = call.g, regions.dtype
    start, extent = _region(call, regions, axis)
    step = g.multiply(extent, 1 / bins)
    count = g.maximum(g.ceil(step), 0.0)
    apart = g.where(g.greater(count, 0.0), g.divide(step, g.maximum(count, 1.0)), 1.0)
    first = g.add(start, g.multiply(g.iota((1, bins), 1, dtype), step))  # [R, bins]
    skipped = g.ceil(g.subtract(g.divide(g.subtract(-1.0, first), apart), 0.5))
    skipped = g.maximum(skipped, 0.0)
    number = g.add(
        g.reshape(skipped, (*skipped.shape, 1, 1)), g.iota((1, 1, 1, 2 * size + 6), 3, dtype)
    )
    wide = (regions.shape[0], 1, 1, 1)
    at = g.add(
        g.reshape(first, (*first.shape, 1, 1)),
        g.multiply(g.add(number, 0.5), g.reshape(apart, wide)),
    )
    end = _number(g, size, dtype)
    seen = g.logical_and(g.greater_equal(at, -1.0), g.less_equal(at, end))
    seen = g.logical_and(seen, g.less(number, g.reshape(count, wide)))
    inside = g.minimum(g.maximum(at, 0.0), end - 1.0)
    distance = g.abs(g.subtract(inside, g.iota((1, 1, size, 1), 2, dtype)))
    weights = g.where(seen, g.maximum(g.subtract(1.0, distance), 0.0), 0.0)
    return g.sum(weights, axis=3), count


def convert_max_roi_pool(call: Call) -> Result:
    """Convert ``MaxRoiPool``: the maximum of each bin, first over columns, then over rows."""
    g, x, regions = call.g, call.value(0), call.value(1)
    if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 5:
        call.malformed(f"expected x [N,C,H,W] and regions [R,5], got {x.type}, {regions.type}")
    bins = call.integer_list("pooled_shape", ())
    if len(bins) != 2 or min(bins) < 1:
        call.malformed(f"pooled_shape {list(bins)} should be two positive ints")
    scale = call.real("spatial_scale", 1.0)
    batch = g.cast(g.reshape(g.slice(regions, [0], [1], axes=[1]), (regions.shape[0],)), INT64)
    result = g.take(x, batch, axis=0)  # [R, C, H, W]
    for axis in (1, 0):
        start, end = (
            g.round(g.multiply(g.slice(regions, [column], [column + 1], axes=[1]), scale))
            for column in (2 - axis, 4 - axis)
        )
        extent = g.maximum(g.add(g.subtract(end, start), 1.0), 1.0)
        number = g.iota((1, bins[axis]), 1, x.dtype)
        size = x.shape[2 + axis]
        last = _number(g, size, x.dtype)
        low, high = (
            g.minimum(g.maximum(g.add(edge, start), 0.0), last)
            for edge in (
                g.floor(g.multiply(number, g.divide(extent, float(bins[axis])))),
                g.ceil(g.multiply(g.add(number, 1.0), g.divide(extent, float(bins[axis])))),
            )
        )
        place = g.iota((1, 1, size), 2, x.dtype)
        covered = g.logical_and(
            g.greater_equal(place, g.expand_dims(low, 2)), g.less(place, g.expand_dims(high, 2))
        )  # [R, bins, size]
        if axis == 1:  # [R, C, H, bins]
            spread = (regions.shape[0], 1, 1, bins[1], size)
            seen = g.where(g.reshape(covered, spread), g.expand_dims(result, 3), -math.inf)
        else:  # [R, C, bins, bins]
            spread = (regions.shape[0], 1, bins[0], 1, size)
            moved = g.expand_dims(g.permute_dims(result, (0, 1, 3, 2)), 2)
            seen = g.where(g.reshape(covered, spread), moved, -math.inf)
        result = g.max(seen, axis=4)
    return g.where(g.equal(result, -math.inf), 0.0, result)


# -- DeformConv ------------------------------------------------------------------------------------


def convert_deform_conv(call: Call) -> Result:
    """Convert ``DeformConv``: sampled patches, then a matmul for each group."""
    g, x, w, offset = call.g, call.value(0), call.value(1), call.value(2)
    ndim = x.ndim - 2
    if ndim < 1 or w.ndim != x.ndim or offset.ndim != x.ndim:
        call.malformed(f"expected x [N,C,...], got {x.type}, {w.type}, {offset.type}")
    kernel = _fixed(call, w.shape[2:])
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    pads = window_padding(call, kernel)
    groups, fields = call.integer("group", 1), call.integer("offset_group", 1)
    (channels, outputs), points = _fixed(call, (x.shape[1], w.shape[0])), offset.shape[2:]
    taps_count = math.prod(kernel)
    if channels % groups or outputs % groups or channels % fields:
        call.malformed(f"{groups} groups and {fields} fields of offsets do not divide its channels")
    if offset.shape[1] != fields * taps_count * ndim:
        call.malformed(f"{offset.type} should have {fields * taps_count * ndim} channels")
    # Each field of offsets moves the taps of its own channels: it is treated as a batch of its own.
    batch = x.shape[0]
    image = g.reshape(x, (batch * fields, channels // fields, *x.shape[2:]))
    moves = g.reshape(offset, (batch * fields, taps_count, ndim, *points))
    taps = []
    for axis in range(ndim):
        steps = np.indices(kernel)[axis].reshape(-1, *(1,) * ndim) * dilations[axis]
        position = g.constant(steps[None], x.dtype)
        column = tuple(n if a == axis else 1 for a, n in enumerate(points))
        start = g.multiply(g.iota(column, axis, x.dtype), float(strides[axis]))
        start = g.reshape(g.subtract(start, float(pads[axis][0])), (1, 1, *column))
        move = g.reshape(
            g.slice(moves, [axis], [axis + 1], axes=[2]), (batch * fields, taps_count, *points)
        )
        ends = _Ends(g, _number(g, x.shape[2 + axis], x.dtype), True, "zeros")
        at = g.add(g.add(start, position), move)
        taps.append(_grid_taps(g, at, ends, "linear", x.dtype))
    sampled = _gathered(g, image, taps, (taps_count, *points))
    if call.has(4):
        mask = g.reshape(call.value(4), (batch * fields, 1, taps_count, *points))
        sampled = g.multiply(sampled, mask)
    depth = channels // groups * taps_count
    patches = g.reshape(sampled, (batch, groups, depth, prod(points)))
    weights = g.reshape(w, (groups, outputs // groups, depth))
    result = g.reshape(g.matmul(weights, patches), (batch, outputs, *points))
    if not call.has(3):
        return result
    return g.add(result, g.reshape(call.value(3), (outputs, *(1,) * ndim)))


def _fixed(call: Call, dims: Sequence[Dim]) -> tuple[int, ...]:
    sizes = tuple(dim for dim in dims if isinstance(dim, int))
    if len(sizes) != len(dims):
        call.unsupported(f"its channels or kernel {list(dims)} depend on a Variable")
    return sizes


CONVERTERS: Mapping[str, Converter] = {
    "DeformConv": convert_deform_conv,
    "GridSample": convert_grid_sample,
    "MaxRoiPool": convert_max_roi_pool,
    "RoiAlign": convert_roi_align,
}
