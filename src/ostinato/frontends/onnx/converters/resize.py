"""``Resize`` and ``Upsample``: their attributes as arguments of the vocabulary's ``resize``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ostinato.ops.base import normalize_axis
from ostinato.ops.resize import COORDINATES, ROUNDINGS, AxisResize
from ostinato.variables import floor_div

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]

#: The finest scale of an open size: multiples of it give the same size in every precision.
_FINEST_SCALE = 64


def convert_resize(call: Call) -> Result:
    mode = call.text("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        call.malformed(f"unknown mode {mode!r}")
    chosen, rank = call.integer_list("axes", None), call.rank(0)
    axes = [normalize_axis(a, rank) for a in (range(rank) if chosen is None else chosen)]
    sizes = [call.shape(0)[axis] for axis in axes]
    scales, targets = _targets(call, sizes)
    rois = _rois(call, len(axes))
    if not len(scales) == len(targets) == len(axes):
        call.malformed("its scales or sizes do not match the axes")
    plans = [AxisResize(*row) for row in zip(axes, sizes, targets, scales, rois, strict=True)]
    for plan in plans:
        if plan.open and not _can_be_open(call) and not plan.is_identity:
            call.needs_number("it crops axes of open sizes", plan.size)
    x = call.value(0)
    roundings = [_rounding(call, plan) for plan in plans]
    for rounding in dict.fromkeys(roundings):
        alike = [plan for plan, own in zip(plans, roundings, strict=True) if own == rounding]
        x = call.g.resize(
            x,
            [plan.target for plan in alike],
            [plan.scale for plan in alike],
            mode,
            antialias=call.flag("antialias", 0),
            axes=[plan.axis for plan in alike],
            coordinates=_coordinates(call),
            rounding=rounding,
            cubic_coeff=call.real("cubic_coeff_a", -0.75),
            exclude_outside=mode == "cubic" and call.flag("exclude_outside", 0),
            roi=[plan.roi for plan in alike],
            extrapolation=call.real("extrapolation_value", 0.0),
        )
    return x


def _coordinates(call: Call) -> str:
    default = "half_pixel" if call.op_type == "Resize" and call.opset >= 11 else "asymmetric"
    mode = call.text("coordinate_transformation_mode", default)
    if mode not in COORDINATES:
        call.malformed(f"unknown coordinate_transformation_mode {mode!r}")
    return mode


def _rounding(call: Call, axis: AxisResize) -> str:
    """The rounding of positions. Before operator set 11 nothing says how; ONNX Runtime floors
    those of an axis that grows, and takes the ceiling of others.
    """
    old = call.op_type == "Upsample" or call.opset < 11
    grows = axis.scale is not None and axis.scale >= 1
    default = ("floor" if grows else "ceil") if old else "round_prefer_floor"
    mode = call.text("nearest_mode", default)
    if mode not in ROUNDINGS:
        call.malformed(f"unknown nearest_mode {mode!r}")
    return mode


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
        if factor := AxisResize(0, size, target).factor:
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


CONVERTERS: Mapping[str, Converter] = {"Resize": convert_resize, "Upsample": convert_resize}
