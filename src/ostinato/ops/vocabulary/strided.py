"""The methods that see a tensor as windows, diagonals and strided views, and put them back.

Views cost nothing: readers compute indices instead. All raise
:class:`~ostinato.errors.GraphError` for what reaches beyond a tensor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.ir.leaves import check_shape
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.variables import Dim, maximum, minimum, prod

if TYPE_CHECKING:
    from ostinato.ops import strided, windows
    from ostinato.ops.windows import PaddingSpec
else:
    strided = LazyModule("ostinato.ops.strided")
    windows = LazyModule("ostinato.ops.windows")

__all__ = ["StridedVocabulary"]

PerAxis: TypeAlias = int | Sequence[int]


class StridedVocabulary(ReductionVocabulary[T], IndexingVocabulary[T]):
    """Methods over windows, diagonals and strided views."""

    def as_strided(
        self, x: Any, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim = 0
    ) -> T:
        """The elements of ``x`` in C order, seen with a shape and strides.

        Element ``i`` of the result is element ``offset + sum(strides[j] * i[j])`` of ``x``.

        Args:
            strides: in elements, one for each axis of ``shape``; dims, 0 and negative ones too.
            offset: of the first element.
        """
        lifted, type_ = self._typed(x)
        target = check_shape("as_strided", shape)
        steps = tuple(as_dim(s, "a stride") for s in strides)
        start = as_dim(offset, "an offset")
        if len(steps) != len(target):
            raise GraphError(f"{len(steps)} strides are given for the {len(target)} axes of a view")
        flat = self.reshape(lifted, (type_.size,))
        return self._view(flat, target, (start,), (steps,))

    def unfold(self, x: Any, axis: int, size: int, step: int = 1) -> T:
        """Windows of ``size`` along ``axis``, ``step`` apart: a new last axis runs within each."""
        lifted, type_ = self._typed(x)
        where = normalize_axis(axis, type_.ndim)
        length, stride = operator.index(size), operator.index(step)
        if length < 0 or stride < 1:
            raise GraphError(f"expected windows from 0 on, and a step, got {size} and {step}")
        (count,) = self._window_counts(type_.shape[where : where + 1], [length], [stride], [1])
        shape = (*type_.shape[:where], count, *type_.shape[where + 1 :], length)
        steps = [[int(i == j) for j in range(len(shape))] for i in range(type_.ndim)]
        steps[where][where], steps[where][-1] = stride, 1
        return self._view(lifted, shape, (0,) * type_.ndim, tuple(map(tuple, steps)))

    def im2col(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
    ) -> T:
        """The windows of ``x [N, C, *spatial]`` as columns, which PyTorch calls unfolding.

        Args:
            kernel, stride, padding, dilation: as for convolutions.

        Returns:
            ``[N, C * prod(kernel), windows]``.
        """
        lifted, type_ = self._typed(x)
        if type_.ndim < 3:
            raise GraphError(f"x is [N, C, *spatial], got {type_}")
        sizes = type_.shape[2:]
        ndim = len(sizes)
        taps = windows.per_axis("kernel", kernel, ndim)
        strides = windows.per_axis("stride", stride, ndim)
        dilations = windows.per_axis("dilation", dilation, ndim)
        pads = windows.resolve_padding(padding, sizes, taps, strides, dilations)
        lifted, type_ = self._typed(self.pad(lifted, [(0, 0), (0, 0), *pads]))
        counts = self._window_counts(type_.shape[2:], taps, strides, dilations)
        shape = (*type_.shape[:2], *taps, *counts)
        steps = [[0] * len(shape) for _ in range(type_.ndim)]
        steps[0][0] = steps[1][1] = 1
        for i in range(ndim):
            steps[2 + i][2 + i], steps[2 + i][2 + ndim + i] = dilations[i], strides[i]
        view = self._view(lifted, shape, (0,) * type_.ndim, tuple(map(tuple, steps)))
        return self.reshape(view, (type_.shape[0], type_.shape[1] * prod(taps), prod(counts)))

    def col2im(
        self,
        x: Any,
        sizes: Sequence[Dim],
        kernel: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis | Sequence[tuple[int, int]] = 0,
        dilation: PerAxis = 1,
    ) -> T:
        """The sum of windows where they overlap: PyTorch's folding.

        Args:
            x: ``[N, C * prod(kernel), windows]``, as :meth:`im2col` has them.
            sizes: of the spatial axes.
            kernel, stride, padding, dilation: as for :meth:`im2col`.

        Returns:
            ``[N, C, *sizes]``.
        """
        lifted, type_ = self._typed(x)
        spatial = check_shape("col2im", sizes)
        ndim = len(spatial)
        taps = windows.per_axis("kernel", kernel, ndim)
        strides = windows.per_axis("stride", stride, ndim)
        dilations = windows.per_axis("dilation", dilation, ndim)
        pads = windows.resolve_padding(padding, spatial, taps, strides, dilations)
        padded = [size + low + high for size, (low, high) in zip(spatial, pads, strict=True)]
        counts = self._window_counts(padded, taps, strides, dilations)
        features = type_.shape[1] if type_.ndim == 3 else 0
        each = math.prod(taps)
        if not isinstance(features, int) or not features or features % each:
            raise GraphError(f"x is [N, C * {each}, windows] for a kernel {taps}, got {type_}")
        if prod(counts) != type_.shape[2]:
            raise GraphError(f"{type_} should hold {tuple(counts)} windows")
        batch, channels = type_.shape[0], features // each
        # Where each element of a window stands in the padded result.
        place: T | None = None
        for i in range(ndim):
            grid = (*taps, *counts)
            along = self.add(
                self.multiply(self.iota(grid, i), dilations[i]),
                self.multiply(self.iota(grid, ndim + i), strides[i]),
            )
            if place is not None:
                along = self.add(self.multiply(place, self.dim_value(padded[i])), along)
            place = along
        if place is None:
            raise GraphError("col2im takes at least one spatial axis")
        parts = self.reshape(lifted, (batch * channels, prod(taps) * prod(counts)))
        index = self.broadcast_to(self.reshape(place, (1, -1)), self._typed(parts)[1].shape)
        zeros = self.zeros((batch * channels, prod(padded)), type_.dtype)
        summed = self.scatter(zeros, index, parts, axis=1, mode="add")
        image = self.reshape(summed, (batch, channels, *padded))
        cropped = [(0, 0), (0, 0), *((-low, -high) for low, high in pads)]
        return self.pad(image, cropped)

    # -- diagonals ------------------------------------------------------------------------------

    def diagonal(self, x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> T:
        """The diagonal of two axes, ``offset`` to the right of the main one: a new last axis."""
        lifted, type_ = self._typed(x)
        rows, columns = self._two_axes(type_.ndim, axis1, axis2)
        down, right = max(-operator.index(offset), 0), max(operator.index(offset), 0)
        length = minimum(type_.shape[rows] - down, type_.shape[columns] - right)
        others = [d for a, d in enumerate(type_.shape) if a not in (rows, columns)]
        shape = (*others, maximum(length, 0))
        steps = [[0] * len(shape) for _ in range(type_.ndim)]
        kept = iter(range(len(others)))
        for axis in range(type_.ndim):
            steps[axis][-1 if axis in (rows, columns) else next(kept)] = 1
        starts = [0] * type_.ndim
        starts[rows], starts[columns] = down, right
        return self._view(lifted, shape, tuple(starts), tuple(map(tuple, steps)))

    def diag_embed(self, x: Any, offset: int = 0, axis1: int = -2, axis2: int = -1) -> T:
        """Matrices that have the last axis of ``x`` as a diagonal, and zeros elsewhere.

        Args:
            offset: how far to the right of the main diagonal.
            axis1, axis2: of the result, its rows and its columns.
        """
        lifted, type_ = self._typed(x)
        if type_.ndim == 0:
            raise GraphError("a diagonal is a vector at least, got a scalar")
        rows, columns = self._two_axes(type_.ndim + 1, axis1, axis2)
        size = type_.shape[-1] + abs(operator.index(offset))
        matrix = self._on_diagonal(lifted, size, size, operator.index(offset))
        zero = self.zeros((), type_.dtype)
        placed = self.where(self._diagonal_mask(size, size, offset), matrix, zero)
        return self.moveaxis(placed, (-2, -1), (rows, columns))

    def diagonal_scatter(
        self, x: Any, source: Any, offset: int = 0, axis1: int = 0, axis2: int = 1
    ) -> T:
        """``x`` with a diagonal replaced; arguments and shape of ``source`` as :meth:`diagonal`."""
        lifted, new = self._lift(x, source)
        type_ = self._typed(lifted)[1]
        rows, columns = self._two_axes(type_.ndim, axis1, axis2)
        expected = self._typed(self.diagonal(lifted, offset, rows, columns))[1]
        new = self.cast(new, type_.dtype)
        if self._typed(new)[1] != expected:
            raise GraphError(f"the diagonal is {expected}, got {self._typed(new)[1]}")
        if expected.shape[-1] == 0:
            return lifted
        sizes = type_.shape[rows], type_.shape[columns]
        matrix = self._on_diagonal(new, *sizes, operator.index(offset))
        moved = self.moveaxis(lifted, (rows, columns), (-2, -1))
        placed = self.where(self._diagonal_mask(*sizes, offset), matrix, moved)
        return self.moveaxis(placed, (-2, -1), (rows, columns))

    def trace(self, x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> T:
        """The sum of a diagonal; arguments as :meth:`diagonal`."""
        return self.sum(self.diagonal(x, offset, axis1, axis2), axis=-1)

    def tril_indices(self, rows: Dim, columns: Dim, offset: int = 0) -> T:
        """The int64 indices ``[2, n]`` of a matrix up to diagonal ``offset``, in C order.

        Of symbolic sizes, ``n`` depends on data.
        """
        return self._triangle(rows, columns, operator.index(offset), upper=False)

    def triu_indices(self, rows: Dim, columns: Dim, offset: int = 0) -> T:
        """The int64 indices ``[2, n]`` of a matrix from diagonal ``offset`` on, in C order.

        Of symbolic sizes, ``n`` depends on data.
        """
        return self._triangle(rows, columns, operator.index(offset), upper=True)

    # -- turns ------------------------------------------------------------------------------------

    def rot90(self, x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> T:
        """Turned ``k`` times by a right angle, from the first of two axes to the second."""
        lifted, type_ = self._typed(x)
        if len(axes) != 2:
            raise GraphError(f"a rotation is in the plane of two axes, got {axes}")
        first, second = self._two_axes(type_.ndim, *axes)
        quarters = operator.index(k) % 4
        if quarters == 2:
            return self.flip(lifted, (first, second))
        if quarters == 1:
            return self.swapaxes(self.flip(lifted, second), first, second)
        return self.flip(self.swapaxes(lifted, first, second), second) if quarters else lifted

    # -- machinery --------------------------------------------------------------------------------

    def _view(
        self, x: T, shape: Sequence[Dim], starts: tuple[Dim, ...], steps: tuple[Any, ...]
    ) -> T:
        return self._one(strided.AFFINE_VIEW, x, shape=tuple(shape), starts=starts, steps=steps)

    def _window_counts(
        self,
        sizes: Sequence[Dim],
        taps: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> list[Dim]:
        """The windows along each axis: none where a symbolic size turns out too small."""
        none = ((0, 0),) * len(sizes)
        counts = [
            windows.window_count(*axis)
            for axis in zip(sizes, taps, strides, none, dilations, strict=True)
        ]
        windows.check_windows(counts, sizes, taps, none, dilations)
        return counts

    def _two_axes(self, ndim: int, axis1: int, axis2: int) -> tuple[int, int]:
        first, second = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
        if first == second:
            raise GraphError(f"expected two different axes, got {axis1} and {axis2}")
        return first, second

    def _diagonal_mask(self, rows: Dim, columns: Dim, offset: int) -> T:
        shape = (rows, columns)
        along = self.subtract(self.iota(shape, 1, INT64), self.iota(shape, 0, INT64))
        return self.equal(along, operator.index(offset))

    def _on_diagonal(self, x: T, rows: Dim, columns: Dim, offset: int) -> T:
        """Matrices with ``x`` on a diagonal, and elements of ``x`` all over."""
        line = self.subtract(self.iota((rows, 1), 0, INT64), max(-offset, 0))
        type_ = self._typed(x)[1]
        if type_.shape[-1] == 0:
            return self.zeros((*type_.shape[:-1], rows, columns), type_.dtype)
        taken = self.take(x, self.maximum(line, 0), axis=-1)
        return self.broadcast_to(taken, (*type_.shape[:-1], rows, columns))

    def _triangle(self, rows: Dim, columns: Dim, offset: int, *, upper: bool) -> T:
        shape = check_shape("a triangle", (rows, columns))
        if isinstance(shape[0], int) and isinstance(shape[1], int):
            indices = np.triu_indices if upper else np.tril_indices
            return self.constant(np.stack(indices(shape[0], offset, shape[1])).astype(np.int64))
        along = self.subtract(self.iota(shape, 1, INT64), self.iota(shape, 0, INT64))
        inside = self.greater_equal(along, offset) if upper else self.less_equal(along, offset)
        return self.stack(self._true_positions(inside), 0)
