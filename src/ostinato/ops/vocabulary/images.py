"""The methods that read images between their elements: resizing and the sampling of grids.

Images are ``[N, C, *spatial]``. Positions are computed in float32 or float64, sums of 16-bit floats
in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.dtypes import FLOAT32
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.pooling import PoolingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.variables import Dim, Expr, floor_div

if TYPE_CHECKING:
    from ostinato.ops import resize, sampling
else:
    resize = LazyModule("ostinato.ops.resize")
    sampling = LazyModule("ostinato.ops.sampling")

__all__ = ["ImageVocabulary"]

Dims: TypeAlias = Dim | Sequence[Dim]
Scales: TypeAlias = float | Sequence[float | None]

#: Modes by PyTorch's names: the kernel, and the coordinates unless corners are aligned.
_MODES = {
    "nearest": ("nearest", "ratio"),
    "nearest-exact": ("nearest", "half_pixel_ratio"),
    "linear": ("linear", "half_pixel"),
    "bilinear": ("linear", "half_pixel"),
    "trilinear": ("linear", "half_pixel"),
    "cubic": ("cubic", "half_pixel"),
    "bicubic": ("cubic", "half_pixel"),
}

#: Modes of ``grid_sample`` by PyTorch's names.
_SAMPLING = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}

#: The finest scale of an open size: multiples of it give the same size in every precision.
_FINEST_SCALE = 64


class ImageVocabulary(PoolingVocabulary[T]):
    """Methods over images; all raise :class:`~ostinato.errors.GraphError` for misfits."""

    def resize(
        self,
        x: Any,
        sizes: Dims | None = None,
        scales: Scales | None = None,
        mode: str = "nearest",
        *,
        align_corners: bool = False,
        antialias: bool = False,
        axes: Sequence[int] | None = None,
        coordinates: str | None = None,
        rounding: str = "floor",
        cubic_coeff: float | None = None,
        exclude_outside: bool | None = None,
        roi: Sequence[tuple[float, float]] | None = None,
        extrapolation: float = 0.0,
    ) -> T:
        """``x`` with its spatial axes resized, as PyTorch's ``interpolate`` has it.

        Integers are interpolated in float32 and rounded.

        Args:
            sizes: the new size of each axis, or one for all.
            scales: the factor of each axis, or one for all. Without ``sizes``, a new size is
                ``floor(size * scale)``; with them, factors only map positions, and ``None`` stands
                for the quotient of the sizes.
            mode: ``"nearest"``, ``"nearest-exact"``, ``"linear"``, ``"bilinear"``,
                ``"trilinear"``, ``"bicubic"`` or ``"area"``.
            align_corners: whether the first and the last elements stay at the ends.
            antialias: whether the kernel is stretched where an axis shrinks.
            axes: the axes to resize; by default, all but the first two.
            coordinates: ONNX's ``coordinate_transformation_mode`` instead of PyTorch's.
            rounding: ONNX's ``nearest_mode``.
            cubic_coeff: the parameter of the cubic kernel; -0.75, -0.5 with ``antialias``.
            exclude_outside: whether taps beyond the ends count for nothing; as ``antialias``.
            roi: for ``"tf_crop_and_resize"``, the part of each axis to take.
            extrapolation: what lies outside of it.
        """
        lifted, type_ = self._typed(x)
        where = [
            normalize_axis(a, type_.ndim) for a in (range(2, type_.ndim) if axes is None else axes)
        ]
        before = [type_.shape[axis] for axis in where]
        factors = _per_axis("scales", scales, len(where))
        targets = _targets(before, sizes, factors)
        if mode == "area":
            return self.adaptive_avg_pool(lifted, targets)
        if mode not in _MODES:
            raise GraphError(f"the mode is one of {(*_MODES, 'area')}, got {mode!r}")
        kernel, placed = _MODES[mode]
        smooth = kernel != "nearest"
        if align_corners and smooth and antialias:
            factors = [_corner_scale(*pair) for pair in zip(before, targets, strict=True)]
        elif align_corners and smooth:
            placed = "align_corners"
        default = -0.5 if antialias else -0.75
        how = resize.Interpolation(
            kernel,
            placed if coordinates is None else coordinates,
            rounding,
            default if cubic_coeff is None else float(cubic_coeff),
            bool(antialias) and smooth,
            bool(antialias if exclude_outside is None else exclude_outside),
            float(extrapolation),
        )
        dtype = type_.dtype
        wide = dtype.accumulator if dtype.is_float else FLOAT32
        result = self.cast(lifted, wide) if smooth else lifted
        regions = [(0.0, 1.0)] * len(where) if roi is None else roi
        for row in zip(where, before, targets, factors, regions, strict=True):
            result = resize.resize_axis(self, result, resize.AxisResize(*row), how)
        if smooth and not dtype.is_float:
            result = self.round(result)
        return self.cast(result, dtype)

    def grid_sample(
        self,
        x: Any,
        grid: Any,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> T:
        """The images ``x [N, C, *spatial]`` at the positions of a grid, as PyTorch has it.

        Args:
            grid: ``[N, *points, ndim]``: positions from -1 to 1, the last axis of the image first.
            mode: ``"bilinear"`` (linear in all axes), ``"nearest"`` or ``"bicubic"``.
            padding_mode: what lies beyond the ends: ``"zeros"``, ``"border"`` or ``"reflection"``.
            align_corners: whether -1 and 1 are the centers of the outer elements, not their edges.

        Returns:
            ``[N, C, *points]``.
        """
        return sampling.grid_sample(  # type: ignore[no-any-return]
            self,
            self._typed(x)[0],
            self._typed(grid)[0],
            _SAMPLING.get(mode, mode),
            padding_mode,
            align_corners=bool(align_corners),
        )

    def affine_grid(self, theta: Any, size: Sequence[Dim], align_corners: bool = False) -> T:
        """The grid of affine maps for :meth:`grid_sample`.

        Args:
            theta: ``[N, ndim, ndim + 1]``: a matrix and a shift for each image.
            size: ``[N, C, *spatial]`` of the images to sample.
            align_corners: as :meth:`grid_sample` has it.

        Returns:
            ``[N, *spatial, ndim]``.
        """
        spatial = [as_dim(dim, "a size") for dim in tuple(size)[2:]]
        maps = self._typed(theta)[0]
        return sampling.affine_grid(self, maps, spatial, align_corners=bool(align_corners))  # type: ignore[no-any-return]


def _per_axis(what: str, value: Any, count: int) -> list[Any]:
    """``value`` as one entry per axis; ``None`` is one of all."""
    if value is None or isinstance(value, Expr) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise GraphError(f"{len(value)} {what} for {count} axes")
    return list(value)


def _targets(
    before: Sequence[Dim], sizes: Dims | None, scales: Sequence[float | None]
) -> list[Dim]:
    """The new sizes of axes."""
    if sizes is not None:
        return [as_dim(size, "a size") for size in _per_axis("sizes", sizes, len(before))]
    targets: list[Dim] = []
    for size, scale in zip(before, scales, strict=True):
        if scale is None or not 0 < scale < math.inf:
            raise GraphError(f"expected sizes, or positive scales, got the scale {scale}")
        steps = scale * _FINEST_SCALE
        if isinstance(size, int):
            targets.append(math.floor(size * scale))
        elif steps == int(steps):
            targets.append(floor_div(size * int(steps), _FINEST_SCALE))
        else:
            raise GraphError(f"the size {size} depends on a Variable: give sizes with the scale")
    return targets


def _corner_scale(size: Dim, target: Dim) -> float | None:
    """The scale between the outer centers, by which PyTorch stretches kernels; infinite if there
    is but one: the first element is all that is read.
    """
    if not (isinstance(size, int) and isinstance(target, int)):
        return None
    return (target - 1) / (size - 1) if size > 1 and target > 1 else math.inf
