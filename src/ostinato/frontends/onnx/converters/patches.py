"""``Col2Im`` and ``CenterCropPad``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ostinato.frontends.onnx.converters.windows import per_axis
from ostinato.ops.base import normalize_axes
from ostinato.ops.windows import dilated
from ostinato.variables import floor_div, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result

__all__ = ["CONVERTERS"]


def convert_col2im(call: Call) -> Result:
    """Convert ``Col2Im``: a transposed convolution in which each tap has its own input channel."""
    g, x = call.g, call.value(0)
    image, block = call.integers(1, "image shape"), call.integers(2, "block shape")
    ndim, taps = len(block), math.prod(block)
    features = x.shape[1] if x.ndim == 3 else 0
    if len(image) != ndim or min(block, default=0) < 1 or not isinstance(features, int):
        call.malformed(f"{list(image)} and {list(block)} do not fit {x.type}")
    if features % taps or not features:
        call.malformed(f"{x.type} does not divide into blocks {list(block)}")
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    given = call.integer_list("pads", (0,) * (2 * ndim))
    if len(given) != 2 * ndim:
        call.malformed(f"pads {list(given)} should be {2 * ndim} ints")
    pads = list(zip(given[:ndim], given[ndim:], strict=True))
    spans = [dilated(k, d) for k, d in zip(block, dilations, strict=True)]
    room = [size + sum(ends) - span for size, ends, span in zip(image, pads, spans, strict=True)]
    counts = [max(n // s + 1, 0) for n, s in zip(room, strides, strict=True)]
    if math.prod(counts) != x.shape[2]:
        call.malformed(f"{x.type} should hold {counts} blocks")
    taps_alone = np.eye(taps, dtype=np.float32).reshape(taps, 1, *block)
    weight = g.constant(np.tile(taps_alone, (features // taps, *(1,) * (ndim + 1))), x.dtype)
    return g.conv_transpose(
        g.reshape(x, (x.shape[0], features, *counts)),
        weight,
        stride=strides,
        padding=pads,
        output_padding=[n % s for n, s in zip(room, strides, strict=True)],
        dilation=dilations,
        groups=features // taps,
    )


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
