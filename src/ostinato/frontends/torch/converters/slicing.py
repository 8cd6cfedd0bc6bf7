"""Converters of ops that cut tensors, join them, write into parts of them, or pad them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ostinato.ir.graph import Value
from ostinato.variables import Expr, ceil_div, maximum, minimum, provably_nonnegative

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "bounds_of"]

#: Ends of slices from here on mean the end of the axis.
_END = 2**62

#: PyTorch's padding modes, and those of ``pad``.
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def bounds_of(call: Call, start: Any, end: Any, size: Dim) -> tuple[Dim, Dim]:
    """Start and end of a slice, counted from the front and within the axis."""
    first = 0 if start is None else call.position(start, size)
    last = size if end is None or (isinstance(end, int) and end >= _END) else end
    last = call.position(last, size)
    first = minimum(maximum(first, 0), size)
    return first, maximum(minimum(maximum(last, 0), size), first)


def _slice(
    call: Call, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    axis = call.axis(dim, self.ndim)
    first, last = bounds_of(call, start, end, self.shape[axis])
    return call.g.slice(self, [first], [last], [call.known(step, "step")], axes=[axis])


def _narrow(call: Call, self: Value, dim: int, start: Any, length: Any) -> Value:
    axis = call.axis(dim, self.ndim)
    if isinstance(start, Value):
        starts = [start if a == axis else 0 for a in range(self.ndim)]
        sizes = [length if a == axis else size for a, size in enumerate(self.shape)]
        return call.g.dynamic_slice(self, starts, sizes)
    first = call.position(start, self.shape[axis])
    return call.g.slice(self, [first], [first + length], axes=[axis])


def _select(call: Call, self: Value, dim: int, index: Any) -> Value:
    axis = call.axis(dim, self.ndim)
    if isinstance(index, Value):
        return call.g.take(self, index, axis=axis)
    at = call.position(index, self.shape[axis])
    row = call.g.slice(self, [at], [at + 1], axes=[axis])
    return call.g.reshape(row, (*self.shape[:axis], *self.shape[axis + 1 :]))


def _parts(call: Call, x: Value, axis: int) -> tuple[Value, ...]:
    """``x`` cut along an axis into parts of the sizes that PyTorch gives to the results.

    Sizes that data decide make up the axis in the runs that are allowed.
    """
    sizes = [call.shape_of(index)[axis] for index in range(len(call.node.metas))]
    rest = x.shape[axis] - sum(sizes, start=0)
    if isinstance(rest, Expr) and sizes:
        problem = f"parts of {', '.join(map(str, sizes))} make up the {x.shape[axis]} of an axis"
        call.require(rest, problem)
        call.require(-rest, problem)
        sizes[-1] = sizes[-1] + rest
    return call.g.split(x, sizes, axis) if sizes else ()


def _split(call: Call, self: Value, sections: Any, dim: int = 0) -> tuple[Value, ...]:
    return _parts(call, self, call.axis(dim, self.ndim))


def _split_named(call: Call, self: Value, split_size: Any, dim: int = 0) -> tuple[Value, ...]:
    return _parts(call, self, call.axis(dim, self.ndim))


def _split_sizes(call: Call, self: Value, split_sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    return _parts(call, self, call.axis(dim, self.ndim))


def _chunk(call: Call, self: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    return _parts(call, self, call.axis(dim, self.ndim))


def _tensor_split(call: Call, self: Value, spec: Any, dim: int = 0) -> tuple[Value, ...]:
    """Cut an axis into a number of sections, or before given indices."""
    axis = call.axis(dim, self.ndim)
    if isinstance(spec, Value):
        call.unsupported("indices that are computed during a run")
    if not isinstance(spec, tuple):
        return _parts(call, self, axis)
    return _between(call, self, spec, axis)


def _between(call: Call, x: Value, cuts: tuple[Any, ...], axis: int) -> tuple[Value, ...]:
    """The parts of ``x`` between positions; one that ends before it begins is empty."""
    size = x.shape[axis]
    return tuple(
        call.g.slice(x, [first], [last], axes=[axis])
        for first, last in (
            bounds_of(call, start, end, size) for start, end in pairwise((0, *cuts, size))
        )
    )


def _split_along(axis: int) -> Converter:
    """``hsplit``, ``vsplit`` and ``dsplit``."""

    def convert(call: Call, self: Value, spec: Any) -> tuple[Value, ...]:
        where = 0 if self.ndim == 1 else axis
        return _tensor_split(call, self, spec, where)

    return convert


def _unbind(call: Call, self: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = call.axis(dim, self.ndim)
    return tuple(_select(call, self, axis, index) for index in range(len(call.node.metas)))


# -- joining ----------------------------------------------------------------------------------


def _concatenated(call: Call, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    """The tensors end to end; empty vectors among tensors of other ranks do not count."""
    g = call.g
    rank = len(call.meta().shape)
    parts = [
        call.value(x, call.dtype)
        for x in tensors
        if not (isinstance(x, Value) and x.shape == (0,) and rank != 1)
    ]
    if not parts:
        return call.value(tensors[0], call.dtype)
    return g.concat(parts, call.axis(dim, rank))


def _stack(call: Call, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    axis = call.axis(dim, len(call.meta().shape))
    return call.g.stack(call.promoted(*tensors), axis)


def _stacked_along(axis: int, rank: int) -> Converter:
    """``hstack``, ``vstack`` and ``dstack``: tensors of at least a rank, end to end."""

    def convert(call: Call, tensors: tuple[Value, ...]) -> Value:
        g = call.g
        raised = [_raised(call, x, rank) for x in call.promoted(*tensors)]
        return g.concat(raised, 0 if raised[0].ndim == 1 else axis)

    return convert


def _raised(call: Call, x: Value, rank: int) -> Value:
    """``torch.atleast_1d``, ``2d`` or ``3d``."""
    shape = x.shape
    if rank == 3:
        shape = {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}.get(x.ndim, shape)
    else:
        shape = (*(1,) * (rank - x.ndim), *shape)
    return call.g.reshape(x, shape)


def _column_stack(call: Call, tensors: tuple[Value, ...]) -> Value:
    g = call.g
    columns = [
        x if x.ndim > 1 else g.reshape(x, (*(x.shape or (1,)), 1)) for x in call.promoted(*tensors)
    ]
    return g.concat(columns, 1)


def _block_diagonal(call: Call, tensors: tuple[Value, ...]) -> Value:
    g = call.g
    blocks = [_raised(call, x, 2) for x in call.promoted(*tensors)]
    width = sum((block.shape[1] for block in blocks), start=0)
    rows: list[Value] = []
    before: Dim = 0
    for block in blocks:
        height, columns = block.shape
        left = g.zeros((height, before), call.dtype)
        right = g.zeros((height, width - before - columns), call.dtype)
        rows.append(g.concat([left, block, right], 1))
        before = before + columns
    return g.concat(rows, 0)


def _mesh(call: Call, tensors: tuple[Value, ...], *, indexing: str = "ij") -> tuple[Value, ...]:
    g = call.g
    results = []
    for index, x in enumerate(tensors):
        shape = call.shape_of(index)
        swapped = indexing == "xy" and len(tensors) > 1 and index < 2
        axis = 1 - index if swapped else index
        line = g.reshape(x, tuple(x.type.size if a == axis else 1 for a in range(len(shape))))
        results.append(g.broadcast_to(line, shape))
    return tuple(results)


# -- writing ----------------------------------------------------------------------------------


def _slice_scatter(
    call: Call,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    """``self`` with a slice replaced."""
    g = call.g
    axis = call.axis(dim, self.ndim)
    size = self.shape[axis]
    first, last = bounds_of(call, start, end, size)
    stride = call.known(step, "step")
    count = ceil_div(last - first, stride)
    shape = tuple(count if a == axis else n for a, n in enumerate(self.shape))
    update = g.broadcast_to(g.cast(src, self.dtype), shape)
    if shape == self.shape:
        return update
    if stride == 1:
        return _written(call, self, update, axis, first)
    at = g.add(g.multiply(g.iota((count,)), stride), g.dim_value(first))
    line = g.reshape(at, tuple(count if a == axis else 1 for a in range(self.ndim)))
    return g.scatter(self, g.broadcast_to(line, shape), update, axis=axis)


def _written(call: Call, x: Value, update: Value, axis: int, first: Dim) -> Value:
    starts = [first if a == axis else 0 for a in range(x.ndim)]
    return call.g.dynamic_update_slice(x, update, starts)


def _select_scatter(call: Call, self: Value, src: Value, dim: int, index: Any) -> Value:
    g = call.g
    axis = call.axis(dim, self.ndim)
    row = g.broadcast_to(
        g.expand_dims(g.cast(src, self.dtype), axis),
        tuple(1 if a == axis else n for a, n in enumerate(self.shape)),
    )
    return _written(call, self, row, axis, call.position(index, self.shape[axis]))


# -- padding ----------------------------------------------------------------------------------


def _padded(call: Call, x: Value, pad: tuple[Any, ...], mode: str, value: Any) -> Value:
    """``x`` with a border; ``pad`` has pairs of widths from the last axis on."""
    g = call.g
    pairs = [(0, 0)] * x.ndim
    for index in range(len(pad) // 2):
        pairs[x.ndim - 1 - index] = (pad[2 * index], pad[2 * index + 1])
    if any(isinstance(width, Expr) for pair in pairs for width in pair):
        return _padded_by_dims(call, x, pairs, mode, value)
    if mode == "replicate":
        grown = [(max(before, 0), max(after, 0)) for before, after in pairs]
        x = g.pad(x, grown, mode=_MODES[mode])  # what is cut off is a part of the border
        return g.pad(x, [(min(before, 0), min(after, 0)) for before, after in pairs])
    if mode != "constant":
        return g.pad(x, pairs, mode=_MODES[mode])
    if x.dtype.is_bool or x.dtype.is_float:
        return g.pad(x, pairs, value=float(value or 0))
    return g.pad(x, pairs, value=int(value or 0))


def _padded_by_dims(
    call: Call, x: Value, pairs: list[tuple[Any, Any]], mode: str, value: Any
) -> Value:
    """``x`` with a border of constants whose widths follow from sizes."""
    g = call.g
    if mode != "constant":
        call.unsupported(f"a border {mode!r} whose width follows from sizes")
    for axis, (before, after) in enumerate(pairs):
        if not (provably_nonnegative(before) and provably_nonnegative(after)):
            call.unsupported("the width of a border may be negative")
        border = call.value(value or 0, x.dtype)
        sides = [
            g.broadcast_to(border, (*x.shape[:axis], width, *x.shape[axis + 1 :]))
            for width in (before, after)
        ]
        x = g.concat([sides[0], x, sides[1]], axis)
    return x


def _pad(
    call: Call, self: Value, pad: tuple[Any, ...], mode: str = "constant", value: Any = None
) -> Value:
    return _padded(call, self, pad, mode, value)


def _constant_pad(call: Call, self: Value, pad: tuple[Any, ...], value: Any = 0) -> Value:
    return _padded(call, self, pad, "constant", value)


def _border(mode: str) -> Converter:
    def convert(call: Call, self: Value, padding: tuple[Any, ...]) -> Value:
        return _padded(call, self, padding, mode, None)

    return convert


def _circular_pad(call: Call, self: Value, pad: tuple[Any, ...]) -> Value:
    return _padded(call, self, pad, "circular", None)


CONVERTERS: dict[str, Converter] = {
    "aten.slice": _slice,
    "aten.slice_copy": _slice,
    "aten.narrow": _narrow,
    "aten.narrow_copy": _narrow,
    "aten.select": _select,
    "aten.select_copy": _select,
    "aten.split": _split_named,
    "aten.split_copy": _split_named,
    "aten.split.sizes": _split_named,
    "aten.unsafe_split": _split_named,
    "aten.split_with_sizes": _split_sizes,
    "aten.split_with_sizes_copy": _split_sizes,
    "aten.unsafe_split_with_sizes": _split_sizes,
    "aten.chunk": _chunk,
    "aten.unsafe_chunk": _chunk,
    "aten.tensor_split": _tensor_split,
    "aten.hsplit": _split_along(1),
    "aten.vsplit": _split_along(0),
    "aten.dsplit": _split_along(2),
    "aten.unbind": _unbind,
    "aten.unbind_copy": _unbind,
    "aten.cat": _concatenated,
    "aten.concat": _concatenated,
    "aten.concatenate": _concatenated,
    "aten.stack": _stack,
    "aten.hstack": _stacked_along(1, 1),
    "aten.vstack": _stacked_along(0, 2),
    "aten.row_stack": _stacked_along(0, 2),
    "aten.dstack": _stacked_along(2, 3),
    "aten.column_stack": _column_stack,
    "aten.block_diag": _block_diagonal,
    "aten.meshgrid": _mesh,
    "aten.slice_scatter": _slice_scatter,
    "aten.select_scatter": _select_scatter,
    "aten.pad": _pad,
    "aten.constant_pad_nd": _constant_pad,
    "aten._pad_circular": _circular_pad,
    **{f"aten.reflection_pad{n}d": _border("reflect") for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d": _border("replicate") for n in (1, 2, 3)},
}
