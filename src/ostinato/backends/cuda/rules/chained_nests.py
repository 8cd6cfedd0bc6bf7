"""Two nests of a segment, the second of which reads what the first one writes, as one part.

Every block runs them for itself: a norm, and what rounds its result, for example. As parts of their
own, there would be a barrier of the block between them, and another one for the operand that the
first one has from the ring. Where each thread reads what it has written itself, there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.errors import OstinatoError
from ostinato.lazy import LazyModule
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render import chained_nests
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
else:
    chained_nests = LazyModule("ostinato.backends.cuda.render.chained_nests")

__all__ = ["ChainedNests", "may_chain"]


@dataclass(frozen=True, eq=False)
class ChainedNests(JointKernels):
    """A nest, and one that reads what it writes; blocks of a segment run them for themselves."""

    kernels: tuple[CudaLoopNest, CudaLoopNest]

    prefix: ClassVar[str] = "chained"
    relation: ClassVar[str] = "one behind the other"

    def launch(self, target: CudaTarget) -> Launch:
        return self.kernels[0].launch(target)

    def source(self, target: CudaTarget) -> str:
        raise OstinatoError(f"{self.name}: blocks of a segment run it for themselves")

    def body(self, target: CudaTarget) -> Body:
        return chained_nests.body(self.args, self.kernels, self.places, target)

    def whole_rows(self, target: CudaTarget) -> dict[int, int]:
        """Those of the first nest; see :func:`~ostinato.backends.cuda.render.nests.whole_rows`."""
        (first, _), (places, others) = self.kernels, self.places
        found = {places[number]: count for number, count in first.whole_rows(target).items()}
        return {place: count for place, count in found.items() if place not in others}


def may_chain(first: CudaKernel, second: CudaKernel) -> bool:
    """Whether two kernels that blocks run for themselves, one after the other, may be one part."""
    if type(first) is not CudaLoopNest or type(second) is not CudaLoopNest:
        return False
    return not (first.scratch_groups or second.scratch_groups or second.temps)
