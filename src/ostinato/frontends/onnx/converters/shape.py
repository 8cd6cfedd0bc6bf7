"""Ops that rearrange elements, and ops that read shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.errors import GraphError
from ostinato.frontends.onnx.known import Strings, as_known, known_dims
from ostinato.ops.base import broadcast_shapes, normalize_axes, normalize_axis
from ostinato.variables import (
    Requirement,
    ceil_div,
    floor_div,
    prod,
    provably_less,
    provably_nonnegative,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


# -- looking at shapes ---------------------------------------------------------------------------


def convert_shape(call: Call) -> Result:
    shape = call.shape(0)
    return known_dims(shape[call.integer("start", 0) : call.integer("end", None)])


def convert_size(call: Call) -> Result:
    scalar = np.empty((), dtype=object)
    scalar[()] = prod(call.shape(0))
    return as_known(scalar)


# -- the same elements in another shape ----------------------------------------------------------


def convert_identity(call: Call) -> Result:
    operand = call.operands[0] if call.has(0) else None
    return operand if isinstance(operand, Strings) else call.operand(0)


def convert_reshape(call: Call) -> Result:
    target = list(call.dims(1, "shape"))
    shape = call.shape(0)
    if not call.flag("allowzero", 0):
        for axis, dim in enumerate(target):
            if dim == 0:
                if axis >= len(shape):
                    call.malformed(f"its shape {target} copies dim {axis} of {list(shape)}")
                target[axis] = shape[axis]
    if target.count(-1) > 1:
        call.malformed(f"its shape {target} leaves two dims open")
    if -1 in target:
        rest = prod(dim for dim in target if dim != -1)
        if rest == 0:
            call.malformed(f"its shape {target} leaves a dim open beside one of 0")
        target[target.index(-1)] = floor_div(prod(shape), rest)
    return call.g.reshape(call.value(0), tuple(target))


def convert_flatten(call: Call) -> Result:
    shape, axis = call.shape(0), call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        call.malformed(f"axis {axis} is out of range for {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return call.g.reshape(call.value(0), (prod(shape[:axis]), prod(shape[axis:])))


def convert_squeeze(call: Call) -> Result:
    shape, axes = call.shape(0), call.axes()
    if axes is None:
        if any(not isinstance(dim, int) for dim in shape):
            call.needs_number("without axes it drops those whose size is 1", *shape)
        axes = tuple(axis for axis, dim in enumerate(shape) if dim == 1)
    axes = normalize_axes(axes, len(shape))
    for axis in axes:
        if shape[axis] != 1:
            problem = f"it drops axis {axis} of {list(shape)}, whose size is not 1"
            if isinstance(shape[axis], int):
                call.malformed(problem)
            raise GraphError.of(problem, Requirement(shape[axis] - 1, equal=True))
    kept = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
    return call.g.reshape(call.value(0), kept)


def convert_unsqueeze(call: Call) -> Result:
    shape, axes = call.shape(0), call.axes()
    if axes is None:
        call.malformed("its axes are missing")
    ndim = len(shape) + len(axes)
    added = normalize_axes(axes, ndim)
    dims = iter(shape)
    result = tuple(1 if axis in added else next(dims) for axis in range(ndim))
    return call.g.reshape(call.value(0), result)


def convert_transpose(call: Call) -> Result:
    axes = call.integer_list("perm", tuple(reversed(range(call.rank(0)))))
    return call.g.permute_dims(call.value(0), axes)


def convert_depth_to_space(call: Call) -> Result:
    g, x, block = call.g, call.value(0), call.required("blocksize")
    n, c, h, w = _image(call)
    depth = _divided(call, c, block * block)
    if call.choice("mode", "DCR", "CRD") == "DCR":
        split = g.reshape(x, (n, block, block, depth, h, w))
        moved = g.permute_dims(split, (0, 3, 4, 1, 5, 2))
    else:
        split = g.reshape(x, (n, depth, block, block, h, w))
        moved = g.permute_dims(split, (0, 1, 4, 2, 5, 3))
    return g.reshape(moved, (n, depth, h * block, w * block))


def convert_space_to_depth(call: Call) -> Result:
    g, x, block = call.g, call.value(0), call.required("blocksize")
    n, c, h, w = _image(call)
    rows, columns = _divided(call, h, block), _divided(call, w, block)
    by_depth = call.choice("mode", "DCR", "CRD") == "DCR"
    axes = (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4)
    split = g.reshape(x, (n, c, rows, block, columns, block))
    return g.reshape(g.permute_dims(split, axes), (n, c * block * block, rows, columns))


def _image(call: Call) -> tuple[Dim, Dim, Dim, Dim]:
    if call.rank(0) != 4 or call.required("blocksize") < 1:
        call.malformed(f"expected an image [N,C,H,W] and a block size, got {call.type(0)}")
    n, c, h, w = call.shape(0)
    return n, c, h, w


def _divided(call: Call, size: Dim, parts: int) -> Dim:
    if isinstance(size, int) and size % parts:
        call.malformed(f"{size} does not divide into {parts}")
    return floor_div(size, parts)


# -- repeating, joining, cutting -----------------------------------------------------------------


def convert_expand(call: Call) -> Result:
    shape = broadcast_shapes(call.shape(0), call.dims(1, "shape"))
    return call.g.broadcast_to(call.value(0), shape)


def convert_tile(call: Call) -> Result:
    repeats = call.dims(1, "repeats")
    if len(repeats) != call.rank(0):
        call.malformed(f"{len(repeats)} repeats for {call.rank(0)} dimensions")
    return call.g.tile(call.value(0), repeats)


def convert_concat(call: Call) -> Result:
    call.alike(*range(len(call.operands)))
    values = call.values()
    axis = normalize_axis(call.required("axis"), call.rank(0))
    return values[0] if len(values) == 1 else call.g.concat(values, axis=axis)


def convert_split(call: Call) -> Result:
    shape = call.shape(0)
    axis = normalize_axis(call.integer("axis", 0), len(shape))
    size = shape[axis]
    if call.has(1):
        sizes: Sequence[Dim] = call.dims(1, "sizes")
    else:
        given = call.integer_list("split", ())
        sizes = given or _equal_parts(call, size)
    if len(sizes) != len(call.outputs):
        call.malformed(f"{len(sizes)} sizes for {len(call.outputs)} outputs")
    total: Dim = sum(sizes)
    if total != size or any(isinstance(part, int) and part < 0 for part in sizes):
        call.malformed(f"the sizes {list(sizes)} do not add up to {size}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    x = call.value(0)
    return [
        call.g.slice(x, [start], [start + size], axes=[axis])
        for start, size in zip(starts, sizes, strict=True)
    ]


def _equal_parts(call: Call, size: Dim) -> list[Dim]:
    """Equal sizes, the last one smaller where they do not divide."""
    parts = call.integer("num_outputs", len(call.outputs))
    if parts < 1:
        call.malformed(f"it splits into {parts} parts")
    part = ceil_div(size, parts)
    return [*[part] * (parts - 1), size - part * (parts - 1)]


def convert_slice(call: Call) -> Result:
    ndim = call.rank(0)
    starts, stops, axes, steps = _slice_arguments(call)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        call.malformed("its starts, ends, axes and steps differ in number")
    for bound in (*starts, *stops):
        if not (provably_nonnegative(bound) or provably_less(bound, 0)):
            call.needs_number(f"its bound {bound} may count from the end", bound)
    return call.g.slice(
        call.value(0), starts, stops, steps, axes=[normalize_axis(a, ndim) for a in axes]
    )


def _slice_arguments(
    call: Call,
) -> tuple[Sequence[Dim], Sequence[Dim], Sequence[int], Sequence[int]]:
    if call.opset < 10:
        starts: Sequence[Dim] = call.integer_list("starts", ())
        stops: Sequence[Dim] = call.integer_list("ends", ())
        axes = call.integer_list("axes", tuple(range(len(starts))))
        return starts, stops, axes, (1,) * len(starts)
    starts, stops = call.dims(1, "starts"), call.dims(2, "ends")
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(len(starts)))
    steps = call.integers(4, "steps") if call.has(4) else (1,) * len(starts)
    return starts, stops, axes, steps


# -- padding -------------------------------------------------------------------------------------


def convert_pad(call: Call) -> Result:
    mode = call.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        call.malformed(f"unknown mode {mode!r}")
    pads = call.integer_list("pads", None) if call.opset < 11 else call.integers(1, "pads")
    if pads is None:
        call.malformed("the attribute 'pads' is missing")
    ndim = call.rank(0)
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(ndim))
    if len(pads) != 2 * len(axes):
        call.malformed(f"{len(pads)} pads for {len(axes)} axes")
    widths = [(0, 0)] * ndim
    for i, axis in enumerate(axes):
        widths[normalize_axis(axis, ndim)] = (pads[i], pads[i + len(axes)])
    if mode == "constant":
        if call.opset >= 11 and call.has(2) and call.known(2) is None:
            return _pad_with(call, widths, call.value(2))
        return call.g.pad(call.value(0), widths, value=_fill(call))
    return call.g.pad(call.value(0), widths, mode=mode)


def _pad_with(call: Call, widths: list[tuple[int, int]], fill: Value) -> Value:
    """Padding with a number that is computed at run time."""
    g, x = call.g, call.value(0)
    inside = g.pad(g.broadcast_to(g.constant(True), x.shape), widths, value=False)
    return g.where(inside, g.pad(x, widths), g.reshape(fill, ()))


def _fill(call: Call) -> float:
    if call.opset < 11:
        return call.real("value", 0.0)
    return call.scalar(2, "fill value") if call.has(2) else 0


CONVERTERS: Mapping[str, Converter] = {
    "Concat": convert_concat,
    "DepthToSpace": convert_depth_to_space,
    "Expand": convert_expand,
    "Flatten": convert_flatten,
    "Identity": convert_identity,
    "Pad": convert_pad,
    "Reshape": convert_reshape,
    "Shape": convert_shape,
    "Size": convert_size,
    "Slice": convert_slice,
    "SpaceToDepth": convert_space_to_depth,
    "Split": convert_split,
    "Squeeze": convert_squeeze,
    "Tile": convert_tile,
    "Transpose": convert_transpose,
    "Unsqueeze": convert_unsqueeze,
}
