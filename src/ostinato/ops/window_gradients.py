"""The gradients of convolutions and of means of windows, as convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError
from ostinato.ops.windows import dilated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ops.windows import Padding
    from ostinato.variables import Dim

__all__ = ["of_conv_input", "of_conv_weight", "of_means"]


def of_conv_input(
    g: Any,
    grad: Any,
    w: Any,
    sizes: Sequence[Dim],
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
) -> Any:
    """The gradient of a convolution's operand: the transposed convolution with its weight."""
    kernel = g.type_of(w).shape[2:]
    reached = [
        (count - 1) * step + dilated(k, d)
        for count, step, k, d in zip(
            g.type_of(grad).shape[2:], stride, kernel, dilation, strict=True
        )
    ]
    pads, extra = _cropped(reached, sizes, padding)
    return g.conv_transpose(grad, w, None, stride, pads, extra, dilation, groups)


def of_conv_weight(
    g: Any,
    grad: Any,
    x: Any,
    kernel: Sequence[int],
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
) -> Any:
    """The gradient of a convolution's weight: the operand's convolution with that of the result.

    The batch takes the place of the channels, strides and dilations exchange theirs.
    """
    batch, channels, *sizes = g.type_of(x).shape
    outputs = g.type_of(grad).shape[1]
    share = channels // groups
    split = g.reshape(x, (batch, groups, share, *sizes))
    spatial = range(3, 3 + len(sizes))
    images = g.reshape(g.permute_dims(split, (2, 1, 0, *spatial)), (share, groups * batch, *sizes))
    result = g.conv(images, g.swapaxes(grad, 0, 1), None, dilation, padding, stride, groups)
    # Positions that no window of the convolution has reached are left at the end.
    axes = list(range(2, 2 + len(sizes)))
    cut = g.slice(result, [0] * len(axes), list(kernel), axes=axes)
    return g.reshape(g.swapaxes(cut, 0, 1), (outputs, share, *kernel))


def of_means(
    g: Any,
    grad: Any,
    sizes: Sequence[int],
    attrs: Mapping[str, Any],
    count_include_pad: bool,
    divisor: int | None,
) -> Any:
    """The gradient of the operand of means of windows, with the attributes of a pool."""
    type_ = g.type_of(grad)
    counts, channels = type_.shape[2:], type_.shape[1]
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    dtype = type_.dtype.accumulator
    lengths = np.ones((1,) * len(sizes))
    axes = zip(sizes, counts, kernel, stride, padding, strict=True)
    for axis, (size, count, k, step, (low, high)) in enumerate(axes):
        starts = np.arange(count) * step - low
        stops = np.minimum(starts + k, size + high)
        if not count_include_pad:
            starts, stops = np.maximum(starts, 0), np.minimum(stops, size)
        line = np.maximum(stops - starts, 1)
        lengths = lengths * line.reshape([-1 if a == axis else 1 for a in range(len(sizes))])
    if divisor is not None:
        if divisor == 0:
            raise GraphError("divisor_override is not 0")
        lengths = np.full_like(lengths, divisor)
    share = g.divide(g.cast(grad, dtype), g.constant(lengths, dtype))
    reached = [
        (count - 1) * step + k for count, step, k in zip(counts, stride, kernel, strict=True)
    ]
    pads, extra = _cropped(reached, sizes, padding)
    ones = g.ones((channels, 1, *kernel), dtype)
    spread = g.conv_transpose(share, ones, None, stride, pads, extra, 1, channels)
    return g.cast(spread, type_.dtype)


def _cropped(
    reached: Sequence[Dim], sizes: Sequence[Dim], padding: Padding
) -> tuple[Padding, tuple[int, ...]]:
    """Padding and output padding with which a transposed convolution gives ``sizes``.

    Raises:
        GraphError: they depend on a Variable.
    """
    pads, extra = [], []
    for end, size, (low, _) in zip(reached, sizes, padding, strict=True):
        over = end - low - size
        if not isinstance(over, int):
            raise GraphError(f"the positions beyond the windows depend on a Variable: {over}")
        pads.append((low, max(over, 0)))
        extra.append(max(-over, 0))
    return tuple(pads), tuple(extra)
