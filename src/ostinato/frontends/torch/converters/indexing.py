"""Converters of ops that read or write at indices.

PyTorch checks indices and raises; here reads clamp them, and writes outside are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT32, INT64, UINT8
from ostinato.frontends.torch.converters.elementwise import scaled
from ostinato.ir.graph import Value
from ostinato.ops.base import broadcast_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


# -- reading ----------------------------------------------------------------------------------


def _line(call: Call, x: Value) -> Value:
    """A tensor without dims as a vector of one element."""
    return x if x.ndim else call.g.reshape(x, (1,))


def _index_select(call: Call, self: Value, dim: int, index: Value) -> Value:
    g = call.g
    found = g.take(_line(call, self), _line(call, index), axis=call.axis(dim, self.ndim))
    return found if self.ndim else g.reshape(found, ())


def _gather(call: Call, self: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    g = call.g
    if index.type.size == 0:
        return g.zeros(index.shape, self.dtype)
    x, ids = _line(call, self), _line(call, index)
    return g.reshape(g.gather(x, ids, call.axis(dim, x.ndim)), index.shape)


def _take_along(call: Call, self: Value, indices: Value, dim: int | None = None) -> Value:
    g = call.g
    if dim is None:
        return g.take(g.reshape(self, (-1,)), g.reshape(indices, (-1,)), axis=0)
    return g.take_along_axis(self, indices, axis=call.axis(dim, self.ndim))


def _take(call: Call, self: Value, index: Value) -> Value:
    return call.g.take(self, index)


def _embedding(
    call: Call,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return call.g.embedding(indices, weight)


def _expanded_indices(call: Call, indices: Sequence[Value | None]) -> list[Value | None]:
    """Indices in which each mask is replaced by the positions of its true elements."""
    expanded: list[Value | None] = []
    for index in indices:
        if index is None:
            expanded.append(None)
        elif index.dtype.is_bool or index.dtype.name == "uint8":
            expanded += _positions(call, call.truth(index))
        else:
            expanded.append(index)
    return expanded


def _positions(call: Call, mask: Value) -> tuple[Value, ...]:
    if not mask.ndim:
        call.unsupported("a mask without dims")
    return call.g.nonzero(mask)


def _indexed_axes(indices: Sequence[Value | None]) -> tuple[list[int], int]:
    """The axes that indices stand for, and the place of their dims in the result.

    The dims take the place of adjacent axes, and come first where the axes are not adjacent.
    """
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    return axes, axes[0] if adjacent else 0


def _index(call: Call, self: Value, indices: tuple[Value | None, ...]) -> Value:
    """``x[i, :, j]`` with tensors of indices or masks."""
    g = call.g
    listed = _expanded_indices(call, indices)
    if not any(index is not None for index in listed):
        return self
    axes, place = _indexed_axes(listed)
    found = [index for index in listed if index is not None]
    if len(found) == 1:
        return g.take(self, found[0], axis=axes[0])
    moved = g.moveaxis(self, axes, range(len(axes)))
    picked = g.gather_nd(moved, _index_vectors(call, found))
    return _moved_group(call, picked, picked.ndim - self.ndim + len(axes), 0, place)


def _index_vectors(call: Call, indices: Sequence[Value]) -> Value:
    """Index tensors, broadcast against each other, as vectors of a last axis."""
    g = call.g
    shape = broadcast_shapes(*(index.shape for index in indices))
    return g.stack([g.broadcast_to(g.cast(index, INT64), shape) for index in indices], -1)


def _moved_group(call: Call, x: Value, count: int, source: int, destination: int) -> Value:
    """``x`` with adjacent axes moved as a group."""
    if source == destination or not count:
        return x
    places = range(count)
    return call.g.moveaxis(x, [source + i for i in places], [destination + i for i in places])


def _masked_select(call: Call, self: Value, mask: Value) -> Value:
    g = call.g
    shape = broadcast_shapes(self.shape, mask.shape)
    x, flags = (g.reshape(g.broadcast_to(v, shape), (-1,)) for v in (self, mask))
    return g.masked_select(x, flags)


def _nonzero(call: Call, self: Value) -> Value:
    """The positions of elements that are not zero; of a tensor without dims, empty ones."""
    g = call.g
    if not self.ndim:
        (found,) = g.nonzero(g.reshape(self, (1,)))
        return g.slice(g.reshape(found, (*found.shape, 1)), [0], [0], axes=[1])
    return g.stack(g.nonzero(self), 1)


def _nonzero_static(call: Call, self: Value, *, size: int, fill_value: int = -1) -> Value:
    """The first ``size`` of these positions, and as many fillers as are missing."""
    g = call.g
    shape = call.shape
    if not self.ndim:
        return g.zeros(shape, INT64)
    flags = g.reshape(call.truth(self), (self.type.size,))
    rank = g.cumsum(g.cast(flags, INT64), axis=0, exclusive=True)
    place = g.where(flags, rank, call.value(size, INT64))  # what lies outside is dropped
    columns = []
    for axis in range(self.ndim):
        line = g.reshape(g.iota(self.shape, axis), flags.shape)
        columns.append(g.scatter(g.full((size,), fill_value, INT64), place, line))
    return g.stack(columns, 1)


def _nonzero_list(call: Call, self: Value) -> tuple[Value, ...]:
    return call.g.nonzero(_line(call, self))


# -- writing ----------------------------------------------------------------------------------


def _scatter(mode: str) -> Converter:
    """A write, or a combination of old elements with new ones."""

    def convert(call: Call, self: Value, dim: int, index: Value, src: Any) -> Value:
        return _scattered(call, self, dim, index, src, mode)

    return convert


def _scattered(
    call: Call, self: Value, dim: int, index: Value, src: Any, mode: str, include_self: bool = True
) -> Value:
    g = call.g
    x, ids = _line(call, self), _line(call, index)
    if ids.type.size == 0:
        return self
    axis = call.axis(dim, x.ndim)
    updates = call.value(src, x.dtype)
    if isinstance(src, Value):
        updates = _line(call, updates)
    if mode == "set":
        if updates.ndim:
            updates = _cut(call, updates, ids.shape)
        return g.reshape(g.scatter(x, ids, updates, axis), self.shape)
    if x.dtype.is_bool:  # combined as bytes
        x, updates = g.cast(x, UINT8), g.cast(updates, UINT8)
        mode = _OF_BOOLS.get(mode, mode)
    found = g.scatter_reduce(x, ids, updates, axis, mode, include_self)  # type: ignore[arg-type]
    return g.reshape(g.cast(found, self.dtype), self.shape)


def _cut(call: Call, x: Value, shape: Sequence[Dim]) -> Value:
    """The first elements along each axis, as many as ``shape`` has."""
    axes = [a for a in range(x.ndim) if x.shape[a] != shape[a]]
    return call.g.slice(x, [0] * len(axes), [shape[a] for a in axes], axes=axes) if axes else x


#: Reductions by PyTorch's names, and those of the vocabulary.
_REDUCTIONS = {
    "add": "sum",
    "sum": "sum",
    "multiply": "prod",
    "prod": "prod",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
}

#: Sums and products of bools, which are bools.
_OF_BOOLS = {"sum": "max", "prod": "min", "mean": "min"}


def _scatter_with(
    call: Call, self: Value, dim: int, index: Value, src: Any, *, reduce: str
) -> Value:
    return _scattered(call, self, dim, index, src, _REDUCTIONS[reduce])


def _scatter_value(call: Call, self: Value, dim: int, index: Value, value: Any) -> Value:
    return _scattered(call, self, dim, index, value, "set")


def _scatter_value_with(
    call: Call, self: Value, dim: int, index: Value, value: Any, *, reduce: str
) -> Value:
    return _scattered(call, self, dim, index, value, _REDUCTIONS[reduce])


def _scatter_reduce(
    call: Call,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    return _scattered(call, self, dim, index, src, _REDUCTIONS[reduce], include_self)


def _slices(call: Call, self: Value, source: Value, index: Value) -> tuple[Value, Value, Value]:
    """The operands of a write of slices, each with a dim at least; sources in the dtype."""
    rows = call.g.cast(source, self.dtype)
    return _line(call, self), _line(call, rows), _line(call, index)


def _index_copy(call: Call, self: Value, dim: int, index: Value, source: Value) -> Value:
    x, rows, ids = _slices(call, self, source, index)
    written = call.g.index_copy(x, ids, rows, call.axis(dim, x.ndim))
    return call.g.reshape(written, self.shape)


def _index_add(
    call: Call, self: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    g = call.g
    x, rows, ids = _slices(call, self, source, index)
    rows, axis = scaled(call, rows, alpha), call.axis(dim, x.ndim)
    if x.dtype.is_bool:
        x, rows = g.cast(x, UINT8), g.cast(rows, UINT8)
        return g.reshape(g.cast(g.index_reduce(x, ids, rows, axis, "max"), self.dtype), self.shape)
    return g.reshape(g.index_add(x, ids, rows, axis), self.shape)


def _index_fill(call: Call, self: Value, dim: int, index: Value, value: Any) -> Value:
    g = call.g
    x = _line(call, self)
    filler = g.reshape(call.value(value, self.dtype), ())
    return g.reshape(
        g.index_fill(x, _line(call, index), filler, call.axis(dim, x.ndim)), self.shape
    )


def _index_reduce(
    call: Call,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    x, rows, ids = _slices(call, self, source, index)
    mode: Any = _REDUCTIONS[reduce]
    written = call.g.index_reduce(x, ids, rows, call.axis(dim, x.ndim), mode, include_self)
    return call.g.reshape(written, self.shape)


def _index_put(
    call: Call,
    self: Value,
    indices: tuple[Value | None, ...],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """``x[i, :, j] = values``, or an addition to it."""
    g = call.g
    given = tuple(
        call.truth(index) if index is not None and index.dtype == UINT8 else index
        for index in indices
    )
    if any(index is not None and not index.ndim and index.dtype.is_bool for index in given):
        call.unsupported("a mask without dims")
    if not (self.dtype.is_bool and accumulate):
        return g.index_put(self, given, values, accumulate=accumulate)
    marked = g.index_put(g.zeros(self.shape, INT32), given, g.cast(values, INT32), accumulate=True)
    return g.logical_or(self, g.cast(marked, self.dtype))


def _put(call: Call, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    g = call.g
    flat, line = g.reshape(self, (self.type.size,)), g.reshape(index, (index.type.size,))
    updates = g.reshape(source, (source.type.size,))
    return g.reshape(_index_put(call, flat, (line,), updates, accumulate), self.shape)


def _masked_fill(call: Call, self: Value, mask: Value, value: Any) -> Value:
    return call.g.where(mask, call.value(value, self.dtype), self)


def _masked_scatter(call: Call, self: Value, mask: Value, source: Value) -> Value:
    """The elements of ``source``, in order, where the mask holds."""
    g = call.g
    shape = broadcast_shapes(self.shape, mask.shape)
    return g.masked_scatter(g.broadcast_to(self, shape), mask, source)


# -- repetition -------------------------------------------------------------------------------


def _one_hot(call: Call, self: Value, num_classes: int = -1) -> Value:
    return call.g.one_hot(self, call.shape[-1], dtype=INT64)


def _repeat_interleave(
    call: Call,
    self: Value,
    repeats: Any,
    dim: int | None = None,
    *,
    output_size: Any = None,
) -> Value:
    g = call.g
    x = g.reshape(self, (-1,)) if dim is None else _line(call, self)
    axis = 0 if dim is None else call.axis(dim, x.ndim)
    if not isinstance(repeats, Value):
        return g.repeat(x, repeats, axis)
    times = g.broadcast_to(_line(call, repeats), (x.shape[axis],))
    if output_size is None:
        call.unsupported("its length is not bounded: give output_size")
    return _at_repeats(call, x, times, axis, output_size)


def _repeated_positions(call: Call, repeats: Value, *, output_size: Any = None) -> Value:
    positions = call.g.iota(repeats.shape)
    return _repeat_interleave(call, positions, repeats, 0, output_size=output_size)


def _at_repeats(call: Call, x: Value, times: Value, axis: int, count: Dim) -> Value:
    """Slices repeated so often each; ``count`` is the sum."""
    g = call.g
    ends = g.cumsum(g.cast(times, INT64), axis=0)
    line = g.iota((count, 1), 0)
    source = g.sum(g.cast(g.less_equal(ends, line), INT64), axis=1)
    return g.take(x, source, axis=axis)


CONVERTERS: dict[str, Converter] = {
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.take_along_dim": _take_along,
    "aten.take": _take,
    "aten.embedding": _embedding,
    "aten.masked_select": _masked_select,
    "aten.nonzero": _nonzero,
    "aten.argwhere": _nonzero,
    "aten.nonzero_static": _nonzero_static,
    "aten.nonzero_numpy": _nonzero_list,
    "aten.where.default": _nonzero_list,
    "aten.scatter": _scatter("set"),
    "aten.scatter.value": _scatter_value,
    "aten.scatter.reduce": _scatter_with,
    "aten.scatter.value_reduce": _scatter_value_with,
    "aten.scatter_add": _scatter("sum"),
    "aten.scatter_reduce": _scatter_reduce,
    "aten.index_copy": _index_copy,
    "aten.index_add": _index_add,
    "aten.index_fill": _index_fill,
    "aten.index_reduce": _index_reduce,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten.put": _put,
    "aten.masked_fill": _masked_fill,
    "aten.masked_scatter": _masked_scatter,
    "aten.one_hot": _one_hot,
    "aten.repeat_interleave": _repeat_interleave,
    "aten.repeat_interleave.Tensor": _repeated_positions,
}
