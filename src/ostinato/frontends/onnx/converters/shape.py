"""Ops that rearrange elements, and ops that read shapes."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError
from ostinato.frontends.onnx.data_sizes import (
    bound_sizes,
    element,
    known_elements,
    open_bound,
    open_elements,
)
from ostinato.frontends.onnx.known import OptionalOf, SequenceOf, Strings, as_known, known_dims
from ostinato.ops.base import broadcast_shapes, normalize_axes, normalize_axis
from ostinato.variables import (
    Requirement,
    ceil_div,
    floor_div,
    maximum,
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
    found = call.operands[0] if call.has(0) else None
    if isinstance(found, SequenceOf | OptionalOf | Strings):
        return found
    return call.operand(0)


def convert_reshape(call: Call) -> Result:
    shape = call.shape(0)
    elements = open_elements(call, 1, "sizes")
    target = [dim for dim in elements if dim is not None]
    if len(target) < len(elements):
        return _reshape_by_data(call, elements)
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


def _reshape_by_data(call: Call, elements: Sequence[Dim | None]) -> Result:
    """Convert a ``Reshape`` some of whose sizes the model computes.

    The last of those is what the others leave; so is a -1, wherever a run has one.
    """
    g, shape, total = call.g, call.shape(0), prod(call.shape(0))
    copies = not call.integer("allowzero", 0)
    sizes: list[Dim | None] = []
    for axis, size in enumerate(elements):
        if size == 0 and copies:
            if axis >= len(shape):
                call.malformed(f"its shape copies dim {axis} of {list(shape)}")
            sizes.append(shape[axis])
        else:
            sizes.append(None if size == -1 else size)
    unknown = [axis for axis, size in enumerate(sizes) if size is None]
    last = elements.index(-1) if -1 in elements else unknown[-1]
    given = {
        axis: _copied(call, axis, copies=copies) if size is None else g.dim_value(size)
        for axis, size in enumerate(sizes)
        if elements[axis] != -1
    }
    # Nothing limits the sizes of a tensor without elements.
    bound = total if provably_less(0, total) else maximum(total, open_bound(elements))
    for axis in unknown:
        if axis != last:
            others = [value for other, value in given.items() if other != axis]
            rest = reduce(g.multiply, others, g.constant(1))
            left = g.floor_divide(g.dim_value(total), g.maximum(rest, 1))
            opened = g.where(g.equal(given[axis], -1), left, given[axis])
            sizes[axis] = g.size_from(opened, bound)
    rest_size = prod(size for axis, size in enumerate(sizes) if axis != last and size is not None)
    sizes[last] = floor_div(total, maximum(rest_size, 1))
    return g.reshape(call.value(0), [size for size in sizes if size is not None])


def _copied(call: Call, axis: int, *, copies: bool) -> Value:
    """An element of a shape, or, where that is 0, the size that it copies."""
    given, shape = element(call, 1, axis), call.shape(0)
    if not copies or axis >= len(shape):
        return given
    return call.g.where(call.g.equal(given, 0), call.g.dim_value(shape[axis]), given)


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
    shape = call.shape(0)
    if call.known(1) is not None:
        return call.g.broadcast_to(call.value(0), broadcast_shapes(shape, call.dims(1, "shape")))
    target = open_elements(call, 1, "sizes")
    padded = [*(1,) * (len(target) - len(shape)), *shape]
    skipped = len(padded) - len(target)
    sizes = padded[:skipped]
    for axis, size in enumerate(padded[skipped:]):
        wanted = target[axis]
        if size == 1 and wanted is None:
            wanted = call.g.size_from(element(call, 1, axis), open_bound(target))
        sizes.append(size if wanted is None or wanted == 1 else wanted)
    return call.g.broadcast_to(call.value(0), broadcast_shapes(padded, sizes))


def convert_tile(call: Call) -> Result:
    repeats = bound_sizes(call, 1)
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
        sizes: Sequence[Dim] = _split_sizes(call, size)
    else:
        given = call.integer_list("split", ())
        sizes = given or _equal_parts(call, size)
    if len(sizes) != len(call.outputs):
        call.malformed(f"{len(sizes)} sizes for {len(call.outputs)} outputs")
    total: Dim = sum(sizes)
    computed = call.has(1) and None in known_elements(call, 1)
    if any(isinstance(part, int) and part < 0 for part in sizes) or not (total == size or computed):
        call.malformed(f"the sizes {list(sizes)} do not add up to {size}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    x = call.value(0)
    if computed:  # a reshape to the sum of the sizes makes each run check that sum
        x = call.g.reshape(x, (*shape[:axis], total, *shape[axis + 1 :]))
    return [
        call.g.slice(x, [start], [start + size], axes=[axis])
        for start, size in zip(starts, sizes, strict=True)
    ]


def _split_sizes(call: Call, size: Dim) -> list[Dim]:
    """The sizes of the parts, those that are not known bound while the graph runs."""
    elements = known_elements(call, 1)
    if None not in elements:
        return list(call.dims(1, "sizes"))
    return [
        part if part is not None else call.g.size_from(element(call, 1, i), size)
        for i, part in enumerate(elements)
    ]


#: No real node has more outputs.
_MOST_PARTS = 2**16


def _equal_parts(call: Call, size: Dim) -> list[Dim]:
    """Equal sizes, the last one smaller where they do not divide."""
    parts = call.integer("num_outputs", len(call.outputs))
    if not 1 <= parts <= _MOST_PARTS:
        call.malformed(f"it splits into {parts} parts, expected 1 to {_MOST_PARTS}")
    part = ceil_div(size, parts)
    return [*[part] * (parts - 1), size - part * (parts - 1)]


def convert_slice(call: Call) -> Result:
    ndim = call.rank(0)
    if call.opset >= 10 and not _has_known_bounds(call):
        return _slice_by_data(call)
    starts, stops, axes, steps = _slice_arguments(call)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        call.malformed("its starts, ends, axes and steps differ in number")
    for bound in (*starts, *stops):
        if not (provably_nonnegative(bound) or provably_less(bound, 0)):
            call.needs_number(f"its bound {bound} may count from the end", bound)
    return call.g.slice(
        call.value(0), starts, stops, steps, axes=[normalize_axis(a, ndim) for a in axes]
    )


def _has_known_bounds(call: Call) -> bool:
    """Whether starts, ends and steps are known, and on which side of 0 they are."""
    bounds = [b for i in (1, 2, 4) if call.has(i) for b in known_elements(call, i)]
    return all(b is not None and (provably_nonnegative(b) or provably_less(b, 0)) for b in bounds)


def _slice_by_data(call: Call) -> Result:
    """Convert a ``Slice`` with bounds that the model computes: axis by axis, by their positions."""
    g, x = call.g, call.value(0)
    count = len(known_elements(call, 1))
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(count))
    if len(axes) != count or call.type(2).size != count:
        call.malformed("its starts, ends, axes and steps differ in number")
    for i, axis in enumerate(axes):
        step = element(call, 4, i) if call.has(4) else g.constant(1)
        x = g.dynamic_range(x, element(call, 1, i), element(call, 2, i), step, axis)
    return x


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
    if call.opset >= 11 and call.known(1) is None:
        return _pad_by_position(call, mode, bound_sizes(call, 1))
    pads = call.integer_list("pads", None) if call.opset < 11 else call.dims(1, "pads")
    if pads is None:
        call.malformed("the attribute 'pads' is missing")
    numbers = [width for width in pads if isinstance(width, int)]
    if len(numbers) < len(pads):
        return _pad_by_position(call, mode, pads)
    ndim = call.rank(0)
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(ndim))
    if len(pads) != 2 * len(axes):
        call.malformed(f"{len(pads)} pads for {len(axes)} axes")
    widths = [(0, 0)] * ndim
    for i, axis in enumerate(axes):
        widths[normalize_axis(axis, ndim)] = (numbers[i], numbers[i + len(axes)])
    if mode == "constant":
        if call.opset >= 11 and call.has(2) and call.known(2) is None:
            return _pad_with(call, widths, call.value(2))
        return call.g.pad(call.value(0), widths, value=_fill(call))
    return call.g.pad(call.value(0), widths, mode=mode)


def _pad_by_position(call: Call, mode: str, widths: Sequence[Dim]) -> Result:
    """Convert a ``Pad`` with widths that are no numbers: by the position each element has."""
    g, x = call.g, call.value(0)
    axes = call.integers(3, "axes") if call.has(3) else tuple(range(call.rank(0)))
    if len(widths) != 2 * len(axes):
        call.malformed(f"{len(widths)} pads for {len(axes)} axes")
    fill = g.cast(g.reshape(call.value(2), ()), x.dtype) if call.has(2) else 0
    for i, axis in enumerate(axes):
        before, after = widths[i], widths[i + len(axes)]
        if before == after == 0:
            continue
        x = _padded(call, x, normalize_axis(axis, x.ndim), before, after, mode, fill)
    return x


def _padded(
    call: Call, x: Value, axis: int, before: Dim, after: Dim, mode: str, fill: Any
) -> Value:
    g, size = call.g, x.shape[axis]
    place = g.subtract(g.iota((size + before + after,)), g.dim_value(before))
    last = g.dim_value(size - 1)
    if mode == "wrap":
        place = g.remainder(place, g.dim_value(size))
    elif mode == "reflect":
        folded = g.remainder(place, g.maximum(g.multiply(last, 2), 1))
        place = g.minimum(folded, g.subtract(g.multiply(last, 2), folded))
    held = g.minimum(g.maximum(place, 0), last)
    if mode != "constant":
        return g.take(x, held, axis=axis)
    # An axis without elements has none to take: one of the fill stands in for it.
    line = tuple(1 if a == axis else dim for a, dim in enumerate(x.shape))
    filled = g.full(line, fill, x.dtype)
    inside = g.logical_and(g.greater_equal(place, 0), g.less_equal(place, last))
    held = g.where(inside, held, g.dim_value(size))
    return g.take(g.concat([x, filled], axis=axis), held, axis=axis)


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
