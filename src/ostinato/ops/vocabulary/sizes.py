"""The methods whose results have sizes that depend on data.

Such a size is a :class:`~ostinato.variables.DataVariable`: an expression like that of any other
Variable, whose value a node gives it in each run. Memory is planned for its bound.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, FLOAT32, INT64
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary import Vocabulary
from ostinato.ops.vocabulary.core import T, located
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.variables import DataVariable, Dim, bounds, ceil_div, prod

if TYPE_CHECKING:
    from ostinato.ops import sizes as ops
else:
    ops = LazyModule("ostinato.ops.sizes")

__all__ = ["SizeVocabulary"]


@partial(located, beyond=Vocabulary)
class SizeVocabulary(Vocabulary[T]):
    """The methods that only graphs have: a session allocates a result before it is computed."""

    def size_from(self, count: Any, bound: Dim, name: str | None = None) -> Dim:
        """A size that the graph computes: the integer scalar ``count``.

        A run in which it is negative, or greater than ``bound``, raises ``VariableError``.

        Args:
            count: an integer scalar.
            bound: the greatest value, an int or an expression of Variables.
            name: of the Variable; by default, that of the node.
        """
        scalar, type_ = self._typed(count)
        if not type_.dtype.is_integer or type_.size != 1:
            raise GraphError(f"a size is an integer scalar, got {type_}")
        scalar = self.reshape(self.cast(scalar, INT64), ())
        size = DataVariable(self.new_variable(name), as_dim(bound, "a bound"))
        self._one(ops.BIND_SIZE, scalar, size=size)
        return size

    def require(self, x: Any, size: Dim, least: int, problem: str) -> T:
        """``x``, in a graph whose runs need ``size >= least``: others raise ``VariableError``.

        Args:
            size: an expression of Variables.
            least: its least value.
            problem: the words for sizes that break the condition.
        """
        (lifted,) = self._lift(x)
        number = as_dim(size, "a size")
        return self._one(ops.REQUIRE, lifted, size=number, least=least, problem=problem)

    def nonzero(self, x: Any) -> tuple[T, ...]:
        """For each axis, the int64 indices of the elements that are not 0, in C order."""
        lifted, type_ = self._typed(x)
        if type_.ndim == 0:
            raise GraphError(f"nonzero takes at least one axis, got {type_}; reshape to (1,)")
        mask = lifted if type_.dtype.is_bool else self._map("not_equal", lifted, 0)
        flat = self._positions(self.reshape(mask, (prod(type_.shape),)))
        found: list[T] = []
        for axis in reversed(range(1, type_.ndim)):
            # A size of 0 leaves nothing to be found, and nothing to divide.
            size = self._map("maximum", self.dim_value(type_.shape[axis]), 1)
            found.append(self._map("remainder", flat, size))
            flat = self._map("floor_divide", flat, size)
        return (flat, *reversed(found))

    def masked_select(self, x: Any, mask: Any) -> T:
        """The elements of ``x`` where ``mask``, of the same shape, is true: a vector."""
        lifted, type_ = self._typed(x)
        chosen, mask_type = self._typed(mask)
        if mask_type.dtype != BOOL or mask_type.shape != type_.shape:
            raise GraphError(f"expected a mask of bools for {type_}, got {mask_type}")
        return self.take(lifted, self._positions(self.reshape(chosen, (-1,))))

    def compress(self, x: Any, condition: Any, axis: int | None = None) -> T:
        """The slices of ``x`` along ``axis`` (of the flattened ``x``) where ``condition`` is true.

        Args:
            condition: a vector of bools, no longer than the axis.
        """
        (lifted,) = self._lift(x)
        chosen, mask = self._typed(condition)
        if mask.dtype != BOOL or mask.ndim != 1:
            raise GraphError(f"a condition is a vector of bools, got {mask}")
        return self.take(lifted, self._positions(chosen), axis=axis)

    def repeat_interleave(self, x: Any, repeats: Any, bound: Dim, axis: int = 0) -> T:
        """Each slice of ``x`` along ``axis`` as many times in a row as ``repeats`` has it.

        Args:
            repeats: a vector of integers, none negative, one for each slice.
            bound: the greatest sum of them.
        """
        lifted, type_ = self._typed(x)
        times, times_type = self._typed(repeats)
        where = normalize_axis(axis, type_.ndim)
        if not times_type.dtype.is_integer or times_type.shape != (type_.shape[where],):
            raise GraphError(f"expected an integer for each slice of {type_}, got {times_type}")
        wide = self.cast(times, INT64)
        size = self.size_from(self.sum(wide), bound)
        starts = self.cumsum(wide, axis=0, exclusive=True)
        marks = self.scatter(self.zeros((size,), INT64), starts, self.ones_like(wide), mode="add")
        return self.take(lifted, self._map("subtract", self.cumsum(marks, axis=0), 1), axis=where)

    def unique(self, x: Any, axis: int | None = None, *, sorted: bool = True) -> tuple[T, T, T, T]:
        """The distinct elements of ``x``, or its distinct slices along ``axis``.

        Args:
            sorted: in order, slices lexicographically; else by their first occurrence.

        Returns:
            The distinct ones; where each occurs first; for each element or slice of ``x``, which of
            them it is; and how often each occurs.
        """
        lifted, rows, where = self._as_rows(x, axis)
        first, inverse, counts = self._groups(rows)
        if not sorted:
            first, order = self.sort(first, 0)
            counts = self.take(counts, order)
            places = self.iota(self._typed(order)[1].shape)
            rank = self.scatter(self.zeros_like(order), order, places)
            inverse = self.take(rank, inverse)
        source = self.reshape(lifted, (-1,)) if where is None else lifted
        return self.take(source, first, axis=where or 0), first, inverse, counts

    def unique_consecutive(self, x: Any, axis: int | None = None) -> tuple[T, T, T]:
        """The elements of ``x``, or its slices along ``axis``, that differ from the one before.

        Returns:
            Those; for each element or slice of ``x``, which of them it repeats; and how many times
            in a row each occurs.
        """
        lifted, rows, where = self._as_rows(x, axis)
        begins = self._rows_begin(rows)
        first = self._positions(begins)
        group = self._map("subtract", self.cumsum(self.cast(begins, INT64), axis=0), 1)
        counts = self.scatter(self.zeros_like(first), group, self.ones_like(group), mode="add")
        source = self.reshape(lifted, (-1,)) if where is None else lifted
        return self.take(source, first, axis=where or 0), group, counts

    def non_max_suppression(
        self,
        boxes: Any,
        scores: Any,
        most: Any,
        overlap: Any = 0.0,
        least_score: Any = None,
        *,
        centered: bool = False,
    ) -> T:
        """The boxes of each class that overlap little, greedily by score: ``[k, 3]`` of int64.

        Args:
            boxes: float32 ``[batch, n, 4]``: two opposite corners each.
            scores: float32 ``[batch, classes, n]``.
            most: boxes chosen of a class at most, an integer.
            overlap: the intersection over union with a better box that drops a box, if exceeded.
            least_score: the score that a box must exceed; ``None``: any.
            centered: boxes are ``(x, y, width, height)`` instead, about their centers.

        Returns:
            For each box its batch, its class and its number.
        """
        limits = (
            (most, INT64),
            (overlap, FLOAT32),
            (float("-inf") if least_score is None else least_score, FLOAT32),
        )
        scalars = [
            self.reshape(self.cast(self._typed(limit)[0], dtype), ()) for limit, dtype in limits
        ]
        operands = (self._typed(boxes)[0], self._typed(scores)[0], *scalars)
        found = self._one(ops.NON_MAX_SUPPRESSION, *operands, centered=bool(centered))
        batch, class_, rank = self.nonzero(self._map("greater_equal", found, 0))
        box = self.gather_nd(found, self.stack([batch, class_, rank], axis=1))
        return self.stack([batch, class_, box], axis=1)

    def dynamic_range(self, x: Any, start: T, stop: T, step: T, axis: int) -> T:
        """``x[start:stop:step]`` along ``axis``, as NumPy has it, with computed bounds.

        Args:
            start, stop, step: integer scalars; the step is not 0.
        """
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        size = self.dim_value(type_.shape[where])
        down = self._map("less", step, 0)
        low = self.where(down, -1, 0)
        high = self._map("add", size, low)
        first, last = (self._within(bound, size, low, high) for bound in (start, stop))
        count = self._steps(first, last, step)
        taken = self.size_from(count, type_.shape[where])
        line = self._map("multiply", self.iota((taken,)), step)
        return self.take(lifted, self._map("add", line, first), axis=where)

    def counted_range(self, start: Any, stop: Any, step: Any, bound: Dim) -> T:
        """``start``, ``start + step``, … before ``stop``, all three scalars of one dtype.

        Args:
            bound: the greatest number of elements.
        """
        first, type_ = self._typed(start)
        stride = self._typed(step)[0]
        if type_.dtype.is_float:
            span = self._map("divide", self._map("subtract", stop, first), stride)
            count = self.cast(self._map("maximum", self._map("ceil", span), 0), INT64)
        else:
            wide = (self.cast(self._typed(v)[0], INT64) for v in (first, stop, stride))
            count = self._steps(*wide)
        size = self.size_from(count, bound)
        line = self.cast(self.iota((size,)), type_.dtype)
        return self._map("add", self._map("multiply", line, stride), first)

    # -- machinery --------------------------------------------------------------------------

    @abstractmethod
    def new_variable(self, name: str | None) -> str:
        """A name for a Variable that no other one has."""

    def _size_up_to(self, count: T, bound: Dim) -> Dim:
        return self.size_from(count, bound)

    def _true_positions(self, mask: T) -> tuple[T, ...]:
        return self.nonzero(mask)

    def _positions(self, mask: T) -> T:
        """The positions of the true elements of a vector."""
        (length,) = self._typed(mask)[1].shape
        size = self.size_from(self.sum(self.cast(mask, INT64)), length)
        return self._one(ops.FLAT_NONZERO, mask, size=size)

    def _within(self, bound: T, size: T, low: T, high: T) -> T:
        """A bound of a slice, counted from the end where negative, clamped to ``low..high``."""
        wide = self.cast(bound, INT64)
        from_start = self.where(self._map("less", wide, 0), self._map("add", wide, size), wide)
        return self._map("minimum", self._map("maximum", from_start, low), high)

    def _steps(self, first: T, last: T, step: T) -> T:
        """The number of steps from ``first`` to before ``last``; -1 for a step of 0."""
        span = self._map("add", self._map("subtract", last, first), step)
        span = self._map("subtract", span, self._map("sign", step))
        whole = self._map("floor_divide", span, step)
        count = self._map("maximum", whole, 0)
        return self.where(self._map("equal", step, 0), -1, count)

    def _as_rows(self, x: Any, axis: int | None) -> tuple[T, T, int | None]:
        """``x``, its elements or its slices along ``axis`` as rows of a matrix, and the axis."""
        lifted, type_ = self._typed(x)
        if axis is None:
            return lifted, self.reshape(lifted, (-1, 1)), None
        where = normalize_axis(axis, type_.ndim)
        moved, moved_type = self._typed(self.moveaxis(lifted, where, 0))
        rows = self.reshape(moved, (moved_type.shape[0], prod(moved_type.shape[1:])))
        return lifted, rows, where

    def _groups(self, rows: T) -> tuple[T, T, T]:
        """Equal rows of a matrix: where each first occurs, which one each is, and how often."""
        order = self._row_order(rows)
        begins = self._rows_begin(self.take(rows, order, axis=0))
        first = self.take(order, self._positions(begins))
        group = self._map("subtract", self.cumsum(self.cast(begins, INT64), axis=0), 1)
        inverse = self.scatter(self.zeros_like(order), order, group)
        counts = self.scatter(self.zeros_like(first), group, self.ones_like(group), mode="add")
        return first, inverse, counts

    def _row_order(self, rows: T) -> T:
        """The lexicographic order of the rows of a matrix; equal ones keep theirs.

        Columns become ranks, and neighbouring columns one, again and again until one is left.
        """
        count, width = self._typed(rows)[1].shape
        if bounds(width)[0] == 0:  # a column that is the same in all rows decides nothing
            rows = self.concat([rows, self.zeros((count, 1), self._typed(rows)[1].dtype)], axis=1)
            width = width + 1
        while bounds(width)[1] > 1:
            ranks = self.concat([self._ranks(rows), self.zeros((count, 1), INT64)], axis=1)
            width, last = ceil_div(width, 2), self.dim_value(width)
            left = self._map("multiply", self.iota((width,)), 2)
            right = self._map("minimum", self._map("add", left, 1), last)
            greater, lesser = (self.take(ranks, half, axis=1) for half in (left, right))
            rows = self._map("add", self._map("multiply", greater, self.dim_value(count)), lesser)
        return self.reshape(self.argsort(rows, 0), (count,))

    def _ranks(self, columns: T) -> T:
        """For each column of a matrix, the number of lesser values that it has."""
        values, order = self.sort(columns, 0)
        count, _ = self._typed(values)[1].shape
        before = self._map("maximum", self._map("subtract", self.iota((count,)), 1), 0)
        differs = self._differ(values, self.take(values, before, axis=0))
        rank = self.cumsum(self.cast(differs, INT64), axis=0)
        return self.scatter(self.zeros_like(order), order, rank)

    def _rows_begin(self, rows: T) -> T:
        """Whether each row of a matrix is the first, or differs from the one before."""
        count, _ = self._typed(rows)[1].shape
        line = self.iota((count,))
        before = self.take(rows, self._map("maximum", self._map("subtract", line, 1), 0), axis=0)
        differs = self.any(self._differ(rows, before), axis=1)
        return self._map("logical_or", self._map("equal", line, 0), differs)
