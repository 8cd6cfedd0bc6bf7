"""Operands whose sizes are to agree, where that depends on data.

Two data-dependent sizes that an op takes for equal may differ in a run. One operand is then
reshaped to the sizes of the other. That states the equality as facts, which the run checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.base import Elementwise
from ostinato.variables import data_symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.variables import Dim

__all__ = ["agreed_shapes"]

Shape = tuple["Dim", ...]


def agreed_shapes(
    op: Op, shapes: Sequence[Shape], attrs: Mapping[str, Attr]
) -> Sequence[Shape] | None:
    """The shapes that the operands of ``op`` are to have; ``None``: those that they have."""
    if isinstance(op, Elementwise):
        agreed = _broadcast(shapes)
    elif op.name == "concat":
        agreed = _joined(shapes, int(attrs["axis"]))
    elif op.name == "matmul":
        agreed = _multiplied(*shapes)
    else:
        return None
    return None if list(agreed) == list(shapes) else agreed


def _agree(wanted: Dim, size: Dim) -> Dim:
    """``wanted`` for a size that may equal it in a run and depends on data; else ``size``."""
    differs = wanted != size and 1 not in (wanted, size)
    return wanted if differs and data_symbols(wanted) | data_symbols(size) else size


def _broadcast(shapes: Sequence[Shape]) -> list[Shape]:
    ndim = max(map(len, shapes))
    agreed = list(shapes)
    for axis in range(-ndim, 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wanted = next((size for size in sizes if size != 1), 1)
        for i, shape in enumerate(agreed):
            if len(shape) >= -axis:
                agreed[i] = _with(shape, axis, _agree(wanted, shape[axis]))
    return agreed


def _joined(shapes: Sequence[Shape], axis: int) -> list[Shape]:
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes):
        return list(shapes)
    return [
        tuple(
            size if i == axis % len(first) else _agree(first[i], size)
            for i, size in enumerate(shape)
        )
        for shape in shapes
    ]


def _multiplied(left: Shape, right: Shape) -> list[Shape]:
    if not left or not right:
        return [left, right]
    axis = -2 if len(right) > 1 else -1
    right = _with(right, axis, _agree(left[-1], right[axis]))
    batches = _broadcast([left[:-2], right[:-2]]) if len(left) > 2 and len(right) > 2 else None
    if batches is None:
        return [left, right]
    return [(*batches[0], *left[-2:]), (*batches[1], *right[-2:])]


def _with(shape: Shape, axis: int, size: Dim) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])
