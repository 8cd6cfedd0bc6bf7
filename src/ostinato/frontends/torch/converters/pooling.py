"""Converters of pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "each"]


def each(numbers: Any, spatial: int) -> tuple[Any, ...]:
    """A number for each spatial axis: one that is given alone is for all of them."""
    listed = numbers if isinstance(numbers, tuple) else (numbers,)
    return listed * spatial if len(listed) == 1 else listed


def _batched(call: Call, x: Value, spatial: int, pool: Callable[[Value], Any]) -> Any:
    """``pool`` of ``x``, to which one item alone is a batch of one."""
    if x.ndim == spatial + 2:
        return pool(x)
    found = pool(call.g.expand_dims(x, 0))
    if isinstance(found, tuple):
        return tuple(call.g.squeeze(value, 0) for value in found)
    return call.g.squeeze(found, 0)


def _max_pool(spatial: int, *, with_indices: bool) -> Converter:
    def convert(
        call: Call,
        self: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = each(kernel_size, spatial)
        steps = each(stride, spatial) if stride != () else kernel
        pads, apart = each(padding, spatial), each(dilation, spatial)

        def pool(x: Value) -> Any:
            if with_indices:
                return call.g.max_pool(
                    x, kernel, steps, pads, apart, ceil_mode, return_indices=True
                )
            return call.g.max_pool(x, kernel, steps, pads, apart, ceil_mode)

        return _batched(call, self, spatial, pool)

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
    ) -> Any:
        kernel = each(kernel_size, spatial)
        steps = each(stride, spatial) if stride not in ((), None) else kernel
        pads = each(padding, spatial)
        if not self.dtype.is_float:
            call.unsupported("means of integers")

        def pool(x: Value) -> Value:
            return call.g.avg_pool(
                x, kernel, steps, pads, 1, ceil_mode, count_include_pad, divisor_override
            )

        return _batched(call, self, spatial, pool)

    return convert


def _adaptive_avg_pool(spatial: int) -> Converter:
    def convert(call: Call, self: Value, output_size: Any) -> Any:
        g, sizes = call.g, call.shape[-spatial:]
        first = self.ndim - spatial
        if all(size == 1 for size in sizes):
            return g.mean(self, axis=tuple(range(first, self.ndim)), keepdims=True)
        kernel = tuple(
            size // count
            for size, count in zip(self.shape[first:], sizes, strict=True)
            if isinstance(size, int) and isinstance(count, int) and count and size % count == 0
        )
        if len(kernel) == spatial:
            return _batched(call, self, spatial, lambda x: g.avg_pool(x, kernel))
        return _batched(call, self, spatial, lambda x: g.adaptive_avg_pool(x, sizes))

    return convert


def _adaptive_max_pool(spatial: int) -> Converter:
    def convert(call: Call, self: Value, output_size: Any) -> Any:
        g, sizes = call.g, call.shape[-spatial:]
        return _batched(
            call, self, spatial, lambda x: g.adaptive_max_pool(x, sizes, return_indices=True)
        )

    return convert


def _max_unpool(spatial: int) -> Converter:
    def convert(call: Call, self: Value, indices: Value, output_size: Any, *_: Any) -> Any:
        g, sizes = call.g, call.shape[-spatial:]
        if self.ndim == spatial + 2:
            return g.max_unpool(self, indices, sizes)
        x, places = g.expand_dims(self, 0), g.expand_dims(indices, 0)
        return g.squeeze(g.max_unpool(x, places, sizes), 0)

    return convert


CONVERTERS: dict[str, Converter] = {
    **{f"aten.max_pool{n}d": _max_pool(n, with_indices=False) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices": _max_pool(n, with_indices=True) for n in (1, 2, 3)},
    **{f"aten.avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d": _adaptive_avg_pool(n) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d": _adaptive_avg_pool(n) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d": _adaptive_max_pool(n) for n in (1, 2, 3)},
    **{f"aten.max_unpool{n}d": _max_unpool(n) for n in (2, 3)},
}
