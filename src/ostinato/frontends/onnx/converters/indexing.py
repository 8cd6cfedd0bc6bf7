"""Ops that read or write elements at computed positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import INT64
from ostinato.frontends.onnx.data_sizes import bound_sizes
from ostinato.frontends.onnx.known import as_known
from ostinato.ops.base import normalize_axis
from ostinato.variables import provably_less, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]

#: Conditions with more elements are not searched while loading.
_LARGEST_KNOWN = 2**20

_MODES = {"none": "set", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def convert_gather(call: Call) -> Result:
    axis = normalize_axis(call.integer("axis", 0), call.rank(0))
    x, indices = call.value(0), call.known(1)
    if indices is not None and not indices.symbolic and indices.shape == ():
        size, position = x.shape[axis], int(indices.array)
        start = position if position >= 0 else size + position
        if provably_nonnegative(start) and provably_less(start, size):
            # One known position is a slice, which needs no run-time indexing.
            row = call.g.slice(x, [start], [start + 1], axes=[axis])
            return call.g.reshape(row, (*x.shape[:axis], *x.shape[axis + 1 :]))
        if isinstance(size, int):
            call.malformed(f"index {position} is out of range for axis {axis} of size {size}")
    return call.g.take(x, call.value(1), axis=axis)


def convert_gather_elements(call: Call) -> Result:
    g, x, indices = call.g, call.value(0), call.value(1)
    axis = normalize_axis(call.integer("axis", 0), x.ndim)
    if indices.ndim != x.ndim:
        call.malformed(f"the indices {indices.type} have another rank than {x.type}")
    # Along the other axes, indices belong to the first elements, and may be fewer.
    fewer = [a for a in range(x.ndim) if a != axis and indices.shape[a] != x.shape[a]]
    for a in fewer:
        if provably_less(x.shape[a], indices.shape[a]):
            call.malformed(f"the indices {indices.type} reach beyond axis {a} of {x.type}")
    if fewer:
        x = g.slice(x, [0] * len(fewer), [indices.shape[a] for a in fewer], axes=fewer)
    return g.take_along_axis(x, indices, axis=axis)


def convert_gather_nd(call: Call) -> Result:
    return call.g.gather_nd(call.value(0), call.value(1), batch_dims=call.integer("batch_dims", 0))


def convert_scatter_elements(call: Call) -> Result:
    return call.g.scatter(
        call.value(0),
        call.value(1),
        call.value(2),
        axis=call.integer("axis", 0),
        mode=_mode(call),
    )


def convert_scatter_nd(call: Call) -> Result:
    return call.g.scatter_nd(call.value(0), call.value(1), call.value(2), mode=_mode(call))


def _mode(call: Call) -> str:
    reduction = call.text("reduction", "none")
    if reduction not in _MODES:
        call.malformed(f"unknown reduction {reduction!r}")
    return _MODES[reduction]


def convert_one_hot(call: Call) -> Result:
    """Convert ``OneHot``: negative indices count from the end, others out of range give "off"."""
    g, indices, values = call.g, call.value(0), call.value(2)
    depth = _depth(call)
    axis = normalize_axis(call.integer("axis", -1), indices.ndim + 1)
    if not indices.dtype.is_integer:
        indices = g.cast(indices, INT64)
    if indices.dtype.is_signed:
        wide = g.cast(indices, INT64)
        indices = g.where(g.less(wide, 0), g.add(wide, g.dim_value(depth)), wide)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    column = g.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    chosen = g.equal(g.iota(shape, axis, indices.dtype), column)
    off, on = (g.reshape(g.slice(values, [i], [i + 1]), ()) for i in (0, 1))
    return g.where(chosen, on, off)


def _depth(call: Call) -> Dim:
    known = call.known(1)
    if known is None or known.symbolic:
        sizes = bound_sizes(call, 1)
        if len(sizes) != 1:
            call.malformed(f"its depth is {call.type(1)}, expected one number")
        return sizes[0]
    depth = int(call.scalar(1, "depth"))
    if depth < 0:
        call.malformed(f"a negative depth: {depth}")
    return depth


def convert_top_k(call: Call) -> Result:
    if call.opset < 10:
        k: Dim = call.required("k")
    else:
        axis = normalize_axis(call.integer("axis", -1), call.rank(0))
        counts = bound_sizes(call, 1, call.shape(0)[axis])
        if len(counts) != 1:
            call.malformed(f"its k should be a single number, got {len(counts)}")
        k = counts[0]
    axis = call.integer("axis", -1)
    largest = call.flag("largest", 1)
    return tuple(call.g.topk(call.value(0), k, axis=axis, largest=largest))


def convert_trilu(call: Call) -> Result:
    k = int(call.scalar(1, "diagonal")) if call.has(1) else 0
    method = call.g.triu if call.flag("upper", 1) else call.g.tril
    return method(call.value(0), k)


def convert_reverse_sequence(call: Call) -> Result:
    """Convert ``ReverseSequence``: each sequence's first elements in reverse, the rest in place."""
    g, x, lengths = call.g, call.value(0), call.value(1)
    time = normalize_axis(call.integer("time_axis", 0), x.ndim)
    batch = normalize_axis(call.integer("batch_axis", 1), x.ndim)
    if time == batch or lengths.shape != (x.shape[batch],):
        call.malformed(f"{lengths.type} does not hold a length for axis {batch} of {x.type}")
    line = tuple(n if axis == time else 1 for axis, n in enumerate(x.shape))
    column = tuple(n if axis == batch else 1 for axis, n in enumerate(x.shape))
    step, length = g.iota(line, time, INT64), g.reshape(g.cast(lengths, INT64), column)
    at = g.where(g.less(step, length), g.subtract(g.subtract(length, step), 1), step)
    return g.take_along_axis(x, g.broadcast_to(at, x.shape), axis=time)


def convert_tensor_scatter(call: Call) -> Result:
    """Convert ``TensorScatter``: rows written into a cache from a position of its own per batch."""
    g, cache, update = call.g, call.value(0), call.value(1)
    axis = normalize_axis(call.integer("axis", -2), cache.ndim)
    mode = call.text("mode", "linear")
    if mode not in ("linear", "circular"):
        call.malformed(f"mode should be linear or circular, got {mode!r}")
    line = tuple(n if a == axis else 1 for a, n in enumerate(update.shape))
    at = g.iota(line, axis, INT64)
    if call.has(2):
        first = tuple(n if a == 0 else 1 for a, n in enumerate(update.shape))
        at = g.add(at, g.reshape(g.cast(call.value(2), INT64), first))
    if mode == "circular":
        size = cache.shape[axis]
        at = g.remainder(at, size if isinstance(size, int) else g.dim_value(size))
    return g.scatter(cache, g.broadcast_to(at, update.shape), update, axis=axis)


def convert_non_zero(call: Call) -> Result:
    known = call.known(0)
    if known is not None and not known.symbolic:
        if known.size > _LARGEST_KNOWN:
            call.unsupported(f"it looks through {known.size} elements")
        positions = np.stack(np.nonzero(np.atleast_1d(known.array)))
        return as_known(positions.astype(np.int64), call.outputs[0])
    g, x = call.g, call.value(0)
    return g.stack(g.nonzero(g.reshape(x, (1,)) if x.ndim == 0 else x), axis=0)


def convert_compress(call: Call) -> Result:
    g, x = call.g, call.value(0)
    axis = call.integer("axis", None)
    if axis is None:
        x, axis = g.reshape(x, (x.type.size,)), 0
    condition = call.known(1)
    if condition is None or condition.symbolic:
        return g.compress(x, call.value(1), axis=axis)
    if condition.size > _LARGEST_KNOWN:
        call.unsupported(f"it looks through {condition.size} elements")
    (chosen,) = np.nonzero(condition.array.reshape(-1))
    return g.take(x, g.constant(chosen.astype(np.int64)), axis=normalize_axis(axis, x.ndim))


def convert_unique(call: Call) -> Result:
    results = call.g.unique(
        call.value(0), call.integer("axis", None), sorted=call.flag("sorted", 1)
    )
    return list(results)


def convert_non_max_suppression(call: Call) -> Result:
    g = call.g
    return g.non_max_suppression(
        call.value(0),
        call.value(1),
        call.value(2) if call.has(2) else 0,
        call.value(3) if call.has(3) else 0.0,
        call.value(4) if call.has(4) else None,
        centered=call.flag("center_point_box", 0),
    )


CONVERTERS: Mapping[str, Converter] = {
    "Compress": convert_compress,
    "Gather": convert_gather,
    "GatherElements": convert_gather_elements,
    "GatherND": convert_gather_nd,
    "NonMaxSuppression": convert_non_max_suppression,
    "NonZero": convert_non_zero,
    "OneHot": convert_one_hot,
    "ReverseSequence": convert_reverse_sequence,
    "Scatter": convert_scatter_elements,
    "ScatterElements": convert_scatter_elements,
    "ScatterND": convert_scatter_nd,
    "TensorScatter": convert_tensor_scatter,
    "TopK": convert_top_k,
    "Trilu": convert_trilu,
    "Unique": convert_unique,
}
