"""Products of the same rows by several matrices, as one part of a segment.

The queries, keys and values of attention are three matmuls of one left operand. As one, their tiles
are those of a single matrix: the blocks that have them begin once, and add up their sums once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.rounded_products import RoundedProduct
from ostinato.lazy import LazyModule
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render import joint_products
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
else:
    joint_products = LazyModule("ostinato.backends.cuda.render.joint_products")

__all__ = ["JointProducts", "products_of"]


@dataclass(frozen=True, eq=False)
class JointProducts(JointKernels):
    """Matmuls with the same left operand, whose right ones a ring can bring."""

    kernels: Sequence[Matmul]

    prefix: ClassVar[str] = "products"
    relation: ClassVar[str] = "of the same rows"

    def launch(self, target: CudaTarget) -> Launch:
        return joint_products.launch(self.kernels, target)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        return joint_products.body(self.args, self.kernels, self.places, target)


def products_of(kernel: CudaKernel) -> list[tuple[Matmul, Sequence[int]]]:
    """The matmuls that a kernel consists of, each with the positions of its arguments."""
    if isinstance(kernel, JointProducts):
        return list(zip(kernel.kernels, kernel.places, strict=True))
    if isinstance(kernel, RoundedProduct):
        return [(kernel.product, kernel.places[0])]
    return [(kernel, range(len(kernel.args)))] if isinstance(kernel, Matmul) else []
