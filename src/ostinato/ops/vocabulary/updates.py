"""The methods that write at indices: rows, reductions into elements, masks, slices.

None changes its operand: each gives ``x`` with some elements replaced. The state of a graph that is
assigned such a result is updated in place. Writes outside of ``x`` are dropped; negative indices
count from the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ostinato.dtypes import BOOL, INT64, UINT8
from ostinato.errors import GraphError
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim, resolve_range
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.variables import bounds, provably_at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim

__all__ = ["UpdateVocabulary"]

ReduceMode: TypeAlias = Literal["sum", "prod", "mean", "min", "max"]

#: By reduction, the mode of the scatter that accumulates it.
_MODES = {"sum": "add", "prod": "mul", "mean": "add", "min": "min", "max": "max"}


class UpdateVocabulary(ReductionVocabulary[T], IndexingVocabulary[T]):
    """Methods that write at indices; all raise ``GraphError`` for shapes that do not fit."""

    def gather(self, x: Any, indices: Any, axis: int = 0) -> T:
        """The elements of ``x`` at ``indices`` along ``axis``: the reverse of :meth:`scatter`.

        Element ``[i, j]`` is ``x[indices[i, j], j]`` for axis 0. On the other axes ``indices`` may
        be shorter than ``x``, and does not broadcast: see :meth:`take_along_axis` for that.
        """
        lifted, type_ = self._typed(x)
        ids, ids_type = self._typed(indices)
        where = normalize_axis(axis, type_.ndim)
        self._expect_within(ids_type, type_, where)
        stops = [type_.shape[a] if a == where else d for a, d in enumerate(ids_type.shape)]
        cut = self.slice(lifted, [0] * type_.ndim, stops)
        return self.take_along_axis(cut, ids, where)

    def scatter_reduce(
        self,
        x: Any,
        indices: Any,
        updates: Any,
        axis: int = 0,
        mode: ReduceMode = "sum",
        include_self: bool = True,
    ) -> T:
        """``x`` with elements replaced by a reduction of the updates at ``indices``.

        The update at ``[i, j]`` goes to ``x[indices[i, j], j]`` for axis 0.

        Args:
            indices: integers, on the other axes no longer than ``x``.
            updates: no shorter than ``indices``; what is longer is left out.
            mode: ``"sum"``, ``"prod"``, ``"mean"`` (of integers rounded down), ``"min"`` or
                ``"max"``.
            include_self: whether the element of ``x`` takes part.
        """
        lifted, new = self._lift(x, updates)
        ids, ids_type = self._typed(indices)
        type_ = self._typed(lifted)[1]
        if mode not in _MODES:
            raise GraphError(f"mode is one of {', '.join(_MODES)}, got {mode!r}")
        where = normalize_axis(axis, type_.ndim)
        new = self._no_longer_than(new, ids_type)
        base = lifted
        if not include_self:
            start = self.full(ids_type.shape, _neutral(mode, type_.dtype), type_.dtype)
            base = self.scatter(lifted, ids, start, where)
        if mode != "mean":
            return self._combined(base, ids, new, where, _MODES[mode])
        if type_.dtype.is_bool:
            raise GraphError("bools have no mean; cast them first")
        wide = type_.dtype.accumulator
        total = self.scatter(self.cast(base, wide), ids, self.cast(new, wide), where, "add")
        ones = self.ones(ids_type.shape, INT64)
        counts = self.full(type_.shape, int(include_self), INT64)
        counts = self.maximum(self.scatter(counts, ids, ones, where, "add"), 1)
        divide = self.divide if wide.is_float else self.floor_divide
        return self.cast(divide(total, self.cast(counts, wide)), type_.dtype)

    # -- rows -----------------------------------------------------------------------------------

    def index_copy(self, x: Any, indices: Any, source: Any, axis: int = 0) -> T:
        """``x`` with the slices at ``indices`` along ``axis`` replaced by those of ``source``.

        Args:
            indices: a vector of integers.
            source: of the shape of ``x``, but with as many slices as there are indices.
        """
        lifted, ids, rows, where = self._rows(x, indices, source, axis)
        return self.scatter(lifted, self._spread(ids, rows, where), rows, where)

    def index_add(self, x: Any, indices: Any, source: Any, axis: int = 0, *, alpha: float = 1) -> T:
        """``x`` with ``alpha`` times the slices of ``source`` added at ``indices`` along ``axis``.

        Arguments as for :meth:`index_copy`.
        """
        lifted, ids, rows, where = self._rows(x, indices, source, axis)
        if alpha != 1:
            rows = self.multiply(rows, alpha)
        return self._combined(lifted, self._spread(ids, rows, where), rows, where, "add")

    def index_reduce(
        self,
        x: Any,
        indices: Any,
        source: Any,
        axis: int = 0,
        mode: ReduceMode = "prod",
        include_self: bool = True,
    ) -> T:
        """:meth:`scatter_reduce` of whole slices; arguments as for :meth:`index_copy`."""
        lifted, ids, rows, where = self._rows(x, indices, source, axis)
        spread = self._spread(ids, rows, where)
        return self.scatter_reduce(lifted, spread, rows, where, mode, include_self)

    def index_fill(self, x: Any, indices: Any, value: Any, axis: int = 0) -> T:
        """``x`` with the slices at ``indices`` along ``axis`` filled with a number or a scalar."""
        lifted, new = self._lift(x, value)
        type_ = self._typed(lifted)[1]
        ids, ids_type = self._typed(indices)
        where = normalize_axis(axis, type_.ndim)
        count = ids_type.shape[0] if ids_type.ndim else 1
        shape = (*type_.shape[:where], count, *type_.shape[where + 1 :])
        rows = self.broadcast_to(self.cast(new, type_.dtype), shape)
        return self.index_copy(lifted, self.reshape(ids, (count,)), rows, where)

    # -- elements and masks -----------------------------------------------------------------------

    def index_put(
        self, x: Any, indices: Sequence[Any], values: Any, *, accumulate: bool = False
    ) -> T:
        """``x`` with ``values`` written, or added, at ``x[indices]``.

        Args:
            indices: one for each leading axis: ``None`` for all of it, or tensors of integers that
                broadcast against each other; or a mask of bools in place of as many axes as it has.
            values: broadcast to the shape of ``x[indices]``, in which the axes of the indices stand
                where their first one does, and in front if there are others in between.
            accumulate: add them; every one of several for an element counts.
        """
        lifted, new = self._lift(x, values)
        type_ = self._typed(lifted)[1]
        new = self.cast(new, type_.dtype)
        if accumulate and type_.dtype.is_bool:
            wide = self.cast(lifted, INT64), self.cast(new, INT64)
            summed = self.index_put(wide[0], indices, wide[1], accumulate=True)
            return self.not_equal(summed, 0)
        keys = list(indices) if isinstance(indices, list | tuple) else [indices]
        masks = [k for k in keys if k is not None and self._typed(k)[1].dtype.is_bool]
        if len(masks) == 1 and all(k is None or k is masks[0] for k in keys):
            place = next(i for i, k in enumerate(keys) if k is not None)
            return self._put_masked(lifted, place, masks[0], new, accumulate)
        placed = self._integer_keys(keys, type_)
        if not placed:
            whole = self.broadcast_to(new, type_.shape)
            return self.add(lifted, whole) if accumulate else whole
        mode = "add" if accumulate else "set"
        axes = tuple(axis for axis, _ in placed)
        tensors = self._together([ids for _, ids in placed])
        common = self._typed(tensors[0])[1].shape
        others = [d for a, d in enumerate(type_.shape) if a not in axes]
        first = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
        new = self.broadcast_to(new, (*others[:first], *common, *others[first:]))
        if len(axes) == 1:
            return self._put_along(lifted, axes[0], tensors[0], new, mode)
        # The axes of the values: those in front of the last index, the points, the rest.
        depth = axes[-1] + 1
        kept = [a for a in range(depth) if a not in axes]
        points, rank = len(common), len(others) + len(common)
        order = [i for i in range(rank) if not first <= i < first + points]
        order[len(kept) : len(kept)] = list(range(first, first + points))
        new = self.permute_dims(new, order)
        grid = (*(type_.shape[a] for a in kept), *common)
        columns: list[T] = []
        for axis in range(depth):
            if axis in axes:
                column = tensors[axes.index(axis)]
            else:
                column = self.iota(grid, kept.index(axis), INT64)
            columns.append(self.broadcast_to(column, grid))
        return self.scatter_nd(lifted, self.stack(columns, axis=-1), new, mode)

    def masked_scatter(self, x: Any, mask: Any, source: Any) -> T:
        """``x`` with the elements where ``mask`` is true replaced by those of ``source`` in order.

        Args:
            mask: bools that broadcast to the shape of ``x``.
            source: as many elements as the mask has true ones, or more.
        """
        lifted, new = self._lift(x, source)
        type_ = self._typed(lifted)[1]
        chosen = self.broadcast_to(self._mask(mask), type_.shape)
        flat, flat_type = self._typed(self.reshape(self.cast(new, type_.dtype), (-1,)))
        if flat_type.size == 0:
            return lifted
        return self.where(chosen, self._in_order(flat, chosen, 0), lifted)

    # -- slices -----------------------------------------------------------------------------------

    def select_scatter(self, x: Any, source: Any, axis: int, index: Dim) -> T:
        """``x`` with one slice along ``axis`` replaced by ``source``, which lacks that axis."""
        lifted, new = self._lift(x, source)
        type_ = self._typed(lifted)[1]
        where = normalize_axis(axis, type_.ndim)
        at, size = as_dim(index, "an index"), type_.shape[where]
        if isinstance(at, int) and isinstance(size, int) and not -size <= at < size:
            raise GraphError(f"index {at} is out of range for axis {where} of {type_}")
        start = at + size if bounds(at)[1] < 0 else at
        rows = self.expand_dims(self.cast(new, type_.dtype), where)
        self._expect_slices(rows, type_, where, 1)
        return self.dynamic_update_slice(lifted, rows, self._at(type_, where, start))

    def slice_scatter(
        self,
        x: Any,
        source: Any,
        axis: int = 0,
        start: Any = None,
        stop: Any = None,
        step: int | None = None,
    ) -> T:
        """``x`` with ``x[start:stop:step]`` along ``axis`` replaced by ``source``."""
        lifted, new = self._lift(x, source)
        type_ = self._typed(lifted)[1]
        where = normalize_axis(axis, type_.ndim)
        range_ = resolve_range(start, stop, step, type_.shape[where])
        new = self.cast(new, type_.dtype)
        new = self.flip(new, where) if range_.backwards else new
        taken = self.slice(lifted, [range_.start], [range_.stop], [range_.step], axes=[where])
        count = self._typed(taken)[1].shape[where]
        self._expect_slices(new, type_, where, count)
        if range_.step == 1 and provably_at_most(count, type_.shape[where]):
            return self.dynamic_update_slice(lifted, new, self._at(type_, where, range_.start))
        line = self.add(
            self.multiply(self.iota((count,)), range_.step), self.dim_value(range_.start)
        )
        return self.scatter(lifted, self._spread(line, new, where), new, where)

    # -- machinery --------------------------------------------------------------------------------

    def _rows(self, x: Any, indices: Any, source: Any, axis: int) -> tuple[T, T, T, int]:
        """The operands of a write of slices, lifted and checked, and the axis."""
        lifted, new = self._lift(x, source)
        type_ = self._typed(lifted)[1]
        ids, ids_type = self._typed(indices)
        if ids_type.ndim == 0:
            ids, ids_type = self._typed(self.reshape(ids, (1,)))
        if ids_type.ndim != 1 or not ids_type.dtype.is_integer:
            raise GraphError(f"indices are a vector of integers, got {ids_type}")
        where = normalize_axis(axis, type_.ndim)
        new = self.cast(new, type_.dtype)
        self._expect_slices(new, type_, where, ids_type.shape[0])
        return lifted, ids, new, where

    def _combined(self, x: T, ids: T, updates: T, axis: int, mode: str) -> T:
        """A scatter; bools are added and multiplied as numbers other than 0 are."""
        if not self._typed(x)[1].dtype.is_bool:
            return self.scatter(x, ids, updates, axis, mode)
        mode = {"add": "max", "mul": "min"}.get(mode, mode)
        wide = self.cast(x, UINT8), self.cast(updates, UINT8)
        return self.cast(self.scatter(wide[0], ids, wide[1], axis, mode), BOOL)

    def _expect_slices(self, source: T, type_: TensorType, axis: int, count: Dim) -> None:
        shape = (*type_.shape[:axis], count, *type_.shape[axis + 1 :])
        given = self._typed(source)[1]
        if given.shape != shape:
            shown = ",".join(map(str, shape))
            raise GraphError(f"expected slices [{shown}] of {type_} along axis {axis}, got {given}")

    def _spread(self, ids: T, rows: T, axis: int) -> T:
        """A vector of indices as one for each element of the slices."""
        type_ = self._typed(rows)[1]
        line = [1] * type_.ndim
        return self.broadcast_to(
            self.reshape(ids, (*line[:axis], type_.shape[axis], *line[axis + 1 :])), type_.shape
        )

    @staticmethod
    def _at(type_: TensorType, axis: int, start: Any) -> list[Any]:
        return [start if a == axis else 0 for a in range(type_.ndim)]

    def _expect_within(self, ids: TensorType, type_: TensorType, axis: int) -> None:
        if ids.ndim != type_.ndim:
            raise GraphError(f"indices {ids} and {type_} differ in rank")
        for a, (have, most) in enumerate(zip(ids.shape, type_.shape, strict=True)):
            if a != axis and not provably_at_most(have, most):
                raise GraphError(f"axis {a} of the indices ({have}) is not within that of {type_}")

    def _no_longer_than(self, updates: T, ids: TensorType) -> T:
        type_ = self._typed(updates)[1]
        if type_.ndim == 0:
            return self.broadcast_to(updates, ids.shape)
        longer = type_.ndim == ids.ndim and type_.shape != ids.shape
        return self.slice(updates, [0] * ids.ndim, list(ids.shape)) if longer else updates

    def _mask(self, mask: Any) -> T:
        lifted, type_ = self._typed(mask)
        if type_.dtype != BOOL:
            raise GraphError(f"a mask is of bools, got {type_}")
        return lifted

    def _in_order(self, values: T, mask: T, axis: int) -> T:
        """The slices of ``values`` along ``axis`` for the true elements of a mask, in C order."""
        type_, values_type = self._typed(mask)[1], self._typed(values)[1]
        flat = self.reshape(self.cast(mask, INT64), (type_.size,))
        before = self.reshape(self.cumsum(flat, 0, exclusive=True), type_.shape)
        if bounds(values_type.shape[axis])[0] == 0:  # there may be none, nor a true element
            values = self.pad(values, [(0, int(a == axis)) for a in range(values_type.ndim)])
        return self.take(values, before, axis=axis)

    def _put_masked(self, x: T, place: int, mask: Any, values: T, accumulate: bool) -> T:
        """The elements of ``x`` where a mask over axes from ``place`` on is true, replaced."""
        type_, values_type = self._typed(x)[1], self._typed(values)[1]
        chosen, mask_type = self._typed(mask)
        rank = mask_type.ndim
        if mask_type.shape != type_.shape[place : place + rank]:
            raise GraphError(f"the mask {mask_type} does not fit {type_} from axis {place} on")
        rest = type_.ndim - place - rank
        chosen = self.reshape(chosen, (*mask_type.shape, *(1,) * rest))
        along = values_type.ndim - rest - 1  # the axis of the values with one for each true element
        new = values
        if along >= 0 and values_type.shape[along] == 0:
            return x
        if along >= 0 and values_type.shape[along] != 1:
            new = self._in_order(values, self._mask(mask), along)
        elif along >= 0:
            shape = values_type.shape
            new = self.reshape(values, (*shape[:along], *(1,) * rank, *shape[along + 1 :]))
        new = self.add(x, new) if accumulate else new
        return self.where(chosen, self.broadcast_to(new, type_.shape), x)

    def _put_along(self, x: T, axis: int, ids: T, values: T, mode: str) -> T:
        """Slices of ``x`` at indices of any shape, whose axes stand in place of ``axis``."""
        type_, ids_type = self._typed(x)[1], self._typed(ids)[1]
        count = ids_type.size
        rows = self.reshape(values, (*type_.shape[:axis], count, *type_.shape[axis + 1 :]))
        if mode == "set":
            return self.index_copy(x, self.reshape(ids, (count,)), rows, axis)
        return self.index_add(x, self.reshape(ids, (count,)), rows, axis)


def _neutral(mode: str, dtype: DType) -> float:
    """The element that changes no reduction of this kind."""
    match mode:
        case "min":
            return dtype.highest
        case "max":
            return dtype.lowest
        case _:
            return int(mode == "prod")
