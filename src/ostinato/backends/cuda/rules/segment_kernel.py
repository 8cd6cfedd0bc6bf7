"""Segments as kernels: their parts, the barriers between them, and the memory that they share."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.kernel import Access
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["Part", "SegmentKernel", "Space", "SpaceKind"]


class SpaceKind(enum.Enum):
    """The kinds of memory for values that only the parts of a segment read."""

    BLOCK = "block"  #: in the shared memory of each block, which computes or receives the value
    PACKETS = "packets"  #: in packets, which carry the value to all blocks


@dataclass(frozen=True)
class Space:
    """Memory for a value that only the parts of a segment read.

    Attributes:
        kind: see :class:`SpaceKind`.
        offset: in the memory of its kind, in bytes.
    """

    kind: SpaceKind
    offset: int


@dataclass(frozen=True, eq=False)
class Part:
    """A kernel within a segment.

    Attributes:
        kernel: the kernel.
        arguments: the positions of its arguments among those of the segment; behind these come
            the segment's spaces.
        level: the number of barriers before it.
        streams: whether weights that it reads may be fetched ahead, through a ring: nothing in the
            segment writes them, and they are rows of memory.
        everywhere: whether every block runs all of it, for itself.
        tiles_of: the position of a part before it whose tiles go to the same blocks as its own,
            because it reads them; ``None``: any blocks will do.
        shares_of: the position of a part of attention that reads the results, at each of its points
            a share of them: each block runs the part for the shares that it needs. ``kernel``
            computes the first one. These parts are right in front of that of attention, whose own
            position this may be, too: a block goes through them once for each of its items.
        strides: by argument, elements from one share to the next; 0 where a block has memory for
            one share alone. Attention reads it where the share of its point would be, so it gets an
            address that is as much lower.
        held_bytes: of the memory of a block for spaces, those that have values while the part runs:
            its own arrays may be behind them.
    """

    kernel: CudaKernel
    arguments: tuple[int, ...]
    level: int
    streams: bool = False
    everywhere: bool = False
    tiles_of: int | None = None
    shares_of: int | None = None
    strides: tuple[int, ...] = ()
    held_bytes: int = 0

    def operands(self, *, writes: bool) -> list[int]:
        """The positions of the arguments that it writes, or of those that it only reads."""
        return [
            position
            for arg, position in zip(self.kernel.args, self.arguments, strict=True)
            if arg.writes is writes
        ]


@dataclass(frozen=True, eq=False)
class SegmentKernel(CudaKernel):
    """Several kernels as one.

    Attributes:
        args: the buffers of all parts, each once.
        parts: in the order in which each block runs them; that of their levels.
        spaces: the memory of values that only parts read.
        packets: the argument that has all packets, if there are any.
        block_bytes: shared memory of a block for its spaces.
        alone: whether a single block runs all parts, one after the other.
        fixed: of a single block, the arguments whose contents no run changes, each with its bytes:
            they are brought into the cache before kernels in front of this one have ended.
        copied: the arguments that every block copies into its memory first, each with its bytes,
            as several parts read them.
        sized: the arguments whose sizes follow from Variables.
        variables: the graph's Variables in the order of ``vars``.
        layers: whether parts that repeat, layer by layer, are code that is looped over.
    """

    args: tuple[Arg, ...]
    parts: tuple[Part, ...]
    spaces: tuple[Space, ...] = ()
    packets: int | None = None
    block_bytes: int = 0
    alone: bool = False
    fixed: tuple[tuple[int, int], ...] = ()
    copied: tuple[tuple[int, int], ...] = ()
    sized: frozenset[int] = frozenset()
    variables: tuple[Symbol, ...] = ()
    layers: bool = True

    prefix: ClassVar[str] = "segment"

    def space(self, position: int) -> Space | None:
        """The space at a position behind those of the arguments, if it is one."""
        return self.spaces[position - len(self.args)] if position >= len(self.args) else None

    def describe(self, text: KernelText) -> None:
        blocks = "one block" if self.alone else f"{self.block_bytes} bytes of a block"
        text.line(0, f"segment of {len(self.parts)} kernels, {blocks}")
        if not self.layers:
            text.line(1, "each part by its record")
        text.head(self.args)
        for position, nbytes in self.fixed:
            text.line(1, f"b{position}: {nbytes} bytes in advance")
        for position, nbytes in self.copied:
            text.line(1, f"b{position}: {nbytes} bytes are copied")
        for position in sorted(self.sized):
            text.line(1, f"b{position}: of a size that follows from Variables")
        for number, space in enumerate(self.spaces, len(self.args)):
            where = "a block" if space.kind is SpaceKind.BLOCK else f"b{self.packets}"
            text.line(1, f"b{number}: at {space.offset} of {where}")
        for part in self.parts:
            named = ", ".join(f"b{position}" for position in part.arguments)
            how = " streams" * part.streams + " everywhere" * part.everywhere
            if part.tiles_of is not None:
                how += f" on the blocks of part {part.tiles_of}"
            if part.shares_of is not None:
                how += f" for the shares of part {part.shares_of}, by {part.strides}"
            how += f", {part.held_bytes} bytes held" * (part.held_bytes > 0)
            text.line(1, f"level {part.level}{how}: {part.kernel.name}({named})")

    def accesses(self) -> Iterator[Access]:
        for part in self.parts:
            for access in part.kernel.accesses():
                position = part.arguments[access.position]
                if self.space(position) is None:
                    yield Access(position, access.index, access.writes)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        total: Dim = 0
        for part in self.parts:
            for own, argument in enumerate(part.arguments):
                arg = part.kernel.args[own]
                if argument != position or not (arg.writes if writes else arg.reads):
                    continue
                found = part.kernel.elements(own, writes=writes)
                if found is None:
                    return None
                total = total + found
        return total

    def variable_free(self) -> bool:
        return all(part.kernel.variable_free() for part in self.parts)
