"""The methods that reduce or scan axes.

``axis`` is an int, several ints, or ``None`` for all of them; ``keepdims`` keeps them as size 1.
Sums and products keep the dtype (small integers wrap); bools are counted in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.dtypes import FLOAT32, INT64
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

    def _scan(self, op: Op, x: Any, axis: int, exclusive: bool, reverse: bool) -> T:
        lifted = self._counted(x)
        where = normalize_axis(axis, self._typed(lifted)[1].ndim)
        return self._one(op, lifted, axis=where, exclusive=bool(exclusive), reverse=bool(reverse))
