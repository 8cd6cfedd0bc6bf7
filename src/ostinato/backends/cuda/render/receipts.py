"""Parts of a segment that receive the row that they compute with.

Packets of a row are copied into the memory of each block. Where a loop nest that every block runs
is the first to read it, and reads it once, into registers, the nest takes it from the packets: it
starts with what it has received, and the copy is for parts that read the row later. The nest may
take the row in blocks, each by some threads of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.chained_nests import ChainedNests
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.rules.segment_kernel import Part
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["Receipts"]


@dataclass(frozen=True)
class Receipts:
    """The parts of a segment, without those that others take over.

    Attributes:
        parts: those that are left; the numbers in them are those among these.
        packets: by part, the position of the packets of each argument that it receives.
        numbers: by part, its number among all of the segment.
    """

    parts: tuple[Part, ...]
    packets: tuple[Mapping[int, int], ...]
    numbers: tuple[int, ...]

    @staticmethod
    def of(parts: Sequence[Part], target: CudaTarget) -> Receipts:
        """The parts, with rows received by nests where that can be.

        Args:
            parts: all of them.
            target: the GPU, with the blocks of a segment.
        """
        packets: list[dict[int, int]] = [{} for _ in parts]
        over: set[int] = set()
        for number, part in enumerate(parts):
            if not isinstance(part.kernel, ReceivePackets) or part.shares_of is not None:
                continue
            if len(part.kernel.counts) > 1:
                continue
            source, held = part.arguments
            readers = (i for i in range(number + 1, len(parts)) if held in parts[i].arguments)
            reader = next(readers, None)
            if reader is None:
                continue
            argument = _whole_row(parts[reader], held, part.kernel.counts[0], target)
            if argument is not None:
                packets[reader][argument] = source
                over.add(number)
        left = [number for number in range(len(parts)) if number not in over]
        places = {number: place for place, number in enumerate(left)}
        return Receipts(
            tuple(_moved(parts[number], places) for number in left),
            tuple(packets[number] for number in left),
            tuple(left),
        )


def _whole_row(part: Part, held: int, count: int, target: CudaTarget) -> int | None:
    """The argument by which a part loads a value of so many elements into registers, once."""
    kernel = part.kernel
    if not isinstance(kernel, CudaLoopNest | ChainedNests):
        return None
    if not part.everywhere or part.shares_of is not None:
        return None
    if part.arguments.count(held) != 1:
        return None
    argument = part.arguments.index(held)
    found = kernel.whole_rows(replace(target, alone=True))
    return argument if found.get(argument) == count else None


def _moved(part: Part, places: Mapping[int, int]) -> Part:
    """A part that refers to others by their places."""
    tiles, shares = part.tiles_of, part.shares_of
    return replace(
        part,
        tiles_of=None if tiles is None else places[tiles],
        shares_of=None if shares is None else places[shares],
    )
