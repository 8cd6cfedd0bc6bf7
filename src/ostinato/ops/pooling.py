"""Pooling over one to three spatial axes. Global pools are plain reductions, not ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import DType
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.windows import (
    check_geometry,
    check_windows,
    dilated,
    spatial_widths,
    window_slices,
    windowed_shape,
)
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["AVG_POOL", "FAMILY", "MAX_POOL", "AvgPool", "MaxPool"]


class Pool(Op):
    """The base of both pools: ``x [N, C, *spatial]`` gives ``[N, C, *windows]``.

    Attributes of the node, one entry per spatial axis: ``kernel``, ``stride``, ``padding`` as
    ``(low, high)``, ``dilation``; and ``ceil_mode``: whether a last window may hang over the end.
    """

    takes_epilogue = True
    writes_subviews = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        self.expect(3 <= x.ndim <= 5, f"x is [N, C, *spatial] with 1 to 3 spatial axes, got {x}")
        self.check_dtype(x)
        check_geometry(attrs, x.ndim - 2)
        for k, d, ends in zip(attrs["kernel"], attrs["dilation"], attrs["padding"], strict=True):
            self.expect(
                max(ends) < dilated(k, d),
                f"padding {ends} reaches the window's size {dilated(k, d)}: "
                "a window would see nothing but padding",
            )
        sizes = x.shape[2:]
        counts = _counts(sizes, attrs)
        check_windows(counts, sizes, attrs["kernel"], attrs["padding"], attrs["dilation"])
        return (TensorType(x.dtype, (*x.shape[:2], *counts)),)

    def check_dtype(self, x: TensorType) -> None:
        """Raise unless the op is defined for the dtype of ``x``."""
        raise NotImplementedError

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result,) = self.infer(*operands, **attrs)
        return result.size * prod(attrs["kernel"]) if result.dtype.is_float else 0


class MaxPool(Pool):
    """The greatest value of every window; NaN wins, padding never does (ONNX ``MaxPool``)."""

    name = "max_pool"

    def check_dtype(self, x: TensorType) -> None:
        self.expect(not x.dtype.is_bool, "expected numbers, got bool")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        dtype = DType.parse(x.dtype)
        least = -math.inf if dtype.is_float else -(1 << dtype.bits - 1) * dtype.is_signed
        result: Any = None
        for seen in _windows(xp, x, least, attrs):
            result = seen if result is None else xp.maximum(result, seen)
        return result


class AvgPool(Pool):
    """The mean of every window (ONNX ``AveragePool``, PyTorch ``avg_pool``).

    With ``count_include_pad`` the zeros of the padding count as elements; what a last window of
    ``ceil_mode`` covers beyond the padding never counts.
    """

    name = "avg_pool"

    def check_dtype(self, x: TensorType) -> None:
        self.expect(x.dtype.is_float, f"expected floats, got {x.dtype}; cast them first")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        total: Any = 0
        for seen in _windows(xp, x, 0, attrs):
            total = total + seen
        padding = attrs["padding"]
        ones = xp.full((1, 1, *x.shape[2:]), 1, DType.parse(x.dtype))
        if attrs["count_include_pad"]:
            ones = xp.pad(ones, *spatial_widths(padding), 1)
            padding = ((0, 0),) * len(padding)
        counts, geometry = _counts(x.shape[2:], attrs), attrs | {"padding": padding}
        count: Any = 0
        for seen in _windows(xp, ones, 0, geometry, counts):
            count = count + seen
        return total / xp.maximum(count, 1)


def _counts(sizes: Sequence[Dim], attrs: dict[str, Attr]) -> tuple[Dim, ...]:
    return windowed_shape(
        sizes,
        attrs["kernel"],
        attrs["stride"],
        attrs["padding"],
        attrs["dilation"],
        attrs["ceil_mode"],
    )


def _windows(
    xp: Any, x: Any, fill: Any, attrs: dict[str, Attr], counts: tuple[Dim, ...] | None = None
) -> Any:
    """The elements of all windows at each kernel position, ``fill`` wherever they leave ``x``."""
    kernel, stride, dilation = attrs["kernel"], attrs["stride"], attrs["dilation"]
    sizes = x.shape[2:]
    counts = _counts(sizes, attrs) if counts is None else counts
    padding = []
    axes = zip(sizes, counts, kernel, stride, attrs["padding"], dilation, strict=True)
    for size, count, k, s, (low, high), d in axes:
        reached = (count - 1) * s + dilated(k, d)
        padding.append((low, max(high, reached - size - low)))
    padded = xp.pad(x, *spatial_widths(padding), fill)
    return (seen for _, seen in window_slices(padded, counts, kernel, stride, dilation))


MAX_POOL, AVG_POOL = MaxPool(), AvgPool()
FAMILY: tuple[Op, ...] = (MAX_POOL, AVG_POOL)
