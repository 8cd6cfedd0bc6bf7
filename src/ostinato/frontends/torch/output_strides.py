"""Strides of outputs. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ostinato.frontends.torch.layout import contiguous_strides
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph

__all__ = ["OutputStrides"]


@dataclass(frozen=True)
class OutputStrides:
    """The strides that an output has in eager, and the way to get them.

    A graph writes its outputs densely in C order, so it computes them with their axes in the order
    of memory, and a view puts the axes back.

    Attributes:
        order: the axes, outermost in memory first; ``None``: C order.
        repeated: the axes along which elements are repeated, of stride 0.
        exact: shape and strides, where they are numbers.
        copied: whether elements have gaps between them, so that they have to be copied.
    """

    order: tuple[int, ...] | None = None
    repeated: tuple[int, ...] = ()
    exact: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    copied: bool = False

    @staticmethod
    def of(traced: torch.Tensor) -> OutputStrides:
        """The strides that PyTorch has traced."""
        shape, strides = _hints(traced.shape), _hints(traced.stride())
        if shape is None or strides is None:
            return OutputStrides()
        numbers = all(isinstance(n, int) for n in (*traced.shape, *traced.stride()))
        return OutputStrides.at(shape, strides, fixed=numbers, is_complex=traced.is_complex())

    @staticmethod
    def at(
        shape: tuple[int, ...], strides: tuple[int, ...], *, fixed: bool, is_complex: bool
    ) -> OutputStrides:
        """The strides of a tensor.

        Args:
            shape, strides: of the trace.
            fixed: whether those of every call are the same.
            is_complex: whether its elements are complex numbers.
        """
        exact = (shape, strides) if fixed else None
        if 0 not in shape and strides == contiguous_strides(shape):
            return OutputStrides()
        if 0 in shape or is_complex:
            return OutputStrides(None, (), exact, bool(exact) and 0 not in shape)
        repeated = tuple(a for a, n in enumerate(shape) if n > 1 and strides[a] == 0)
        if repeated and exact is None:
            return OutputStrides()
        order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
        expected, dense = 1, True
        for axis in reversed(order):
            if shape[axis] > 1 and axis not in repeated:
                dense &= strides[axis] == expected
                expected *= shape[axis]
        if not dense:
            return OutputStrides(None, (), exact, exact is not None)
        in_order = order == list(range(len(shape)))
        return OutputStrides(None if in_order else tuple(order), repeated, exact)

    def in_memory_order(self, g: Graph, value: Value) -> Value:
        """The value with its axes in the order of memory, and without repeated elements."""
        for axis in self.repeated:
            value = g.slice(value, [0], [1], axes=[axis])
        return value if self.order is None else g.permute_dims(value, self.order)

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as eager gives it, from one that is contiguous in the order of memory."""
        if self.exact is None:
            if self.order is None:
                return tensor
            axes = sorted(range(len(self.order)), key=self.order.__getitem__)
            return tensor.permute(axes)
        shape, strides = self.exact
        if self.copied:
            return torch.empty_strided(shape, strides, dtype=tensor.dtype).copy_(tensor)
        if tensor.stride() == strides and tensor.shape == shape:
            return tensor
        return tensor.as_strided(shape, strides)


def _hints(sizes: Sequence[Any]) -> tuple[int, ...] | None:
    """Sizes as numbers, those of the trace where they differ from call to call."""
    found = []
    for size in sizes:
        hint = size if isinstance(size, int) else size.node.hint
        if hint is None:
            return None
        found.append(int(hint))
    return tuple(found)
