"""Converters of ops on images: resizing and the sampling of grids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _resized(
    call: Call,
    x: Value,
    scales: Any,
    mode: str,
    *,
    align_corners: bool = False,
    antialias: bool = False,
) -> Value:
    """``x`` in the result's size; scales, if given, map positions, but for aligned corners."""
    spatial = x.ndim - 2
    factors = None
    if scales is not None and len(scales) == spatial and not align_corners:
        factors = [None if scale is None else float(scale) for scale in scales]
    return call.g.resize(
        x, call.shape[2:], factors, mode, align_corners=align_corners, antialias=antialias
    )


def _nearest(mode: str) -> Converter:
    """``upsample_nearest``: by the size, and a scale for each axis."""

    def convert(call: Call, self: Value, output_size: Any, *scales: Any) -> Value:
        return _resized(call, self, scales, mode)

    return convert


def _nearest_either(mode: str) -> Converter:
    """The same, by a size or by scales."""

    def convert(call: Call, input: Value, output_size: Any, scale_factors: Any) -> Value:
        return _resized(call, input, scale_factors, mode)

    return convert


def _smooth(mode: str, *, antialias: bool = False) -> Converter:
    def convert(
        call: Call, self: Value, output_size: Any, align_corners: bool, *scales: Any
    ) -> Value:
        return _resized(call, self, scales, mode, align_corners=align_corners, antialias=antialias)

    return convert


def _smooth_either(mode: str, *, antialias: bool = False) -> Converter:
    def convert(
        call: Call, input: Value, output_size: Any, align_corners: bool, scale_factors: Any
    ) -> Value:
        return _resized(
            call, input, scale_factors, mode, align_corners=align_corners, antialias=antialias
        )

    return convert


#: By the number that PyTorch passes, the modes of ``grid_sample`` and of its padding.
_SAMPLING = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


def _grid_sample(
    call: Call,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    mode, padding = _SAMPLING[interpolation_mode], _PADDING[padding_mode]
    return call.g.grid_sample(input, grid, mode, padding, align_corners)


def _affine_grid(call: Call, theta: Value, size: Any, align_corners: bool) -> Value:
    return call.g.affine_grid(theta, size, align_corners)


_SMOOTH = {
    "upsample_linear1d": ("linear", False),
    "upsample_bilinear2d": ("bilinear", False),
    "upsample_trilinear3d": ("trilinear", False),
    "upsample_bicubic2d": ("bicubic", False),
    "_upsample_bilinear2d_aa": ("bilinear", True),
    "_upsample_bicubic2d_aa": ("bicubic", True),
}

_NEAREST = {
    f"{name}{n}d": mode
    for n in (1, 2, 3)
    for name, mode in (
        ("upsample_nearest", "nearest"),
        ("_upsample_nearest_exact", "nearest-exact"),
    )
}

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _nearest(mode) for name, mode in _NEAREST.items()},
    **{f"aten.{name}.vec": _nearest_either(mode) for name, mode in _NEAREST.items()},
    **{
        f"aten.{name}": _smooth(mode, antialias=antialias)
        for name, (mode, antialias) in _SMOOTH.items()
    },
    **{
        f"aten.{name}.vec": _smooth_either(mode, antialias=antialias)
        for name, (mode, antialias) in _SMOOTH.items()
    },
    "aten.grid_sampler": _grid_sample,
    "aten.grid_sampler_2d": _grid_sample,
    "aten.grid_sampler_3d": _grid_sample,
    "aten.affine_grid_generator": _affine_grid,
}
