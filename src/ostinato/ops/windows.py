"""The arithmetic of sliding windows, shared by convolution and pooling.

A window covers ``kernel`` positions, ``dilation`` apart, and moves by ``stride`` over an axis that
is padded with ``padding = (low, high)`` extra positions.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ostinato.errors import GraphError
from ostinato.variables import (
    Requirement,
    ceil_div,
    floor_div,
    maximum,
    minimum,
    provably_less,
    remainder,
)

if TYPE_CHECKING:
    from ostinato.ir.op import Attr
    from ostinato.variables import Dim

__all__ = [
    "Padding",
    "PaddingSpec",
    "check_geometry",
    "check_windows",
    "dilated",
    "per_axis",
    "resolve_padding",
    "spatial_widths",
    "whole_windows",
    "window_count",
    "window_offsets",
    "window_slices",
    "windowed_shape",
]

#: Canonical padding: ``(low, high)`` for every spatial axis.
Padding: TypeAlias = tuple[tuple[int, int], ...]
#: The forms in which users may write it.
PaddingSpec: TypeAlias = (
    int | Sequence[int] | Sequence[tuple[int, int]] | Literal["same", "same_lower", "valid"]
)


def per_axis(what: str, value: Any, ndim: int, least: int = 1) -> tuple[int, ...]:
    """``value`` as one int per spatial axis.

    Raises:
        GraphError: it is neither an int nor ``ndim`` ints, or one is below ``least``.
    """
    listed = tuple(value) if isinstance(value, Sequence) else (value,) * ndim
    if any(isinstance(v, bool) or not hasattr(v, "__index__") for v in listed):
        raise GraphError(f"{what} is an int or one int per spatial axis, got {value!r}")
    result = tuple(operator.index(v) for v in listed)
    if len(result) != ndim:
        raise GraphError(f"{what} {value!r} has {len(result)} entries for {ndim} spatial axes")
    if any(v < least for v in result):
        raise GraphError(f"{what} must be at least {least}, got {value!r}")
    return result


def check_geometry(attrs: Mapping[str, Attr], ndim: int) -> None:
    """Raise unless a node's attributes describe windows over ``ndim`` spatial axes.

    Raises:
        GraphError: one is missing, has too few or too many entries, or holds what makes no sense.
    """
    for key in ("kernel", "stride", "dilation", "output_padding"):
        if key in attrs:
            _check_tuple(key, attrs[key], ndim)
            per_axis(key, attrs[key], ndim, least=0 if key == "output_padding" else 1)
    _check_tuple("padding", attrs["padding"], ndim)
    for ends in attrs["padding"]:
        _check_tuple("padding", ends, 2)
        per_axis("padding", ends, 2, least=0)


def _check_tuple(key: str, value: Attr, length: int) -> None:
    if not isinstance(value, tuple) or len(value) != length:
        raise GraphError(f"{key} takes a tuple of {length}, got {value!r}")


def dilated(kernel: int, dilation: int) -> int:
    """The number of positions that a window spans from its first to its last."""
    return (kernel - 1) * dilation + 1


def resolve_padding(
    padding: PaddingSpec,
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Padding:
    """``padding`` as ``(low, high)`` for every spatial axis.

    ``"same"`` gives ``ceil(size / stride)`` windows, with an odd position added at the end;
    ``"same_lower"`` adds it at the start (ONNX ``SAME_UPPER`` and ``SAME_LOWER``).

    Raises:
        GraphError: it is malformed, or ``"same"`` depends on a size that is symbolic.
    """
    ndim = len(sizes)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * ndim
        if padding not in ("same", "same_lower"):
            raise GraphError(f"padding {padding!r} is none of 'same', 'same_lower', 'valid'")
        geometry = zip(sizes, kernel, stride, dilation, strict=True)
        totals = [_same_total(*axis) for axis in geometry]
        halves = [(total // 2, total - total // 2) for total in totals]
        return tuple(halves if padding == "same" else [(high, low) for low, high in halves])
    pairs = [p for p in padding if isinstance(p, Sequence)] if isinstance(padding, Sequence) else []
    if not pairs:
        return tuple((p, p) for p in per_axis("padding", padding, ndim, least=0))
    if len(pairs) != ndim or any(len(p) != 2 for p in pairs):
        raise GraphError(f"padding {padding!r} is not one (low, high) for {ndim} spatial axes")
    ends = (per_axis("padding", p, 2, least=0) for p in pairs)
    return tuple((low, high) for low, high in ends)


def _same_total(size: Dim, kernel: int, stride: int, dilation: int) -> int:
    span = dilated(kernel, dilation)
    if stride == 1:
        return span - 1
    total = maximum((ceil_div(size, stride) - 1) * stride + span - size, 0)
    if not isinstance(total, int):
        raise GraphError.of(
            f"padding 'same' with stride {stride} depends on the symbolic size {size}; "
            "give (low, high) instead",
            Requirement(remainder(size, stride), equal=True),
        )
    return total


def window_count(
    size: Dim,
    kernel: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    ceil_mode: bool = False,
) -> Dim:
    """The number of windows that fit on one axis.

    With ``ceil_mode`` a last window may hang over the end, provided that it starts before the
    padding at the end (PyTorch's rule).
    """
    low, high = padding
    span = dilated(kernel, dilation)
    padded = size + low + high
    # One more window than strides that fit; zero where a symbolic size is below one window.
    steps = maximum(padded - span + stride, 0)
    if not ceil_mode:
        return floor_div(steps, stride)
    return minimum(floor_div(steps + stride - 1, stride), ceil_div(size + low, stride))


def windowed_shape(
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[Dim, ...]:
    """:func:`window_count` for every spatial axis."""
    axes = zip(sizes, kernel, stride, padding, dilation, strict=True)
    return tuple(window_count(*axis, ceil_mode) for axis in axes)


def check_windows(
    counts: Sequence[Dim],
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    padding: Padding,
    dilation: Sequence[int],
) -> None:
    """Raise where the ``counts`` say that no window can ever fit.

    A symbolic size may still turn out too small when it is known: there are no windows then.

    Raises:
        GraphError: an axis has no window.
    """
    axes = zip(counts, sizes, kernel, padding, dilation, strict=True)
    for count, size, k, (low, high), d in axes:
        if provably_less(count, 1):
            raise GraphError(
                f"a window of {dilated(k, d)} positions does not fit on {size + low + high} "
                "(padded) positions"
            )


def whole_windows(
    padding: Sequence[tuple[int, int]], stride: Sequence[int], ceil_mode: bool
) -> list[tuple[int, int]]:
    """Padding within which all windows lie, those of ``ceil_mode`` that hang over the end too."""
    return [
        (low, high + (step - 1) * ceil_mode)
        for (low, high), step in zip(padding, stride, strict=True)
    ]


def window_offsets(kernel: Sequence[int], dilation: Sequence[int]) -> Iterator[list[int]]:
    """For every kernel position, its distance from the start of the window."""
    for position in itertools.product(*map(range, kernel)):
        yield [p * d for p, d in zip(position, dilation, strict=True)]


def spatial_widths(padding: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The argument of ``xp.pad``, before and after, that pads an array ``[N, C, *spatial]``."""
    return (0, 0, *(low for low, _ in padding)), (0, 0, *(high for _, high in padding))


def window_slices(
    x: Any,
    counts: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], Any]]:
    """For every kernel position, what all windows see there: ``[..., *counts]``.

    The spatial axes are the last ones of ``x``, which is padded already.
    """
    axes = tuple(zip(counts, stride, dilation, strict=True))
    for position in itertools.product(*map(range, kernel)):
        index = tuple(
            slice(p * d, p * d + max((n - 1) * s + 1, 0), s)
            for p, (n, s, d) in zip(position, axes, strict=True)
        )
        yield position, x[(..., *index)]
