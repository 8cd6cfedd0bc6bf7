"""The methods that normalise: softmax and the norms of neural networks, over floats.

All keep the shape and dtype of ``x``, compute 16-bit floats in float32, and raise
:class:`~ostinato.errors.GraphError` for integers, for axes out of range, and for weights that do
not have the shape asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axes, normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary
from ostinato.variables import floor_div, prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType
    from ostinato.ops import normalization as ops
    from ostinato.variables import Dim
else:
    ops = LazyModule("ostinato.ops.normalization")

__all__ = ["NormalizationVocabulary"]


class NormalizationVocabulary(ReductionVocabulary[T], ShapeVocabulary[T]):
    """Methods that bring values to a common scale."""

    def softmax(self, x: Any, axis: int = -1) -> T:
        """``exp(x) / sum(exp(x))`` over ``axis``."""
        lifted, type_ = self._typed(x)
        return self._one(ops.SOFTMAX, lifted, axis=normalize_axis(axis, type_.ndim))

    def log_softmax(self, x: Any, axis: int = -1) -> T:
        """``log(softmax(x))`` without underflow."""
        lifted, type_ = self._typed(x)
        return self._one(ops.LOG_SOFTMAX, lifted, axis=normalize_axis(axis, type_.ndim))

    def layer_norm(
        self,
        x: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        *,
        normalized_shape: Sequence[Dim] | None = None,
        axis: int | None = None,
    ) -> T:
        """``(x - mean) / sqrt(variance + eps) * weight + bias`` over trailing axes.

        These are the axes from ``axis`` on, or those of ``normalized_shape``, or those of
        ``weight``, or the last one. ``weight`` and ``bias`` have their shape.
        """
        lifted, type_ = self._typed(x)
        first = self._first_axis(type_, weight, normalized_shape, axis)
        return self._affine(ops.LAYER_NORM, lifted, weight, bias, axis=first, eps=float(eps))

    def rms_norm(
        self,
        x: Any,
        weight: Any = None,
        eps: float = 1e-6,
        *,
        normalized_shape: Sequence[Dim] | None = None,
        axis: int | None = None,
    ) -> T:
        """``x / sqrt(mean(x^2) + eps) * weight`` over trailing axes; see :meth:`layer_norm`."""
        lifted, type_ = self._typed(x)
        first = self._first_axis(type_, weight, normalized_shape, axis)
        return self._affine(ops.RMS_NORM, lifted, weight, None, axis=first, eps=float(eps))

    def group_norm(
        self, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> T:
        """:meth:`layer_norm` of each of ``num_groups`` groups of channels of ``x [N, C, ...]``.

        ``weight`` and ``bias`` are ``[C]``.
        """
        return self._affine(
            ops.GROUP_NORM, x, weight, bias, channels=True, groups=num_groups, eps=float(eps)
        )

    def instance_norm(self, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> T:
        """:meth:`layer_norm` of each channel of ``x [N, C, *spatial]``; weights are ``[C]``."""
        return self._affine(ops.INSTANCE_NORM, x, weight, bias, channels=True, eps=float(eps))

    def batch_norm(
        self,
        x: Any,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> T:
        """``(x - mean) / sqrt(var + eps) * weight + bias`` for every channel of ``x [N, C, ...]``.

        The statistics are given, as in inference; all vectors are ``[C]``.
        """
        return self._affine(
            ops.BATCH_NORM, x, weight, bias, (mean, var), channels=True, eps=float(eps)
        )

    def native_layer_norm(
        self,
        x: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        *,
        normalized_shape: Sequence[Dim] | None = None,
        axis: int | None = None,
    ) -> tuple[T, T, T]:
        """:meth:`layer_norm`, the mean, and ``1 / sqrt(variance + eps)``.

        The statistics keep the axes they are taken over as size 1; of 16-bit floats, they are
        float32.
        """
        lifted, type_ = self._typed(x)
        first = self._first_axis(type_, weight, normalized_shape, axis)
        result = self.layer_norm(lifted, weight, bias, eps, axis=first)
        return result, *self._statistics(lifted, tuple(range(first, type_.ndim)), eps)

    def native_group_norm(
        self, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> tuple[T, T, T]:
        """:meth:`group_norm`, the means ``[N, num_groups]``, and ``1 / sqrt(variance + eps)``.

        Of 16-bit floats, the statistics are float32.
        """
        result = self.group_norm(x, num_groups, weight, bias, eps)
        lifted, type_ = self._typed(x)
        grouped = self.reshape(
            lifted, (type_.shape[0], num_groups, floor_div(prod(type_.shape[1:]), num_groups))
        )
        mean, inverse = self._statistics(grouped, (2,), eps)
        return result, self.squeeze(mean, 2), self.squeeze(inverse, 2)

    def batch_norm_training(
        self, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> tuple[T, T, T]:
        """:meth:`batch_norm` by the statistics of ``x [N, C, ...]`` itself, as in training.

        Returns:
            The result, the means ``[C]``, and ``1 / sqrt(variance + eps)`` ``[C]``. The variance is
            over all elements of a channel; of 16-bit floats, statistics are float32.
        """
        lifted, type_ = self._typed(x)
        if type_.ndim < 2:
            raise GraphError(f"x is [N, C, ...], got {type_}")
        axes = (0, *range(2, type_.ndim))
        dtype = type_.dtype.accumulator
        wide = self.cast(lifted, dtype)
        mean, inverse = self._statistics(wide, axes, eps)
        result = self.multiply(self.subtract(wide, mean), inverse)
        spread = (type_.shape[1], *(1,) * (type_.ndim - 2))
        for vector, apply in ((weight, self.multiply), (bias, self.add)):
            if vector is not None:
                channels = self.reshape(self.cast(self._typed(vector)[0], dtype), spread)
                result = apply(result, channels)
        return (
            self.cast(result, type_.dtype),
            self.squeeze(mean, axes),
            self.squeeze(inverse, axes),
        )

    def local_response_norm(
        self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> T:
        """``x / (k + alpha / size * s)^beta``, ``s`` the sum of squares over ``size`` channels.

        For channel ``c`` these are ``c - (size - 1) // 2`` to ``c + size // 2`` (ONNX ``LRN``).
        """
        lifted, _ = self._typed(x)
        attrs = {"alpha": float(alpha), "beta": float(beta), "k": float(k)}
        return self._one(ops.LOCAL_RESPONSE_NORM, lifted, size=size, **attrs)

    def l2_normalize(self, x: Any, axis: int | Sequence[int] | None = -1, eps: float = 1e-12) -> T:
        """``x / max(norm, eps)`` with the Euclidean norm over ``axis``."""
        lifted, type_ = self._typed(x)
        axes = normalize_axes(axis, type_.ndim)
        return self._one(ops.L2_NORMALIZE, lifted, axes=axes, eps=float(eps))

    # -- machinery --------------------------------------------------------------------------

    def _statistics(self, x: T, axes: tuple[int, ...], eps: float) -> tuple[T, T]:
        """The mean over axes, which stay as size 1, and ``1 / sqrt(variance + eps)``."""
        wide = self.cast(x, self._typed(x)[1].dtype.accumulator)
        mean = self.mean(wide, axis=axes, keepdims=True)
        variance = self.var(wide, axis=axes, keepdims=True)
        return mean, self.rsqrt(self.add(variance, float(eps)))

    def _first_axis(
        self,
        x: TensorType,
        weight: Any,
        normalized_shape: Sequence[Dim] | None,
        axis: int | None,
    ) -> int:
        """The first axis that a norm is taken over."""
        if axis is not None:
            return normalize_axis(axis, x.ndim)
        if normalized_shape is not None:
            shape = tuple(normalized_shape)
        elif weight is not None:
            shape = self._typed(weight)[1].shape
        else:
            return normalize_axis(-1, x.ndim)
        first = x.ndim - len(shape)
        if not shape or first < 0 or x.shape[first:] != shape:
            shown = ",".join(map(str, shape))
            raise GraphError(f"{x} does not end in the shape [{shown}] to normalise over")
        return first

    def _affine(
        self,
        op: Op,
        x: Any,
        weight: Any,
        bias: Any,
        statistics: Sequence[Any] = (),
        *,
        channels: bool = False,
        **attrs: Attr,
    ) -> T:
        """``op`` with what is given of weight and bias; a bias alone is added afterwards."""
        operands = [*self._lift(x), *(self._typed(s)[0] for s in statistics)]
        if weight is not None:
            operands += [self._typed(v)[0] for v in (weight, bias) if v is not None]
        result = self._one(op, *operands, **attrs)
        if weight is not None or bias is None:
            return result
        shift, type_ = self._typed(bias)
        spread = self._typed(result)[1].ndim - 2 if channels else 0
        return self.add(result, self.reshape(shift, (*type_.shape, *(1,) * spread)))
