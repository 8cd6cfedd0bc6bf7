"""The methods for the gradients of layers, by PyTorch's names: what one step of training needs.

``grad`` is the gradient of the layer's result. Gradients have the dtype of their operand; those of
16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.normalization import NormalizationVocabulary
from ostinato.ops.vocabulary.pooling import PoolingVocabulary
from ostinato.ops.vocabulary.ranges import as_dim
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.ops import window_gradients, windows
    from ostinato.ops.vocabulary.windows import PerAxis
    from ostinato.ops.windows import Padding, PaddingSpec
    from ostinato.variables import Dim
else:
    windows = LazyModule("ostinato.ops.windows")
    window_gradients = LazyModule("ostinato.ops.window_gradients")

__all__ = ["GradientVocabulary"]


class GradientVocabulary(PoolingVocabulary[T], NormalizationVocabulary[T]):
    """Methods that are compositions of forward ones; they raise the errors of those."""

    # -- windows ----------------------------------------------------------------------------

    def conv_backward(
        self,
        grad: Any,
        x: Any,
        w: Any,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> tuple[T, T, T]:
        """The gradients of the operands of :meth:`conv`, and of a bias ``[O]``."""
        (above,) = self._lift(grad)
        x, sizes = self._spatial(x)
        w, kernel = self._kernel(w, len(sizes))
        geometry = self._geometry_of(sizes, kernel, stride, padding, dilation)
        bias = self.sum(above, axis=(0, *range(2, 2 + len(sizes))))
        return (
            window_gradients.of_conv_input(self, above, w, sizes, *geometry, groups),
            window_gradients.of_conv_weight(self, above, x, kernel, *geometry, groups),
            bias,
        )

    def max_pool_backward(self, grad: Any, indices: Any, size: Sequence[Dim]) -> T:
        """The gradient of the operand of :meth:`max_pool` and :meth:`adaptive_max_pool`.

        Args:
            indices: the positions of the maxima, of the shape of ``grad``.
            size: the spatial sizes of the operand.
        """
        lifted, type_ = self._typed(grad)
        places, places_type = self._typed(indices)
        sizes = [as_dim(dim, "a size") for dim in size]
        if places_type.shape != type_.shape or len(sizes) != type_.ndim - 2:
            raise GraphError(
                f"expected positions and sizes for {type_}, got {places_type} and {sizes}"
            )
        planes = (*type_.shape[:2], prod(type_.shape[2:]))
        wide = type_.dtype.accumulator
        total = self.scatter(
            self.zeros((*type_.shape[:2], prod(sizes)), wide),
            self.reshape(places, planes),
            self.reshape(self.cast(lifted, wide), planes),
            axis=2,
            mode="add",
        )
        return self.cast(self.reshape(total, (*type_.shape[:2], *sizes)), type_.dtype)

    def avg_pool_backward(
        self,
        grad: Any,
        size: Sequence[int],
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> T:
        """The gradient of the operand of :meth:`avg_pool`, whose spatial sizes are ``size``.

        The sizes are numbers. Arguments are those of :meth:`avg_pool`.
        """
        above, counts = self._spatial(grad)
        sizes = tuple(size)
        if len(sizes) != len(counts) or not all(isinstance(n, int) for n in (*sizes, *counts)):
            raise GraphError(f"expected sizes that are numbers for {sizes} and {counts}")
        extents = self._extents(kernel, stride, len(sizes))
        _, pads, _ = self._geometry_of(sizes, extents[0], extents[1], padding, 1)
        attrs = {
            "kernel": extents[0],
            "stride": extents[1],
            "padding": pads,
            "dilation": (1,) * len(sizes),
            "ceil_mode": bool(ceil_mode),
        }
        return window_gradients.of_means(  # type: ignore[no-any-return]
            self, above, sizes, attrs, bool(count_include_pad), divisor_override
        )

    # -- activations ------------------------------------------------------------------------

    def gelu_backward(self, grad: Any, x: Any, approximate: bool = False) -> T:
        """The gradient of the operand of :meth:`gelu`."""
        (above, at), dtype = self._wide(grad, x)
        if approximate in (True, "tanh"):
            scale = math.sqrt(2.0 / math.pi)
            square = self.square(at)
            inner = self.multiply(self.multiply(at, scale), self._line(square, 0.044715, 1.0))
            limit = self.tanh(inner)
            slope = self.multiply(self._line(square, 3 * 0.044715, 1.0), scale)
            rest = self.multiply(
                self.multiply(at, slope), self._line(self.square(limit), -1.0, 1.0)
            )
            factor = self.multiply(self.add(self.add(limit, 1.0), rest), 0.5)
        else:
            cumulative = self._line(self.erf(self.multiply(at, math.sqrt(0.5))), 0.5, 0.5)
            density = self.exp(self.multiply(self.square(at), -0.5))
            density = self.multiply(density, 1 / math.sqrt(2 * math.pi))
            factor = self.add(cumulative, self.multiply(at, density))
        return self.cast(self.multiply(above, factor), dtype)

    def silu_backward(self, grad: Any, x: Any) -> T:
        """The gradient of the operand of :meth:`silu`."""
        (above, at), dtype = self._wide(grad, x)
        gate = self.sigmoid(at)
        rest = self.multiply(at, self.subtract(1.0, gate))
        factor = self.multiply(gate, self.add(rest, 1.0))
        return self.cast(self.multiply(above, factor), dtype)

    def sigmoid_backward(self, grad: Any, result: Any) -> T:
        """The gradient of the operand of :meth:`sigmoid`, whose result is ``result``."""
        (above, found), dtype = self._wide(grad, result)
        slope = self.multiply(found, self.subtract(1.0, found))
        return self.cast(self.multiply(above, slope), dtype)

    def tanh_backward(self, grad: Any, result: Any) -> T:
        """The gradient of the operand of :meth:`tanh`, whose result is ``result``."""
        (above, found), dtype = self._wide(grad, result)
        slope = self.subtract(1.0, self.square(found))
        return self.cast(self.multiply(above, slope), dtype)

    def softmax_backward(self, grad: Any, result: Any, axis: int = -1) -> T:
        """The gradient of the operand of :meth:`softmax`, whose result is ``result``."""
        (above, found), dtype = self._wide(grad, result)
        inner = self.sum(self.multiply(above, found), axis=axis, keepdims=True)
        return self.cast(self.multiply(found, self.subtract(above, inner)), dtype)

    def log_softmax_backward(self, grad: Any, result: Any, axis: int = -1) -> T:
        """The gradient of the operand of :meth:`log_softmax`, whose result is ``result``."""
        (above, found), dtype = self._wide(grad, result)
        total = self.sum(above, axis=axis, keepdims=True)
        return self.cast(self.subtract(above, self.multiply(self.exp(found), total)), dtype)

    # -- normalisation ----------------------------------------------------------------------

    def layer_norm_backward(
        self, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any = None, axis: int = -1
    ) -> tuple[T, T, T]:
        """The gradients of ``x``, weight and bias of :meth:`native_layer_norm`.

        Args:
            mean, rstd: its statistics.
            axis: the first of the axes that it normalises.
        """
        (above, at), dtype = self._wide(grad, x)
        type_ = self._typed(at)[1]
        first = normalize_axis(axis, type_.ndim)
        normal = self.multiply(self.subtract(at, mean), rstd)
        scaled = above if weight is None else self.multiply(above, weight)
        inside = self._centered(scaled, normal, rstd, tuple(range(first, type_.ndim)))
        rows = tuple(range(first))
        return (
            self.cast(inside, dtype),
            self.cast(self.sum(self.multiply(above, normal), axis=rows), dtype),
            self.cast(self.sum(above, axis=rows), dtype),
        )

    def group_norm_backward(
        self, grad: Any, x: Any, mean: Any, rstd: Any, num_groups: int, weight: Any = None
    ) -> tuple[T, T, T]:
        """The gradients of ``x``, weight and bias of :meth:`native_group_norm`."""
        (above, at), dtype = self._wide(grad, x)
        shape = self._typed(at)[1].shape
        spatial = (1,) * (len(shape) - 2)
        groups = (shape[0], num_groups, -1)
        mean, rstd = (self.expand_dims(self._typed(s)[0], 2) for s in (mean, rstd))
        normal = self.multiply(self.subtract(self.reshape(at, groups), mean), rstd)
        scaled = above
        if weight is not None:
            channels = self._typed(weight)[0]
            scaled = self.multiply(above, self.reshape(channels, (shape[1], *spatial)))
        inside = self._centered(self.reshape(scaled, groups), normal, rstd, (2,))
        axes = (0, *range(2, len(shape)))
        return (
            self.cast(self.reshape(inside, shape), dtype),
            self.cast(
                self.sum(self.multiply(above, self.reshape(normal, shape)), axis=axes), dtype
            ),
            self.cast(self.sum(above, axis=axes), dtype),
        )

    def batch_norm_backward(
        self, grad: Any, x: Any, mean: Any, inverse_std: Any, weight: Any = None
    ) -> tuple[T, T, T]:
        """The gradients of ``x``, weight and bias of :meth:`batch_norm_training`."""
        (above, at), dtype = self._wide(grad, x)
        type_ = self._typed(at)[1]
        spread = (type_.shape[1], *(1,) * (type_.ndim - 2))
        axes = (0, *range(2, type_.ndim))
        mean, inverse = (self.reshape(self._typed(s)[0], spread) for s in (mean, inverse_std))
        normal = self.multiply(self.subtract(at, mean), inverse)
        scaled = above
        if weight is not None:
            scaled = self.multiply(above, self.reshape(self._typed(weight)[0], spread))
        return (
            self.cast(self._centered(scaled, normal, inverse, axes), dtype),
            self.cast(self.sum(self.multiply(above, normal), axis=axes), dtype),
            self.cast(self.sum(above, axis=axes), dtype),
        )

    # -- indexing ---------------------------------------------------------------------------

    def embedding_backward(
        self, grad: Any, ids: Any, rows: Dim, padding_idx: int | None = None
    ) -> T:
        """The gradient of the table of :meth:`embedding`, which has ``rows`` rows.

        Args:
            grad: ``[*ids.shape, ...]``.
            ids: the rows that were read.
            padding_idx: a row whose gradient is zero.
        """
        lifted, type_ = self._typed(grad)
        indices, ids_type = self._typed(ids)
        features = type_.shape[ids_type.ndim :]
        if type_.shape[: ids_type.ndim] != ids_type.shape:
            raise GraphError(f"expected a gradient [*{ids_type.shape}, ...], got {type_}")
        wide = type_.dtype.accumulator
        count = ids_type.size
        flat = self.reshape(self.cast(indices, INT64), (count, 1))
        above = self.reshape(self.cast(lifted, wide), (count, *features))
        if padding_idx is not None:
            used = self.reshape(self.not_equal(flat, padding_idx), (count, *(1,) * len(features)))
            above = self.where(used, above, 0.0)
        blank = self.zeros((as_dim(rows, "the rows"), *features), wide)
        return self.cast(self.scatter_nd(blank, flat, above, mode="add"), type_.dtype)

    # -- machinery --------------------------------------------------------------------------

    def _extents(
        self, kernel: PerAxis, stride: PerAxis | None, ndim: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The kernel and the stride of a pool, by axis."""
        extents = windows.per_axis("kernel", kernel, ndim)
        return extents, windows.per_axis("stride", extents if stride is None else stride, ndim)

    def _geometry_of(
        self,
        sizes: Sequence[Dim],
        kernel: tuple[int, ...],
        stride: PerAxis,
        padding: PaddingSpec,
        dilation: PerAxis,
    ) -> tuple[tuple[int, ...], Padding, tuple[int, ...]]:
        """Strides, padding and dilations, by axis."""
        strides = windows.per_axis("stride", stride, len(sizes))
        dilations = windows.per_axis("dilation", dilation, len(sizes))
        return (
            strides,
            windows.resolve_padding(padding, sizes, kernel, strides, dilations),
            dilations,
        )

    def _wide(self, *operands: Any) -> tuple[list[T], DType]:
        """Operands to compute with, and the dtype of the last."""
        typed = [self._typed(operand) for operand in operands]
        dtype = typed[-1][1].dtype
        if not all(type_.dtype.is_float for _, type_ in typed):
            raise GraphError(f"expected floats, got {', '.join(str(t) for _, t in typed)}")
        return [self.cast(operand, type_.dtype.accumulator) for operand, type_ in typed], dtype

    def _line(self, x: T, slope: float, start: float) -> T:
        return self.add(self.multiply(x, slope), start)

    def _centered(self, grad: T, normal: T, inverse: T, axes: tuple[int, ...]) -> T:
        """The gradient of what a norm over ``axes`` has made ``normal``."""
        mean = self.mean(grad, axis=axes, keepdims=True)
        along = self.mean(self.multiply(grad, normal), axis=axes, keepdims=True)
        rest = self.subtract(self.subtract(grad, mean), self.multiply(normal, along))
        return self.multiply(rest, inverse)
