"""Ops that write into a copy of their operand, or side by side into one result.

Each is a few kernels over one buffer: first what the result starts as, then the writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import KernelBuilder, cast, in_memory_order, symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Number, Scan, Stage, Store, Update
from ostinato.lower.loopir.views import Indices, linear_index
from ostinato.lower.rules.loops import BLOCK, block_nest
from ostinato.variables import axis as axis_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import LoweredBuffer
    from ostinato.ops import reduction
    from ostinato.variables import Dim, Symbol
else:
    reduction = LazyModule("ostinato.ops.reduction")

__all__ = [
    "concat_nest",
    "copy_nest",
    "dynamic_update_nest",
    "scan_nest",
    "scatter_nest",
]

Variables = tuple["Symbol", ...]

#: Bounds of an index that may lie outside of what it indexes; wide, yet safe to scale.
_ANYWHERE = 1 << 40


def copy_nest(
    build: KernelBuilder, value: Value, buffer: LoweredBuffer, variables: Variables
) -> LoopNest:
    """Stores ``value``, whatever it is, into ``buffer`` in C order."""
    return _shifted_copy(build, value, buffer, value.shape, [0] * value.ndim, variables)


def concat_nest(
    build: KernelBuilder, node: Node, position: int, buffer: LoweredBuffer, variables: Variables
) -> LoopNest:
    """Stores the operand at ``position`` where it stands in the concatenation."""
    axis = node.attrs["axis"]
    out = node.outputs[0]
    offsets: list[Dim] = [0] * out.ndim
    for earlier in node.inputs[:position]:
        offsets[axis] = offsets[axis] + earlier.shape[axis]
    return _shifted_copy(build, node.inputs[position], buffer, out.shape, offsets, variables)


def dynamic_update_nest(
    build: KernelBuilder, node: Node, buffer: LoweredBuffer, variables: Variables
) -> LoopNest:
    """Stores the update of a ``dynamic_update_slice`` over its place in ``buffer``."""
    x, update, *starts = node.inputs
    offsets = [
        build.data_index(start, (), size - taken + 1, wrap=False)
        for start, size, taken in zip(starts, x.shape, update.shape, strict=True)
    ]
    return _shifted_copy(build, update, buffer, x.shape, offsets, variables)


def _shifted_copy(
    build: KernelBuilder,
    value: Value,
    buffer: LoweredBuffer,
    shape: Sequence[Dim],
    offsets: Sequence[Dim],
    variables: Variables,
) -> LoopNest:
    indices = build.axes(value.shape)
    scalar = build.at(value, indices)
    at = [i + o for i, o in zip(indices, offsets, strict=True)]
    position = build.argument(buffer, writes=True)
    index = buffer.offset(shape, at)
    store = Store(position, index, scalar, build.bindings_of(index))
    return block_nest(build, in_memory_order(indices, buffer), [store], variables)


def scatter_nest(
    build: KernelBuilder, node: Node, buffer: LoweredBuffer, variables: Variables
) -> LoopNest:
    """Stores or accumulates the updates of a scatter, in order unless their places are known to
    differ; out-of-range ones are dropped.
    """
    x, ids, updates = node.inputs
    mode: Update = node.attrs["mode"]
    indices = build.axes(updates.shape)
    at: list[Dim]
    if node.op.name == "scatter_nd":
        depth = ids.shape[-1]
        assert isinstance(depth, int)
        lead = indices[: ids.ndim - 1]
        found = [_anywhere(build, ids, (*lead, j), x.shape[j]) for j in range(depth)]
        at = [*found, *indices[ids.ndim - 1 :]]
        checked = list(range(depth))
    else:
        axis = node.attrs["axis"]
        at = list(indices)
        at[axis] = _anywhere(build, ids, indices, x.shape[axis])
        checked = [axis]
    conditions = tuple(c for j in checked for c in (at[j], x.shape[j] - 1 - at[j]))
    position = build.argument(buffer, reads=mode != "set", writes=True)
    index = linear_index(x.shape, at)
    bindings = build.bindings_of(index, *conditions)
    store = Store(position, index, build.at(updates, indices), bindings, mode, conditions)
    apart = mode == "set" and bool(node.attrs.get("unique"))
    return block_nest(build, symbols_of(indices), [store], variables, parallel=apart)


def _anywhere(build: KernelBuilder, ids: Value, at: Indices, size: Dim) -> Dim:
    """An index as it stands in memory, negative ones counted from the end, not clamped."""
    number = build.from_end(build.as_int64(build.at(ids, at)), size)
    return build.bind(number, _ANYWHERE, low=-_ANYWHERE)


def scan_nest(
    build: KernelBuilder, node: Node, buffer: LoweredBuffer, variables: Variables
) -> LoopNest:
    """A running reduction along an axis."""
    (x,) = node.inputs
    axis = node.attrs["axis"]
    assert isinstance(node.op, reduction.Scan)
    along = axis_over("s", x.shape[axis])
    indices = list(build.axes(x.shape))
    indices[axis] = along
    inner = symbols_of([along])
    outer = symbols_of([*indices[:axis], *indices[axis + 1 :]])
    if node.attrs["reverse"]:
        indices[axis] = x.shape[axis] - 1 - along
    acc = node.outputs[0].dtype.accumulator
    value = cast(build.at(x, tuple(indices)), acc)
    position = build.argument(buffer, writes=True)
    index = linear_index(x.shape, indices)
    scan = Scan(node.op.running, value, acc, position, index, node.attrs["exclusive"])
    axes, statements = merge_axes(outer, build.finish([scan]))
    inner_last = axis != x.ndim - 1 and bool(axes)
    return LoopNest(
        build.args,
        axes[:-1] if inner_last else axes,
        (Stage(inner, statements),),
        inner_axis=axes[-1] if inner_last else None,
        block=BLOCK,
        variables=variables,
    )


def border_nest(
    build: KernelBuilder, node: Node, buffer: LoweredBuffer, variables: tuple[Symbol, ...]
) -> LoopNest:
    """The nest that fills what a ``pad`` node adds, its operand being in place."""
    (x,), (out,) = node.inputs, node.outputs
    before, after = node.attrs["before"], node.attrs["after"]
    position = build.argument(buffer, writes=True)
    outer: tuple[Dim, ...] = () if before[0] or after[0] else (build.axis(out.shape[0]),)
    stages = []
    for axis in range(out.ndim):
        beyond = before[axis] + x.shape[axis]
        for start, extent in ((0, before[axis]), (beyond, after[axis])):
            if extent == 0:
                continue
            # Axes before this one over the operand alone: their borders are filled already.
            sizes = [*x.shape[:axis], extent, *out.shape[axis + 1 :]]
            starts = [*before[:axis], start, *(0 for _ in out.shape[axis + 1 :])]
            inner = build.axes(sizes[len(outer) :])
            indices = tuple(a + b for a, b in zip((*outer, *inner), starts, strict=True))
            store = Store(
                position, buffer.offset(out.shape, indices), Number(node.attrs["value"], out.dtype)
            )
            axes = in_memory_order((*outer, *inner), buffer)
            shared = symbols_of(outer)
            merged, statements = merge_axes([a for a in axes if a not in shared], [store])
            stages.append(Stage(merged, statements))
    return LoopNest(build.args, symbols_of(outer), tuple(stages), variables=variables)
