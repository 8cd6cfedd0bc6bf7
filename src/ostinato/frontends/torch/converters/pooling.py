"""Converters of pooling: windows of given sizes, and windows that follow from the result's size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _each(numbers: Any, spatial: int) -> tuple[int, ...]:
    """A number for each spatial axis: one that is given alone is for all of them."""
    listed = numbers if isinstance(numbers, tuple) else (numbers,)
    return listed * spatial if len(listed) == 1 else listed


def _batched(call: Call, x: Value, spatial: int, pool: Callable[[Value], Value]) -> Value:
    """``pool`` of ``x``, to which one item alone is a batch of one."""
    if x.ndim == spatial + 2:
        return pool(x)
    return call.g.squeeze(pool(call.g.expand_dims(x, 0)), 0)


def _max_pool(spatial: int) -> Converter:
    def convert(
        call: Call,
        self: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Value:
        kernel = _each(kernel_size, spatial)
        return _batched(
            call,
            self,
            spatial,
            lambda x: call.g.max_pool(
                x,
                kernel,
                _each(stride, spatial) if stride != () else kernel,
                _each(padding, spatial),
                _each(dilation, spatial),
                ceil_mode,
            ),
        )

    return convert


def _avg_pool(spatial: int) -> Converter:
    def convert(
        call: Call,
        self: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        kernel = _each(kernel_size, spatial)
        if divisor_override is not None and (ceil_mode or not self.dtype.is_float):
            call.unsupported("a divisor of its own together with ceil_mode")
        counts_all = count_include_pad or divisor_override is not None

        def pool(x: Value) -> Value:
            means = call.g.avg_pool(
                x,
                kernel,
                _each(stride, spatial) if stride not in ((), None) else kernel,
                _each(padding, spatial),
                1,
                ceil_mode,
                counts_all,
            )
            if divisor_override is None:
                return means
            return call.g.multiply(means, math.prod(kernel) / divisor_override)

        return _batched(call, self, spatial, pool)

    return convert


def _adaptive_avg_pool(spatial: int) -> Converter:
    """Means over parts of each axis, as many as the result has; they may overlap by one."""

    def convert(call: Call, self: Value, output_size: Any) -> Value:
        g = call.g
        first = self.ndim - spatial
        x = g.cast(self, self.dtype.accumulator)
        wanted = call.shape[first:]
        if all(size == 1 for size in wanted):
            axes = tuple(range(first, self.ndim))
            return call.rounded(g.mean(x, axis=axes, keepdims=True))
        kernel = tuple(
            size // count
            for size, count in zip(self.shape[first:], wanted, strict=True)
            if isinstance(size, int) and isinstance(count, int) and count and size % count == 0
        )
        if len(kernel) == spatial:
            return _batched(call, self, spatial, lambda y: g.avg_pool(y, kernel))
        for axis in range(first, self.ndim):
            x = _means_along(call, x, axis)
        return call.rounded(x)

    return convert


def _means_along(call: Call, x: Value, axis: int) -> Value:
    """Means over the parts of an axis: from ``floor(i n / m)`` to ``ceil((i + 1) n / m)``."""
    g = call.g
    size, count = x.shape[axis], call.shape[axis]
    if count == size:
        return x
    if not isinstance(size, int) or not isinstance(count, int):
        call.unsupported("an adaptive pooling whose windows follow from run-time sizes")
    if count == 0:
        return g.slice(x, [0], [0], axes=[axis])
    parts = []
    for index in range(count):
        start, stop = index * size // count, -(-(index + 1) * size // count)
        part = g.slice(x, [start], [stop], axes=[axis])
        parts.append(g.mean(part, axis=axis, keepdims=True))
    return g.concat(parts, axis)


CONVERTERS: dict[str, Converter] = {
    **{f"aten.max_pool{n}d": _max_pool(n) for n in (1, 2, 3)},
    **{f"aten.avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d": _adaptive_avg_pool(n) for n in (1, 2, 3)},
    "aten._adaptive_avg_pool2d": _adaptive_avg_pool(2),
    "aten._adaptive_avg_pool3d": _adaptive_avg_pool(3),
}
