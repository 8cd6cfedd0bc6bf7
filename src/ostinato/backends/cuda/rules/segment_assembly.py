"""Assembly of a segment: its parts in order, the barriers between them, and their memory."""

from __future__ import annotations

from itertools import compress, groupby
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.derived_values import without_derived
from ostinato.backends.cuda.rules.inlined_values import with_inlined_values
from ostinato.backends.cuda.rules.joint_nests import JointNests, may_join
from ostinato.backends.cuda.rules.packets import ClearPackets, ReceivePackets
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel, Space, SpaceKind
from ostinato.backends.cuda.rules.segment_rows import with_copied_rows
from ostinato.backends.cuda.rules.segment_shares import Shares
from ostinato.backends.cuda.rules.segment_values import Way, Ways
from ostinato.dtypes import UINT16, DType
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
        join: make one part of short ones that blocks run for themselves, and of nests one of which
            alone reads what the other one writes.
    """

    stream_weights: bool = True
    exchange: bool = True
    experts: bool = False
    one_block: bool = True
    layers: bool = True
    join: bool = True


@dataclass(eq=False)
class _Step:
    """A part under construction.

    Attributes:
        kernel: of the part.
        operands: by argument, what has its memory.
        call: what it was made of, if it was made of one.
        level: the number of barriers before it.
        reader: the call of attention whose points are the shares that it is run for, or which it
            is.
        strides: by argument, elements from one share to the next.
        joined: the calls that it was made of, if it was made of several.
    """

    kernel: CudaKernel
    operands: tuple[LoweredBuffer | _Value, ...]
    call: Call | None
    level: int
    reader: Call | None = None
    strides: tuple[int, ...] = ()
    joined: tuple[Call, ...] = ()

    def written(self) -> list[LoweredBuffer | _Value]:
        """The memory that it writes."""
        pairs = zip(self.kernel.args, self.operands, strict=True)
        return [operand for arg, operand in pairs if arg.writes]


@dataclass(eq=False)
class _Value:
    """Memory of a segment's own for a value.

    Attributes:
        kind: see :class:`SpaceKind`.
        size: its bytes.
    """

    kind: SpaceKind
    size: int


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
        self._ways = Ways(exchanged, others, Shares(exchanged, frozenset(exchanged)))
        self._levels = _levels(calls, self._ways)
        self._ways.share(self._levels)
        self._shares = Shares(exchanged, self._ways.everywhere)
        self._sent: dict[LoweredBuffer, _Value] = {}
        self._held: dict[LoweredBuffer, _Value] = {}
        self._uses: dict[_Value, list[int]] = {}  # the numbers of the steps
        self._offsets: dict[_Value, int] = {}  # in the memory of a block

    def segment(self) -> tuple[Segment, list[LoweredBuffer], list[Call]]:
        """The kernel, its buffers, and the call that each of its parts was made of."""
        steps = [step for call in self._calls for step in self._steps(call)]
        total = sum(_whole(value.size) for value in self._sent.values()) // UINT16.itemsize
        packets = None
        if total:
            type_ = TensorType(UINT16, (total,))
            packets = LoweredBuffer(type_, Role.TEMP, f"packets of {self._calls[0].title}")
            for step in steps:
                step.level += 1
            steps.insert(0, _Step(ClearPackets((total,)), (packets,), None, 0))
        steps = _with_shares(_in_order(steps))
        if self._settings.join:
            steps = list(_with_joint(steps))
        buffers = [o for step in steps for o in step.operands if isinstance(o, LoweredBuffer)]
        buffers = list(dict.fromkeys(buffers))
        spaces, block_bytes = self._spaces(steps)
        position: dict[LoweredBuffer | _Value, int] = {b: i for i, b in enumerate(buffers)}
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
            repeated = isinstance(step.kernel, ReceivePackets | JointNests)
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
            variables,
            self._settings.layers,
        )
        return kernel, buffers, list(map(_call, steps))

    def longest_held(self, most: int) -> LoweredBuffer:
        """The value that blocks have for longest, of those of which they have too many at a time.

        Args:
            most: bytes of the values that a block has, more of which the segment has.
        """
        uses = {buffer: self._uses[value] for buffer, value in self._held.items()}
        spaces = {buffer: self._offsets[value] for buffer, value in self._held.items()}
        first = next(uses[b][0] for b, start in spaces.items() if start + b.nbytes > most)
        together = [b for b, numbers in uses.items() if numbers[0] <= first <= numbers[-1]]
        return max(together, key=lambda b: uses[b][-1] - uses[b][0])

    def _steps(self, call: Call) -> Iterator[_Step]:
        """The part that a call becomes, behind those that receive what it reads."""
        assert isinstance(call.kernel, CudaKernel)
        level = self._levels[call]
        for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
            way = self._ways.way(buffer)
            if way is Way.BLOCK and buffer not in self._held:
                self._held[buffer] = _Value(SpaceKind.BLOCK, self._held_bytes(buffer))
            if way not in (Way.PACKETS, Way.POLLED):
                continue
            dtype = buffer.type.dtype
            elements = buffer.nbytes // dtype.itemsize
            if arg.writes:
                self._sent[buffer] = _Value(SpaceKind.PACKETS, buffer.nbytes)
            elif way is Way.PACKETS and buffer not in self._held:
                held = self._held[buffer] = _Value(SpaceKind.BLOCK, self._held_bytes(buffer))
                taken = Arg(dtype, reads=False, writes=True)
                reader, elements = self._shares.sizes.get(buffer, (None, elements))
                kernel = ReceivePackets((elements,), (Arg(dtype), taken))
                strides: tuple[int, ...] = () if reader is None else (elements, 0)
                # A call behind this one may be in front of it in the segment.
                first = min(self._levels[c] for c in self._calls if buffer in c.reads())
                yield _Step(kernel, (self._sent[buffer], held), None, first, reader, strides)
        operands: list[LoweredBuffer | _Value] = []
        for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
            places = [self._sent.get(buffer), self._held.get(buffer)]
            nearest, other = places if arg.writes else places[::-1]
            operands.append(nearest or other or buffer)
        alone = [self._shares.sizes.get(b) if b in self._held else None for b in call.buffers]
        if (share := self._shares.of.get(call)) is not None:
            pairs = zip(alone, share.strides, strict=True)
            strides = tuple(0 if size else stride for size, stride in pairs)
            yield _Step(share.kernel, tuple(operands), call, level, share.reader, strides)
        else:  # the share that a block has is not where that of the point would be
            strides = tuple(-size[1] if size else 0 for size in alone)
            yield _Step(call.kernel, tuple(operands), call, level, None, strides)

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

    def _spaces(self, steps: Sequence[_Step]) -> tuple[dict[_Value, Space], int]:
        """The memory of values, and the shared memory that they need."""
        uses = self._uses
        numbers_of = {step.call: i for i, step in enumerate(steps)}
        for number, step in enumerate(steps):
            last = number if step.reader is None else numbers_of[step.reader]
            for operand in step.operands:
                if isinstance(operand, _Value):
                    uses.setdefault(operand, []).extend((number, last))
        for (
            numbers
        ) in uses.values():  # what most layers read stays: the last one is like all others
            if numbers[-1] - numbers[0] > len(steps) // 2:
                numbers.append(len(steps) - 1)
        spaces: dict[_Value, Space] = {}
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


def _call(step: _Step) -> Call:
    """The call that a part was made of; for one about packets, a call on memory for the values."""
    if step.call is not None:
        return step.call
    buffers = [
        operand
        if isinstance(operand, LoweredBuffer)
        else LoweredBuffer(
            TensorType(arg.dtype, (operand.size // arg.dtype.itemsize,)), Role.TEMP, "values"
        )
        for arg, operand in zip(step.kernel.args, step.operands, strict=True)
    ]
    if step.joined:
        labels = tuple(dict.fromkeys(label for call in step.joined for label in call.nodes))
        title = ", ".join(dict.fromkeys(call.title for call in step.joined))
        flops = sum((call.flops for call in step.joined), start=0)
        return Call(step.kernel, tuple(buffers), labels, title, flops)
    title = "receive values" if isinstance(step.kernel, ReceivePackets) else "clear packets"
    return Call(step.kernel, tuple(buffers), (), title)


def _whole(nbytes: int) -> int:
    """Bytes up to where the next value may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _weight_bytes(kernel: CudaKernel) -> int:
    """Bytes of the right operand of a product."""
    if not isinstance(kernel, Matmul):
        return 0
    columns = bounds(kernel.points)[1] * max_extent(kernel.n)
    return columns * bounds(kernel.depth)[1] * kernel.weight_bits // 8


def _streams(kernel: CudaKernel, written: Sequence[bool]) -> bool:
    """Whether the weights of a kernel can be fetched before it is its turn.

    Args:
        kernel: a part of a segment.
        written: by argument, whether some part writes it.
    """
    if not isinstance(kernel, Matmul):
        return False
    found = weight_streams.stream_of(kernel)
    return found is not None and not any(written[argument] for argument in found.arguments)


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


def _in_order(steps: Sequence[_Step]) -> list[_Step]:
    """The steps in the order of blocks, with values that are received together as one.

    Parts come first that wait for the fewest values, one behind the other: what the next ones wait
    for may then be there.
    """
    written: dict[LoweredBuffer | _Value, int] = {}
    ranks = {}
    for step in steps:
        packets = any(
            isinstance(operand, _Value) and operand.kind is SpaceKind.PACKETS and not arg.writes
            for arg, operand in zip(step.kernel.args, step.operands, strict=True)
        )
        found = [written.get(operand, 0) for operand in step.operands]
        ranks[step] = max(found, default=0) + packets
        for arg, operand in zip(step.kernel.args, step.operands, strict=True):
            if arg.writes:
                written[operand] = ranks[step]

    def place(step: _Step) -> tuple[int, int, bool]:
        return step.level, ranks[step], not isinstance(step.kernel, ReceivePackets)

    ordered: list[_Step] = []
    for _, together in groupby(sorted(steps, key=place), key=place):
        group = list(together)
        if isinstance(group[0].kernel, ReceivePackets):
            keys = dict.fromkeys(map(_received_as, group))
            group = [_received([s for s in group if _received_as(s) == key]) for key in keys]
        ordered += group
    return ordered


def _with_shares(steps: Sequence[_Step]) -> list[_Step]:
    """The steps, those for the shares of attention right in front of it."""
    shares: dict[Call, list[_Step]] = {}
    for step in steps:
        if step.reader is not None:
            shares.setdefault(step.reader, []).append(step)
    ordered: list[_Step] = []
    for step in steps:
        if step.reader is not None:
            continue
        if step.call is not None and step.call in shares:
            for share in shares[step.call]:
                share.level = step.level
            ordered += shares[step.call]
            step.reader = step.call
        ordered.append(step)
    return ordered


def _with_joint(steps: Sequence[_Step]) -> Iterator[_Step]:
    """The steps, short ones for the same shares as one where they do not wait for each other."""
    group: list[_Step] = []
    for step in steps:
        if group and not _joins(group, step):
            yield _joint(group)
            group = []
        group.append(step)
    if group:
        yield _joint(group)


def _joins(group: Sequence[_Step], step: _Step) -> bool:
    """Whether a step becomes one with those in front of it."""
    first = group[0]
    if step.reader is None or (step.reader, step.level) != (first.reader, first.level):
        return False
    if isinstance(step.kernel, ReceivePackets) or not all(
        may_join(other.kernel) for other in (first, step)
    ):
        return False
    nests = [other for other in group if not isinstance(other.kernel, ReceivePackets)]
    written = {operand for other in nests for operand in other.written()}
    used = {operand for other in nests for operand in other.operands}
    return not written & {*step.operands} and not used & {*step.written()}


def _joint(group: Sequence[_Step]) -> _Step:
    """Several steps as one."""
    first = group[0]
    if len(group) == 1:
        return first
    pairs = [pair for step in group for pair in zip(step.operands, step.strides, strict=True)]
    operands = dict(pairs)
    places = {operand: place for place, operand in enumerate(operands)}
    reads, writes = [False] * len(places), [False] * len(places)
    dtypes = [UINT16] * len(places)
    for step in group:
        for arg, operand in zip(step.kernel.args, step.operands, strict=True):
            reads[places[operand]] |= arg.reads
            writes[places[operand]] |= arg.writes
            dtypes[places[operand]] = arg.dtype
    kernel = JointNests(
        tuple(map(Arg, dtypes, reads, writes)),
        tuple(step.kernel for step in group),
        tuple(tuple(places[operand] for operand in step.operands) for step in group),
        group[-1].kernel.variables,
    )
    calls = tuple(step.call for step in group if step.call is not None)
    return _Step(
        kernel, tuple(operands), None, first.level, first.reader, tuple(operands.values()), calls
    )


def _received_as(step: _Step) -> tuple[Call | None, DType]:
    """The key by which steps receive values together."""
    return step.reader, step.kernel.args[0].dtype


def _received(steps: Sequence[_Step]) -> _Step:
    """The step that receives what several do."""
    kernels = [step.kernel for step in steps if isinstance(step.kernel, ReceivePackets)]
    counts = tuple(count for kernel in kernels for count in kernel.counts)
    args = tuple(arg for kernel in kernels for arg in kernel.args)
    operands = tuple(operand for step in steps for operand in step.operands)
    strides = tuple(stride for step in steps for stride in step.strides)
    first = steps[0]
    return _Step(ReceivePackets(counts, args), operands, None, first.level, first.reader, strides)
