"""Shape simplification: data movement that cancels out, or is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.errors import GraphError
from ostinato.ops import elementwise, special
from ostinato.ops.base import broadcast_shapes
from ostinato.ops.linalg import MATMUL
from ostinato.ops.shape import BROADCAST_TO, CONCAT, FLIP, PAD, PERMUTE_DIMS, RESHAPE, SLICE
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import made_by
from ostinato.passes.rewrite import Rewriter, Rule, noted
from ostinato.variables import provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["Shapes"]


class Shapes(Pass):
    """Merges chains of reshapes, permutations, slices and the like; drops those that do nothing.

    Elements are moved, never computed, so every result is the same to the bit; the one exception is
    ``aᵀ @ bᵀ``, which becomes ``(b @ a)ᵀ`` and sums the same products.
    """

    name: ClassVar[str] = "shapes"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        return Rewriter(graph).run({op: noted(self, report, rule) for op, rule in _RULES.items()})


def reshaped(g: Graph, x: Value, shape: Sequence[Dim]) -> Value:
    """``x`` under another shape; ``x`` itself if that is its shape."""
    if x.shape == tuple(shape):
        return x
    return g.apply(RESHAPE, (x,), {"shape": tuple(shape)})[0]


# -- renaming ------------------------------------------------------------------------------------


def _reshape(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    shape = node.outputs[0].shape
    if x.shape == shape:
        return x
    if inner := made_by(x, "reshape"):
        return reshaped(g, inner.inputs[0], shape)
    if (inner := made_by(x, "sum", "mean", "max", "min", "prod", "any", "all")) and (
        kept := _kept(inner, shape)
    ):
        return g.apply(inner.op, inner.inputs, kept)[0]
    return None


def _kept(reduction: Node, shape: tuple[Dim, ...]) -> dict[str, object] | None:
    """The attributes with which a reduction gives ``shape``: its axes kept as ones, or dropped."""
    (x,), axes = reduction.inputs, reduction.attrs["axis"]
    keepdims = not reduction.attrs["keepdims"]
    if keepdims:
        wanted = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    else:
        wanted = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    return {**reduction.attrs, "keepdims": keepdims} if wanted == shape else None


def _permute_dims(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,), axes = operands, node.attrs["axes"]
    if axes == tuple(range(x.ndim)):
        return x
    if inner := made_by(x, "permute_dims"):
        composed = tuple(inner.attrs["axes"][axis] for axis in axes)
        return g.apply(PERMUTE_DIMS, inner.inputs, {"axes": composed})[0]
    long = [axis for axis in axes if x.shape[axis] != 1]
    if long == sorted(long):  # axes of size 1 move past the others without moving an element
        return reshaped(g, x, node.outputs[0].shape)
    return None


def _broadcast_to(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    if x.shape == node.outputs[0].shape:
        return x
    if inner := made_by(x, "broadcast_to"):
        return g.apply(BROADCAST_TO, inner.inputs, node.attrs)[0]
    return None


def _flip(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    axes = {axis for axis in node.attrs["axes"] if x.shape[axis] != 1}
    inner = made_by(x, "flip")
    if inner:
        axes ^= set(inner.attrs["axes"])
        x = inner.inputs[0]
    elif len(axes) == len(node.attrs["axes"]):
        return x if not axes else None
    return g.apply(FLIP, (x,), {"axes": tuple(sorted(axes))})[0] if axes else x


# -- slices --------------------------------------------------------------------------------------


def _slice(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,) = operands
    if x.shape == node.outputs[0].shape and not any(s != 0 for s in node.attrs["starts"]):
        return x
    if inner := made_by(x, "slice"):
        return _slice_of_slice(g, node, inner)
    if inner := made_by(x, "concat"):
        return _slice_of_concat(g, node, inner)
    return None


def _slice_of_slice(g: Graph, outer: Node, inner: Node) -> Value:
    """One slice that picks what the two pick."""
    starts, stops, steps = [], [], []
    a, b = inner.attrs, outer.attrs
    for axis, size in enumerate(outer.outputs[0].shape):
        step = a["steps"][axis] * b["steps"][axis]
        start = a["starts"][axis] + b["starts"][axis] * a["steps"][axis]
        if size == 0:
            start = stop = a["starts"][axis]
        elif step == 1:
            stop = start + size
        else:
            stop = start + (size - 1) * step + 1
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    return g.apply(SLICE, inner.inputs, attrs)[0]


def _slice_of_concat(g: Graph, node: Node, concat: Node) -> Value | None:
    """The slice of the one piece that it lies in."""
    axis = concat.attrs["axis"]
    start, stop = node.attrs["starts"][axis], node.attrs["stops"][axis]
    offset: Dim = 0
    for piece in concat.inputs:
        end = offset + piece.shape[axis]
        if provably_nonnegative(start - offset) and provably_nonnegative(end - stop):
            moved = {
                key: _with(node.attrs[key], axis, bound - offset)
                for key, bound in (("starts", start), ("stops", stop))
            }
            return g.apply(SLICE, (piece,), {**node.attrs, **moved})[0]
        if not provably_nonnegative(start - end):
            return None
        offset = end
    return None


def _with(items: tuple[Dim, ...], index: int, item: Dim) -> tuple[Dim, ...]:
    return (*items[:index], item, *items[index + 1 :])


# -- joining and padding -------------------------------------------------------------------------


def _concat(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    axis = node.attrs["axis"]
    pieces: list[Value] = []
    for piece in operands:
        inner = made_by(piece, "concat")
        if inner and inner.attrs["axis"] == axis:
            pieces.extend(inner.inputs)
        elif piece.shape[axis] != 0:
            pieces.append(piece)
    pieces = _rejoined(g, pieces or [operands[0]], axis)
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) == len(operands) and all(p is o for p, o in zip(pieces, operands, strict=True)):
        return None
    return g.apply(CONCAT, pieces, {"axis": axis})[0]


def _rejoined(g: Graph, pieces: Sequence[Value], axis: int) -> list[Value]:
    """``pieces``, each run of consecutive slices of one value along ``axis`` made one of them."""
    joined = [pieces[0]]
    for piece in pieces[1:]:
        both = _both(g, joined[-1], piece, axis)
        if both is None:
            joined.append(piece)
        else:
            joined[-1] = both
    return joined


def _both(g: Graph, left: Value, right: Value, axis: int) -> Value | None:
    """The slice that two slices of one value are, end to end; the value where that is all of it."""
    first, second = made_by(left, "slice"), made_by(right, "slice")
    if first is None or second is None or first.inputs[0] is not second.inputs[0]:
        return None
    starts, stops, steps = (first.attrs[key] for key in ("starts", "stops", "steps"))
    moved = {
        "starts": _with(starts, axis, second.attrs["starts"][axis]),
        "stops": _with(stops, axis, second.attrs["stops"][axis]),
        "steps": steps,
    }
    adjacent = second.attrs["starts"][axis] == stops[axis]
    if not adjacent or steps[axis] != 1 or second.attrs != moved:
        return None
    (whole,) = first.inputs
    wide = {**first.attrs, "stops": _with(stops, axis, second.attrs["stops"][axis])}
    (both,) = g.apply(SLICE, (whole,), wide)
    return whole if both.shape == whole.shape else both


def _pad(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    (x,), attrs = operands, node.attrs
    if not any(attrs["before"]) and not any(attrs["after"]):
        return x
    inner = made_by(x, "pad")
    if inner is None or repr(inner.attrs["value"]) != repr(attrs["value"]):
        return None
    widths = {
        key: tuple(a + b for a, b in zip(inner.attrs[key], attrs[key], strict=True))
        for key in ("before", "after")
    }
    return g.apply(PAD, inner.inputs, {**attrs, **widths})[0]


# -- movement before computing -------------------------------------------------------------------


def _elementwise(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Drop a broadcast of an operand that the elementwise op does itself."""
    shapes = [v.node.inputs[0].type if made_by(v, "broadcast_to") else v.type for v in operands]
    if all(t is v.type for t, v in zip(shapes, operands, strict=True)):
        return None
    chosen = list(operands)
    for i, value in enumerate(operands):
        if made_by(value, "broadcast_to"):
            trial = [*chosen[:i], value.node.inputs[0], *chosen[i + 1 :]]
            if _broadcast(trial) == node.outputs[0].shape:
                chosen = trial
    if all(a is b for a, b in zip(chosen, operands, strict=True)):
        return None
    return g.apply(node.op, chosen, node.attrs)[0]


def _broadcast(values: Sequence[Value]) -> tuple[Dim, ...] | None:
    try:
        return broadcast_shapes(*(v.shape for v in values))
    except GraphError:
        return None


def _matmul(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """``aᵀ @ bᵀ`` as ``(b @ a)ᵀ``: one transposition of the result for two of the operands."""
    left, right = (_untransposed(v) for v in operands)
    if left is None or right is None or left.shape[:-2] != right.shape[:-2]:
        return None
    (matmul,) = g.apply(MATMUL, (right, left), node.attrs)
    axes = list(range(matmul.ndim))
    axes[-2:] = axes[:-3:-1]
    return g.apply(PERMUTE_DIMS, (matmul,), {"axes": tuple(axes)})[0]


def _untransposed(value: Value) -> Value | None:
    """``x`` of a permutation that swaps the last two axes of ``x``."""
    node = made_by(value, "permute_dims")
    if node is None or value.ndim < 2:
        return None
    axes = list(range(value.ndim))
    axes[-2:] = axes[:-3:-1]
    return node.inputs[0] if node.attrs["axes"] == tuple(axes) else None


_RULES: Mapping[str, Rule] = {
    **{op.name: _elementwise for op in elementwise.FAMILY if op.arity > 1},
    **dict.fromkeys(special.NAMES, _elementwise),
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "flip": _flip,
    "matmul": _matmul,
    "pad": _pad,
    "permute_dims": _permute_dims,
    "reshape": _reshape,
    "slice": _slice,
}
