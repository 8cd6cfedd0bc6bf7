"""The methods that sort, and those that rank: quantiles, searches, the most frequent element.

NaN counts as the greatest element, and equal elements come in the order of their indices. Axes that
turn out empty have no rank: a method that needs one raises
:class:`~ostinato.errors.GraphError`, or a run :class:`~ostinato.errors.VariableError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ostinato.dtypes import INT64, UINT8, promote
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.variables import bounds, provably_less

if TYPE_CHECKING:
    from ostinato.ir.types import TensorType
    from ostinato.ops import order as ops
    from ostinato.variables import Dim
else:
    ops = LazyModule("ostinato.ops.order")

__all__ = ["OrderVocabulary"]

Interpolation: TypeAlias = Literal["linear", "lower", "higher", "midpoint", "nearest"]

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


class OrderVocabulary(ReductionVocabulary[T], IndexingVocabulary[T]):
    """Methods about the order of elements; all raise ``GraphError`` for misfits."""

    def topk(self, x: Any, k: Dim, axis: int = -1, *, largest: bool = True) -> tuple[T, T]:
        """The ``k`` greatest (else least) elements along ``axis``, in order, and their indices."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        attrs = {"k": as_dim(k, "k"), "axis": where, "largest": bool(largest)}
        values, found = self.apply(ops.TOPK, (lifted,), attrs)
        return values, found

    def sort(
        self, x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True
    ) -> tuple[T, T]:
        """The elements along ``axis`` in order, and their int64 indices.

        Args:
            descending: the greatest first.
            stable: for the array API; the order is stable in any case.
        """
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        narrow = self.cast(lifted, UINT8) if type_.dtype.is_bool else lifted
        values, order = self.topk(narrow, type_.shape[where], where, largest=descending)
        return self.cast(values, type_.dtype), order

    def argsort(
        self, x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True
    ) -> T:
        """The int64 indices that :meth:`sort` gives; arguments as there."""
        return self.sort(x, axis, descending=descending, stable=stable)[1]

    # -- searches -------------------------------------------------------------------------------

    def searchsorted(
        self, sequence: Any, values: Any, *, right: bool = False, sorter: Any = None
    ) -> T:
        """The int64 positions at which ``values`` keep the order of ``sequence``.

        Args:
            sequence: in ascending order: a vector, or as many of them, along the last axis, as
                ``values`` has rows.
            values: of any shape, or of the leading axes of ``sequence`` and one more.
            right: behind elements that equal the value, instead of in front of them.
            sorter: integers that bring ``sequence`` into order, if it is not.
        """
        given, given_type = self._typed(sequence)
        wanted, wanted_type = self._typed(values)
        if sorter is not None:
            given = self.take_along_axis(given, sorter, -1)
        common = promote(given_type.dtype, wanted_type.dtype)
        common = UINT8 if common.is_bool else common
        given, wanted = self.cast(given, common), self.cast(wanted, common)
        return self._one(ops.SEARCHSORTED, given, wanted, right=bool(right))

    def bucketize(self, x: Any, boundaries: Any, *, right: bool = False) -> T:
        """The number of the bucket of each element: :meth:`searchsorted` of ``boundaries``."""
        _, type_ = self._typed(boundaries)
        if type_.ndim != 1:
            raise GraphError(f"boundaries are a vector, got {type_}")
        return self.searchsorted(boundaries, x, right=right)

    # -- elements by rank -----------------------------------------------------------------------

    def kthvalue(self, x: Any, k: Dim, axis: int = -1, keepdims: bool = False) -> tuple[T, T]:
        """The ``k``-th least element along ``axis``, from 1 on, and its int64 index."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        rank, size = as_dim(k, "k"), type_.shape[where]
        if bounds(rank)[0] < 1 or provably_less(size, rank):
            raise GraphError(f"k is from 1 to {size} for axis {where} of {type_}, got {rank}")
        best = self.topk(lifted, rank, where, largest=False)
        values, order = (self.slice(part, [rank - 1], [rank], axes=[where]) for part in best)
        return self._kept(values, where, keepdims), self._kept(order, where, keepdims)

    def median(self, x: Any, axis: int | None = None, keepdims: bool = False) -> tuple[T, T]:
        """The median along ``axis`` (of all elements), and its int64 index; NaN if there is one.

        Of an even number of elements it is the lower one in the middle, as PyTorch has it;
        ``quantile(x, 0.5, axis)`` is the mean of both.
        """
        lifted, type_, where = self._row(x, axis)
        size = type_.shape[where]
        if not type_.dtype.is_float:
            values, order = self.sort(lifted, where)
            rank = self.floor_divide(self.subtract(self.dim_value(size), 1), 2)
            return self._ranked(values, order, rank, where, keepdims, axis, x)
        values, order, count = self._sorted_numbers(lifted, where)
        middle = self.floor_divide(self.subtract(self.dim_value(size), 1), 2)
        rank = self.where(self.less(count, self.dim_value(size)), count, middle)
        return self._ranked(values, order, rank, where, keepdims, axis, x)

    def nanmedian(self, x: Any, axis: int | None = None, keepdims: bool = False) -> tuple[T, T]:
        """:meth:`median` of the elements that are not NaN; NaN if all are."""
        lifted, type_, where = self._row(x, axis)
        if not type_.dtype.is_float:
            return self.median(x, axis, keepdims)
        values, order, count = self._sorted_numbers(lifted, where)
        rank = self.floor_divide(self.maximum(self.subtract(count, 1), 0), 2)
        return self._ranked(values, order, rank, where, keepdims, axis, x)

    def mode(self, x: Any, axis: int = -1, keepdims: bool = False) -> tuple[T, T]:
        """The most frequent element along ``axis``, the least of several, and its last index."""
        lifted, type_, where = self._row(x, axis)
        values, order = self.sort(lifted, where)
        size = type_.shape[where]
        place = self.iota(type_.shape, where)
        before = self.take(values, self.maximum(self.subtract(self.iota((size,)), 1), 0), where)
        begins = self.logical_or(self.equal(place, 0), self._differ(values, before))
        start = self.cummax(self.where(begins, place, 0), where)[0]
        longest = self.argmax(self.subtract(place, start), where, keepdims=True)
        value, index = (self.take_along_axis(part, longest, where) for part in (values, order))
        return self._kept(value, where, keepdims), self._kept(index, where, keepdims)

    def quantile(
        self,
        x: Any,
        q: Any,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        interpolation: Interpolation = "linear",
    ) -> T:
        """The elements, or numbers between two, at the fractions ``q`` of the sorted ``axis``.

        Args:
            x: floats; a row with a NaN has no other quantile.
            q: from 0 to 1: a number, several, or a value of the graph of rank 0 or 1.
            axis: ``None``: of all elements.
            interpolation: of two neighbours, the number in proportion between them, the lower or
                the higher one, their mean, or the nearest.

        Returns:
            The axis of ``q`` (if it has one), then those of ``x`` but ``axis``.
        """
        return self._quantile(x, q, axis, keepdims, interpolation, skip=False)

    def nanquantile(
        self,
        x: Any,
        q: Any,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        interpolation: Interpolation = "linear",
    ) -> T:
        """:meth:`quantile` of the elements that are not NaN; NaN if all are."""
        return self._quantile(x, q, axis, keepdims, interpolation, skip=True)

    # -- machinery --------------------------------------------------------------------------

    def _quantile(
        self, x: Any, q: Any, axis: int | None, keepdims: bool, interpolation: str, *, skip: bool
    ) -> T:
        if interpolation not in _INTERPOLATIONS:
            known = ", ".join(_INTERPOLATIONS)
            raise GraphError(f"interpolation is one of {known}, got {interpolation!r}")
        lifted, type_, where = self._row(x, axis)
        if not type_.dtype.is_float:
            raise GraphError(f"quantiles are of floats, got {type_}; cast it first")
        fractions, alone = self._fractions(q)
        rows, rows_type = self._typed(self.moveaxis(lifted, where, -1))
        values, _, count = self._sorted_numbers(rows, rows_type.ndim - 1)
        size = self.dim_value(rows_type.shape[-1])
        last = self.subtract(count if skip else size, 1)
        exact = self._typed(fractions)[1].dtype
        position = self.multiply(fractions, self.cast(self.maximum(last, 0), exact))
        if not skip:  # of all rows alike: an axis for each of them
            shape = (*rows_type.shape[:-1], self._typed(fractions)[1].shape[0])
            position = self.broadcast_to(position, shape)
        result = self._interpolated(values, position, interpolation)
        if not skip:
            full = self.equal(count, size)
            result = self.where(full, result, float("nan"))
        result = self.cast(self.moveaxis(result, -1, 0), type_.dtype)
        reduced: list[Dim] = list(rows_type.shape[:-1])
        if keepdims:
            reduced = [1] * self._typed(x)[1].ndim if axis is None else list(type_.shape)
            reduced[where] = 1
        lead = () if alone else self._typed(fractions)[1].shape
        return self.reshape(result, (*lead, *reduced))

    def _fractions(self, q: Any) -> tuple[T, bool]:
        """``q`` as a vector, and whether it is just one number.

        Numbers are float64. What a graph computes keeps its precision, with which a fraction such
        as 0.1 meets an element exactly.
        """
        if self.type_of(q) is None:
            known = np.asarray(q, np.float64)
            if not np.all((known >= 0) & (known <= 1)):
                raise GraphError(f"quantiles are at fractions from 0 to 1, got {q}")
            q = known
        lifted, type_ = self._typed(q)
        if type_.ndim > 1 or not type_.dtype.is_float:
            raise GraphError(f"q is a float or a vector of floats, got {type_}")
        return self.reshape(self.cast(lifted, type_.dtype.accumulator), (-1,)), type_.ndim == 0

    def _interpolated(self, values: T, position: T, interpolation: str) -> T:
        """The numbers at positions along the last axis, in the dtype of sums."""
        low, high = self.floor(position), self.ceil(position)
        if interpolation == "nearest":
            low = high = self.round(position)
        elif interpolation == "lower":
            high = low
        elif interpolation == "higher":
            low = high
        wide = self._typed(values)[1].dtype.accumulator
        lower, upper = (
            self.cast(self.take_along_axis(values, self.cast(at, INT64), -1), wide)
            for at in (low, high)
        )
        if interpolation not in ("linear", "midpoint"):
            return lower
        if interpolation == "midpoint":
            position = self.divide(self.add(low, high), 2.0)
        weight = self.cast(self.subtract(position, low), wide)
        distance = self.subtract(upper, lower)
        # From the nearer end, so that both ends are met exactly.
        near = self.add(lower, self.multiply(distance, weight))
        far = self.subtract(upper, self.multiply(distance, self.subtract(1.0, weight)))
        between = self.where(self.less(weight, 0.5), near, far)
        same = self.logical_or(self.equal(weight, 0.0), self.equal(lower, upper))
        return self.where(same, lower, between)

    def _row(self, x: Any, axis: int | None) -> tuple[T, TensorType, int]:
        """``x``, flattened if no axis is named, its type, and the axis, which has elements."""
        lifted, type_ = self._typed(x)
        if axis is None:
            lifted, type_ = self._typed(self.reshape(lifted, (-1,)))
        where = normalize_axis(0 if axis is None else axis, type_.ndim)
        if bounds(type_.shape[where])[1] == 0:
            raise GraphError(f"axis {where} of {type_} has no elements, so none has a rank")
        return lifted, type_, where

    def _sorted_numbers(self, x: T, axis: int) -> tuple[T, T, T]:
        """The elements along ``axis`` in order, their indices, and how many are no NaN."""
        values, order = self.sort(x, axis)
        number = self.logical_not(self.isnan(x))
        return values, order, self.sum(self.cast(number, INT64), axis, keepdims=True)

    def _ranked(
        self, values: T, order: T, rank: T, where: int, keepdims: bool, axis: int | None, x: Any
    ) -> tuple[T, T]:
        """The elements of a rank, and their indices, of the shape that a reduction has."""
        type_ = self._typed(values)[1]
        shape = tuple(1 if a == where else d for a, d in enumerate(type_.shape))
        at = self.broadcast_to(rank, shape)
        value, index = (self.take_along_axis(part, at, where) for part in (values, order))
        if axis is None and keepdims:
            ones = (1,) * self._typed(x)[1].ndim
            return self.reshape(value, ones), self.reshape(index, ones)
        return self._kept(value, where, keepdims), self._kept(index, where, keepdims)

    def _kept(self, x: T, axis: int, keepdims: bool) -> T:
        return x if keepdims else self.squeeze(x, axis)

    def _differ(self, x: T, y: T) -> T:
        """Whether elements differ; one NaN is like another."""
        differs = self.not_equal(x, y)
        if not self._typed(x)[1].dtype.is_float:
            return differs
        both = self.logical_and(self.isnan(x), self.isnan(y))
        return self.logical_and(differs, self.logical_not(both))
