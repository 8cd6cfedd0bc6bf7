"""The layout of a segment: its functions, the shared memory of a block, and the launch.

Shared memory has the addresses of all arguments, the records, the Variables, copies of inputs, the
values that every block has, the arrays of the part that runs, and the ring.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.receipts import Receipts
from ostinato.backends.cuda.render.segment_forms import forms_of
from ostinato.backends.cuda.render.segment_functions import SegmentFunction
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import TensorMap
    from ostinato.backends.cuda.render.segment_functions import Form, Operand
    from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["RECORD_FIELDS", "RESIDENT", "SegmentLayout"]

RECORD_FIELDS = 6
"""Fields of a record before the arguments: the function, whether there is a barrier of the grid in
front, the blocks that share the work (0: each has all of it), the first block that has work, the
number of blocks from there on that do, and where its arrays begin, in units of 16 bytes."""

RESIDENT = 2
"""Blocks that share a multiprocessor, at most, where they have no ring."""

#: Bytes of shared memory that the driver takes for each block.
_RESERVED = 1 << 10

#: Slots of a ring, at least and at most.
_LEAST_SLOTS, _MOST_SLOTS = 4, 32

#: Blocks of a segment of independent parts, at most: what a field of a record holds.
_MOST_BLOCKS = (1 << 16) - 1

#: Slots of a ring, and so shared memory, begin at multiples of these bytes: swizzled copies do.
_SLOT_GRAIN = 1 << 10

#: Bytes of static shared memory where parts are timed, with those up to what is dynamic.
_STAMP_BYTES = _SLOT_GRAIN

#: Bytes of a barrier in shared memory.
_BARRIER_BYTES = 8


class SegmentLayout:
    """The functions of a segment, and what a block has in shared memory.

    Attributes:
        segment: the kernel.
        target: the GPU.
        stamped: whether parts are timed.
        parts: those of the segment that no other part takes over.
        packets: by part, the position of the packets of each argument that it receives.
        numbers: by part, its number among all of the segment.
        width: numbers of a record.
        streams: whether there is a ring.
        independent: whether parts have blocks of their own, and no barrier.
        functions: by part, its function.
        distinct: the functions, each once.
        fetched: the operands that are fetched for parts, in order: the number of a part, times
            :attr:`most_streams`, and of its stream.
    """

    def __init__(
        self, segment: SegmentKernel, target: CudaTarget, *, stamped: bool = False
    ) -> None:
        self.segment = segment
        self.target = target
        self.stamped = stamped
        inside = replace(target, block=SEGMENT_BLOCK, early_starts=False)
        receipts = Receipts.of(segment.parts, inside)
        self.parts, self.packets = receipts.parts, receipts.packets
        self.numbers = receipts.numbers
        self.width = RECORD_FIELDS + max(
            len(part.arguments) + len(packets)
            for part, packets in zip(self.parts, self.packets, strict=True)
        )
        if segment.alone:
            inside = replace(inside, multiprocessors=1)
        self.independent = _is_independent(segment)
        streams = target.copies_in_bulk and any(part.streams for part in self.parts)
        self.streams = streams and not self.independent
        self._make_functions(receipts, inside)
        if self.streams and self.slots < _LEAST_SLOTS:
            self.streams = False
            self._make_functions(receipts, inside)
        if sum(function.blocks for function in self.functions) > _MOST_BLOCKS:
            self.independent = False

    def _make_functions(self, receipts: Receipts, target: CudaTarget) -> None:
        """The functions of all parts, each once."""
        found: dict[Form, SegmentFunction] = {}
        self.functions = []
        forms = forms_of(self.segment, receipts, target, streams=self.streams)
        for part, form in zip(self.parts, forms, strict=True):
            if form not in found:
                found[form] = SegmentFunction(len(found), part, target, form)
            self.functions.append(found[form])
        self.distinct = list(found.values())
        self.fetched = self._fetched()

    # -- shared memory ----------------------------------------------------------------------

    @property
    def address_bytes(self) -> int:
        """Bytes of the table of addresses."""
        return _whole(8 * (len(self.segment.args) + len(self.segment.spaces)))

    @property
    def table_size(self) -> int:
        """Numbers of the table of records, with the parts behind them that need fetching."""
        return self.width * len(self.parts) + len(self.fetched)

    @property
    def record_bytes(self) -> int:
        """Bytes of the table of records."""
        return _whole(2 * self.table_size)

    @property
    def variable_start(self) -> int:
        """Bytes before the copy of the Variables."""
        return self.address_bytes + self.record_bytes

    @property
    def copied(self) -> dict[int, tuple[int, int]]:
        """The arguments that a block copies: their places in its memory, and their bytes."""
        found, start = {}, self.variable_start + _whole(8 * len(self.segment.variables))
        for position, nbytes in () if self.independent else self.segment.copied:
            found[position] = start, nbytes
            start += _whole(nbytes)
        return found

    @property
    def value_start(self) -> int:
        """Bytes before the values that the block has."""
        copied = sum(_whole(nbytes) for _, nbytes in self.copied.values())
        return self.variable_start + _whole(8 * len(self.segment.variables)) + copied

    def pool_start(self, part: Part) -> int:
        """Bytes before the arrays of a part: behind the values that the block has then."""
        return self.value_start + _whole(part.held_bytes)

    @property
    def fixed_bytes(self) -> int:
        """Bytes before the ring: the tables, the values of a block, and the arrays of any part."""
        parts = zip(self.parts, self.functions, strict=True)
        if self.segment.alone:
            return max(_whole(function.shared_bytes) for function in self.functions)
        arrays = max(self.pool_start(part) + _whole(f.shared_bytes) for part, f in parts)
        return max(arrays, self.value_start + _whole(self.segment.block_bytes))

    @property
    def room(self) -> int:
        """Bytes of dynamic shared memory of a block, at most."""
        return self.target.shared_bytes_per_block - _STAMP_BYTES * self.stamped

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, which the stages of all streams fit."""
        most = max(stream.stage_bytes for f in self.distinct for stream in f.streams)
        return _whole(most, _SLOT_GRAIN)

    @property
    def slots(self) -> int:
        """Slots of the ring: all that there is room for."""
        each = self.slot_bytes + 2 * _BARRIER_BYTES
        most = min((self.room - self.fixed_bytes) // each, _MOST_SLOTS)
        fits = self.slot_start(most) + most * self.slot_bytes <= self.room
        return most if fits else most - 1

    def slot_start(self, slots: int) -> int:
        """Bytes before the first of so many slots, behind whose barriers they are."""
        return _whole(self.fixed_bytes + 2 * _BARRIER_BYTES * slots, _SLOT_GRAIN)

    # -- what comes through the ring --------------------------------------------------------

    @cached_property
    def maps(self) -> list[TensorMap]:
        """The tensor maps of all streams, each once."""
        pairs = zip(self.parts, self.functions, strict=True)
        found = (s.maps(part.arguments) for part, f in pairs for s in f.streams)
        return [*dict.fromkeys(each for maps in found for each in maps)]

    @property
    def streamed_bytes(self) -> int:
        """Bytes that come through the ring for all parts."""
        return sum(stream.nbytes for f in self.functions for stream in f.streams)

    def map_numbers(self, part: Part, function: SegmentFunction) -> dict[int, int]:
        """By argument of a part that comes through the ring, the number of its tensor map."""
        found = [each for stream in function.streams for each in stream.maps(part.arguments)]
        return dict(zip(function.brought, map(self.maps.index, found), strict=True))

    def brought(self, function: SegmentFunction) -> Operand | None:
        """The operand of a loop nest that comes through the ring, as a stage of its own."""
        operand = function.operand
        fits = self.streams and operand is not None and operand.nbytes <= self.slot_bytes
        return operand if fits else None

    @property
    def touching(self) -> list[SegmentFunction]:
        """The functions whose operands the warp that fills the ring brings into the cache."""
        if not self.streams:
            return []
        return [f for f in self.distinct if f.body.touch and self.brought(f) is None]

    @property
    def most_streams(self) -> int:
        """Operands that come through the ring for a part, at most; 1 if none do."""
        return max((len(f.streams) for f in self.distinct), default=1) or 1

    def _fetched(self) -> list[int]:
        if not self.streams:
            return []
        most, found = self.most_streams, []
        for number, f in enumerate(self.functions):
            alone = bool(f.body.touch) or self.brought(f) is not None
            found += [number * most + i for i in range(len(f.streams) or alone)]
        return found

    # -- the launch -------------------------------------------------------------------------

    @cached_property
    def launch(self) -> Launch:
        """As many blocks as are resident at the same time, or as independent parts need."""
        blocks, shared = self.target.multiprocessors, self.fixed_bytes
        if self.segment.alone:
            early = self.target.starts_kernels_early
            return Launch(1, SEGMENT_BLOCK, shared, programmatic=early)
        if self.independent:
            grid, early = sum(f.blocks for f in self.functions), self.target.starts_kernels_early
            return Launch(grid, SEGMENT_BLOCK, shared, programmatic=early)
        if self.streams:
            shared = self.slot_start(self.slots) + self.slots * self.slot_bytes
            threads, maps = SEGMENT_BLOCK + WARP, tuple(map(tuple, self.maps))
            return Launch(blocks, threads, shared, cooperative=True, maps=maps)
        fits = RESIDENT * (shared + _RESERVED) <= self.room
        resident = RESIDENT if fits else 1
        return Launch(resident * blocks, SEGMENT_BLOCK, shared, cooperative=True)

    @property
    def log_entries(self) -> int:
        """Entries of the log of a block, at most: those of the only one."""
        repeated = ((f.repeated + 1) * (f.shares[0] - 1) for f in self.functions if f.repeated)
        return 1 + len(self.parts) + sum(repeated)


def _is_independent(segment: SegmentKernel) -> bool:
    """Whether no part waits for another one."""
    together = segment.parts[0].level == segment.parts[-1].level
    apart = all(p.tiles_of is None and not p.everywhere for p in segment.parts)
    return together and apart and not segment.spaces and not segment.alone


def _whole(nbytes: int, grain: int = 16) -> int:
    """Bytes up to the next multiple of so many."""
    return -(-nbytes // grain) * grain
