"""The methods that reduce or scan axes.

``axis`` is an int, several ints, or ``None`` for all of them; ``keepdims`` keeps them as size 1.
Sums and products keep the dtype (small integers wrap); bools are counted in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.dtypes import FLOAT32, INT64, UINT8
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axes, normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary

if TYPE_CHECKING:
    from ostinato.ir.op import Attr, Op
    from ostinato.ops import reduction, shape
else:
    reduction = LazyModule("ostinato.ops.reduction")
    shape = LazyModule("ostinato.ops.shape")

__all__ = ["ReductionVocabulary"]

Axes: TypeAlias = int | Sequence[int] | None


class ReductionVocabulary(ElementwiseVocabulary[T]):
    """Methods that combine the elements along axes.

    All raise :class:`~ostinato.errors.GraphError` for an axis out of range or given twice.
    """

    def sum(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The sum; 0 of nothing."""
        return self._reduce(reduction.SUM, self._counted(x), axis, keepdims)

    def prod(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The product; 1 of nothing."""
        return self._reduce(reduction.PROD, self._counted(x), axis, keepdims)

    def max(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The greatest element; NaN where there is one. Refused for an empty axis."""
        return self._reduce(reduction.MAX, x, axis, keepdims)

    def min(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The least element; NaN where there is one. Refused for an empty axis."""
        return self._reduce(reduction.MIN, x, axis, keepdims)

    def any(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """Whether an element is not zero."""
        return self._reduce(reduction.ANY, x, axis, keepdims)

    def all(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """Whether no element is zero."""
        return self._reduce(reduction.ALL, x, axis, keepdims)

    def mean(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The arithmetic mean; integers give float32."""
        return self._reduce(reduction.MEAN, self._real(x), axis, keepdims)

    def var(self, x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> T:
        """The mean of squared distances from the mean, over ``n - correction``."""
        return self._reduce(
            reduction.VAR, self._real(x), axis, keepdims, correction=float(correction)
        )

    def std(self, x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> T:
        """The square root of :meth:`var`."""
        return self._reduce(
            reduction.STD, self._real(x), axis, keepdims, correction=float(correction)
        )

    def var_mean(
        self, x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
    ) -> tuple[T, T]:
        """:meth:`var` and :meth:`mean`."""
        spread = self.var(x, axis, correction, keepdims)
        return spread, self.mean(x, axis, keepdims)

    def std_mean(
        self, x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
    ) -> tuple[T, T]:
        """:meth:`std` and :meth:`mean`."""
        spread = self.std(x, axis, correction, keepdims)
        return spread, self.mean(x, axis, keepdims)

    def aminmax(self, x: Any, axis: Axes = None, keepdims: bool = False) -> tuple[T, T]:
        """The least and the greatest element."""
        return self.min(x, axis, keepdims), self.max(x, axis, keepdims)

    def nansum(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The sum of all elements but NaNs."""
        lifted, type_ = self._typed(x)
        if type_.dtype.is_float:
            lifted = self.where(self.isnan(lifted), 0, lifted)
        return self.sum(lifted, axis, keepdims)

    def nanmean(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The mean of all elements but NaNs; NaN of none. Integers give float32."""
        real = self._real(x)
        type_ = self._typed(real)[1]
        wide = type_.dtype.accumulator
        total = self.nansum(self.cast(real, wide), axis, keepdims)
        number = self._map("logical_not", self.isnan(real))
        count = self.sum(self.cast(number, INT64), axis, keepdims)
        return self.cast(self.divide(total, self.cast(count, wide)), type_.dtype)

    def count_nonzero(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """The int64 number of elements that are not 0; NaN is not."""
        lifted, type_ = self._typed(x)
        mask = lifted if type_.dtype.is_bool else self.not_equal(lifted, 0)
        return self.sum(self.cast(mask, INT64), axis, keepdims)

    def logsumexp(self, x: Any, axis: Axes = None, keepdims: bool = False) -> T:
        """``log(sum(exp(x)))`` without overflow."""
        return self._reduce(reduction.LOGSUMEXP, self._real(x), axis, keepdims)

    def norm(self, x: Any, ord: float = 2.0, axis: Axes = None, keepdims: bool = False) -> T:
        """The vector norm of order ``ord`` (not 0); an infinity gives the extreme magnitude."""
        return self._reduce(reduction.NORM, self._real(x), axis, keepdims, ord=float(ord))

    def argmax(self, x: Any, axis: int | None = None, keepdims: bool = False) -> T:
        """The int64 index of the first greatest element, of the flattened ``x`` if no axis."""
        return self._find(reduction.ARGMAX, x, axis, keepdims)

    def argmin(self, x: Any, axis: int | None = None, keepdims: bool = False) -> T:
        """The int64 index of the first least element, of the flattened ``x`` if no axis."""
        return self._find(reduction.ARGMIN, x, axis, keepdims)

    def cumsum(
        self, x: Any, axis: int = -1, *, exclusive: bool = False, reverse: bool = False
    ) -> T:
        """The running sum along ``axis``.

        Args:
            exclusive: leave each element out of its own sum.
            reverse: run from the end.
        """
        return self._scan(reduction.CUMSUM, x, axis, exclusive, reverse)

    def cumprod(
        self, x: Any, axis: int = -1, *, exclusive: bool = False, reverse: bool = False
    ) -> T:
        """The running product along ``axis``; arguments as :meth:`cumsum`."""
        return self._scan(reduction.CUMPROD, x, axis, exclusive, reverse)

    def cummax(self, x: Any, axis: int = -1) -> tuple[T, T]:
        """The greatest element so far along ``axis``, and its int64 index.

        Of equal elements the index is that of the last one so far; NaN counts as the greatest.
        """
        return self._extremes(reduction.CUMMAX, x, axis)

    def cummin(self, x: Any, axis: int = -1) -> tuple[T, T]:
        """The least element so far along ``axis``, and its int64 index.

        Of equal elements the index is that of the last one so far; NaN counts as the least.
        """
        return self._extremes(reduction.CUMMIN, x, axis)

    def logcumsumexp(self, x: Any, axis: int = -1) -> T:
        """The running ``log(sum(exp(x)))`` along ``axis``, without overflow."""
        return self._scan(reduction.LOGCUMSUMEXP, self._real(x), axis, False, False)

    # -- machinery --------------------------------------------------------------------------

    def _counted(self, x: Any) -> T:
        """``x``, with bools as the int64 in which they are counted."""
        lifted, type_ = self._typed(x)
        return self.cast(lifted, INT64) if type_.dtype.is_bool else lifted

    def _real(self, x: Any) -> T:
        """``x``, with integers and bools as float32."""
        lifted, type_ = self._typed(x)
        return lifted if type_.dtype.is_float else self.cast(lifted, FLOAT32)

    def _reduce(self, op: Op, x: Any, axis: Axes, keepdims: bool, **attrs: Attr) -> T:
        lifted, type_ = self._typed(x)
        axes = normalize_axes(axis, type_.ndim)
        return self._one(op, lifted, axis=axes, keepdims=bool(keepdims), **attrs)

    def _find(self, op: Op, x: Any, axis: int | None, keepdims: bool) -> T:
        lifted, type_ = self._typed(x)
        if axis is not None:
            where = normalize_axis(axis, type_.ndim)
            return self._one(op, lifted, axis=where, keepdims=bool(keepdims))
        flat = self._one(shape.RESHAPE, lifted, shape=(type_.size,))
        found = self._one(op, flat, axis=0, keepdims=False)
        return self._one(shape.RESHAPE, found, shape=(1,) * type_.ndim) if keepdims else found

    def _extremes(self, op: Op, x: Any, axis: int) -> tuple[T, T]:
        """A running extreme and its index, itself a running maximum: of where the extreme moves."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        narrow = self.cast(lifted, UINT8) if type_.dtype.is_bool else lifted
        extreme = self._scan(op, narrow, where, False, False)
        moves = self.equal(narrow, extreme)
        if type_.dtype.is_float:
            moves = self._map("logical_or", moves, self.isnan(narrow))
        place = self._one(shape.IOTA, shape=type_.shape, axis=where, dtype=INT64)
        index = self._scan(reduction.CUMMAX, self.where(moves, place, 0), where, False, False)
        return self.cast(extreme, type_.dtype), index

    def _scan(self, op: Op, x: Any, axis: int, exclusive: bool, reverse: bool) -> T:
        lifted = self._counted(x)
        where = normalize_axis(axis, self._typed(lifted)[1].ndim)
        return self._one(op, lifted, axis=where, exclusive=bool(exclusive), reverse=bool(reverse))
