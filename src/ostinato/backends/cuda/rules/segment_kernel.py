"""Segments as kernels: their parts, and the barriers between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.kernel import Access
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["Part", "SegmentKernel"]


@dataclass(frozen=True, eq=False)
class Part:
    """A kernel within a segment.

    Attributes:
        kernel: the kernel.
        arguments: the positions of its arguments among those of the segment.
        level: the number of barriers before it.
        streams: whether weights that it reads may be fetched ahead, through a ring: nothing in the
            segment writes them, and they are rows of memory.
    """

    kernel: CudaKernel
    arguments: tuple[int, ...]
    level: int
    streams: bool = False


@dataclass(frozen=True, eq=False)
class SegmentKernel(CudaKernel):
    """Several kernels as one.

    Attributes:
        args: the buffers of all parts, each once.
        parts: in the order of their levels.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    parts: tuple[Part, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "segment"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"segment of {len(self.parts)} kernels")
        text.head(self.args)
        for part in self.parts:
            named = ", ".join(f"b{position}" for position in part.arguments)
            how = " streams" * part.streams
            text.line(1, f"level {part.level}{how}: {part.kernel.name}({named})")

    def accesses(self) -> Iterator[Access]:
        for part in self.parts:
            for access in part.kernel.accesses():
                yield Access(part.arguments[access.position], access.index, access.writes)

    def variable_free(self) -> bool:
        return all(part.kernel.variable_free() for part in self.parts)
