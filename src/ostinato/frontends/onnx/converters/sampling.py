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

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.converters.windows import per_axis, window_padding
from ostinato.ops.sampling import Ends, Tap, gathered, grid_sample, grid_taps, read_tap, size_of
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]

#: The names that ``GridSample`` has for its modes before operator set 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def convert_grid_sample(call: Call) -> Result:
    mode = call.text("mode", "linear" if call.opset >= 20 else "bilinear")
    return grid_sample(  # type: ignore[no-any-return]
        call.g,
        call.value(0),
        call.value(1),
        _MODES.get(mode, mode),
        call.text("padding_mode", "zeros"),
        align_corners=call.flag("align_corners", 0),
        moves_centers=True,
    )


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
    taps: list[list[Tap]] = []
    for axis in (0, 1):
        start, extent = _region(call, regions, axis)
        count = bins[axis] * samples
        steps = g.multiply(g.add(g.iota((1, count), 1, x.dtype), 0.5), 1 / count)
        at = g.expand_dims(g.add(start, g.multiply(extent, steps)), 2 - axis)
        taps.append(_region_taps(g, at, x.shape[2 + axis]))
    points = (bins[0] * samples, bins[1] * samples)
    shape = (*image.shape[:2], bins[0], samples, bins[1], samples)
    if mode == "avg":
        return g.mean(g.reshape(gathered(g, image, taps, points), shape), axis=(3, 5))
    parts = [read_tap(g, image, combination, points) for combination in itertools.product(*taps)]
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


def _region_taps(g: Graph, at: Value, size: Dim) -> list[Tap]:
    """The two neighbours of each position; none counts beyond a pixel from the image."""
    end = size_of(g, size, at.dtype)
    seen = g.logical_and(g.greater_equal(at, -1.0), g.less_equal(at, end))
    last = end - 1.0
    inside = g.minimum(g.maximum(at, 0.0), last)
    first = g.floor(inside)
    rest = g.subtract(inside, first)
    second = g.minimum(g.add(first, 1.0), last)
    return [
        Tap(g.cast(index, INT64), g.where(seen, weight, 0.0))
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
    end = size_of(g, size, dtype)
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
        last = size_of(g, size, x.dtype)
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
        ends = Ends(g, size_of(g, x.shape[2 + axis], x.dtype), True, "zeros")
        at = g.add(g.add(start, position), move)
        taps.append(grid_taps(g, at, ends, "linear", x.dtype))
    sampled = gathered(g, image, taps, (taps_count, *points))
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
