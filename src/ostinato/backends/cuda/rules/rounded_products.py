"""Products whose results are rounded where they are made: one part of a segment.

In front of a product by 4-bit weights, a row becomes bytes, in groups with a scale each. Every
block would do so for itself with all of the row, once it has received it. Where the row is the
result of another product, whose tiles are such groups, the block that has a tile rounds it: it
sends bytes and scales, which are what the next product needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nodes import Stage
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import dataclass, replace
from ostinato.variables import Expr, Symbol, axis, axis_symbol, substitute

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.kernel import CudaLoopNest
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["MOST_TILES", "RoundedProduct"]

MOST_TILES = 8
"""Tiles that a block rounds at a time."""


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
