"""Matmuls of bytes by codes of half a byte, both with a scale for each block of ``k``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render import byte_rows, byte_tiles
from ostinato.backends.cuda.render.vectors import VECTOR_BYTES
from ostinato.backends.cuda.rules.product import FEW_ROWS, Matmul
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.dependences import accesses_of_scalars
from ostinato.lower.loopir.nodes import Accumulator, max_extent
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.records import dataclass, field
from ostinato.variables import axis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = ["BlockwiseMatmul", "lower_whole_weights"]


@dataclass(frozen=True, eq=False)
class BlockwiseMatmul(Matmul):
    """A matmul of bytes by a matrix of codes, two to a byte, which few rows read once.

    Attributes:
        pairs: the axis of pairs of ``k``, along which ``b`` has a byte each.
        blocks: the axis of blocks of ``k``.
        a_scale: the scale of ``a`` at ``m`` and ``blocks``.
        b_scale: the scale of ``b`` at ``blocks`` and ``n``.
        group: the size of a block.
    """

    pairs: Symbol = field(kw_only=True)
    blocks: Symbol = field(kw_only=True)
    a_scale: Scalar = field(kw_only=True)
    b_scale: Scalar = field(kw_only=True)
    group: int = field(kw_only=True)

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        text.line(1, f"blocks of {self.group}")
        for name, axis_ in (("pairs", self.pairs), ("blocks", self.blocks)):
            text.line(1, f"{name} {text.axis(axis_)}")
        text.named("a_scale", [self.a_scale])
        text.named("b_scale", [self.b_scale])

    def accesses(self) -> Iterator[Access]:
        yield from accesses_of_scalars((self.a_scale, self.b_scale))
        yield from super().accesses()

    def launch(self, target: CudaTarget) -> Launch:
        if self._by_tiles(target):
            return byte_tiles.launch(self, target)
        return byte_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if self._by_tiles(target):
            return byte_tiles.blockwise_source(self)
        return byte_rows.blockwise_source(self, target)

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
