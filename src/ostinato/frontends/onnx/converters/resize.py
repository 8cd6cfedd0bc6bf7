"""``Resize`` and ``Upsample``: every output position is a weighted sum of a few input positions.

The positions and weights of an axis depend on sizes alone. Where these are numbers, they are
computed here; where they are open, by nodes of the graph, with the same formulas. What runs besides
is a gather and a multiply per tap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, FLOAT64, INT64
from ostinato.ops.base import normalize_axis
from ostinato.records import dataclass
from ostinato.variables import bounds, floor_div

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

    Array = np.ndarray[Any, Any]

__all__ = ["CONVERTERS"]


#: No axis is resized to more; positions and weights are written out per element.
_LARGEST_AXIS = 2**20

#: The size of an axis at which it is found out whether elements are repeated.
_SAMPLE = 5

#: The finest scale of an open size: multiples of it give the same size in every precision.
_FINEST_SCALE = 64


@dataclass(frozen=True)
class _Axis:
    """The resizing of one axis.

    Attributes:
        axis: which one.
        size: its size now.
        scale: the factor that maps input positions to output positions; ``None`` for that of open
            sizes, ``target / size``.
        target: its size afterwards.
        roi: the part of the axis to take, as fractions, for ``tf_crop_and_resize``.
    """

    axis: int
    size: Dim
    scale: float | None
    target: Dim
    roi: tuple[float, float]

    @property
    def open(self) -> bool:
        return not (isinstance(self.size, int) and isinstance(self.target, int))


@dataclass(frozen=True)
class _Line:
    """The output positions of an axis and its sizes, for formulas.

    Attributes:
        xp: NumPy for arrays and numbers, or the graph for values of it.
        at: the output positions.
        size, scale, target: see :class:`_Axis`; numbers or values, of the dtype of ``at``.
        roi: see :class:`_Axis`.
    """

    xp: Any
    at: Any
    size: Any
    scale: Any
    target: Any
    roi: tuple[float, float]

    @classmethod
    def of_numbers(cls, axis: _Axis, dtype: DType) -> _Line:
        assert isinstance(axis.target, int)
        at = np.arange(axis.target, dtype=dtype.numpy)
        size, scale, target = (
            at.dtype.type(number) for number in (axis.size, axis.scale, axis.target)
        )
        return cls(np, at, size, scale, target, axis.roi)

    @classmethod
    def of_values(cls, g: Graph, axis: _Axis, dtype: DType) -> _Line:
        size, target = (g.cast(g.dim_value(dim), dtype) for dim in (axis.size, axis.target))
        scale = target / size if axis.scale is None else axis.scale
        return cls(g, g.arange(axis.target, dtype=dtype), size, scale, target, axis.roi)

    def inside(self, positions: Any) -> Any:
        """Positions limited to those of the input, as integers."""
        limited = self.xp.minimum(self.xp.maximum(positions, 0.0), self.size - 1.0)
        return limited.astype(np.int64) if self.xp is np else self.xp.cast(limited, INT64)


def convert_resize(call: Call) -> Result:
    x = call.value(0)
    if call.text("mode", "nearest") not in ("nearest", "linear", "cubic"):
        call.malformed(f"unknown mode {call.text('mode', '')!r}")
    for axis in _axes(call):
        whole = _can_be_open(call) or (axis.open and axis.roi == (0.0, 1.0))
        if axis.scale == 1.0 and axis.target == axis.size and whole:
            continue
        if axis.open and not _can_be_open(call):
            call.needs_number("it crops axes of open sizes", axis.size)
        if axis.open and axis.scale is not None and _repeats(call, axis.scale):
            x = _repeated(call, x, axis)
        else:
            x = _resized(call, x, axis)
    return x


def _axes(call: Call) -> list[_Axis]:
    chosen = call.integer_list("axes", None)
    rank = call.rank(0)
    axes = [normalize_axis(a, rank) for a in (range(rank) if chosen is None else chosen)]
    sizes = [call.shape(0)[axis] for axis in axes]
    scales, targets = _targets(call, sizes)
    rois = _rois(call, len(axes))
    if not len(scales) == len(targets) == len(axes):
        call.malformed("its scales or sizes do not match the axes")
    return [_Axis(*row) for row in zip(axes, sizes, scales, targets, rois, strict=True)]


def _targets(call: Call, sizes: Sequence[Dim]) -> tuple[Sequence[float | None], Sequence[Dim]]:
    """The scale and the resulting size of every axis."""
    if call.has(3):
        return _from_sizes(call, sizes)
    scales = _scales(call)
    if not all(0 < scale < math.inf for scale in scales):
        call.malformed(f"scales {list(scales)} should be positive and finite")
    targets: list[Dim] = []
    for size, scale in zip(sizes, scales, strict=False):
        steps = scale * _FINEST_SCALE
        if isinstance(size, int):
            targets.append(int(np.floor(np.float32(size) * np.float32(scale))))
        elif steps == int(steps) and (scale == 1.0 or _can_be_open(call)):
            targets.append(floor_div(size * int(steps), _FINEST_SCALE))
        else:
            resized = [d for d, f in zip(sizes, scales, strict=False) if f != 1.0]
            call.needs_number("it resizes axes of open sizes", *resized)
    return scales, targets


def _scales(call: Call) -> Sequence[float]:
    if call.op_type == "Upsample" and call.opset < 9:
        return call.real_list("scales", ())
    index = 2 if call.op_type == "Resize" and call.opset >= 11 else 1
    known = call.known(index)
    if known is None or known.symbolic:
        call.unknown(index, "its scales are not known when the model is loaded")
    return [float(scale) for scale in known.array.reshape(-1)]


def _from_sizes(call: Call, sizes: Sequence[Dim]) -> tuple[Sequence[float | None], Sequence[Dim]]:
    wanted = call.dims(3, "sizes")
    if len(wanted) != len(sizes):
        call.malformed(f"{len(wanted)} sizes for {len(sizes)} axes")
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    moved = [dim for pair in zip(sizes, wanted, strict=True) if pair[0] != pair[1] for dim in pair]
    numbers = all(isinstance(dim, int) for dim in (*sizes, *wanted))
    if not numbers and policy != "stretch":
        call.needs_number("it keeps the aspect ratio of open sizes", *sizes, *wanted)
    scales: list[float | None] = []
    for size, target in zip(sizes, wanted, strict=True):
        if isinstance(size, int) and isinstance(target, int):
            scales.append(target / max(size, 1))
        elif factor := _factor(size, target):
            scales.append(factor)
        elif _can_be_open(call) and not call.flag("antialias", 0):
            scales.append(None)
        else:
            call.needs_number("it resizes axes of open sizes", *moved)
    if policy == "stretch":
        return scales, wanted
    known = [scale for scale in scales if scale is not None]
    scale = min(known) if policy == "not_larger" else max(known)
    rounded = [int(np.floor(scale * size + 0.5)) for size in sizes if isinstance(size, int)]
    return [scale] * len(sizes), rounded


def _can_be_open(call: Call) -> bool:
    """Whether the formulas of the node hold for open sizes; the region of a crop is numbers."""
    return call.text("coordinate_transformation_mode", "") != "tf_crop_and_resize"


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
    target = _SAMPLE * int(scale)
    line = _Line.of_numbers(_Axis(0, _SAMPLE, scale, target, (0.0, 1.0)), _precision(call))
    ((positions, _),) = _taps(call, line, _coordinates(call, line))
    return bool(np.array_equal(positions, np.arange(target) // int(scale)))


def _repeated(call: Call, x: Value, axis: _Axis) -> Value:
    """Each element along an axis as often as its scale says."""
    assert axis.scale is not None
    g, factor = call.g, int(axis.scale)
    before, after = x.shape[: axis.axis + 1], x.shape[axis.axis + 1 :]
    column = g.reshape(x, (*before, 1, *after))
    repeated = g.broadcast_to(column, (*before, factor, *after))
    return g.reshape(repeated, (*before[:-1], before[-1] * factor, *after))


def _resized(call: Call, x: Value, axis: _Axis) -> Value:
    g = call.g
    if axis.open:
        line = _Line.of_values(g, axis, _precision(call))
    else:
        if bounds(axis.size)[0] < 1 or not 0 <= bounds(axis.target)[0] <= _LARGEST_AXIS:
            call.malformed(f"it resizes an axis of size {axis.size} to {axis.target}")
        if axis.target == 0:
            return g.slice(x, [0], [0], axes=[axis.axis])
        line = _Line.of_numbers(axis, _precision(call))
    at = _coordinates(call, line)
    column = [axis.target if a == axis.axis else 1 for a in range(x.ndim)]
    result: Value | None = None
    for positions, weights in _taps(call, line, at):
        if axis.open:
            taken = g.take(x, positions, axis=axis.axis)
            factor = None if weights is None else g.reshape(g.cast(weights, x.dtype), column)
        else:
            taken = g.take(x, g.constant(positions), axis=axis.axis)
            ones = weights is None or np.all(weights == 1.0)
            factor = None if ones else g.constant(weights.reshape(column), x.dtype)
        if factor is not None:
            taken = g.multiply(taken, factor)
        result = taken if result is None else g.add(result, taken)
    assert result is not None
    if _can_be_open(call):
        return result
    inside = g.constant(((at >= 0) & (at <= axis.size - 1)).reshape(column))
    return g.where(inside, result, call.real("extrapolation_value", 0.0))


def _precision(call: Call) -> DType:
    """The dtype of positions. The nearest one is that of ONNX Runtime only if ties are: where
    float32 takes a position for the middle of two.
    """
    return FLOAT32 if call.text("mode", "nearest") == "nearest" else FLOAT64


def _coordinates(call: Call, line: _Line) -> Any:
    """The position in the input of each output position."""
    xp, at, size, scale = line.xp, line.at, line.size, line.scale
    length = size * scale  # not rounded, as the standard has it
    default = "half_pixel" if call.op_type == "Resize" and call.opset >= 11 else "asymmetric"
    mode = call.text("coordinate_transformation_mode", default)
    if mode == "asymmetric":
        return at / scale
    if mode == "half_pixel":
        return (at + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return xp.where(length > 1.0, (at + 0.5) / scale - 0.5, at * 0.0)
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if mode == "half_pixel_symmetric":
        offset = size / 2.0 * (1.0 - line.target / length)
        return offset + (at + 0.5) / scale - 0.5
    if mode == "align_corners":
        last = xp.where(length > 1.0, length - 1.0, 1.0)
        return xp.where(length > 1.0, at * (size - 1.0) / last, at * 0.0)
    if mode == "tf_crop_and_resize":
        start, end = line.roi
        if length > 1:
            step = (end - start) * (size - 1) / (length - 1)
            return start * (size - 1) + at * step
        return at * 0 + 0.5 * (start + end) * (size - 1)
    return call.malformed(f"unknown coordinate_transformation_mode {mode!r}")


def _taps(call: Call, line: _Line, at: Any) -> list[tuple[Any, Any]]:
    """The input positions of each tap, and their weights; ``None`` where these are 1."""
    xp = line.xp
    mode = call.text("mode", "nearest")
    if mode == "nearest":
        return [(line.inside(_nearest(call, xp, at, line.scale)), None)]
    stretch = min(line.scale, 1.0) if call.flag("antialias", 0) else 1.0
    radius = (1 if mode == "linear" else 2) / stretch
    taps = int(np.ceil(radius)) * 2
    first = xp.floor(at) - (taps // 2 - 1.0)
    positions = [first + float(tap) for tap in range(taps)]
    weights = []
    for position in positions:
        distance = xp.abs(position - at) * stretch
        if mode == "linear":
            weight = xp.maximum(1.0 - distance, 0.0)
        else:
            weight = _cubic(call, xp, distance)
            if call.flag("exclude_outside", 0):
                within = xp.logical_and(position >= 0.0, position <= line.size - 1.0)
                weight = xp.where(within, weight, 0.0)
        weights.append(weight)
    total = sum(weights[1:], weights[0])
    total = xp.where(total == 0.0, 1.0, total)
    return [
        (line.inside(position), weight / total)
        for position, weight in zip(positions, weights, strict=True)
    ]


def _nearest(call: Call, xp: Any, at: Any, scale: Any) -> Any:
    """Rounded positions. Before operator set 11 nothing says how; ONNX Runtime does it so."""
    old = call.op_type == "Upsample" or call.opset < 11
    default = ("floor" if scale >= 1 else "ceil") if old else "round_prefer_floor"
    mode = call.text("nearest_mode", default)
    if mode == "round_prefer_floor":
        return xp.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return xp.floor(at + 0.5)
    if mode not in ("floor", "ceil"):
        call.malformed(f"unknown nearest_mode {mode!r}")
    return xp.floor(at) if mode == "floor" else xp.ceil(at)


def _cubic(call: Call, xp: Any, distance: Any) -> Any:
    """Keys' cubic kernel."""
    a = call.real("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    far = ((distance - 5.0) * distance + 8.0) * distance * a - 4 * a
    return xp.where(distance <= 1.0, near, xp.where(distance < 2.0, far, 0.0))


CONVERTERS: Mapping[str, Converter] = {"Resize": convert_resize, "Upsample": convert_resize}
