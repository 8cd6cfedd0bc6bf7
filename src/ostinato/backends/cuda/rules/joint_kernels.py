"""Kernels that are one part of a segment: their arguments, each once, and those of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.kernel import Access
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["JointKernels"]


@dataclass(frozen=True, eq=False)
class JointKernels(CudaKernel):
    """Several kernels as one.

    Attributes:
        args: of all of them, each once.
        kernels: in order.
        places: by kernel, the positions of its arguments.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    kernels: Sequence[CudaKernel]
    places: tuple[tuple[int, ...], ...]
    variables: tuple[Symbol, ...] = ()

    relation: ClassVar[str]

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{len(self.kernels)} kernels {self.relation}")
        text.head(self.args)
        for kernel, places in zip(self.kernels, self.places, strict=True):
            named = ", ".join(f"b{place}" for place in places)
            text.line(1, f"{kernel.name}({named})")

    def accesses(self) -> Iterator[Access]:
        for kernel, places in zip(self.kernels, self.places, strict=True):
            for access in kernel.accesses():
                if access.position < len(places):  # others are a nest's own temps
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

    @property
    def plain_arguments(self) -> frozenset[int]:
        others = {
            place
            for kernel, places in zip(self.kernels, self.places, strict=True)
            for number, place in enumerate(places)
            if number not in kernel.plain_arguments
        }
        return frozenset(range(len(self.args))) - others
