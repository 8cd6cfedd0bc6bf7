"""Strided views: windows, diagonals, and whatever else has indices that are sums of multiples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.ir.facts import Fact
from ostinato.ir.leaves import check_shape
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.variables import Dim, bounds, prod

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["AFFINE_VIEW", "FAMILY", "AffineView"]


class AffineView(Op):
    """Elements of ``x`` at indices that are sums of multiples of the result's: a strided view.

    The result has ``shape``. Its element at ``i`` is that of ``x`` whose index along axis ``a`` is
    ``starts[a] + sum(steps[a][j] * i[j])``. Windows, diagonals and strided views of memory are of
    this form; elements may occur any number of times.
    """

    takes_narrow = True
    name = "affine_view"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        shape = check_shape(self.name, attrs["shape"])
        starts, steps = attrs["starts"], attrs["steps"]
        self.expect(
            len(starts) == len(steps) == x.ndim and all(len(row) == len(shape) for row in steps),
            f"expected a start and {len(shape)} steps for each axis of {x}, got {starts}, {steps}",
        )
        for step in (step for row in steps for step in row):
            low, high = bounds(step)
            self.expect(low >= 0 or high <= 0, f"the sign of a step is fixed, {step} has either")
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, shape),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Iterator[Fact]:
        """The first and the last index of each axis lie within it."""
        (x,) = operands
        shape = attrs["shape"]
        shown = f"[{','.join(map(str, shape))}]"
        for axis, (start, steps) in enumerate(zip(attrs["starts"], attrs["steps"], strict=True)):
            problem = f"the view {shown} reaches beyond axis {axis} of {x}"
            low = high = start
            for step, size in zip(steps, shape, strict=True):
                if _down(step):
                    low = low + step * (size - 1)
                else:
                    high = high + step * (size - 1)
            yield Fact(low, 0, problem, prod(shape))
            yield Fact(x.shape[axis] - 1 - high, 0, problem, prod(shape))

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        shape = attrs["shape"]
        if 0 in shape:
            return xp.broadcast_to(False, shape)
        points = []
        for start, steps in zip(attrs["starts"], attrs["steps"], strict=True):
            index = xp.full(shape, start, INT64)
            for axis, step in enumerate(steps):
                index = index + step * xp.iota(shape, axis, INT64)
            points.append(index)
        return x[tuple(points)] if points else xp.broadcast_to(x, shape)


def _down(step: Dim) -> bool:
    """Whether indices fall with a step."""
    return bounds(step)[1] <= 0


AFFINE_VIEW = AffineView()

FAMILY: tuple[Op, ...] = (AFFINE_VIEW,)
