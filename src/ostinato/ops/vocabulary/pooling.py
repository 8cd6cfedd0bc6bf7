"""The methods that pool windows of spatial axes, of a fixed size or of a fixed number.

Arrays, ``kernel``, ``stride``, ``padding`` and ``dilation`` are those of
:mod:`ostinato.ops.vocabulary.windows`. Positions of maxima are int64 numbers of elements in the
flattened spatial axes, as PyTorch has them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.ops.vocabulary.windows import WindowVocabulary
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ops import bins, maxima, pooling, windows
    from ostinato.ops.vocabulary.windows import PerAxis
    from ostinato.ops.windows import Padding, PaddingSpec
    from ostinato.variables import Dim
else:
    bins = LazyModule("ostinato.ops.bins")
    maxima = LazyModule("ostinato.ops.maxima")
    pooling = LazyModule("ostinato.ops.pooling")
    windows = LazyModule("ostinato.ops.windows")

__all__ = ["PoolingVocabulary"]


class PoolingVocabulary(WindowVocabulary[T], IndexingVocabulary[T]):
    """Methods over pools; all raise :class:`~ostinato.errors.GraphError` for misfits."""

    @overload
    def max_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> T: ...

    @overload
    def max_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[T, T]: ...

    def max_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> T | tuple[T, T]:
        """The greatest value of every window; NaN wins, padding never does.

        ``stride`` is ``kernel`` unless given. With ``ceil_mode`` a last window may hang over the
        end, if it starts before the padding there.

        Args:
            return_indices: whether to return, besides, the position of each maximum: the first of
                equal ones, the last NaN.
        """
        x, attrs = self._geometry(x, kernel, stride, padding, dilation, ceil_mode)
        result = self._one(pooling.MAX_POOL, x, **attrs)
        return (result, maxima.window_positions(self, x, **attrs)) if return_indices else result

    def avg_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> T:
        """The mean of every window of floats; see :meth:`max_pool`.

        The zeros of the padding count as elements unless ``count_include_pad`` is false; what hangs
        over the end in ``ceil_mode`` never counts.

        Args:
            divisor_override: what sums are divided by, instead of the number of elements.
        """
        x, attrs = self._geometry(x, kernel, stride, padding, dilation, ceil_mode)
        if divisor_override is None:
            return self._one(
                pooling.AVG_POOL, x, count_include_pad=bool(count_include_pad), **attrs
            )
        if divisor_override == 0:
            raise GraphError("divisor_override is not 0")
        return self._window_sums(x, 1 / divisor_override, **attrs)

    def lp_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        p: float = 2.0,
    ) -> T:
        """The norm of order ``p``, above zero, of every window of floats; see :meth:`max_pool`."""
        if not p > 0:
            raise GraphError(f"p is above zero, got {p!r}")
        x, attrs = self._geometry(x, kernel, stride, padding, dilation, ceil_mode)
        powers = self.square(x) if p == 2 else self.pow(self.abs(x), float(p))
        sums = self._window_sums(powers, 1.0, **attrs)
        if p == 1:
            return sums
        return self.sqrt(sums) if p == 2 else self.pow(sums, 1 / p)

    def adaptive_avg_pool(self, x: Any, output_size: Dim | Sequence[Dim | None]) -> T:
        """The mean of each of ``output_size`` bins per spatial axis, as PyTorch has them.

        Bin ``i`` of ``n`` reaches from ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``.

        Args:
            output_size: the bins of each axis, or one for all; ``None``: as many as elements.
        """
        lifted, type_ = self._typed(x)
        if not type_.dtype.is_float:
            raise GraphError(f"expected floats, got {type_}; cast them first")
        counts = self._bin_counts(lifted, output_size)
        kernel = bins.equal_lengths(type_.shape[2:], [count for _, count in counts])
        if kernel == type_.shape[2:]:
            return self.global_avg_pool(lifted)
        if kernel is not None and (fixed := _numbers(kernel)):
            return self.avg_pool(lifted, fixed)
        result = self.cast(lifted, type_.dtype.accumulator)
        for axis, count in counts:
            result = bins.bin_means(self, result, axis, count)
        return self.cast(result, type_.dtype)

    @overload
    def adaptive_max_pool(
        self,
        x: Any,
        output_size: Dim | Sequence[Dim | None],
        return_indices: Literal[False] = False,
    ) -> T: ...

    @overload
    def adaptive_max_pool(
        self, x: Any, output_size: Dim | Sequence[Dim | None], return_indices: Literal[True]
    ) -> tuple[T, T]: ...

    def adaptive_max_pool(
        self, x: Any, output_size: Dim | Sequence[Dim | None], return_indices: bool = False
    ) -> T | tuple[T, T]:
        """The greatest value of each bin of :meth:`adaptive_avg_pool`; NaN wins.

        Args:
            return_indices: whether to return, besides, the position of each maximum, the first of
                equal ones.
        """
        (lifted,) = self._lift(x)
        counts = self._bin_counts(lifted, output_size)
        if return_indices:
            return bins.bin_maxima(self, lifted, [count for _, count in counts])
        sizes = self._typed(lifted)[1].shape[2:]
        kernel = bins.equal_lengths(sizes, [count for _, count in counts])
        if kernel == sizes:
            return self.global_max_pool(lifted)
        if kernel is not None and (fixed := _numbers(kernel)):
            return self.max_pool(lifted, fixed)
        for axis, count in counts:
            lifted = bins.bin_maximum(self, lifted, axis, count)
        return lifted

    def max_unpool(self, x: Any, indices: Any, output_size: Sequence[Dim]) -> T:
        """Zeros ``[N, C, *output_size]`` with the elements of ``x`` at their positions.

        Args:
            x: the result of :meth:`max_pool`.
            indices: its positions.
            output_size: the sizes of the spatial axes.
        """
        lifted, type_ = self._typed(x)
        places, places_type = self._typed(indices)
        sizes = [as_dim(size, "a size") for size in output_size]
        if places_type.shape != type_.shape or len(sizes) != type_.ndim - 2:
            raise GraphError(
                f"expected positions and sizes for {type_}, got {places_type} and {sizes}"
            )
        planes = (*type_.shape[:2], prod(type_.shape[2:]))
        blank = self.zeros((*type_.shape[:2], prod(sizes)), type_.dtype)
        filled = self.scatter(
            blank, self.reshape(places, planes), self.reshape(lifted, planes), axis=2
        )
        return self.reshape(filled, (*type_.shape[:2], *sizes))

    def global_avg_pool(self, x: Any) -> T:
        """The mean over all spatial axes, which stay as size 1."""
        x, sizes = self._spatial(x)
        return self.mean(x, axis=tuple(range(2, 2 + len(sizes))), keepdims=True)

    def global_max_pool(self, x: Any) -> T:
        """The greatest value over all spatial axes, which stay as size 1."""
        x, sizes = self._spatial(x)
        return self.max(x, axis=tuple(range(2, 2 + len(sizes))), keepdims=True)

    # -- machinery --------------------------------------------------------------------------

    def _geometry(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None,
        padding: PaddingSpec,
        dilation: PerAxis,
        ceil_mode: bool,
    ) -> tuple[T, dict[str, Any]]:
        """``x`` lifted, and the attributes of a pool over it."""
        x, sizes = self._spatial(x)
        extents = windows.per_axis("kernel", kernel, len(sizes))
        strides = windows.per_axis("stride", extents if stride is None else stride, len(sizes))
        dilations = windows.per_axis("dilation", dilation, len(sizes))
        pads = windows.resolve_padding(padding, sizes, extents, strides, dilations)
        attrs = {"kernel": extents, "stride": strides, "padding": pads, "dilation": dilations}
        return x, {**attrs, "ceil_mode": bool(ceil_mode)}

    def _window_sums(
        self,
        x: T,
        factor: float,
        *,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        padding: Padding,
        dilation: tuple[int, ...],
        ceil_mode: bool,
    ) -> T:
        """``factor`` times the sum of every window: zeros make all windows whole, then means do."""
        type_ = self._typed(x)[1]
        sizes = type_.shape[2:]
        counts = windows.windowed_shape(sizes, kernel, stride, padding, dilation, ceil_mode)
        whole = windows.whole_windows(padding, stride, ceil_mode)
        means = self._one(
            pooling.AVG_POOL,
            self.pad(x, ((0, 0), (0, 0), *whole)),
            kernel=kernel,
            stride=stride,
            padding=((0, 0),) * len(kernel),
            dilation=dilation,
            ceil_mode=False,
            count_include_pad=True,
        )
        axes = list(range(2, type_.ndim))
        return self.multiply(
            self.slice(means, [0] * len(axes), list(counts), axes=axes), factor * math.prod(kernel)
        )

    def _bin_counts(self, x: T, output_size: Dim | Sequence[Dim | None]) -> list[tuple[int, Dim]]:
        """The spatial axes of ``x``, and the number of bins of each."""
        _, sizes = self._spatial(x)
        listed = (
            output_size if isinstance(output_size, list | tuple) else [output_size] * len(sizes)
        )
        if len(listed) != len(sizes):
            raise GraphError(f"{len(listed)} sizes for {len(sizes)} spatial axes")
        counts = [
            size if count is None else as_dim(count, "an output size")
            for size, count in zip(sizes, listed, strict=True)
        ]
        return list(enumerate(counts, 2))


def _numbers(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Dims that are all numbers; none of them otherwise."""
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if len(numbers) == len(dims) else ()
