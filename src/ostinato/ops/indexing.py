"""Gathers, scatters and dynamic slices.

No index can reach outside its tensor: gathers count negative indices from the end and clamp what
is still outside, scatters drop it, and dynamic slices clamp their starts so that the slice fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.facts import Fact
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import Composite, normalize_axis
from ostinato.variables import (
    Dim,
    Expr,
    bounds,
    provably_nonnegative,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DYNAMIC_SLICE",
    "DYNAMIC_UPDATE_SLICE",
    "FAMILY",
    "GATHER_ND",
    "MODES",
    "ONE_HOT",
    "SCATTER",
    "SCATTER_ND",
    "TAKE",
    "TAKE_ALONG_AXIS",
    "clamped",
    "expect_block",
]

#: The ways in which a scatter combines an update with the element there.
MODES = ("set", "add", "mul", "min", "max")


class Take(Op):
    """The slices of ``x`` along ``axis`` at ``indices``, whose shape replaces that axis."""

    takes_narrow = True
    name = "take"
    reads_once = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        x, indices = operands
        _expect_indices(self, indices)
        axis = normalize_axis(attrs["axis"], x.ndim)
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        x, indices = operands
        return [_choice(x, indices, normalize_axis(attrs["axis"], x.ndim))]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, indices = operands
        axis = attrs["axis"]
        if x.shape[axis] == 0:
            shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
            return xp.broadcast_to(False, shape)
        return xp.take(x, clamped(xp, indices, x.shape[axis]), axis=axis)


class TakeAlongAxis(Op):
    """Along ``axis`` the elements at ``indices``, whose other axes are those of ``x``."""

    takes_narrow = True
    name = "take_along_axis"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        x, indices = operands
        _expect_indices(self, indices)
        axis = normalize_axis(attrs["axis"], x.ndim)
        others = (*x.shape[:axis], *x.shape[axis + 1 :])
        self.expect(
            indices.ndim == x.ndim
            and (*indices.shape[:axis], *indices.shape[axis + 1 :]) == others,
            f"{x} and its indices {indices} differ in more than axis {axis}",
        )
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, indices.shape),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        x, indices = operands
        return [_choice(x, indices, normalize_axis(attrs["axis"], x.ndim))]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, indices = operands
        axis = attrs["axis"]
        if x.shape[axis] == 0:
            return xp.broadcast_to(False, indices.shape)
        return xp.take_along_axis(x, clamped(xp, indices, x.shape[axis]), axis=axis)


class GatherNd(Op):
    """Elements or slices of ``x`` at index vectors, which are the last axis of ``indices``.

    The first ``batch_dims`` axes of both are the same and are stepped through together.
    """

    takes_narrow = True
    name = "gather_nd"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        x, indices = operands
        _expect_indices(self, indices)
        batch = attrs["batch_dims"]
        depth = _index_depth(self, x, indices, batch)
        self.expect(
            x.shape[:batch] == indices.shape[:batch],
            f"{x} and its indices {indices} differ in their first {batch} axes",
        )
        self.expect_facts(operands, attrs)
        return (TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :])),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        x, indices = operands
        batch = attrs["batch_dims"]
        depth = _index_depth(self, x, indices, batch)
        return [_choice(x, indices, axis) for axis in range(batch, batch + depth)]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, indices = operands
        batch, depth = attrs["batch_dims"], indices.shape[-1]
        points = indices.shape[:-1]
        if 0 in x.shape[batch : batch + depth]:
            return xp.broadcast_to(False, (*points, *x.shape[batch + depth :]))
        lead = [xp.iota(points, axis, INT64) for axis in range(batch)]
        picked = [clamped(xp, indices[..., j], x.shape[batch + j]) for j in range(depth)]
        if not lead and not picked:
            return xp.broadcast_to(x, (*points, *x.shape))
        return x[(*lead, *picked)]


class DynamicSlice(Op):
    """A block of ``sizes`` that starts where the integer scalars say, moved to lie within ``x``."""

    name = "dynamic_slice"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect(bool(operands), "takes a tensor and the start of each axis")
        x, *starts = operands
        sizes = attrs["sizes"]
        _expect_starts(self, x, starts)
        expect_block(x, sizes)
        return (TensorType(x.dtype, tuple(sizes)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *starts = operands
        for axis, (start, size) in enumerate(zip(starts, attrs["sizes"], strict=True)):
            first = _fitting(xp, start, x.shape[axis] - size)
            x = xp.take(x, first + xp.iota((size,), 0, INT64), axis=axis)
        return x


class DynamicUpdateSlice(Op):
    """``x`` with the block that starts where the integer scalars say replaced by ``update``."""

    name = "dynamic_update_slice"
    updates_operand = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect(len(operands) >= 2, "takes a tensor, an update, and the start of each axis")
        x, update, *starts = operands
        _expect_same_dtype(self, x, update)
        _expect_starts(self, x, starts)
        expect_block(x, update.shape)
        return (x,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, update, *starts = operands
        if 0 in update.shape:
            return x
        inside, source = True, update
        for axis, start in enumerate(starts):
            size, length = update.shape[axis], x.shape[axis]
            line = [1] * len(x.shape)
            line[axis] = length
            position = xp.iota((length,), 0, INT64) - _fitting(xp, start, length - size)
            within = xp.logical_and(position >= 0, position < size)
            inside = xp.logical_and(inside, xp.reshape(within, tuple(line)))
            source = xp.take(source, clamped(xp, position, size), axis=axis)
        return xp.where(inside, source, x)


class Scatter(Op):
    """``x`` with ``updates`` combined in along ``axis`` at ``indices``.

    ``indices`` and ``updates`` have one shape, no larger than ``x`` on the other axes: the update
    at ``[i, j]`` goes to ``x[indices[i, j], j]`` for axis 0. Of several updates of one element
    with mode ``"set"`` the last in C order stays.
    """

    name = "scatter"
    updates_operand = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, indices, updates = operands
        _expect_indices(self, indices)
        _expect_same_dtype(self, x, updates)
        _expect_mode(self, x, attrs["mode"])
        axis = normalize_axis(attrs["axis"], x.ndim)
        self.expect(
            indices.shape == updates.shape,
            f"indices {indices} and updates {updates} have different shapes",
        )
        self.expect(indices.ndim == x.ndim, f"indices {indices} and {x} differ in rank")
        for a, (have, most) in enumerate(zip(indices.shape, x.shape, strict=True)):
            self.expect(
                a == axis or have == most or bounds(have)[1] <= bounds(most)[0],
                f"axis {a} of the indices ({have}) is not within that of {x}",
            )
        return (x,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, indices, updates = operands
        points = [xp.iota(indices.shape, a, INT64) for a in range(len(x.shape))]
        points[attrs["axis"]] = _droppable(xp, indices, x.shape[attrs["axis"]])
        return xp.scatter_at(x, points, updates, attrs["mode"])


class ScatterNd(Op):
    """``x`` with slices ``updates`` combined in at the index vectors of ``indices``' last axis."""

    name = "scatter_nd"
    updates_operand = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3)
        x, indices, updates = operands
        _expect_indices(self, indices)
        _expect_same_dtype(self, x, updates)
        _expect_mode(self, x, attrs["mode"])
        depth = _index_depth(self, x, indices, 0)
        expected = TensorType(x.dtype, (*indices.shape[:-1], *x.shape[depth:]))
        self.expect(updates == expected, f"expected updates {expected}, got {updates}")
        return (x,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, indices, updates = operands
        depth, lead = indices.shape[-1], len(indices.shape) - 1
        shape = tuple(updates.shape)
        points = []
        for axis, size in enumerate(x.shape):
            if axis < depth:
                index = _droppable(xp, indices[..., axis], size)
                spread = (*index.shape, *(1,) * (len(shape) - lead))
                points.append(xp.broadcast_to(xp.reshape(index, spread), shape))
            else:
                points.append(xp.iota(shape, lead + axis - depth, INT64))
        return xp.scatter_at(x, points, updates, attrs["mode"])


class OneHot(Composite):
    """A new axis of ``depth`` that is 1 at the operand's value and 0 elsewhere."""

    name = "one_hot"
    widens = False

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        _expect_indices(self, x)
        depth, dtype = attrs["depth"], attrs["dtype"]
        self.expect(
            isinstance(depth, Expr) or (isinstance(depth, int) and depth >= 0),
            f"depth is a dim, got {depth!r}",
        )
        self.expect(isinstance(dtype, DType), f"dtype is a DType, got {dtype!r}")
        axis = normalize_axis(attrs["axis"], x.ndim + 1)
        return (TensorType(dtype, (*x.shape[:axis], depth, *x.shape[axis:])),)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        axis, shape = attrs["axis"], tuple(x.shape)
        spread = xp.reshape(xp.cast(x, INT64), (*shape[:axis], 1, *shape[axis:]))
        line = [1] * (len(shape) + 1)
        line[axis] = attrs["depth"]
        return xp.cast(xp.equal(spread, xp.iota(tuple(line), axis, INT64)), attrs["dtype"])


# -- checks -----------------------------------------------------------------------------------


def _expect_indices(op: Op, indices: TensorType) -> None:
    op.expect(indices.dtype.is_integer, f"indices are integers, got {indices}")


def _choice(x: TensorType, indices: TensorType, axis: int) -> Fact:
    """The fact that ``axis`` has an element if anything is taken."""
    problem = f"axis {axis} of {x} is empty: there is nothing to take"
    return Fact(x.shape[axis], 1, problem, indices.size)


def _expect_same_dtype(op: Op, x: TensorType, updates: TensorType) -> None:
    op.expect(
        x.dtype == updates.dtype, f"expected updates of {x.dtype}, got {updates}; cast them first"
    )


def _expect_mode(op: Op, x: TensorType, mode: Any) -> None:
    op.expect(mode in MODES, f"mode is one of {', '.join(MODES)}, got {mode!r}")
    op.expect(mode == "set" or not x.dtype.is_bool, f"bools have no {mode!r}")


def _expect_starts(op: Op, x: TensorType, starts: Sequence[TensorType]) -> None:
    op.expect(len(starts) == x.ndim, f"{len(starts)} starts are given for {x.ndim} dimensions")
    for start in starts:
        op.expect(
            start.dtype.is_integer and start.ndim == 0, f"a start is an integer scalar, got {start}"
        )


def expect_block(x: TensorType, sizes: Sequence[Dim]) -> None:
    """Refuse a block of ``sizes`` unless it lies within ``x`` whatever the Variables are.

    Raises:
        GraphError: another number of axes, or an axis that is, or may be, too short.
    """
    if len(sizes) != x.ndim:
        raise GraphError(f"{len(sizes)} sizes are given for {x.ndim} dimensions")
    for size, most in zip(sizes, x.shape, strict=True):
        if not provably_nonnegative(size) or not provably_nonnegative(most - size):
            raise GraphError(f"a block of {size} does not fit an axis of {most}")


def _index_depth(op: Op, x: TensorType, indices: TensorType, batch: Any) -> int:
    """The length of the index vectors in the last axis of ``indices``."""
    op.expect(
        isinstance(batch, int) and 0 <= batch < max(indices.ndim, 1),
        f"batch_dims is an int from 0 to the rank of the indices, got {batch!r}",
    )
    op.expect(indices.ndim >= 1, f"indices have at least one axis, got {indices}")
    depth = indices.shape[-1]
    op.expect(
        isinstance(depth, int) and batch + depth <= x.ndim,
        f"index vectors of {depth} do not fit the {x.ndim} dimensions of {x}",
    )
    return int(depth)  # type: ignore[arg-type]


# -- rules ------------------------------------------------------------------------------------


def clamped(xp: Any, indices: Any, size: int) -> Any:
    """Indices within ``0..size-1``, negative ones counted from the end first."""
    index = xp.cast(indices, INT64)
    index = xp.where(index < 0, index + size, index)
    return xp.minimum(xp.maximum(index, 0), size - 1)


def _droppable(xp: Any, indices: Any, size: int) -> Any:
    """Indices, negative ones counted from the end; ``size`` stands for all that lie outside."""
    index = xp.cast(indices, INT64)
    index = xp.where(index < 0, index + size, index)
    return xp.where(xp.logical_or(index < 0, index > size), size, index)


def _fitting(xp: Any, start: Any, last: int) -> Any:
    return xp.minimum(xp.maximum(xp.cast(start, INT64), 0), last)


TAKE, TAKE_ALONG_AXIS, GATHER_ND = Take(), TakeAlongAxis(), GatherNd()
DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE = DynamicSlice(), DynamicUpdateSlice()
SCATTER, SCATTER_ND, ONE_HOT = Scatter(), ScatterNd(), OneHot()

FAMILY: tuple[Op, ...] = (
    TAKE,
    TAKE_ALONG_AXIS,
    GATHER_ND,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    SCATTER,
    SCATTER_ND,
    ONE_HOT,
)
