"""``Col2Im`` and ``CenterCropPad``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.frontends.onnx.converters.windows import per_axis
from ostinato.ops.base import normalize_axes
from ostinato.variables import floor_div, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]


def convert_col2im(call: Call) -> Result:
    """Convert ``Col2Im``."""
    x = call.value(0)
    image, block = call.integers(1, "image shape"), call.integers(2, "block shape")
    ndim = len(block)
    if len(image) != ndim or min(block, default=0) < 1:
        call.malformed(f"{list(image)} and {list(block)} do not fit {x.type}")
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    given = call.integer_list("pads", (0,) * (2 * ndim))
    if len(given) != 2 * ndim:
        call.malformed(f"pads {list(given)} should be {2 * ndim} ints")
    pads = list(zip(given[:ndim], given[ndim:], strict=True))
    return call.g.col2im(x, image, block, strides, pads, dilations)


def convert_center_crop_pad(call: Call) -> Result:
    """Convert ``CenterCropPad``: each axis is cut or filled with zeros, evenly at both ends."""
    g, x, targets = call.g, call.value(0), call.dims(1, "shape")
    axes = call.integer_list("axes", tuple(range(x.ndim)))
    if len(axes) != len(targets):
        call.malformed(f"{len(targets)} sizes for {len(axes)} axes")
    normalize_axes(axes, x.ndim)
    widths = [(0, 0)] * x.ndim
    for axis, target in zip((a % x.ndim for a in axes), targets, strict=True):
        surplus = x.shape[axis] - target
        if provably_nonnegative(surplus):
            start = floor_div(surplus, 2)
            x = g.slice(x, [start], [start + target], axes=[axis])
        elif isinstance(surplus, int):
            widths[axis] = (-surplus // 2, -surplus - -surplus // 2)
        else:
            call.unsupported(f"its padding depends on a Variable ({-surplus}); fix it with dims=")
    return g.pad(x, widths)


CONVERTERS: Mapping[str, Converter] = {
    "CenterCropPad": convert_center_crop_pad,
    "Col2Im": convert_col2im,
}
