"""Resizing of axes: every output position is a weighted sum of a few input positions.

The positions and weights of an axis depend on sizes alone. Where these are numbers, they are
computed here; where they are open, by nodes of the graph, with the same formulas. What runs besides
is a gather and a multiply per tap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT32, FLOAT64, INT64, DType
from ostinato.errors import GraphError
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.variables import Dim

    Array = np.ndarray[Any, Any]

__all__ = ["COORDINATES", "KERNELS", "ROUNDINGS", "AxisResize", "Interpolation", "resize_axis"]

#: The interpolating kernels.
KERNELS = ("nearest", "linear", "cubic")

#: The maps from output to input positions: ONNX's, and ``ratio`` and ``half_pixel_ratio``, which
#: multiply by the rounded inverse of the scale, as PyTorch does for its nearest neighbours.
COORDINATES = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "half_pixel_ratio",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "ratio",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)

#: The roundings of positions to the nearest element.
ROUNDINGS = ("ceil", "floor", "round_prefer_ceil", "round_prefer_floor")

#: No axis is resized to more; positions and weights are written out per element.
_LARGEST_AXIS = 2**20

#: The size of an axis at which it is found out whether elements are repeated.
_SAMPLE = 5

#: The maps that depend on the size of the axis, not only on the scale.
_SIZED = ("align_corners", "half_pixel_symmetric", "tf_crop_and_resize")


@dataclass(frozen=True)
class Interpolation:
    """The way in which values between elements are computed.

    Attributes:
        kernel: one of :data:`KERNELS`.
        coordinates: one of :data:`COORDINATES`.
        rounding: one of :data:`ROUNDINGS`, for the kernel ``"nearest"``.
        cubic_coeff: the parameter of Keys' cubic kernel.
        antialias: whether the kernel is stretched where the axis shrinks.
        exclude_outside: whether taps beyond the ends have no weight; else they read the end.
        extrapolation: what positions outside the axis hold in ``tf_crop_and_resize``.
    """

    kernel: str
    coordinates: str
    rounding: str = "floor"
    cubic_coeff: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    def __post_init__(self) -> None:
        known = {"kernel": KERNELS, "coordinates": COORDINATES, "rounding": ROUNDINGS}
        for name, options in known.items():
            if getattr(self, name) not in options:
                raise GraphError(f"{name} is one of {options}, got {getattr(self, name)!r}")

    @property
    def crops(self) -> bool:
        return self.coordinates == "tf_crop_and_resize"

    @property
    def precision(self) -> DType:
        """The dtype of positions: ties of nearest neighbours are those of float32 everywhere."""
        return FLOAT32 if self.kernel == "nearest" else FLOAT64


@dataclass(frozen=True)
class AxisResize:
    """The resizing of one axis.

    Attributes:
        axis: which one.
        size: its size now.
        target: its size afterwards.
        scale: the factor that maps input positions to output positions; ``None``: that of the
            sizes, ``target / size``.
        roi: the part of the axis to take, as fractions, for ``tf_crop_and_resize``.
    """

    axis: int
    size: Dim
    target: Dim
    scale: float | None = None
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def open(self) -> bool:
        return not (isinstance(self.size, int) and isinstance(self.target, int))

    @property
    def factor(self) -> float | None:
        """The scale, if it is a number for all sizes."""
        if self.scale is not None:
            return self.scale
        if self.size == self.target:
            return 1.0
        if isinstance(self.size, int) and isinstance(self.target, int):
            return self.target / max(self.size, 1)
        times = max(bounds(self.target)[1] // max(bounds(self.size)[1], 1), 1)
        return float(times) if self.target == self.size * times else None

    @property
    def is_identity(self) -> bool:
        return self.factor == 1.0 and self.target == self.size and self.roi == (0.0, 1.0)


def resize_axis(g: Any, x: Any, axis: AxisResize, how: Interpolation) -> Any:
    """``x``, whose elements are floats unless the kernel is ``"nearest"``, with one axis resized.

    Raises:
        GraphError: the axis is empty or too long, or depends on a Variable where it may not.
    """
    if axis.is_identity:
        return x
    if axis.open and axis.factor is not None and _repeats(axis.factor, how):
        return g.repeat(x, int(axis.factor), axis.axis)
    if axis.open:
        if how.crops or (how.antialias and axis.factor is None):
            raise GraphError(f"axis {axis.axis} depends on a Variable: {axis.size}; fix its size")
        line = _Line.of_values(g, axis, how)
    else:
        if bounds(axis.size)[0] < 1 or not 0 <= bounds(axis.target)[0] <= _LARGEST_AXIS:
            raise GraphError(f"it resizes an axis of size {axis.size} to {axis.target}")
        if axis.target == 0:
            return g.slice(x, [0], [0], axes=[axis.axis])
        line = _Line.of_numbers(axis, how)
    at = _coordinates(line, how)
    shape = g.type_of(x).shape
    column = [axis.target if a == axis.axis else 1 for a in range(len(shape))]
    taps = _taps(line, at, how)
    if not axis.open and (times := _repetitions(axis, taps)) and not how.crops:
        return g.repeat(x, times, axis.axis)
    result = _weighted_sum(g, x, axis, taps, column)
    if not how.crops:
        return result
    inside = (at >= 0) & (at <= line.size - 1)
    return g.where(g.constant(inside.reshape(column)), result, how.extrapolation)


def _repetitions(axis: AxisResize, taps: list[tuple[Any, Any]]) -> int:
    """The times that each element is repeated, where that is all that resizing does; else 0."""
    assert isinstance(axis.size, int)
    assert isinstance(axis.target, int)
    times = axis.target // axis.size
    positions, weights = taps[0]
    if weights is not None or times * axis.size != axis.target:
        return 0
    return times if np.array_equal(positions, np.arange(axis.target) // times) else 0


def _weighted_sum(
    g: Any, x: Any, axis: AxisResize, taps: list[tuple[Any, Any]], column: list[Dim]
) -> Any:
    dtype = g.type_of(x).dtype
    result: Any = None
    for positions, weights in taps:
        if axis.open:
            taken = g.take(x, positions, axis=axis.axis)
            factor = None if weights is None else g.reshape(g.cast(weights, dtype), column)
        else:
            taken = g.take(x, g.constant(positions), axis=axis.axis)
            ones = weights is None or np.all(weights == 1.0)
            factor = None if ones else g.constant(weights.reshape(column), dtype)
        if factor is not None:
            taken = g.multiply(taken, factor)
        result = taken if result is None else g.add(result, taken)
    return result


@dataclass(frozen=True)
class _Line:
    """The output positions of an axis and its sizes, for formulas.

    Attributes:
        xp: NumPy for arrays and numbers, or the graph for values of it.
        at: the output positions.
        size, scale, target: see :class:`AxisResize`; numbers or values, of the dtype of ``at``.
        ratio: the inverse of the scale, rounded once.
        factor: the scale as a number, if it is one for all sizes.
        roi: see :class:`AxisResize`.
    """

    xp: Any
    at: Any
    size: Any
    scale: Any
    target: Any
    ratio: Any
    factor: float | None
    roi: tuple[float, float]

    @classmethod
    def of_numbers(cls, axis: AxisResize, how: Interpolation) -> _Line:
        assert isinstance(axis.target, int)
        at = np.arange(axis.target, dtype=how.precision.numpy)
        factor = axis.factor
        assert factor is not None
        number = at.dtype.type
        size, scale, target = number(axis.size), number(factor), number(axis.target)
        ratio = size / target if axis.scale is None else number(1 / axis.scale)
        return cls(np, at, size, scale, target, ratio, factor, axis.roi)

    @classmethod
    def of_values(cls, g: Any, axis: AxisResize, how: Interpolation) -> _Line:
        dtype, factor = how.precision, axis.factor
        size, target = (g.cast(g.dim_value(dim), dtype) for dim in (axis.size, axis.target))
        scale = target / size if factor is None else factor
        ratio = size / target if factor is None else float(how.precision.numpy.type(1 / factor))
        at = g.arange(axis.target, dtype=dtype)
        return cls(g, at, size, scale, target, ratio, factor, axis.roi)

    def inside(self, positions: Any) -> Any:
        """Positions limited to those of the input, as integers."""
        limited = self.xp.minimum(self.xp.maximum(positions, 0.0), self.size - 1.0)
        return limited.astype(np.int64) if self.xp is np else self.xp.cast(limited, INT64)


def _repeats(scale: float, how: Interpolation) -> bool:
    """Whether resizing by ``scale`` repeats each element, whatever the size of the axis."""
    if scale == 1.0:
        return how.coordinates not in _SIZED
    if how.kernel != "nearest" or how.coordinates in _SIZED or scale != int(scale):
        return False
    target = _SAMPLE * int(scale)
    line = _Line.of_numbers(AxisResize(0, _SAMPLE, target, scale), how)
    ((positions, _),) = _taps(line, _coordinates(line, how), how)
    return bool(np.array_equal(positions, np.arange(target) // int(scale)))


def _coordinates(line: _Line, how: Interpolation) -> Any:
    """The position in the input of each output position."""
    xp, at, size, scale, mode = line.xp, line.at, line.size, line.scale, how.coordinates
    length = size * scale  # not rounded, as ONNX has it
    half = (at + 0.5) / scale - 0.5
    if mode == "asymmetric":
        return at / scale
    if mode == "half_pixel":
        return half
    if mode == "ratio":
        return at * line.ratio
    if mode == "half_pixel_ratio":
        return (at + 0.5) * line.ratio
    if mode == "pytorch_half_pixel":
        return xp.where(length > 1.0, half, at * 0.0)
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if mode == "half_pixel_symmetric":
        offset = size / 2.0 * (1.0 - line.target / length)
        return offset + half
    if mode == "align_corners":
        last = xp.where(length > 1.0, length - 1.0, 1.0)
        return xp.where(length > 1.0, at * (size - 1.0) / last, at * 0.0)
    start, end = line.roi
    if length > 1:
        step = (end - start) * (size - 1) / (length - 1)
        return start * (size - 1) + at * step
    return at * 0 + 0.5 * (start + end) * (size - 1)


def _taps(line: _Line, at: Any, how: Interpolation) -> list[tuple[Any, Any]]:
    """The input positions of each tap, and their weights; ``None`` where these are 1."""
    xp = line.xp
    if how.kernel == "nearest":
        return [(line.inside(_rounded(xp, at, how.rounding)), None)]
    stretch = min(line.factor or 1.0, 1.0) if how.antialias else 1.0
    radius = (1 if how.kernel == "linear" else 2) / stretch
    taps = math.ceil(radius) * 2
    first = xp.floor(at) - (taps // 2 - 1.0)
    positions = [first + float(tap) for tap in range(taps)]
    weights = []
    for position in positions:
        distance = xp.abs(position - at) * stretch
        if how.kernel == "linear":
            weight = xp.maximum(1.0 - distance, 0.0)
        else:
            weight = _cubic(xp, distance, how.cubic_coeff)
        if how.exclude_outside:
            within = xp.logical_and(position >= 0.0, position <= line.size - 1.0)
            weight = xp.where(within, weight, 0.0)
        weights.append(weight)
    total = sum(weights[1:], weights[0])
    total = xp.where(total == 0.0 if xp is np else xp.equal(total, 0.0), 1.0, total)
    return [
        (line.inside(position), weight / total)
        for position, weight in zip(positions, weights, strict=True)
    ]


def _rounded(xp: Any, at: Any, rounding: str) -> Any:
    if rounding == "round_prefer_floor":
        return xp.ceil(at - 0.5)
    if rounding == "round_prefer_ceil":
        return xp.floor(at + 0.5)
    return xp.floor(at) if rounding == "floor" else xp.ceil(at)


def _cubic(xp: Any, distance: Any, a: float) -> Any:
    """Keys' cubic kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    far = ((distance - 5.0) * distance + 8.0) * distance * a - 4 * a
    return xp.where(distance <= 1.0, near, xp.where(distance < 2.0, far, 0.0))
