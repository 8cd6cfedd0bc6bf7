"""Strides: which tensors are contiguous, and which reshapes are views."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["contiguous_strides", "is_contiguous", "is_viewable"]


def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The strides of a tensor whose elements lie in C order without gaps, as PyTorch gives them."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether elements lie in C order without gaps."""
    if 0 in shape:
        return True
    pairs = zip(shape, strides, contiguous_strides(shape), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in pairs)


def is_viewable(shape: Sequence[Dim], strides: Sequence[Dim], new_shape: Sequence[Dim]) -> bool:
    """Whether a reshape to ``new_shape`` is a view, as PyTorch decides it.

    Sizes that are no numbers count as viewable where the tensor is contiguous, or where the shapes
    differ in axes of one element only.
    """
    if is_contiguous(shape, strides):
        return True
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    new = [size for size in new_shape if size != 1]
    if [size for size, _ in old] == new:
        return True
    numbers = [n for axis in old for n in axis if isinstance(n, int)]
    sizes = [size for size in new if isinstance(size, int)]
    if len(numbers) < 2 * len(old) or len(sizes) < len(new):
        return False
    return _splits(_merged(list(zip(numbers[::2], numbers[1::2], strict=True))), sizes)


def _merged(axes: Sequence[tuple[int, int]]) -> list[int]:
    """Runs of axes that are one in memory: the elements of each."""
    counts: list[int] = []
    last = 0
    for size, stride in axes:
        if counts and last == size * stride:
            counts[-1] *= size
        else:
            counts.append(size)
        last = stride
    return counts


def _splits(counts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each of ``counts`` is the product of consecutive ``sizes``."""
    remaining = [*sizes]
    for count in counts:
        elements = 1
        while elements < count and remaining:
            elements *= remaining.pop(0)
        if elements != count:
            return False
    return not remaining
