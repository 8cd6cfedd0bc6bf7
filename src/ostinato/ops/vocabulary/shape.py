"""The methods that reshape, repeat, slice and place elements, and those that create tensors.

Dims (in shapes, bounds of slices, repeats) are ints or expressions of Variables. All methods raise
:class:`~ostinato.errors.GraphError` for shapes and axes that do not fit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.dtypes import FLOAT32, INT64, DType, promote
from ostinato.errors import GraphError
from ostinato.ir.leaves import check_shape
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axes, normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary
from ostinato.ops.vocabulary.ranges import Range, as_dim, resolve_range
from ostinato.variables import Dim, Expr, bounds, ceil_div, floor_div, maximum, prod

if TYPE_CHECKING:
    from ostinato.ir.types import TensorType
    from ostinato.ops import indexing
    from ostinato.ops import shape as ops
else:
    indexing = LazyModule("ostinato.ops.indexing")
    ops = LazyModule("ostinato.ops.shape")

__all__ = ["ShapeVocabulary"]

Axes: TypeAlias = int | Sequence[int]


class ShapeVocabulary(ElementwiseVocabulary[T]):
    """Methods that rearrange elements without changing their values."""

    # -- shapes -----------------------------------------------------------------------------

    def reshape(self, x: Any, shape: Sequence[Dim] | Dim) -> T:
        """The same elements in C order; one dim may be -1, which takes what is left."""
        lifted, type_ = self._typed(x)
        dims = _dims(shape, "a dim")
        if dims.count(-1) == 1:
            at = dims.index(-1)
            dims[at] = _left_over(type_.size, prod(dims[:at] + dims[at + 1 :]), dims)
        target = tuple(dims)
        if target == type_.shape:
            return lifted
        return self._one(ops.RESHAPE, lifted, shape=target)

    def flatten(self, x: Any, start_axis: int = 0, end_axis: int = -1) -> T:
        """Axes ``start_axis`` to ``end_axis`` (inclusive) as one."""
        lifted, type_ = self._typed(x)
        if type_.ndim == 0:
            return self.reshape(lifted, (1,))
        first = normalize_axis(start_axis, type_.ndim)
        last = normalize_axis(end_axis, type_.ndim)
        if first > last:
            raise GraphError(f"axis {start_axis} is not before axis {end_axis} of {type_}")
        merged = prod(type_.shape[first : last + 1])
        return self.reshape(lifted, (*type_.shape[:first], merged, *type_.shape[last + 1 :]))

    def expand_dims(self, x: Any, axis: Axes = 0) -> T:
        """New axes of size 1, at these positions of the result."""
        lifted, type_ = self._typed(x)
        count = len(axis) if isinstance(axis, Sequence) else 1
        places = set(normalize_axes(axis, type_.ndim + count))
        old = iter(type_.shape)
        shape = tuple(1 if i in places else next(old) for i in range(type_.ndim + count))
        return self.reshape(lifted, shape)

    def unsqueeze(self, x: Any, axis: Axes = 0) -> T:
        """PyTorch's name of :meth:`expand_dims`."""
        return self.expand_dims(x, axis)

    def squeeze(self, x: Any, axis: Axes | None = None) -> T:
        """Without these axes, each of size 1; without all such axes if none is named."""
        lifted, type_ = self._typed(x)
        if axis is None:
            gone = tuple(i for i, d in enumerate(type_.shape) if d == 1)
        else:
            gone = normalize_axes(axis, type_.ndim)
        for i in gone:
            if type_.shape[i] != 1:
                raise GraphError(f"axis {i} of {type_} is not of size 1")
        return self.reshape(lifted, tuple(d for i, d in enumerate(type_.shape) if i not in gone))

    def permute_dims(self, x: Any, axes: Sequence[int]) -> T:
        """Axes in another order: axis ``i`` of the result is axis ``axes[i]`` of ``x``."""
        lifted, type_ = self._typed(x)
        order = tuple(normalize_axis(a, type_.ndim) for a in axes)
        if order == tuple(range(type_.ndim)):
            return lifted
        return self._one(ops.PERMUTE_DIMS, lifted, axes=order)

    def transpose(self, x: Any, axes: Sequence[int] | None = None) -> T:
        """NumPy's name of :meth:`permute_dims`; all axes reversed if none are given."""
        lifted, type_ = self._typed(x)
        return self.permute_dims(lifted, tuple(range(type_.ndim))[::-1] if axes is None else axes)

    def matrix_transpose(self, x: Any) -> T:
        """The last two axes exchanged."""
        return self.swapaxes(x, -1, -2)

    def swapaxes(self, x: Any, axis1: int, axis2: int) -> T:
        """Two axes exchanged."""
        lifted, type_ = self._typed(x)
        a, b = normalize_axis(axis1, type_.ndim), normalize_axis(axis2, type_.ndim)
        order = list(range(type_.ndim))
        order[a], order[b] = b, a
        return self.permute_dims(lifted, order)

    def moveaxis(self, x: Any, source: Axes, destination: Axes) -> T:
        """Axes moved to other places; the rest keep their order."""
        lifted, type_ = self._typed(x)
        moved, places = (
            [
                normalize_axis(a, type_.ndim)
                for a in (axes if isinstance(axes, Sequence) else [axes])
            ]
            for axes in (source, destination)
        )
        if len(moved) != len(places) or len({*moved}) < len(moved) or len({*places}) < len(places):
            raise GraphError(f"cannot move axes {source} of {type_} to {destination}")
        order = [a for a in range(type_.ndim) if a not in moved]
        for place, axis in sorted(zip(places, moved, strict=True)):
            order.insert(place, axis)
        return self.permute_dims(lifted, order)

    def broadcast_to(self, x: Any, shape: Sequence[Dim]) -> T:
        """Elements repeated along new leading axes, and along axes of size 1."""
        lifted, type_ = self._typed(x)
        target = check_shape("broadcast_to", shape)
        if target == type_.shape:
            return lifted
        return self._one(ops.BROADCAST_TO, lifted, shape=target)

    # -- cutting and joining ----------------------------------------------------------------

    def concat(self, xs: Sequence[Any], axis: int | None = 0) -> T:
        """The tensors ``xs`` end to end, in their common dtype; flattened first if no axis."""
        typed = [self._typed(x) for x in _listed(xs)]
        if axis is None:
            typed = [self._typed(self.reshape(x, (-1,))) for x, _ in typed]
        common = reduce(promote, (type_.dtype for _, type_ in typed))
        parts = [self.cast(x, common) for x, _ in typed]
        if len(parts) == 1 and axis is not None:
            normalize_axis(axis, typed[0][1].ndim)
            return parts[0]
        where = normalize_axis(axis or 0, typed[0][1].ndim)
        return self._one(ops.CONCAT, *parts, axis=where)

    def stack(self, xs: Sequence[Any], axis: int = 0) -> T:
        """Tensors of one shape, along a new axis."""
        return self.concat([self.expand_dims(x, axis) for x in _listed(xs)], axis)

    def split(self, x: Any, sections: int | Sequence[Dim], axis: int = 0) -> tuple[T, ...]:
        """Consecutive parts along ``axis``: so many equal ones, or parts of these sizes."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        size = type_.shape[where]
        if isinstance(sections, Sequence):
            sizes: list[Dim] = [as_dim(s, "a size") for s in sections]
        else:
            count = operator.index(sections)
            part = floor_div(size, count) if count > 0 else 0
            sizes = [part] * count
        total: Dim = sum(sizes)
        if total != size or not sizes:
            raise GraphError(f"parts of {sizes} do not make up the {size} of axis {where}")
        parts: list[T] = []
        start: Dim = 0
        for length in sizes:
            parts.append(self.slice(lifted, [start], [start + length], axes=[where]))
            start = start + length
        return tuple(parts)

    def slice(
        self,
        x: Any,
        starts: Any,
        stops: Any,
        steps: Any = None,
        axes: Axes | None = None,
    ) -> T:
        """Python's ``x[start:stop:step]`` along several axes at once.

        Bounds are ints (negative ones count from the end), expressions of Variables (which count
        from the start), or ``None``; as in Python they are clamped to the axis. Steps are ints
        other than 0.

        Args:
            axes: which axes the bounds are for; the leading ones if not given.
        """
        lifted, type_ = self._typed(x)
        firsts, lasts = _bounds_list(starts), _bounds_list(stops)
        if axes is None:
            axes = tuple(range(len(firsts)))
        where = [
            normalize_axis(a, type_.ndim) for a in (axes if isinstance(axes, Sequence) else [axes])
        ]
        strides = [None] * len(where) if steps is None else _bounds_list(steps)
        if not len(where) == len({*where}) == len(firsts) == len(lasts) == len(strides):
            raise GraphError(
                f"expected a start, a stop and a step for each of the distinct axes {where}, "
                f"got {starts}, {stops} and {steps}"
            )
        ranges = {
            axis: resolve_range(first, last, step, type_.shape[axis])
            for axis, first, last, step in zip(where, firsts, lasts, strides, strict=True)
        }
        return self._cut(lifted, type_, ranges)

    def flip(self, x: Any, axis: Axes | None = None) -> T:
        """The order of elements reversed along ``axis``; along all if none is named."""
        lifted, type_ = self._typed(x)
        axes = normalize_axes(axis, type_.ndim)
        return self._one(ops.FLIP, lifted, axes=axes) if axes else lifted

    def roll(self, x: Any, shift: Axes, axis: Axes | None = None) -> T:
        """Elements moved ``shift`` places along ``axis``; what leaves one end enters the other.

        Args:
            axis: one, or one for each of several shifts; ``None``: of the flattened ``x``.
        """
        lifted, type_ = self._typed(x)
        if axis is None:
            return self.reshape(self.roll(self.reshape(lifted, (-1,)), shift, 0), type_.shape)
        if isinstance(shift, Sequence) or isinstance(axis, Sequence):
            shifts = shift if isinstance(shift, Sequence) else (shift,)
            axes = axis if isinstance(axis, Sequence) else (axis,) * len(shifts)
            if len(shifts) != len(axes):
                raise GraphError(f"{len(shifts)} shifts are given for {len(axes)} axes")
            for places, along in zip(shifts, axes, strict=True):
                lifted = self.roll(lifted, places, along)
            return lifted
        where = normalize_axis(axis, type_.ndim)
        size, places = type_.shape[where], operator.index(shift)
        if isinstance(size, int):
            places = places % size if size else 0
        if not places:
            return lifted
        if abs(places) > bounds(size)[0]:
            return self._rolled(lifted, places, where, size)
        split = size - places if places > 0 else -places
        tail = self.slice(lifted, [split], [size], axes=[where])
        return self.concat([tail, self.slice(lifted, [0], [split], axes=[where])], where)

    # -- repeating and padding --------------------------------------------------------------

    def tile(self, x: Any, repeats: Sequence[Dim] | Dim) -> T:
        """``x`` repeated as a whole along each axis; short lists are about the last axes."""
        lifted, type_ = self._typed(x)
        counts = _dims(repeats, "a repeat")
        counts = [*(1,) * (type_.ndim - len(counts)), *counts]
        lifted = self.reshape(lifted, (1,) * (len(counts) - type_.ndim) + type_.shape)
        if all(c == 1 for c in counts):
            return lifted
        return self._one(ops.TILE, lifted, repeats=tuple(counts))

    def repeat(self, x: Any, repeats: Dim, axis: int) -> T:
        """Each element of ``axis`` repeated in place."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        count = as_dim(repeats, "repeats")
        lead, rest = type_.shape[: where + 1], type_.shape[where + 1 :]
        spread = self.broadcast_to(self.expand_dims(lifted, where + 1), (*lead, count, *rest))
        return self.reshape(spread, (*lead[:-1], lead[-1] * count, *rest))

    def pad(
        self,
        x: Any,
        widths: Sequence[Sequence[int]],
        mode: str = "constant",
        value: float = 0,
    ) -> T:
        """``x`` with a border.

        Args:
            widths: ``(before, after)`` for each axis; a negative width cuts off instead.
            mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"wrap"``, as ``numpy.pad`` has
                them, but for ``"reflect"`` and ``"wrap"`` no wider than the axis has elements.
            value: what a constant border holds.
        """
        lifted, type_ = self._typed(x)
        pairs = [tuple(operator.index(w) for w in pair) for pair in _listed(widths)]
        if len(pairs) != type_.ndim or any(len(pair) != 2 for pair in pairs):
            raise GraphError(f"expected (before, after) for each axis of {type_}, got {widths}")
        lifted, type_ = self._cropped(lifted, type_, pairs)
        before = tuple(max(b, 0) for b, _ in pairs)
        after = tuple(max(a, 0) for _, a in pairs)
        if not any(before) and not any(after):
            return lifted
        if mode == "constant":
            number = _pad_value(value, type_.dtype)
            return self._one(ops.PAD, lifted, before=before, after=after, value=number)
        return self._one(ops.PAD_BORDER, lifted, before=before, after=after, mode=mode)

    def tril(self, x: Any, k: int = 0) -> T:
        """The last two axes with zeros above diagonal ``k``."""
        return self._one(ops.TRIL, self._typed(x)[0], k=operator.index(k))

    def triu(self, x: Any, k: int = 0) -> T:
        """The last two axes with zeros below diagonal ``k``."""
        return self._one(ops.TRIU, self._typed(x)[0], k=operator.index(k))

    # -- making tensors ---------------------------------------------------------------------

    def iota(self, shape: Sequence[Dim], axis: int = 0, dtype: Any = INT64) -> T:
        """A tensor that holds each element's position along ``axis``."""
        dims = check_shape("iota", shape)
        where = normalize_axis(axis, len(dims))
        return self._one(ops.IOTA, shape=dims, axis=where, dtype=DType.parse(dtype))

    def arange(
        self, start: Dim, stop: Dim | None = None, step: int = 1, *, dtype: Any = INT64
    ) -> T:
        """``start``, ``start + step``, … before ``stop``; from 0 if only one bound is given.

        Bounds are ints or expressions of Variables, the step an int other than 0.
        """
        first, last = (0, start) if stop is None else (start, stop)
        first, last = as_dim(first, "start"), as_dim(last, "stop")
        stride = operator.index(step)
        if stride == 0:
            raise GraphError("the step of arange is not 0")
        count = _range_length(first, last, stride)
        line = self.iota((count,), 0, INT64)
        if stride != 1:
            line = self._map("multiply", line, stride)
        if first != 0:
            line = self._map("add", line, self.dim_value(first))
        return self.cast(line, dtype)

    def dim_value(self, dim: Dim) -> T:
        """The run-time value of a dim, as an int64 scalar."""
        size = as_dim(dim, "a dim")
        if isinstance(size, int):
            return self.constant(size, INT64)
        return self._one(ops.DIM_VALUE, dim=size)

    def full(self, shape: Sequence[Dim], value: Any, dtype: Any = None) -> T:
        """A tensor of one value, a number or a scalar of the graph; float32 for floats."""
        if dtype is not None and isinstance(value, bool | int | float):
            return self.broadcast_to(self.constant(value, dtype), shape)
        (scalar,) = self._lift(value)
        return self.broadcast_to(scalar if dtype is None else self.cast(scalar, dtype), shape)

    def zeros(self, shape: Sequence[Dim], dtype: Any = FLOAT32) -> T:
        """A tensor of zeros."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: Sequence[Dim], dtype: Any = FLOAT32) -> T:
        """A tensor of ones."""
        return self.full(shape, 1, dtype)

    def full_like(self, x: Any, value: Any, dtype: Any = None) -> T:
        """A tensor of one value in the shape, and the dtype unless given, of ``x``."""
        type_ = self._typed(x)[1]
        return self.full(type_.shape, value, type_.dtype if dtype is None else dtype)

    def zeros_like(self, x: Any, dtype: Any = None) -> T:
        """Zeros in the shape, and the dtype unless given, of ``x``."""
        return self.full_like(x, 0, dtype)

    def ones_like(self, x: Any, dtype: Any = None) -> T:
        """Ones in the shape, and the dtype unless given, of ``x``."""
        return self.full_like(x, 1, dtype)

    # -- machinery --------------------------------------------------------------------------

    def _rolled(self, x: T, shift: int, axis: int, size: Dim) -> T:
        """``x`` rolled along an axis that a shift may go around several times."""
        count = self._map("maximum", self.dim_value(size), 1)
        start = self._map("remainder", self._map("neg", self.constant(shift, INT64)), count)
        twice = self.concat([x, x], axis)
        type_ = self._typed(x)[1]
        starts = [start if a == axis else self.constant(0, INT64) for a in range(type_.ndim)]
        return self._one(indexing.DYNAMIC_SLICE, twice, *starts, sizes=type_.shape)

    def _cut(self, x: T, type_: TensorType, cuts: Mapping[int, Range]) -> T:
        """``x`` cut to ranges along some of its axes."""
        whole = [Range(0, size, 1, False) for size in type_.shape]
        ranges = [cuts.get(axis, full) for axis, full in enumerate(whole)]
        if any(r[:3] != full[:3] for r, full in zip(ranges, whole, strict=True)):
            starts, stops, steps, _ = zip(*ranges, strict=True)
            x = self._one(ops.SLICE, x, starts=starts, stops=stops, steps=steps)
        backwards = tuple(axis for axis, r in enumerate(ranges) if r.backwards)
        return self.flip(x, backwards) if backwards else x

    def _cropped(
        self, x: T, type_: TensorType, pairs: Sequence[Sequence[int]]
    ) -> tuple[T, TensorType]:
        cuts: dict[int, Range] = {}
        for axis, (before, after) in enumerate(pairs):
            if before < 0 or after < 0:
                stop = type_.shape[axis] + min(after, 0)
                cuts[axis] = Range(max(-before, 0), stop, 1, False)
        return self._typed(self._cut(x, type_, cuts)) if cuts else (x, type_)


def _dims(values: Any, what: str) -> list[Dim]:
    """``values``, one dim or several, as a list."""
    alone = isinstance(values, Expr) or hasattr(values, "__index__")
    return [as_dim(v, what) for v in ((values,) if alone else values)]


def _listed(xs: Any) -> Sequence[Any]:
    if isinstance(xs, np.ndarray) or not isinstance(xs, Sequence):
        raise GraphError(f"expected a list, got {xs!r}")
    if not xs:
        raise GraphError("expected a list of at least one, got an empty one")
    return xs


def _bounds_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Sequence) else [values]


def _left_over(size: Dim, others: Dim, dims: Sequence[Dim]) -> Dim:
    """The dim that -1 stands for in ``dims``."""
    if others != 0:
        rest = floor_div(size, others)
        if rest * others == size:
            return rest
    raise GraphError(f"{size} elements cannot take the shape {tuple(dims)}")


def _range_length(start: Dim, stop: Dim, step: int) -> Dim:
    span = stop - start if step > 0 else start - stop
    return ceil_div(maximum(span, 0), abs(step))


def _pad_value(value: Any, dtype: DType) -> float:
    if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, bool | int | float):
        raise GraphError(f"the value of a border is a number, got {value!r}")
    if dtype.is_float:
        return float(value)
    if not math.isfinite(value) or (dtype.is_integer and value != int(value)):
        raise GraphError(f"a border of {value} does not fit {dtype}")
    return int(value)
