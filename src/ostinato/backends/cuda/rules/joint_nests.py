"""Short parts of a segment that every block runs for itself, as one part.

In front of attention a block receives its share of the queries, the key and the value, turns them
by their position and appends rows to states. Each is a few instructions of some of its threads, but
a part takes hundreds of cycles, whatever it does. As one part, those that do not depend on each
other are those of different warps, with a barrier behind what is received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel, CudaLoopNest
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.kernel import Access
from ostinato.lower.loopir.nodes import Store, max_extent
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.cuda.render import joint_nests
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol
else:
    joint_nests = LazyModule("ostinato.backends.cuda.render.joint_nests")

__all__ = ["JointNests", "may_join"]

#: Points of a nest that has threads of its own, at most.
_MOST_POINTS = 4 * SEGMENT_BLOCK


@dataclass(frozen=True, eq=False)
class JointNests(CudaKernel):
    """Kernels that a block of a segment runs at the same time.

    Attributes:
        args: of all of them, each once.
        kernels: the first one may be :class:`ReceivePackets`, whose values the others may read.
        places: by kernel, the positions of its arguments.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    kernels: tuple[CudaKernel, ...]
    places: tuple[tuple[int, ...], ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "joint"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{len(self.kernels)} kernels at the same time")
        text.head(self.args)
        for kernel, places in zip(self.kernels, self.places, strict=True):
            named = ", ".join(f"b{place}" for place in places)
            text.line(1, f"{kernel.name}({named})")

    def accesses(self) -> Iterator[Access]:
        for kernel, places in zip(self.kernels, self.places, strict=True):
            for access in kernel.accesses():
                yield Access(places[access.position], access.index, access.writes)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        total: Dim = 0
        for kernel, places in zip(self.kernels, self.places, strict=True):
            for own, place in enumerate(places):
                arg = kernel.args[own]
                if place != position or not (arg.writes if writes else arg.reads):
                    continue
                found = kernel.elements(own, writes=writes)
                if found is None:
                    return None
                total = total + found
        return total

    def variable_free(self) -> bool:
        return all(kernel.variable_free() for kernel in self.kernels)

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
