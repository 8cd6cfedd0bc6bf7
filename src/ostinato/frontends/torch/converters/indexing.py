"""Converters of ops that read and write at indices.

No index faults in a graph: where PyTorch raises for an index out of range, reads are clamped and
writes are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.frontends.torch.call import Complex
from ostinato.ir.graph import Value
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


def _embedding(
    call: Call,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return call.g.embedding(indices, weight)


def _index_select(call: Call, self: Any, dim: int, index: Value) -> Any:
    if isinstance(self, Complex):
        axis = call.axis(dim, self.ndim)
        return Complex(call.g.take(self.pairs, _line(call, index), axis=axis))
    if not self.ndim:
        return call.g.broadcast_to(self, call.shape)
    return call.g.take(self, _line(call, index), axis=call.axis(dim, self.ndim))


def _line(call: Call, index: Value) -> Value:
    return index if index.ndim else call.g.reshape(index, (1,))


def _gather(call: Call, self: Any, dim: int, index: Value, *, sparse_grad: bool = False) -> Any:
    g = call.g
    if isinstance(self, Complex):
        call.unsupported("complex operands")
    if not self.ndim:
        return g.broadcast_to(self, index.shape)
    if not index.ndim:
        return g.reshape(g.take(self, g.reshape(index, (1,)), axis=0), ())
    axis = call.axis(dim, self.ndim)
    return g.take_along_axis(_cut(call, self, index.shape, but=axis), index, axis=axis)


def _cut(call: Call, x: Value, shape: Sequence[Dim], but: int | None = None) -> Value:
    """The first elements of ``x`` along each axis, as many as ``shape`` has; one axis is whole."""
    key = tuple(
        slice(None) if axis == but or size == x.shape[axis] else slice(0, size)
        for axis, size in enumerate(shape)
    )
    return x if all(part == slice(None) for part in key) else call.g.getitem(x, key)


def _wrapped(call: Call, index: Value, size: Dim) -> Value:
    """Indices that count from the start: negative ones count from the end."""
    g = call.g
    wide = g.cast(index, INT64)
    return g.where(g.less(wide, 0), g.add(wide, g.dim_value(size)), wide)


_MODES = {"add": "add", "multiply": "mul"}


def _scatter(
    call: Call, self: Value, dim: int, index: Value, src: Any, *, reduce: str = "set"
) -> Value:
    return _scattered(call, self, dim, index, src, _MODES.get(reduce, "set"))


def _scatter_value(
    call: Call, self: Value, dim: int, index: Value, value: Any, *, reduce: str = "set"
) -> Value:
    return _scattered(call, self, dim, index, value, _MODES.get(reduce, "set"))


def _scatter_add(call: Call, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scattered(call, self, dim, index, src, "add")


def _scattered(call: Call, x: Value, dim: int, index: Value, src: Any, mode: str) -> Value:
    """``x`` with elements of ``src``, or one number, combined in along an axis."""
    g = call.g
    rank = x.ndim
    if not rank:
        x = g.reshape(x, (1,))
    if not index.ndim:
        index = g.reshape(index, (1,))
    if isinstance(src, Value) and not src.ndim:
        src = g.reshape(src, (1,)) if not rank or index.ndim == 1 else src
    if isinstance(src, Value) and src.ndim:
        updates = _cut(call, call.value(src, x.dtype), index.shape)
    else:
        updates = g.broadcast_to(call.value(src, x.dtype), index.shape)
    axis = call.axis(dim, x.ndim)
    wrapped = _wrapped(call, index, x.shape[axis])
    result = g.scatter(x, wrapped, updates, axis, mode)
    return result if rank else g.reshape(result, ())


def _index_add(
    call: Call, self: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    g = call.g
    scaled = source if alpha == 1 else g.multiply(source, call.value(alpha, source.dtype))
    return _whole_slices(call, self, dim, index, scaled, "add")


def _index_copy(call: Call, self: Value, dim: int, index: Value, source: Value) -> Value:
    return _whole_slices(call, self, dim, index, source, "set")


def _index_fill(call: Call, self: Value, dim: int, index: Value, value: Any) -> Value:
    return _whole_slices(call, self, dim, index, call.value(value, self.dtype), "set")


def _whole_slices(call: Call, x: Value, dim: int, index: Value, source: Value, mode: str) -> Value:
    """``x`` with slices along an axis combined in."""
    g = call.g
    rank = x.ndim
    if not rank:
        x = g.reshape(x, (1,))
    axis = call.axis(dim, x.ndim)
    line = _wrapped(call, _line(call, index), x.shape[axis])
    moved = g.moveaxis(x, axis, 0)
    shape = (line.shape[0], *moved.shape[1:])
    if source.ndim == x.ndim:
        source = g.moveaxis(source, axis, 0)
    updates = g.broadcast_to(call.value(source, x.dtype), shape)
    written = g.scatter_nd(moved, g.expand_dims(line, -1), updates, mode)
    result = g.moveaxis(written, 0, axis)
    return result if rank else g.reshape(result, ())


# -- several indices at once ------------------------------------------------------------------


class _Points:
    """The elements that a list of index tensors, one for each axis or none, selects.

    Attributes:
        order: the axes of the operand, indexed ones first.
        vectors: the index vectors, ``[*points, indexed axes]``.
        at: the axis of the result at which the axes of the points stand.
        masks: whether an index was a mask of bools: the number of points depends on data.
    """

    def __init__(self, call: Call, shape: Sequence[Dim], indices: Sequence[Value | None]) -> None:
        g = call.g
        listed: list[Value | None] = []
        for index in indices:
            if index is None or not (index.dtype.is_bool or index.dtype.name == "uint8"):
                listed.append(index)
                continue
            mask = index if index.dtype.is_bool else g.not_equal(index, 0)
            if not mask.ndim:
                call.unsupported("a mask without dims among its indices")
            listed += g.nonzero(mask)
        axes = [axis for axis, index in enumerate(listed) if index is not None]
        found = [index for index in listed if index is not None]
        if not axes:
            call.unsupported("no index among its indices")
        self.masks = any(index is not None and index.dtype.is_bool for index in indices)
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        self.order = (*axes, *rest)
        wrapped = [
            _wrapped(call, index, shape[axis]) for axis, index in zip(axes, found, strict=True)
        ]
        points = wrapped[0]
        for other in wrapped[1:]:
            points = g.add(points, g.multiply(other, 0))
        self.shape = points.shape
        self.single = wrapped[0] if len(axes) == 1 else None
        vectors = [g.broadcast_to(index, self.shape) for index in wrapped]
        self.vectors = g.stack(vectors, axis=-1)
        adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
        self.at = axes[0] if adjacent else 0


def _index(call: Call, self: Any, indices: Sequence[Value | None]) -> Any:
    g = call.g
    if isinstance(self, Complex):
        return Complex(_index(call, self.pairs, indices))
    points = _Points(call, self.shape, indices)
    if points.single is not None:
        return g.take(self, points.single, axis=points.at)
    moved = g.permute_dims(self, points.order) if points.order else self
    found = g.gather_nd(moved, points.vectors)
    count = len(points.shape)
    if not points.at or not count:
        return found
    return g.moveaxis(found, tuple(range(count)), tuple(range(points.at, points.at + count)))


def _index_put(
    call: Call,
    self: Any,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    g = call.g
    if isinstance(self, Complex) or isinstance(values, Complex):
        call.unsupported("complex operands")
    new = call.value(values, self.dtype)
    lone = [index for index in indices if index is not None]
    if len(lone) == 1 and lone[0].dtype.is_bool and not new.ndim and indices[0] is lone[0]:
        mask = g.reshape(lone[0], (*lone[0].shape, *(1,) * (self.ndim - lone[0].ndim)))
        return g.where(mask, g.add(self, new) if accumulate else new, self)
    points = _Points(call, self.shape, indices)
    moved = g.permute_dims(self, points.order)
    depth, count = points.vectors.shape[-1], len(points.shape)
    assert isinstance(depth, int)
    rest = moved.shape[depth:]
    if points.at:  # the points' axes stand within those that are not indexed
        inner = (*rest[: points.at], *points.shape, *rest[points.at :])
        whole = g.broadcast_to(new, inner)
        new = g.moveaxis(whole, tuple(range(points.at, points.at + count)), tuple(range(count)))
    updates = g.broadcast_to(new, (*points.shape, *rest))
    written = g.scatter_nd(moved, points.vectors, updates, "add" if accumulate else "set")
    back = [points.order.index(axis) for axis in range(self.ndim)]
    return g.permute_dims(written, back)


def _take(call: Call, self: Value, index: Value) -> Value:
    return call.g.take(self, index)


def _put(call: Call, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    g = call.g
    flat = g.reshape(self, (prod(self.shape),))
    line = _wrapped(call, g.reshape(index, (prod(index.shape),)), flat.shape[0])
    updates = g.reshape(source, line.shape)
    written = g.scatter(flat, line, updates, 0, "add" if accumulate else "set")
    return g.reshape(written, self.shape)


def _nonzero(call: Call, self: Any) -> Value:
    g = call.g
    x = g.any(g.not_equal(self.pairs, 0), -1) if isinstance(self, Complex) else self
    if not x.ndim:
        found = g.nonzero(g.reshape(x, (1,)))[0]
        return g.reshape(found, (found.shape[0], 1))[:, :0]
    return g.stack(g.nonzero(x), axis=1)


def _masked_select(call: Call, self: Value, mask: Value) -> Value:
    g = call.g
    shape = g.add(g.zeros(self.shape, INT64), g.zeros(mask.shape, INT64)).shape
    flat = (g.broadcast_to(self, shape), g.broadcast_to(mask, shape))
    return g.masked_select(*flat) if shape else g.masked_select(*(g.reshape(v, (1,)) for v in flat))


# -- order ------------------------------------------------------------------------------------


def _topk(
    call: Call, self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    g = call.g
    if not self.ndim:
        return self, g.constant(0, INT64)
    return g.topk(self, k, call.axis(dim, self.ndim), largest=largest)


def _sort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> Any:
    g = call.g
    if not self.ndim:
        return self, g.constant(0, INT64)
    return g.sort(self, call.axis(dim, self.ndim), descending=descending)


def _stable_sort(
    call: Call, self: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sort(call, self, dim, descending)


def _argsort(call: Call, self: Value, dim: int = -1, descending: bool = False) -> Value:
    return _sort(call, self, dim, descending)[1]  # type: ignore[no-any-return]


def _stable_argsort(
    call: Call, self: Value, *, stable: bool, dim: int = -1, descending: bool = False
) -> Value:
    return _sort(call, self, dim, descending)[1]  # type: ignore[no-any-return]


def _one_hot(call: Call, self: Value, num_classes: int = -1) -> Value:
    if num_classes < 0:
        call.unsupported("its number of classes depends on data")
    return call.g.one_hot(self, num_classes, dtype=INT64)


CONVERTERS: dict[str, Converter] = {
    "aten.embedding": _embedding,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.index_select": _index_select,
    "aten.index_add": _index_add,
    "aten.index_copy": _index_copy,
    "aten.index_fill": _index_fill,
    "aten.gather": _gather,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter_value,
    "aten.scatter.reduce": _scatter,
    "aten.scatter.value_reduce": _scatter_value,
    "aten.scatter_add": _scatter_add,
    "aten.take": _take,
    "aten.put": _put,
    "aten.nonzero": _nonzero,
    "aten.masked_select": _masked_select,
    "aten.topk": _topk,
    "aten.sort.default": _sort,
    "aten.sort.stable": _stable_sort,
    "aten.argsort.default": _argsort,
    "aten.argsort.stable": _stable_argsort,
    "aten.one_hot": _one_hot,
}
