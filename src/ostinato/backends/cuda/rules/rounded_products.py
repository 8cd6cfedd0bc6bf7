"""Products whose results are rounded where they are made: one part of a segment.

In front of a product by 4-bit weights, a row becomes bytes, in groups with a scale each. Every
block would do so for itself with all of the row, once it has received it. Where the row is the
result of another product, whose tiles are such groups, the block that has a tile rounds it: it
sends bytes and scales, which are what the next product needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8
from ostinato.errors import OstinatoError
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    Reduce,
    Stage,
    Store,
    extent_of,
    max_extent,
)
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import dataclass, replace
from ostinato.variables import Expr, Symbol, axis, axis_symbol, substitute

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import row_operands, weight_streams
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim
else:
    row_operands = LazyModule("ostinato.backends.cuda.render.row_operands")
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = ["MOST_TILES", "RoundedProduct", "group_of", "is_rounded_by"]

MOST_TILES = 8
"""Tiles that a block rounds at a time."""

_GREATEST_BYTE = 127


@dataclass(frozen=True, eq=False)
class RoundedProduct(JointKernels):
    """A matmul of one row, and the nest that rounds its result, in groups that are its tiles.

    The result itself is in the memory of the block, as far as it has it at a time: its argument has
    room for :data:`MOST_TILES` groups. It is no kernel of its own: weights come through a ring.

    Attributes:
        kernels: the matmul, and the nest.
        result: the position of the result among the matmul's arguments.
    """

    kernels: tuple[Matmul, CudaLoopNest]
    result: int = 0

    prefix: ClassVar[str] = "rounded"
    relation: ClassVar[str] = "of the same tiles"

    @property
    def product(self) -> Matmul:
        """The matmul."""
        return self.kernels[0]

    def launch(self, target: CudaTarget) -> Launch:
        return self.product.launch(target)

    def source(self, target: CudaTarget) -> str:
        raise OstinatoError(f"{self.name}: weights come through the ring of a segment")

    def nest_of_tiles(self) -> CudaLoopNest:
        """The nest of some tiles, one behind the other, whose only Variable is their number."""
        (_, nest) = self.kernels
        (old,) = nest.outer_axes
        tiles = Symbol("tiles", 1, MOST_TILES)
        new = axis_symbol(axis(old.name, Expr({(tiles,): 1}, 0)))
        rewriter = Rewriter(index=lambda dim: substitute(dim, {old: Expr({(new,): 1}, 0)}))
        stages = tuple(
            Stage(stage.axes, tuple(map(rewriter.statement, stage.statements)))
            for stage in nest.stages
        )
        return replace(nest, axes=(new,), inner_axis=None, stages=stages, variables=(tiles,))


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
