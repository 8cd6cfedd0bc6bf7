"""The form in which each part of a segment calls its kernel: where the arguments are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render import streamed_left, weight_streams
from ostinato.backends.cuda.render.segment_functions import Form
from ostinato.backends.cuda.rules.attention_kernel import PointKernel
from ostinato.backends.cuda.rules.joint_nests import JointNests
from ostinato.backends.cuda.rules.joint_products import products_of
from ostinato.backends.cuda.rules.packets import ClearPackets, ReceivePackets
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.receipts import Receipts
    from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["forms_of"]


def forms_of(
    segment: SegmentKernel, receipts: Receipts, target: CudaTarget, *, streams: bool
) -> list[Form]:
    """The form of each part that is left.

    Args:
        segment: the kernel.
        receipts: its parts.
        target: the GPU, with the blocks of a segment.
        streams: whether there is a ring, for the weights of parts that can use it.
    """
    forms = _Forms(segment, receipts, target, streams=streams)
    return [forms.of(place) for place in range(len(receipts.parts))]


class _Forms:
    """The forms of all parts, which depend on what the other parts do with the arguments."""

    def __init__(
        self, segment: SegmentKernel, receipts: Receipts, target: CudaTarget, *, streams: bool
    ) -> None:
        self.segment = segment
        self.parts, self.packets = receipts.parts, receipts.packets
        self.target = target
        self.streams = streams

    def of(self, place: int) -> Form:
        """The form of one part."""
        part = self.parts[place]
        streams = self.streams and part.streams
        sent: set[int] = set()
        polled: set[int] = set()
        held: set[int] = set()
        padded = {}
        whole = isinstance(part.kernel, ClearPackets | ReceivePackets | JointNests)
        for number, (arg, position) in enumerate(
            zip(part.kernel.args, part.arguments, strict=True)
        ):
            space = self.segment.space(position)
            if space is None:
                continue
            if space.kind is SpaceKind.BLOCK and (row := self._padded_rows.get(position)):
                padded[number] = row
            if space.kind is SpaceKind.BLOCK and streams:
                held.add(number)
            elif space.kind is SpaceKind.PACKETS and not whole:
                (sent if arg.writes else polled).add(number)
        awaited: tuple[tuple[int, int], ...] = ()
        if isinstance(part.kernel, Matmul) and not streams:
            found = {number: weight_streams.elements(part.kernel, number) for number in polled}
            awaited = tuple((number, count) for number, count in sorted(found.items()) if count)
        shares, repeated = self._shares(part, place)
        readable = [
            (number, position)
            for number, (arg, position) in enumerate(
                zip(part.kernel.args, part.arguments, strict=True)
            )
            if arg.reads and not arg.writes and self.segment.space(position) is None
        ]
        return Form(
            part.kernel.name,
            streams,
            frozenset(sent),
            frozenset(polled),
            awaited,
            frozenset(held),
            tuple(sorted(padded.items())),
            shares,
            repeated,
            frozenset(n for n, position in readable if self._lasts(position)),
            all(position not in self._written_by_others for _, position in readable),
            frozenset(self.packets[place]),
            part.everywhere and part.shares_of is None,
        )

    def _lasts(self, position: int) -> bool:
        """Whether an argument is in memory, whole in every run, and no part writes it."""
        segment = self.segment
        if any(position == copied for copied, _ in segment.copied):
            return False
        return not segment.args[position].writes and position not in segment.sized

    def _shares(self, part: Part, place: int) -> tuple[tuple[int, ...], int]:
        """The shares that a part is run for, and the parts in front that are repeated with it."""
        if part.shares_of is None:
            return (), 0
        reader = self.parts[part.shares_of].kernel
        assert isinstance(reader, PointKernel)
        each, points = reader.items_of_point(self.target), bounds(reader.points)[1]
        repeated = 0
        if part.shares_of == place:
            repeated = sum(p.shares_of == place for p in self.parts) - 1
        return (points * each, each, *part.strides), repeated

    @cached_property
    def _padded_rows(self) -> dict[int, int]:
        """The values in the memory of a block whose rows are apart, with the elements of a row.

        These are the left operands of products by what comes through the ring, and nothing else.
        """
        found: dict[int, set[int]] = {}
        for part in self.parts if self.streams else ():
            kernel, received = part.kernel, isinstance(part.kernel, ReceivePackets)
            for number, position in enumerate(part.arguments):
                space = self.segment.space(position)
                if space is None or space.kind is not SpaceKind.BLOCK or received:
                    continue
                rows = {0}
                if part.streams:
                    products = products_of(kernel)
                    own = [
                        (matmul, list(at).index(number)) for matmul, at in products if number in at
                    ]
                    rows = {streamed_left.padded_row(*each) for each in own} or rows
                found.setdefault(position, set()).update(rows)
        return {position: min(rows) for position, rows in found.items() if len(rows) == 1}

    @cached_property
    def _written_by_others(self) -> set[int]:
        """The arguments that a block reads as other blocks have written them."""
        return {
            position
            for part in self.parts
            if not part.everywhere
            for position in part.operands(writes=True)
        }
