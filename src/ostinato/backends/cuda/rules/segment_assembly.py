"""Assembly of a segment: its parts in order, the barriers between them, and their memory."""

from __future__ import annotations

from collections import Counter
from itertools import compress, dropwhile
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.chained_nests import ChainedNests
from ostinato.backends.cuda.rules.derived_values import without_derived
from ostinato.backends.cuda.rules.inlined_values import with_inlined_values
from ostinato.backends.cuda.rules.joint_nests import JointNests
from ostinato.backends.cuda.rules.joint_products import products_of
from ostinato.backends.cuda.rules.packets import ClearPackets, ReceivePackets
from ostinato.backends.cuda.rules.rounded_products import MOST_TILES
from ostinato.backends.cuda.rules.rounding_nests import group_of
from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel, Space, SpaceKind
from ostinato.backends.cuda.rules.segment_rows import with_copied_rows
from ostinato.backends.cuda.rules.segment_shares import Shares
from ostinato.backends.cuda.rules.segment_steps import (
    Step,
    Value,
    call_of,
    in_order,
    rounded_step,
    with_joint,
    with_shares,
)
from ostinato.backends.cuda.rules.segment_values import Way, Ways
from ostinato.dtypes import UINT16
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import Arg, max_extent
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import segments, streamed_left, weight_streams
    from ostinato.backends.cuda.target import CudaTarget
else:
    segments = LazyModule("ostinato.backends.cuda.render.segments")
    streamed_left = LazyModule("ostinato.backends.cuda.render.streamed_left")
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = ["Assembly", "Segment", "SegmentSettings", "simplified"]

#: Bytes of a weight that is brought into the cache in advance, at most.
_FIXED_BYTES = 128 << 10

#: Bytes of an input that blocks copy into their memory, and of all of them, at most; parts that
#: read it, at least: the tables and positions of paged attention are read by every layer's.
_COPIED_BYTES, _ALL_COPIED_BYTES, _READERS = 4 << 10, 8 << 10, 3

#: Values in the shared memory of a block, and in packets, begin at multiples of this.
_ALIGNMENT = 16


class Segment(SegmentKernel):
    """Several kernels as one, whose blocks all are resident."""

    def launch(self, target: CudaTarget) -> Launch:
        return segments.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return segments.source(self, target)


#: Bytes of a value whose rows may be apart.
_LONG_BYTES = 1 << 10


@dataclass(frozen=True)
class SegmentSettings:
    """The settings of segments.

    Attributes:
        stream_weights: fetch the weights of products ahead of their use.
        exchange: pass values from part to part without barriers where there is a way.
        experts: whether products by chosen matrices may be parts.
        one_block: let a single block run parts that are short enough for that.
        layers: loop over the code of parts that repeat, instead of going by their records.
        join: make one part of short ones that blocks run for themselves, of products of the same
            rows, and of nests one of which reads what the other one writes.
        round: round the tiles of products where they are made; it needs a ring.
    """

    stream_weights: bool = True
    exchange: bool = True
    experts: bool = False
    one_block: bool = True
    layers: bool = True
    join: bool = True
    round: bool = False


def simplified(
    calls: Sequence[Call], others: Set[LoweredBuffer], settings: SegmentSettings
) -> Sequence[Call]:
    """The calls of a segment, with fewer values that go from part to part.

    Args:
        calls: in order.
        others: buffers that are used elsewhere.
        settings: the optimisations that are on.
    """
    if not settings.exchange:
        return calls
    found = without_derived(calls, others)
    return with_copied_rows(with_inlined_values(found, others) if settings.join else found)


def _needs_no_packets(step: Step) -> bool:
    """Whether a step is in front of all barriers, and has nothing to do with packets: blocks go on
    with it while these are cleared.
    """
    values = (operand for operand in step.operands if isinstance(operand, Value))
    return step.level == 0 and all(value.kind is not SpaceKind.PACKETS for value in values)


class Assembly:
    """Makes a segment of calls, which :func:`simplified` has made.

    Args:
        calls: in order.
        others: buffers that are in global memory.
        settings: the optimisations that are on.
    """

    def __init__(
        self, calls: Sequence[Call], others: Set[LoweredBuffer], settings: SegmentSettings
    ) -> None:
        self._calls = calls
        self._settings = settings
        exchanged = calls if settings.exchange else ()
        rounds = settings.round and settings.stream_weights and settings.join
        shares = Shares(exchanged, frozenset(exchanged))
        self._ways = Ways(exchanged, others, shares, rounds=rounds)
        self._levels = _levels(calls, self._ways)
        self._ways.share(self._levels)
        self._shares = Shares(exchanged, self._ways.everywhere)
        self._sent: dict[LoweredBuffer, Value] = {}
        self._held: dict[LoweredBuffer, Value] = {}
        self._uses: dict[Value, list[int]] = {}  # the numbers of the steps
        self._offsets: dict[Value, int] = {}  # in the memory of a block

    def segment(self) -> tuple[Segment, list[LoweredBuffer], list[Call]]:
        """The kernel, its buffers, and the call that each of its parts was made of."""
        steps = [step for call in self._calls for step in self._steps(call)]
        total = sum(_whole(value.size) for value in self._sent.values()) // UINT16.itemsize
        packets = None
        if total:
            type_ = TensorType(UINT16, (total,))
            packets = LoweredBuffer(type_, Role.TEMP, f"packets of {self._calls[0].title}")
            for step in dropwhile(_needs_no_packets, steps):
                step.level += 1
            steps.insert(0, Step(ClearPackets((total,)), (packets,), None, 0))
        steps = with_shares(in_order(steps))
        if self._settings.join:
            steps = with_joint(steps, self._alone(steps), self._ways.everywhere)
        buffers = [o for step in steps for o in step.operands if isinstance(o, LoweredBuffer)]
        buffers = list(dict.fromkeys(buffers))
        spaces, block_bytes = self._spaces(steps)
        position: dict[LoweredBuffer | Value, int] = {b: i for i, b in enumerate(buffers)}
        position |= {value: i for i, value in enumerate(spaces, len(buffers))}
        reads, writes = [False] * len(position), [False] * len(position)
        for step in steps:
            for arg, operand in zip(step.kernel.args, step.operands, strict=True):
                reads[position[operand]] |= arg.reads
                writes[position[operand]] |= arg.writes
        numbers = {step.call: i for i, step in enumerate(steps) if step.call is not None}
        arguments = [tuple(position[operand] for operand in step.operands) for step in steps]
        streamed = [
            self._settings.stream_weights and _streams(step.kernel, [writes[n] for n in numbered])
            for step, numbered in zip(steps, arguments, strict=True)
        ]
        # A ring takes the shared memory of a second block, which other products need.
        weights = [_weight_bytes(step.kernel) for step in steps]
        worthwhile = 2 * sum(compress(weights, streamed)) >= sum(weights)
        held, parts = self._held_at(len(steps)), []
        for number, step in enumerate(steps):
            same = None if step.call is None else self._ways.tiles_of.get(step.call)
            repeated = isinstance(step.kernel, ReceivePackets | JointNests | ChainedNests)
            parts.append(
                Part(
                    step.kernel,
                    arguments[number],
                    step.level,
                    streamed[number] and worthwhile,
                    repeated or step.call in self._ways.everywhere,
                    None if same is None else numbers[same],
                    None if step.reader is None else numbers[step.reader],
                    step.strides,
                    held[number],
                )
            )
        args = tuple(
            Arg(buffer.type.dtype, reads[i], writes[i]) for i, buffer in enumerate(buffers)
        )
        at = None if packets is None else position[packets]
        variables = self._calls[0].kernel.variables
        kernel = Segment(
            args,
            tuple(parts),
            tuple(spaces.values()),
            at,
            block_bytes,
            self._settings.one_block,
            _fixed(buffers) if self._settings.one_block else (),
            self._copied(steps, buffers),
            frozenset(i for i, buffer in enumerate(buffers) if _is_sized(buffer)),
            variables,
            self._settings.layers,
        )
        return kernel, buffers, list(map(call_of, steps))

    def _copied(
        self, steps: Sequence[Step], buffers: Sequence[LoweredBuffer]
    ) -> tuple[tuple[int, int], ...]:
        """The positions and sizes of short inputs that several parts read, all by plain loads."""
        if self._settings.one_block or not self._settings.exchange:
            return ()
        readers: Counter[LoweredBuffer | Value] = Counter()
        others: set[LoweredBuffer | Value] = set()
        for step in steps:
            readers.update({*step.operands})
            plain = step.kernel.plain_arguments
            others |= {operand for n, operand in enumerate(step.operands) if n not in plain}
        found, room = [], _ALL_COPIED_BYTES
        for position, buffer in enumerate(buffers):
            given = buffer.role is Role.INPUT and buffer.home is None and not _is_sized(buffer)
            fits = 0 < buffer.nbytes <= min(room, _COPIED_BYTES)
            if given and fits and readers[buffer] >= _READERS and buffer not in others:
                found.append((position, buffer.nbytes))
                room -= buffer.nbytes
        return tuple(found)

    def _alone(self, steps: Sequence[Step]) -> set[Step]:
        """The products that are not one with others: their tiles are bound to those of others, or
        their weights come from parts before them.
        """
        bound = {*self._ways.tiles_of, *self._ways.tiles_of.values()}
        written = {operand for step in steps for operand in step.written()}
        return {
            step
            for step in steps
            if not self._settings.stream_weights
            or step.call in bound
            or not _streams(step.kernel, [operand in written for operand in step.operands])
        }

    def longest_held(self, most: int) -> LoweredBuffer:
        """The value that blocks have for longest, of those of which they have too many at a time.

        Args:
            most: bytes of the values that a block has, more of which the segment has.
        """
        uses = {buffer: self._uses[value] for buffer, value in self._held.items()}
        ends = {b: self._offsets[value] + _whole(value.size) for b, value in self._held.items()}
        first = next(uses[b][0] for b, end in ends.items() if end > most)
        together = [b for b, numbers in uses.items() if numbers[0] <= first <= numbers[-1]]
        return max(together, key=lambda b: uses[b][-1] - uses[b][0])

    def _steps(self, call: Call) -> Iterator[Step]:
        """The part that a call becomes, behind those that receive what it reads."""
        rounded = self._ways.rounded
        if call in rounded.values():
            return  # it is part of what rounds its result
        product = rounded.get(call)
        if product is None:
            yield from self._received(call)
            yield self._step(call)
            return
        (result,) = product.writes()
        nbytes = MOST_TILES * group_of(call) * result.type.dtype.itemsize
        self._held[result] = Value(SpaceKind.BLOCK, nbytes)
        for each in (product, call):
            yield from self._received(each)
        yield rounded_step(self._step(product), self._step(call), product.buffers.index(result))

    def _received(self, call: Call) -> Iterator[Step]:
        """The parts that receive what a call reads; memory for what it sends, and has itself."""
        assert isinstance(call.kernel, CudaKernel)
        for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
            way = self._ways.way(buffer)
            if way is Way.BLOCK and buffer not in self._held:
                self._held[buffer] = Value(SpaceKind.BLOCK, self._held_bytes(buffer))
            if way not in (Way.PACKETS, Way.POLLED):
                continue
            dtype = buffer.type.dtype
            elements = buffer.nbytes // dtype.itemsize
            if arg.writes:
                self._sent[buffer] = Value(SpaceKind.PACKETS, buffer.nbytes)
            elif way is Way.PACKETS and buffer not in self._held:
                held = self._held[buffer] = Value(SpaceKind.BLOCK, self._held_bytes(buffer))
                taken = Arg(dtype, reads=False, writes=True)
                reader, elements = self._shares.sizes.get(buffer, (None, elements))
                kernel = ReceivePackets((elements,), (Arg(dtype), taken))
                strides: tuple[int, ...] = () if reader is None else (elements, 0)
                # A call behind this one may be in front of it in the segment.
                first = min(self._levels[c] for c in self._calls if buffer in c.reads())
                yield Step(kernel, (self._sent[buffer], held), None, first, reader, strides)

    def _step(self, call: Call) -> Step:
        """The part that a call becomes."""
        assert isinstance(call.kernel, CudaKernel)
        operands: list[LoweredBuffer | Value] = []
        for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
            places = [self._sent.get(buffer), self._held.get(buffer)]
            nearest, other = places if arg.writes else places[::-1]
            operands.append(nearest or other or buffer)
        alone = [self._shares.sizes.get(b) if b in self._held else None for b in call.buffers]
        if (share := self._shares.of.get(call)) is not None:
            pairs = zip(alone, share.strides, strict=True)
            strides = tuple(0 if size else stride for size, stride in pairs)
            return Step(
                share.kernel, tuple(operands), call, self._levels[call], share.reader, strides
            )
        # The share that a block has is not where that of the point would be.
        strides = tuple(-size[1] if size else 0 for size in alone)
        return Step(call.kernel, tuple(operands), call, self._levels[call], None, strides)

    def _held_at(self, count: int) -> list[int]:
        """By step, the end of the values that a block has."""
        ends = [0] * count
        for value, start in self._offsets.items():
            for number in range(self._uses[value][0], self._uses[value][-1] + 1):
                ends[number] = max(ends[number], start + _whole(value.size))
        return ends

    def _held_bytes(self, buffer: LoweredBuffer) -> int:
        """Bytes of a value in the memory of a block, which may have a share of it."""
        found = self._shares.sizes.get(buffer)
        if found is not None:
            return found[1] * buffer.type.dtype.itemsize
        # Long ones have room for it in any case: what the first layer computes, later ones receive,
        # and all layers have their values at the same places.
        padded = self._ways.way(buffer) is Way.PACKETS or buffer.nbytes >= _LONG_BYTES
        return buffer.nbytes + streamed_left.MOST_PADDING * padded

    def _spaces(self, steps: Sequence[Step]) -> tuple[dict[Value, Space], int]:
        """The memory of values, and the shared memory that they need."""
        uses = self._uses
        numbers_of = {step.call: i for i, step in enumerate(steps)}
        for number, step in enumerate(steps):
            last = number if step.reader is None else numbers_of[step.reader]
            for operand in step.operands:
                if isinstance(operand, Value):
                    uses.setdefault(operand, []).extend((number, last))
        for numbers in uses.values():
            # What most layers read stays: the last one is like all others.
            if numbers[-1] - numbers[0] > len(steps) // 2:
                numbers.append(len(steps) - 1)
        spaces: dict[Value, Space] = {}
        packets = most = 0
        live: list[tuple[int, int, int]] = []  # the last use, the start and the end of each
        for value, numbers in uses.items():
            if value.kind is SpaceKind.PACKETS:
                spaces[value] = Space(value.kind, packets)
                packets += _whole(value.size)
                continue
            live = [found for found in live if found[0] >= numbers[0]]
            size, start = _whole(value.size), 0
            for _, low, high in sorted(live, key=lambda found: found[1]):
                if start + size <= low:
                    break
                start = max(start, high)
            live.append((numbers[-1], start, start + size))
            spaces[value] = Space(value.kind, start)
            self._offsets[value] = start
            most = max(most, start + size)
        return spaces, most


def _fixed(buffers: Sequence[LoweredBuffer]) -> tuple[tuple[int, int], ...]:
    """The positions and sizes of short buffers whose contents no run changes."""
    roles = (Role.PARAM, Role.CONSTANT, Role.PREPARED)
    found = [(i, buffer.nbytes) for i, buffer in enumerate(buffers) if buffer.role in roles]
    return tuple((i, nbytes) for i, nbytes in found if 0 < nbytes <= _FIXED_BYTES)


def _is_sized(buffer: LoweredBuffer) -> bool:
    """Whether the size of a buffer follows from Variables: it may end before what it may have."""
    whole = buffer if buffer.home is None else buffer.home
    return not all(isinstance(dim, int) for dim in whole.type.shape)


def _whole(nbytes: int) -> int:
    """Bytes up to where the next value may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _weight_bytes(kernel: CudaKernel) -> int:
    """Bytes of the right operands of products."""
    nbytes = 0
    for matmul, _ in products_of(kernel):
        columns = bounds(matmul.points)[1] * max_extent(matmul.n)
        nbytes += columns * bounds(matmul.depth)[1] * matmul.weight_bits // 8
    return nbytes


def _streams(kernel: CudaKernel, written: Sequence[bool]) -> bool:
    """Whether the weights of a kernel can be fetched before it is its turn.

    Args:
        kernel: a part of a segment.
        written: by argument, whether some part writes it.
    """
    found = [n for stream in weight_streams.streams_of(kernel) for n in stream.arguments]
    return bool(found) and not any(written[argument] for argument in found)


def _levels(calls: Sequence[Call], ways: Ways) -> dict[Call, int]:
    """By call, the number of barriers before it: it is behind every one that it conflicts with.

    What goes another way than by memory is not behind a barrier, but behind its writer.
    """
    readers: dict[LoweredBuffer, int] = {}
    writers: dict[LoweredBuffer, int] = {}
    levels = {}
    for call in calls:
        level = 0
        for buffer in call.reads():
            apart = ways.way(buffer) is Way.MEMORY
            level = max(level, writers.get(buffer, -apart) + apart)
        for buffer in call.writes():
            level = max(level, writers.get(buffer, -1) + 1, readers.get(buffer, -1) + 1)
        for buffer in call.reads():
            readers[buffer] = max(level, readers.get(buffer, -1))
        for buffer in call.writes():
            writers[buffer] = level
        levels[call] = level
    return levels
