"""``Resize`` and ``Upsample``: every output position is a weighted sum of a few input positions.

The positions and weights of an axis depend on sizes alone, so they are computed here; what runs is
a gather and a multiply per tap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.ops.base import normalize_axis
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

    Array = np.ndarray[Any, Any]

__all__ = ["CONVERTERS"]


#: No axis is resized to more; positions and weights are written out per element.
_LARGEST_AXIS = 2**20


#: The size of an axis at which it is found out whether elements are repeated.
_SAMPLE = 5


@dataclass(frozen=True)
class _Axis:
    """The resizing of one axis.

    Attributes:
        axis: which one.
        size: its size now; that of a Variable only where elements are repeated.
        scale: the factor that maps input positions to output positions.
        target: its size afterwards.
        roi: the part of the axis to take, as fractions, for ``tf_crop_and_resize``.
    """

    axis: int
    size: Dim
    scale: float
    target: int
    roi: tuple[float, float]


def convert_resize(call: Call) -> Result:
    x = call.value(0)
    if call.text("mode", "nearest") not in ("nearest", "linear", "cubic"):
        call.malformed(f"unknown mode {call.text('mode', '')!r}")
    cropped = call.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    for axis in _axes(call):
        if not isinstance(axis.size, int):
            x = _repeated(call, x, axis)
        elif axis.scale != 1.0 or axis.target != axis.size or cropped:
            x = _resized(call, x, axis)
    return x


def _axes(call: Call) -> list[_Axis]:
    chosen = call.integer_list("axes", None)
    rank = call.rank(0)
    axes = [normalize_axis(a, rank) for a in (range(rank) if chosen is None else chosen)]
    sizes = [_size(call, axis) for axis in axes]
    scales, targets = _targets(call, axes, sizes)
    rois = _rois(call, len(axes))
    if not len(scales) == len(targets) == len(axes):
        call.malformed("its scales or sizes do not match the axes")
    shape = call.shape(0)
    rows = zip(axes, [shape[axis] for axis in axes], scales, targets, rois, strict=True)
    return [_Axis(*row) for row in rows]


def _size(call: Call, axis: int) -> int | None:
    """The size of an axis; ``None`` for one that depends on a Variable."""
    size = call.shape(0)[axis]
    return size if isinstance(size, int) else None


def _targets(
    call: Call, axes: list[int], sizes: list[int | None]
) -> tuple[Sequence[float], Sequence[int]]:
    """The scale and the resulting size of every axis."""
    if call.has(3):
        return _from_sizes(call, axes, sizes)
    scales = _scales(call)
    if not all(0 < scale < math.inf for scale in scales):
        call.malformed(f"scales {list(scales)} should be positive and finite")
    targets = []
    for size, scale in zip(sizes, scales, strict=False):
        if size is None and not _repeats(call, scale):
            dims = [d for d, f in zip(call.shape(0), scales, strict=False) if f != 1.0]
            call.needs_number("it resizes axes of open sizes", *dims)
        targets.append(int(np.floor((size or 1) * scale)))
    return scales, targets


def _scales(call: Call) -> Sequence[float]:
    if call.op_type == "Upsample" and call.opset < 9:
        return call.real_list("scales", ())
    index = 2 if call.op_type == "Resize" and call.opset >= 11 else 1
    known = call.known(index)
    if known is None or known.symbolic:
        call.unknown(index, "its scales are not known when the model is loaded")
    return [float(scale) for scale in known.array.reshape(-1)]


def _from_sizes(
    call: Call, axes: list[int], sizes: list[int | None]
) -> tuple[Sequence[float], Sequence[int]]:
    wanted = call.dims(3, "sizes")
    if len(wanted) != len(axes):
        call.malformed(f"{len(wanted)} sizes for {len(axes)} axes")
    scales: list[float] = []
    targets: list[int] = []
    for axis, size, target in zip(axes, sizes, wanted, strict=True):
        if (
            size is None
            and (factor := _factor(call.shape(0)[axis], target))
            and _repeats(call, factor)
        ):
            scales.append(factor)
            targets.append(1)
        elif size is None or not isinstance(target, int):
            moved = [(call.shape(0)[a], d) for a, d in zip(axes, wanted, strict=True)]
            dims = [dim for pair in moved if pair[0] != pair[1] for dim in pair]
            call.needs_number("it resizes axes of open sizes", *dims)
        else:
            scales.append(target / max(size, 1))
            targets.append(target)
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, targets
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(axes), [int(np.floor(scale * (size or 1) + 0.5)) for size in sizes]


def _rois(call: Call, count: int) -> list[tuple[float, float]]:
    mode = call.text("coordinate_transformation_mode", "half_pixel")
    if mode != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    known = call.known(1)
    if known is None or known.symbolic:
        call.unknown(1, "its region of interest is not known when the model is loaded")
    if known.size != 2 * count:
        call.malformed(f"its region of interest has {known.size} numbers for {count} axes")
    flat = [float(v) for v in known.array.reshape(-1)]
    return list(zip(flat[:count], flat[count:], strict=True))


def _factor(size: Dim, target: Dim) -> int:
    """``target / size`` where that is a whole number for all sizes; else 0."""
    factor = max(bounds(target)[1] // max(bounds(size)[1], 1), 1)
    return factor if target == size * factor else 0


def _repeats(call: Call, scale: float) -> bool:
    """Whether resizing by ``scale`` repeats each element, whatever the size of the axis."""
    if scale == 1.0:
        return True
    mode = call.text("coordinate_transformation_mode", "half_pixel")
    sized = mode in ("align_corners", "half_pixel_symmetric", "tf_crop_and_resize")
    if call.text("mode", "nearest") != "nearest" or sized or scale != int(scale):
        return False
    if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    axis = _Axis(0, _SAMPLE, scale, _SAMPLE * int(scale), (0.0, 1.0))
    positions, _ = _taps(call, axis, _coordinates(call, axis))
    return bool(np.array_equal(positions[0], np.arange(axis.target) // int(scale)))


def _repeated(call: Call, x: Value, axis: _Axis) -> Value:
    """Each element along an axis as often as its scale says."""
    g, factor = call.g, int(axis.scale)
    if factor == 1:
        return x
    before, after = x.shape[: axis.axis + 1], x.shape[axis.axis + 1 :]
    column = g.reshape(x, (*before, 1, *after))
    repeated = g.broadcast_to(column, (*before, factor, *after))
    return g.reshape(repeated, (*before[:-1], before[-1] * factor, *after))


def _resized(call: Call, x: Value, axis: _Axis) -> Value:
    assert isinstance(axis.size, int)
    if axis.size < 1 or not 0 <= axis.target <= _LARGEST_AXIS:
        call.malformed(f"it resizes an axis of size {axis.size} to {axis.target}")
    g = call.g
    if axis.target == 0:
        return g.slice(x, [0], [0], axes=[axis.axis])
    at = _coordinates(call, axis)
    positions, weights = _taps(call, axis, at)
    column = [axis.target if a == axis.axis else 1 for a in range(x.ndim)]
    result: Value | None = None
    for index, weight in zip(positions, weights, strict=True):
        taken = g.take(x, g.constant(index), axis=axis.axis)
        if not np.all(weight == 1.0):
            factor = g.constant(weight.reshape(column), x.dtype)
            taken = g.multiply(taken, factor)
        result = taken if result is None else g.add(result, taken)
    assert result is not None
    if call.text("coordinate_transformation_mode", "") != "tf_crop_and_resize":
        return result
    inside = g.constant(((at >= 0) & (at <= axis.size - 1)).reshape(column))
    return g.where(inside, result, call.real("extrapolation_value", 0.0))


def _coordinates(call: Call, axis: _Axis) -> Array:
    """The position in the input of each output position."""
    assert isinstance(axis.size, int)
    at = np.arange(axis.target, dtype=np.float64)
    length = axis.size * axis.scale  # not rounded, as the standard has it
    default = "half_pixel" if call.op_type == "Resize" and call.opset >= 11 else "asymmetric"
    mode = call.text("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return at / axis.scale
    if mode == "half_pixel":
        return (at + 0.5) / axis.scale - 0.5
    if mode == "pytorch_half_pixel":
        return (at + 0.5) / axis.scale - 0.5 if length > 1 else at * 0
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / axis.scale
    if mode == "half_pixel_symmetric":
        offset = axis.size / 2 * (1 - axis.target / length)
        return offset + (at + 0.5) / axis.scale - 0.5
    if mode == "align_corners":
        return at * (axis.size - 1) / (length - 1) if length > 1 else at * 0
    if mode == "tf_crop_and_resize":
        start, end = axis.roi
        if length > 1:
            step = (end - start) * (axis.size - 1) / (length - 1)
            return start * (axis.size - 1) + at * step
        return at * 0 + 0.5 * (start + end) * (axis.size - 1)
    return call.malformed(f"unknown coordinate_transformation_mode {mode!r}")


def _taps(call: Call, axis: _Axis, at: Array) -> tuple[Array, Array]:
    """Input positions and their weights, both ``[taps, target]``."""
    assert isinstance(axis.size, int)
    mode = call.text("mode", "nearest")
    if mode == "nearest":
        index = _nearest(call, at, axis.scale).astype(np.int64)
        return np.clip(index, 0, axis.size - 1)[None], np.ones((1, axis.target))
    stretch = min(axis.scale, 1.0) if call.flag("antialias", 0) else 1.0
    radius = (1 if mode == "linear" else 2) / stretch
    taps = int(np.ceil(radius)) * 2
    first = np.floor(at).astype(np.int64) - taps // 2 + 1
    positions = first + np.arange(taps)[:, None]
    distance = np.abs(positions - at) * stretch
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(call, distance)
    if mode == "cubic" and call.flag("exclude_outside", 0):
        weights = np.where((positions >= 0) & (positions < axis.size), weights, 0)
    total = weights.sum(axis=0)
    weights = weights / np.where(total == 0, 1, total)
    return np.clip(positions, 0, axis.size - 1), weights


def _nearest(call: Call, at: Array, scale: float) -> Array:
    """Rounded positions. Before operator set 11 nothing says how; ONNX Runtime does it so."""
    old = call.op_type == "Upsample" or call.opset < 11
    default = ("floor" if scale >= 1 else "ceil") if old else "round_prefer_floor"
    mode = call.text("nearest_mode", default)
    if mode == "round_prefer_floor":
        return np.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(at + 0.5)
    if mode not in ("floor", "ceil"):
        call.malformed(f"unknown nearest_mode {mode!r}")
    return np.floor(at) if mode == "floor" else np.ceil(at)


def _cubic(call: Call, distance: Array) -> Array:
    """Keys' cubic kernel."""
    a = call.real("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


CONVERTERS: Mapping[str, Converter] = {"Resize": convert_resize, "Upsample": convert_resize}
