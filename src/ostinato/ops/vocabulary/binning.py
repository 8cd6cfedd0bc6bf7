"""The methods that count and sum by bin: histograms, and bags of embeddings."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.order import OrderVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.variables import Dim, bounds, provably_less

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["BinningVocabulary"]

BagMode: TypeAlias = Literal["sum", "mean", "max"]


class BinningVocabulary(OrderVocabulary[T]):
    """Methods that bring elements together by number; all raise ``GraphError`` for misfits."""

    def bincount(
        self,
        x: Any,
        weights: Any = None,
        minlength: int = 0,
        *,
        length: Dim | None = None,
        bound: Dim | None = None,
    ) -> T:
        """The occurrences of 0, 1 and so on up to the greatest number; negative ones are left out.

        Args:
            x: integers, of any shape.
            weights: of the shape of ``x``: summed instead of counting ones.
            minlength: the least length of the result, if it depends on data.
            length: of the result; numbers from there on are left out. ``None``: one more than the
                greatest number, which only a graph can find.
            bound: the greatest length then; a run that needs more raises ``VariableError``.

        Returns:
            A vector of int64, or of the dtype of ``weights``.
        """
        lifted, type_ = self._typed(x)
        if not type_.dtype.is_integer:
            raise GraphError(f"expected integers, got {type_}")
        number = self.reshape(self.cast(lifted, INT64), (type_.size,))
        if length is None:
            if bound is None:
                raise GraphError("the length depends on data: expected length, or a bound of it")
            least = self.constant([operator.index(minlength) - 1], INT64)
            greatest = self.max(self.concat([number, least]))
            length = self._size_up_to(self.add(greatest, 1), as_dim(bound, "a bound"))
        bins = as_dim(length, "a length")
        place = self.where(self.less(number, 0), self.dim_value(bins), number)
        return self._binned(self.reshape(place, type_.shape), bins, weights)

    def histc(self, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> T:
        """The numbers of elements in ``bins`` of one width from ``min`` to ``max``.

        Both ends count, NaN and what lies outside do not. If the ends are equal, they are those of
        the data; if these are equal too, one less and one more.

        Args:
            x: floats of any shape, at least one if the ends are those of the data.

        Returns:
            A vector of the dtype of ``x``.
        """
        lifted, type_ = self._typed(x)
        count = operator.index(bins)
        if not type_.dtype.is_float or count < 1:
            raise GraphError(f"expected floats and a number of bins, got {type_} and {bins}")
        if not min <= max:
            raise GraphError(f"expected ends in order, got {min} and {max}")
        wide = self.cast(lifted, type_.dtype.accumulator)
        if min < max:
            low, high = (self.constant(end, type_.dtype.accumulator) for end in (min, max))
        elif type_.size == 0:
            return self.zeros((count,), type_.dtype)
        else:
            low, high = self.aminmax(wide)
            same = self.equal(low, high)
            low = self.where(same, self.subtract(low, 1), low)
            high = self.where(same, self.add(high, 1), high)
        inside = self.logical_and(self.greater_equal(wide, low), self.less_equal(wide, high))
        share = self.divide(
            self.multiply(self.subtract(wide, low), count), self.subtract(high, low)
        )
        place = self.minimum(self.cast(self.where(inside, share, 0), INT64), count - 1)
        return self.cast(self._binned(self.where(inside, place, count), count), type_.dtype)

    def histogram(self, x: Any, edges: Any, weights: Any = None, *, density: bool = False) -> T:
        """The numbers of elements between neighbouring ``edges``, the last one included.

        Args:
            x: numbers of any shape; NaN and what lies outside do not count.
            edges: an ascending vector of at least two.
            weights: of the shape of ``x``: summed instead of counting ones.
            density: divide by the sum and by the widths: the integral is 1 then.

        Returns:
            A vector of int64, or of the dtype of ``weights``; float32 or wider for a density.
        """
        lines, edges_type = self._typed(edges)
        if edges_type.ndim != 1 or bounds(edges_type.shape[0])[1] < 2:
            raise GraphError(f"edges are a vector of two at least, got {edges_type}")
        lifted, type_ = self._typed(x)
        bins = edges_type.shape[0] - 1
        last = self.slice(lines, [bins], [bins + 1])
        place = self.subtract(self.searchsorted(lines, lifted, right=True), 1)
        size = self.dim_value(bins)
        place = self.where(self.equal(lifted, last), self.subtract(size, 1), place)
        counted = self.logical_and(self.greater_equal(place, 0), self.less(place, size))
        if type_.dtype.is_float:
            counted = self.logical_and(counted, self.logical_not(self.isnan(lifted)))
        counts = self._binned(self.where(counted, place, size), bins, weights)
        if not density:
            return counts
        widths = self._real(
            self.subtract(self.slice(lines, [1], [bins + 1]), self.slice(lines, [0], [bins]))
        )
        wide = self.cast(counts, self._typed(widths)[1].dtype)
        return self.divide(wide, self.multiply(self.sum(wide), widths))

    def embedding_bag(
        self,
        table: Any,
        ids: Any,
        offsets: Any = None,
        *,
        mode: BagMode = "mean",
        weights: Any = None,
        padding_id: int | None = None,
        include_last_offset: bool = False,
    ) -> T:
        """The rows of ``table`` for the ids of each bag, summed, averaged, or the greatest of each.

        Args:
            table: ``[n, features]``.
            ids: ``[bags, length]``, or a vector that ``offsets`` cuts into bags.
            offsets: where each bag begins, from 0 up.
            mode: ``"sum"``, ``"mean"`` or ``"max"``; an empty bag gives zeros.
            weights: factors of the rows, of the shape of ``ids``; for sums.
            padding_id: rows of this id are left out.
            include_last_offset: whether ``offsets`` ends with the number of ids.

        Returns:
            ``[bags, features]``.
        """
        rows, rows_type = self._typed(table)
        numbers, ids_type = self._typed(ids)
        if rows_type.ndim != 2 or not rows_type.dtype.is_float:
            raise GraphError(f"the table is a matrix of floats, got {rows_type}")
        if mode not in ("sum", "mean", "max"):
            raise GraphError(f"mode is sum, mean or max, got {mode!r}")
        if weights is not None and mode != "sum":
            raise GraphError(f"weights are for sums, not for {mode!r}")
        if (ids_type.ndim, offsets is None) not in ((1, False), (2, True)):
            raise GraphError(f"ids are a matrix, or a vector with offsets, got {ids_type}")
        wide = rows_type.dtype.accumulator
        taken = self.cast(self.take(rows, numbers, axis=0), wide)
        if weights is not None:
            factors, factors_type = self._typed(weights)
            if factors_type.shape != ids_type.shape:
                raise GraphError(f"expected a weight for each of {ids_type}, got {factors_type}")
            taken = self.multiply(taken, self.cast(self.expand_dims(factors, -1), wide))
        counts = self.ones(ids_type.shape, INT64)
        if padding_id is not None:
            number = self.cast(numbers, INT64)
            padding = self.constant(operator.index(padding_id), INT64)
            if padding_id < 0:
                padding = self.add(padding, self.dim_value(rows_type.shape[0]))
            counts = self.cast(self.not_equal(number, padding), INT64)
        used = self.expand_dims(self.equal(counts, 1), -1)
        neutral = wide.lowest if mode == "max" else 0
        taken = self.where(used, taken, neutral)
        if offsets is None:
            bagged, total = self._bags_of_rows(taken, counts, mode)
        else:
            bagged, total = self._bags(taken, counts, offsets, mode, include_last_offset)
        total = self.expand_dims(total, -1)
        if mode == "mean":
            bagged = self.divide(bagged, self.cast(self.maximum(total, 1), wide))
        if mode == "max":
            bagged = self.where(self.greater(total, 0), bagged, 0)
        return self.cast(bagged, rows_type.dtype)

    # -- machinery --------------------------------------------------------------------------------

    def _size_up_to(self, count: T, bound: Dim) -> Dim:
        """The size that an integer scalar of the graph gives."""
        raise GraphError(
            f"a size of up to {bound} depends on data: only a graph has such sizes; give length"
        )

    def _binned(self, place: T, bins: Dim, weights: Any = None) -> T:
        """Ones or weights summed by bin; places from ``bins`` on are left out."""
        type_ = self._typed(place)[1]
        if weights is None:
            each, dtype = self.ones(type_.shape, INT64), INT64
        else:
            each, weights_type = self._typed(weights)
            dtype = weights_type.dtype
            if weights_type.shape != type_.shape:
                raise GraphError(f"expected a weight for each of {type_}, got {weights_type}")
        ids, new = (self.reshape(part, (type_.size,)) for part in (place, each))
        return self.scatter(self.zeros((bins,), dtype), ids, new, mode="add")

    def _bags_of_rows(self, taken: T, counts: T, mode: str) -> tuple[T, T]:
        type_ = self._typed(taken)[1]
        total = self.sum(counts, axis=1)
        if mode != "max":
            return self.sum(taken, axis=1), total
        if bounds(type_.shape[1])[0] == 0:  # one more than nothing is always there
            taken = self.pad(taken, [(0, 0), (0, 1), (0, 0)], value=float("-inf"))
        return self.max(taken, axis=1), total

    def _bags(
        self, taken: T, counts: T, offsets: Any, mode: str, include_last: bool
    ) -> tuple[T, T]:
        starts, starts_type = self._typed(offsets)
        if starts_type.ndim != 1 or not starts_type.dtype.is_integer:
            raise GraphError(f"offsets are a vector of integers, got {starts_type}")
        bags = starts_type.shape[0]
        if include_last:
            if provably_less(bags, 1):
                raise GraphError("there is no last offset")
            bags = bags - 1
            starts = self.slice(starts, [0], [bags])
        count, features = self._typed(taken)[1].shape
        line = self.iota((count,))
        bag = self.subtract(self.searchsorted(self.cast(starts, INT64), line, right=True), 1)
        bag = self.where(self.less(bag, 0), self.dim_value(bags), bag)
        dtype: DType = self._typed(taken)[1].dtype
        base = self.full((bags, features), dtype.lowest if mode == "max" else 0, dtype)
        spread = self.broadcast_to(self.reshape(bag, (count, 1)), (count, features))
        bagged = self.scatter(base, spread, taken, mode="max" if mode == "max" else "add")
        return bagged, self.scatter(self.zeros((bags,), INT64), bag, counts, mode="add")
