"""Nests that round groups of a row, and the products whose tiles are these groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    Reduce,
    Store,
    extent_of,
    max_extent,
)
from ostinato.variables import Expr

if TYPE_CHECKING:
    from ostinato.backends.cuda.render import row_operands, weight_streams
    from ostinato.lower.loopir.nodes import Scalar, Stage
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim, Symbol
else:
    row_operands = LazyModule("ostinato.backends.cuda.render.row_operands")
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = ["group_of", "is_rounded_by"]

_GREATEST_BYTE = 127


def group_of(call: Call) -> int:
    """The elements of the groups that a call rounds, one behind the other; 0: it does not.

    It reads a single value, and writes a number for each element or for each group; these may be
    sent.
    """
    nest = call.kernel
    if type(nest) is not CudaLoopNest or not nest.parallel or nest.scratch_groups or nest.temps:
        return 0
    if len(nest.outer_axes) != 1 or sum(arg.reads for arg in nest.args) != 1:
        return 0
    (outer,) = nest.outer_axes
    inner = [stage.axes for stage in nest.stages if stage.axes]
    if not inner or any(len(axes) != 1 for axes in inner):
        return 0
    extents = {extent_of(axes[0]) for axes in inner}
    (group,) = extents if len(extents) == 1 else (0,)
    if not isinstance(group, int) or not isinstance(extent_of(outer), int):
        return 0
    return group if all(_is_local(stage, nest, outer, group) for stage in nest.stages) else 0


def is_rounded_by(product: Call, result: LoweredBuffer, nest: Call) -> bool:
    """Whether a call rounds the result of a product tile by tile; nothing else reads it.

    Args:
        product: a matmul that a ring could bring the weights of.
        result: of the matmul.
        nest: the call that reads it.
    """
    matmul, group = product.kernel, group_of(nest)
    if not isinstance(matmul, Matmul) or not group or max_extent(matmul.m) != 1:
        return False
    stream = weight_streams.stream_of(matmul)
    if stream is None or not stream.wide or stream.width != group or stream.rows % group:
        return False
    if nest.buffers.count(result) != 1 or product.buffers.count(result) != 1:
        return False
    if len(matmul.stores) != 1 or result in (*product.reads(), *nest.writes()):
        return False
    (store,) = matmul.stores
    place = row_operands.offset_of(store.index, {matmul.m: stream.rows, matmul.n: 1})
    (outer,) = nest.kernel.outer_axes  # type: ignore[attr-defined]
    return _is_plain(store) and place == 0 and extent_of(outer) == stream.rows // group


def _is_plain(store: Store) -> bool:
    """Whether a store sets the same element in every run."""
    return store.update == "set" and not store.conditions and not store.bindings


def _is_local(stage: Stage, nest: CudaLoopNest, outer: Symbol, group: int) -> bool:
    """Whether a stage has only to do with elements of the group, and with results for it."""
    elements: Dim = Expr({(outer,): group}, 0)
    for own in stage.axes:
        elements = elements + Expr({(own,): 1}, 0)
    for statement in stage.statements:
        if isinstance(statement, Store):
            place = elements if stage.axes else Expr({(outer,): 1}, 0)
            if not _is_plain(statement) or statement.index != place:
                return False
            if not _is_sent(statement, nest):
                return False
        elif not isinstance(statement, Reduce):
            return False
    for scalar in reached([root for s in stage.statements for root in roots(s)]):
        if isinstance(scalar, Load) and (scalar.bindings or scalar.index != elements):
            return False
        if isinstance(scalar, Guard | IndexValue):
            return False
    return True


def _is_sent(store: Store, nest: CudaLoopNest) -> bool:
    """Whether what is stored may be sent: floats, and bytes that are never the least one."""
    dtype = nest.args[store.buffer].dtype
    if dtype == INT8:
        return _is_clipped(store.value)
    return dtype in (FLOAT32, FLOAT16, BFLOAT16)


def _is_clipped(scalar: Scalar) -> bool:
    """Whether a number, perhaps converted, is between -127 and 127."""
    if not isinstance(scalar, Apply):
        return False
    if scalar.op == "cast":
        return _is_clipped(scalar.operands[0])
    ends = [dict(scalar.attrs).get(name) for name in ("min", "max")]
    within = (isinstance(end, int | float) and abs(end) <= _GREATEST_BYTE for end in ends)
    return scalar.op == "clip" and all(within)
