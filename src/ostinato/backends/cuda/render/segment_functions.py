"""The kernels of a segment as functions, each once for all parts that need it in the same form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render import streamed_rows, weight_streams
from ostinato.backends.cuda.rules.chained_nests import ChainedNests
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.records import dataclass, replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.render.weight_streams import Stream
    from ostinato.backends.cuda.rules.segment_kernel import Part
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["Form", "SegmentFunction"]

#: Bytes of an operand that is fetched ahead for a loop nest, at most.
_SHORT_BYTES = 8 << 10

#: Bulk copies begin at multiples of this, and so are their sizes.
_BULK_BYTES = 16


@dataclass(frozen=True)
class Operand:
    """The part of an argument that a loop nest reads.

    Attributes:
        argument: its position.
        offset: bytes before the first one that is read.
        nbytes: from there to the last one.
    """

    argument: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Form:
    """The way in which a kernel is a function of a segment.

    Attributes:
        kernel: its name.
        streams: whether its weights come through the ring.
        sent: the arguments whose elements are sent in packets.
        polled: those whose elements are read from packets.
        awaited: of these, those of which all elements are waited for first, with their numbers.
        held: the arguments that are in shared memory.
        padded: those of them whose rows are 16 bytes apart, with the elements of a row.
        shares: where it is run for shares: the items of the part that reads them, the items of each
            share, then by argument, elements from one share to the next.
        repeated: of the part that reads shares, those in front of it that are run for these.
        lasting: the arguments that no part writes, and whose sizes are numbers.
        early: whether a block may read its arguments before its turn, at the risk of what it writes
            to them itself: nothing waits for other blocks.
        received: the arguments that are in shared memory once it has got them from packets.
        alone: whether every block has all of the part for itself.
    """

    kernel: str
    streams: bool
    sent: frozenset[int]
    polled: frozenset[int]
    awaited: tuple[tuple[int, int], ...]
    held: frozenset[int]
    padded: tuple[tuple[int, int], ...] = ()
    shares: tuple[int, ...] = ()
    repeated: int = 0
    lasting: frozenset[int] = frozenset()
    early: bool = False
    received: frozenset[int] = frozenset()
    alone: bool = False


class SegmentFunction:
    """A kernel as a function of a segment.

    Attributes:
        number: its own.
        streams: the operands that come through the ring: those of products.
        operand: of a loop nest, the only short operand, if the ring can bring it.
        body: its code.
        blocks: blocks that have work.
        shared_bytes: bytes of its arrays.
        sent: the arguments whose elements are sent in packets.
        polled: those whose elements are read from packets.
        awaited: see :class:`Form`.
        received: see :class:`Form`, in order.
        shares: see :class:`Form`.
        repeated: see :class:`Form`.
        receives: whether it does nothing but wait for values of other blocks.
    """

    def __init__(self, number: int, part: Part, target: CudaTarget, how: Form) -> None:
        kernel = part.kernel
        self.number = number
        self.sent = how.sent
        self.polled = how.polled
        self.awaited = how.awaited
        self.received = tuple(sorted(how.received))
        self.shares = how.shares
        self.repeated = how.repeated
        self.receives = isinstance(kernel, ReceivePackets)
        self.streams: tuple[Stream, ...] = ()
        body: Body | None
        if how.streams:
            self.streams = tuple(weight_streams.streams_of(kernel))
            padded = frozenset(n for n, _ in how.padded)
            body = streamed_rows.body(kernel, target, how.held, padded, how.polled)
            self.blocks, dynamic = sum(stream.tiles for stream in self.streams), 0
        else:
            target = replace(target, alone=how.alone)
            launch = kernel.launch(target)
            if isinstance(kernel, ReceivePackets) and how.padded:
                body = kernel.padded_body(dict(how.padded))
            else:
                body = kernel.body(target)
            self.blocks, dynamic = launch.grid, launch.shared_bytes
        assert body is not None, f"{kernel.name} is part of a segment"
        self.operand: Operand | None = None
        if isinstance(kernel, CudaLoopNest | ChainedNests) and part.shares_of is None:
            short = _short_operands(kernel, how.lasting)
            body = replace(body, touch=_touch(short, body))
            aligned = len(short) == 1 and not (short[0].offset | short[0].nbytes) % _BULK_BYTES
            if part.everywhere and aligned:
                self.operand = short[0]
        elif not how.early:
            body = replace(body, touch="")
        self.body = body
        self.shared_bytes = body.array_bytes + dynamic

    @property
    def brought(self) -> list[int]:
        """The arguments that come through the ring as products' operands."""
        return [argument for stream in self.streams for argument in stream.arguments]


def _touch(operands: Sequence[Operand], body: Body) -> str:
    """Statements that bring short operands into the cache; see :class:`Body`."""
    names = [parameter.rpartition(" ")[2] for parameter in body.parameters]
    starts = [f"(const unsigned char*){names[o.argument]} + {o.offset}" for o in operands]
    return "".join(
        f"    ost::prefetch({start}, {o.nbytes}, threadIdx.x % 32, 32);\n"
        for start, o in zip(starts, operands, strict=True)
    )


def _short_operands(nest: CudaLoopNest | ChainedNests, lasting: Set[int]) -> list[Operand]:
    """The operands of which a nest reads a short part."""
    found = []
    for number in sorted(lasting):
        ranges = [bounds(access.index) for access in nest.accesses() if access.position == number]
        if not ranges:
            continue
        itemsize = nest.args[number].dtype.itemsize
        first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
        nbytes = (last - first + 1) * itemsize
        if nbytes <= _SHORT_BYTES:
            found.append(Operand(number, first * itemsize, nbytes))
    return found
