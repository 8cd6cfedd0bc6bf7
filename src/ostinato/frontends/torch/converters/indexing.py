"""Converters of ops that read or write at indices.

PyTorch checks indices and raises; here reads clamp them, and writes drop what lies outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
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
    x, ids = _line(call, self), _line(call, index)
    axis = call.axis(dim, x.ndim)
    x = _first_of_each_axis(call, x, ids.shape, axis)
    return g.reshape(g.take_along_axis(x, ids, axis=axis), index.shape)


def _first_of_each_axis(call: Call, x: Value, shape: Sequence[Dim], axis: int) -> Value:
    """``x`` cut to ``shape`` along all axes but one."""
    axes = [a for a in range(x.ndim) if a != axis and x.shape[a] != shape[a]]
    if not axes:
        return x
    return call.g.slice(x, [0] * len(axes), [shape[a] for a in axes], axes=axes)


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
    g = call.g
    if not self.ndim:
        call.unsupported("a tensor without dims")
    return g.stack(g.nonzero(self), 1)


def _nonzero_list(call: Call, self: Value) -> tuple[Value, ...]:
    return call.g.nonzero(_line(call, self))


# -- writing ----------------------------------------------------------------------------------


def _from_front(call: Call, index: Value, size: Dim) -> Value:
    """Indices that count from the front: negative ones count from the end."""
    g = call.g
    wide = g.cast(index, INT64)
    return g.where(g.less(wide, 0), g.add(wide, g.dim_value(size)), wide)


def _scatter(mode: str) -> Converter:
    """A write, or a combination of what is there with what comes."""

    def convert(call: Call, self: Value, dim: int, index: Value, src: Any) -> Value:
        return _scattered(call, self, dim, index, src, mode)

    return convert


def _scattered(call: Call, x: Value, dim: int, index: Value, src: Any, mode: str) -> Value:
    g = call.g
    target, ids = _line(call, x), _line(call, index)
    axis = call.axis(dim, target.ndim)
    updates = call.value(src, x.dtype)
    if isinstance(src, Value) and src.ndim == ids.ndim:
        updates = _cut(call, updates, ids.shape)
    updates = g.broadcast_to(
        g.reshape(updates, ids.shape) if not index.ndim else updates, ids.shape
    )
    part = _first_of_each_axis(call, target, ids.shape, axis)
    written = _combined(call, part, ids, updates, axis, mode)
    for a in range(target.ndim):  # indices are for the first elements of the other axes
        if part.shape[a] != target.shape[a]:
            return _replaced(call, target, written)
    return g.reshape(written, x.shape)


def _cut(call: Call, x: Value, shape: Sequence[Dim]) -> Value:
    axes = [a for a in range(x.ndim) if x.shape[a] != shape[a]]
    return call.g.slice(x, [0] * len(axes), [shape[a] for a in axes], axes=axes) if axes else x


def _replaced(call: Call, x: Value, block: Value) -> Value:
    return call.g.dynamic_update_slice(x, block, [0] * x.ndim)


def _combined(call: Call, x: Value, ids: Value, updates: Value, axis: int, mode: str) -> Value:
    """A scatter; bools are combined as bytes."""
    g = call.g
    if not x.dtype.is_bool or mode == "set":
        return g.scatter(x, ids, updates, axis=axis, mode=mode)
    bytes_ = {"add": "max", "mul": "min"}.get(mode, mode)
    found = g.scatter(g.cast(x, "uint8"), ids, g.cast(updates, "uint8"), axis=axis, mode=bytes_)
    return g.cast(found, x.dtype)


#: The modes of ``scatter`` with ``reduce``, and of ``scatter_reduce``.
_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


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
    if reduce not in _REDUCTIONS or not include_self:
        call.unsupported(f"the reduction {reduce!r}, include_self={include_self}")
    return _scattered(call, self, dim, index, src, _REDUCTIONS[reduce])


def _rows(call: Call, index: Value, x: Value, axis: int) -> Value:
    """A vector of positions on an axis, repeated for the elements of every slice of ``x``."""
    g = call.g
    ids = _from_front(call, _line(call, index), x.shape[axis])
    shape = tuple(ids.shape[0] if a == axis else size for a, size in enumerate(x.shape))
    line = tuple(ids.shape[0] if a == axis else 1 for a in range(x.ndim))
    return g.broadcast_to(g.reshape(ids, line), shape)


def _into_rows(call: Call, self: Value, dim: int, index: Value, source: Any, mode: str) -> Value:
    g = call.g
    x = _line(call, self)
    axis = call.axis(dim, x.ndim)
    ids = _rows(call, index, x, axis)
    updates = call.value(source, self.dtype)
    if not isinstance(source, Value) or not source.ndim:
        updates = g.broadcast_to(updates, ids.shape)
    return g.reshape(_combined(call, x, ids, updates, axis, mode), self.shape)


def _index_copy(call: Call, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _into_rows(call, self, dim, index, source, "set")


def _index_add(
    call: Call, self: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    scaled_source = scaled(call, call.g.cast(source, self.dtype), alpha)
    return _into_rows(call, self, dim, index, scaled_source, "add")


def _index_fill(call: Call, self: Value, dim: int, index: Value, value: Any) -> Value:
    return _into_rows(call, self, dim, index, value, "set")


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
    updates = g.cast(values, self.dtype)
    given = [index for index in indices if index is not None]
    if not given:
        update = g.broadcast_to(updates, self.shape)
        return g.add(self, update) if accumulate else update
    if len(given) == 1 and given[0].dtype.is_bool and _is_one(values):
        return _put_by_mask(call, self, indices, g.reshape(updates, ()), accumulate)
    listed = _expanded_indices(call, indices)
    axes, place = _indexed_axes(listed)
    found = [
        _from_front(call, index, self.shape[axis])
        for axis, index in enumerate(listed)
        if index is not None
    ]
    vectors = _index_vectors(call, found)
    front = list(range(len(axes)))
    moved = g.moveaxis(self, axes, front)
    count = vectors.ndim - 1
    rest = moved.shape[len(axes) :]
    lead = vectors.shape[:-1]
    # Updates have their dims of indices where the result of reading has them.
    full = (*rest[:place], *lead, *rest[place:])
    spread = _moved_group(call, g.broadcast_to(updates, full), count, place, 0)
    written = _scatter_vectors(call, moved, vectors, spread, "add" if accumulate else "set")
    return g.moveaxis(written, front, axes)


def _scatter_vectors(call: Call, x: Value, vectors: Value, updates: Value, mode: str) -> Value:
    g = call.g
    if not x.dtype.is_bool or mode == "set":
        return g.scatter_nd(x, vectors, updates, mode=mode)
    found = g.scatter_nd(g.cast(x, "uint8"), vectors, g.cast(updates, "uint8"), mode="max")
    return g.cast(found, x.dtype)


def _is_one(values: Value) -> bool:
    return all(size == 1 for size in values.shape)


def _put_by_mask(
    call: Call, x: Value, indices: Sequence[Value | None], value: Value, accumulate: bool
) -> Value:
    """One number written wherever a mask holds, which takes no positions."""
    g = call.g
    axis = next(a for a, index in enumerate(indices) if index is not None)
    mask = indices[axis]
    assert mask is not None
    after = x.ndim - axis - mask.ndim
    wide = g.reshape(mask, (*mask.shape, *(1,) * after))
    if accumulate and x.dtype.is_bool:
        return g.where(wide, g.logical_or(x, value), x)
    return g.where(wide, g.add(x, value) if accumulate else value, x)


def _put(call: Call, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    g = call.g
    flat = g.reshape(self, (-1,))
    ids = _from_front(call, g.reshape(index, (-1,)), flat.shape[0])
    updates = g.reshape(g.cast(source, self.dtype), (-1,))
    mode = "add" if accumulate else "set"
    return g.reshape(_combined(call, flat, ids, updates, 0, mode), self.shape)


def _masked_fill(call: Call, self: Value, mask: Value, value: Any) -> Value:
    return call.g.where(mask, call.value(value, self.dtype), self)


def _masked_scatter(call: Call, self: Value, mask: Value, source: Value) -> Value:
    """The elements of ``source``, in order, where the mask holds."""
    g = call.g
    shape = broadcast_shapes(self.shape, mask.shape)
    x, flags = g.broadcast_to(self, shape), g.broadcast_to(mask, shape)
    flat = g.reshape(flags, (-1,))
    rank = g.cumsum(g.cast(flat, INT64), axis=0, exclusive=True)
    if source.type.size == 0:
        return x
    picked = g.reshape(g.take(g.reshape(source, (-1,)), rank), shape)
    return g.where(flags, picked, x)


# -- order ------------------------------------------------------------------------------------


def _top(
    call: Call,
    self: Value,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Value, Value]:
    g = call.g
    x = _line(call, self)
    values, order = g.topk(_ordered(call, x), k, call.axis(dim, x.ndim), largest=largest)
    values = g.cast(values, self.dtype)
    return g.reshape(values, call.shape_of(0)), g.reshape(order, call.shape_of(1))


def _ordered(call: Call, x: Value) -> Value:
    """Bools as bytes, which have an order."""
    return call.g.cast(x, "uint8") if x.dtype.is_bool else x


def _sort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    g = call.g
    x = _line(call, self)
    values, order = g.sort(x, call.axis(dim, x.ndim), descending=descending)
    return g.reshape(values, self.shape), g.reshape(order, self.shape)


def _sort_stable(
    call: Call,
    self: Value,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Value, Value]:
    return _sort(call, self, dim, descending)


def _argsort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> Value:
    return _sort(call, self, dim, descending)[1]


def _argsort_stable(
    call: Call,
    self: Value,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Value:
    return _sort(call, self, dim, descending)[1]


def _msort(call: Call, self: Value) -> Value:
    return _sort(call, self, 0)[0]


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
    "aten.nonzero_numpy": _nonzero_list,
    "aten.where.default": _nonzero_list,
    "aten.scatter": _scatter("set"),
    "aten.scatter.value": _scatter_value,
    "aten.scatter.reduce": _scatter_with,
    "aten.scatter.value_reduce": _scatter_value_with,
    "aten.scatter_add": _scatter("add"),
    "aten.scatter_reduce": _scatter_reduce,
    "aten.index_copy": _index_copy,
    "aten.index_add": _index_add,
    "aten.index_fill": _index_fill,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten.put": _put,
    "aten.masked_fill": _masked_fill,
    "aten.masked_scatter": _masked_scatter,
    "aten.topk": _top,
    "aten.sort": _sort,
    "aten.sort.stable": _sort_stable,
    "aten.argsort": _argsort,
    "aten.argsort.stable": _argsort_stable,
    "aten.msort": _msort,
    "aten.one_hot": _one_hot,
    "aten.repeat_interleave": _repeat_interleave,
}
