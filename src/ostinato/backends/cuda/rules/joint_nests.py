"""Short parts of a segment that every block runs for itself, as one part.

In front of attention a block receives its share of the queries, the key and the value, turns them
by their position and appends rows to states. Each is a few instructions of some of its threads, but
a part takes hundreds of cycles, whatever it does. As one part, those that do not depend on each
other are those of different warps, with a barrier behind what is received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import Store, max_extent
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render import joint_nests
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
else:
    joint_nests = LazyModule("ostinato.backends.cuda.render.joint_nests")

__all__ = ["JointNests", "may_join"]

#: Points of a nest that has threads of its own, at most.
_MOST_POINTS = 4 * SEGMENT_BLOCK


@dataclass(frozen=True, eq=False)
class JointNests(JointKernels):
    """Kernels that a block of a segment runs at the same time.

    The first one may be :class:`ReceivePackets`, whose values the others may read.
    """

    prefix: ClassVar[str] = "joint"
    relation: ClassVar[str] = "at the same time"

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(1, SEGMENT_BLOCK)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        return joint_nests.body(self.args, self.kernels, self.places, target)


def may_join(kernel: CudaKernel) -> bool:
    """Whether a part may be one of :class:`JointNests`: it is short, and its points are apart."""
    if isinstance(kernel, ReceivePackets):
        return True
    if type(kernel) is not CudaLoopNest or kernel.scratch_groups or kernel.temps:
        return False
    extents = [max_extent(axis) for axis in kernel.outer_axes]
    points = 1
    for extent in extents:
        points *= extent
    return (
        kernel.parallel
        and points <= _MOST_POINTS
        and all(isinstance(axis.extent, int | None) for axis in kernel.outer_axes)
        and len(kernel.stages) == 1
        and not kernel.stages[0].axes
        and all(isinstance(s, Store) for s in kernel.stages[0].statements)
    )
