"""Matmuls of bytes by codes of half a byte, both with a scale for each block of ``k``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import VECTOR_BYTES
from ostinato.backends.cuda.render import byte_rows, byte_tiles
from ostinato.backends.cuda.rules.product import FEW_ROWS, BlockwiseProduct
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator, max_extent
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.variables import axis

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["BlockwiseMatmul", "lower_whole_weights"]


class BlockwiseMatmul(BlockwiseProduct):
    """A few rows that read the codes once, or tiles for tensor cores."""

    def launch(self, target: CudaTarget) -> Launch:
        if self._by_tiles(target):
            return byte_tiles.launch(self, target)
        return byte_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        body = self.body(target)
        return byte_tiles.blockwise_source(self) if body is None else body.kernel(self.name)

    def body(self, target: CudaTarget) -> Body | None:
        return None if self._by_tiles(target) else byte_rows.blockwise_body(self, target)

    def _by_tiles(self, target: CudaTarget) -> bool:
        """Whether there are rows enough for tensor cores, and the GPU has them."""
        return max_extent(self.m) > FEW_ROWS and byte_tiles.multiplies(target)


def lower_whole_weights(
    lowering: ProgramBuilder, region: Region, root: Node, columns: ColumnOrder
) -> bool:
    """Lower a region around a ``blockwise_matmul`` node, if its weights are params of whole blocks.

    Args:
        lowering: takes the kernel.
        region: the nodes.
        root: the matmul.
        columns: brings the codes and their scales into order.

    Returns:
        Whether it was lowered.
    """
    q, q_scales, codes, scales = root.inputs
    spec, group = row_spec(root, q, codes), root.attrs["group"]
    (depth,) = spec.k
    if depth != 2 * codes.shape[0]:
        return False
    if not all(columns.possible(lowering, weight) for weight in (codes, scales)):
        return False
    at = spec.axes(lowering.builder(region))
    (m,), (n,), (k,) = symbols_of([at.m]), symbols_of([at.n]), symbols_of(at.k)
    if byte_rows.packed_along(spec.left(lowering.builder(region), at), k) < VECTOR_BYTES:
        return False
    weights = {weight: columns.of(lowering, weight) for weight in (codes, scales)}
    build = lowering.builder(region, weights)
    outputs = lowering.region_outputs(region)
    pairs, blocks = axis("pairs", depth // 2), axis("blocks", depth // group)
    (pair,), (block,) = symbols_of([pairs]), symbols_of([blocks])
    a, a_scale = spec.left(build, at), build.at(q_scales, spec.a_at((), at.m, (blocks,)))
    b, b_scale = build.at(codes, (pairs, at.n)), build.at(scales, (blocks, at.n))
    stores = spec.stores(build, Accumulator(spec.acc), spec.out_at((), at.m, at.n), outputs)
    kernel = BlockwiseMatmul(
        build.args,
        (),
        m,
        n,
        (k,),
        a,
        b,
        spec.acc,
        stores,
        lowering.variables,
        pairs=pair,
        blocks=block,
        a_scale=a_scale,
        b_scale=b_scale,
        group=group,
    )
    lowering.call(region, build, kernel, outputs)
    return True
