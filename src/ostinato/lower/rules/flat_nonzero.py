"""The kernel of ``flat_nonzero`` as GPUs have it: the positions of true elements, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.rules.whole_operands import lower_whole
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.whole_operands import Places
    from ostinato.variables import Dim, Symbol

__all__ = ["FlatNonzero", "lower_flat_nonzero"]


@dataclass(frozen=True, eq=False)
class FlatNonzero(Kernel):
    """Writes the positions of the true elements of a mask, in order, then zeros.

    Attributes:
        args: the mask and the positions.
        mask, found: their places among the arguments.
        length: elements of the mask.
        size: positions that are wanted.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    mask: int
    found: int
    length: Dim
    size: Dim
    variables: tuple[Symbol, ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, f"positions of the true of b{self.mask} to b{self.found}")
        text.head(self.args)
        text.line(1, f"length {text.dim(self.length)}, size {text.dim(self.size)}")

    def variable_free(self) -> bool:
        return isinstance(self.length, int) and isinstance(self.size, int)


def lower_flat_nonzero(
    lowering: ProgramBuilder, region: Region, root: Node, kind: type[FlatNonzero]
) -> None:
    """Lower a ``flat_nonzero`` node, as a kernel of the class given."""
    (length,), (size,) = root.inputs[0].shape, root.outputs[0].shape

    def make(places: Places) -> FlatNonzero:
        (mask,), (found,) = places.operands, places.results
        return kind(places.args, mask, found, length, size, lowering.variables)

    lower_whole(lowering, region, root, make)
