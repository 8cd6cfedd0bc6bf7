"""The methods of vector geometry: distances between rows, cross products, bounded norms."""

from __future__ import annotations

import math
from typing import Any

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.ops.base import broadcast_shapes, normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.strided import StridedVocabulary
from ostinato.variables import bounds

__all__ = ["DistanceVocabulary"]


class DistanceVocabulary(StridedVocabulary[T]):
    """Methods about vectors; all raise ``GraphError`` for shapes that do not fit."""

    def cross(self, x: Any, y: Any, axis: int = -1) -> T:
        """The cross product of vectors of 3 elements along ``axis``; other axes broadcast."""
        left, left_type = self._typed(x)
        right, right_type = self._typed(y)
        shape = broadcast_shapes(left_type.shape, right_type.shape)
        where = normalize_axis(axis, len(shape))
        if shape[where] != 3:
            raise GraphError(f"vectors have 3 elements, got {shape[where]} along axis {axis}")
        left, right = self.broadcast_to(left, shape), self.broadcast_to(right, shape)

        def turned(v: T, places: int) -> T:
            return self.roll(v, -places, where)

        ahead = self.multiply(turned(left, 1), turned(right, 2))
        return self.subtract(ahead, self.multiply(turned(left, 2), turned(right, 1)))

    def cdist(self, x: Any, y: Any, p: float = 2.0) -> T:
        """The distances, by the norm of order ``p``, of all rows of ``x`` to all of ``y``.

        Args:
            x: ``[..., n, features]`` floats.
            y: ``[..., m, features]``; leading axes broadcast.
            p: from 0 (the number of features that differ) to infinity.

        Returns:
            ``[..., n, m]``.
        """
        left, left_type = self._typed(x)
        right, right_type = self._typed(y)
        if min(left_type.ndim, right_type.ndim) < 2:
            raise GraphError(f"expected rows of features, got {left_type} and {right_type}")
        if left_type.shape[-1] != right_type.shape[-1]:
            raise GraphError(f"rows of {left_type} and {right_type} differ in length")
        apart = self.subtract(self.expand_dims(left, -2), self.expand_dims(right, -3))
        return self._length(apart, p)

    def pdist(self, x: Any, p: float = 2.0) -> T:
        """The distances of all pairs of rows of ``x [n, features]``, in C order.

        Args:
            p: as for :meth:`cdist`.
        """
        lifted, type_ = self._typed(x)
        if type_.ndim != 2:
            raise GraphError(f"expected rows of features, got {type_}")
        count = type_.shape[0]
        if bounds(count)[1] < 2:
            return self._length(self.slice(lifted, [0], [0]), p)
        pairs = self.triu_indices(count, count, 1)
        first, second = (self.take(lifted, self.getitem(pairs, i), axis=0) for i in (0, 1))
        return self._length(self.subtract(first, second), p)

    def renorm(self, x: Any, p: float, axis: int, most: float) -> T:
        """``x`` with slices along ``axis`` scaled down to a norm of order ``p`` of ``most``."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        if not type_.dtype.is_float or not p > 0 or not most >= 0:
            raise GraphError(
                f"expected floats, a positive order and a bound, got {type_}, {p} and {most}"
            )
        wide = self.cast(lifted, type_.dtype.accumulator)
        others = tuple(a for a in range(type_.ndim) if a != where)
        length = self.norm(wide, p, others, keepdims=True)
        scale = self.where(
            self.greater(length, most), self.divide(most, self.add(length, 1e-7)), 1.0
        )
        return self.cast(self.multiply(wide, scale), type_.dtype)

    # -- machinery --------------------------------------------------------------------------------

    def _length(self, apart: T, p: float) -> T:
        """The norms of order ``p`` of differences along the last axis."""
        type_ = self._typed(apart)[1]
        if not type_.dtype.is_float:
            raise GraphError(f"distances are of floats, got {type_.dtype}; cast them first")
        if not p >= 0:
            raise GraphError(f"p is from 0 up, got {p}")
        if type_.shape[-1] == 0:
            return self.zeros(type_.shape[:-1], type_.dtype)
        if p == 0:
            differs = self.cast(self.not_equal(apart, 0), INT64)
            return self.cast(self.sum(differs, axis=-1), type_.dtype)
        return self.norm(apart, math.inf if math.isinf(p) else p, axis=-1)
