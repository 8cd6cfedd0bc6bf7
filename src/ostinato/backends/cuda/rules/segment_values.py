"""The ways of values from part to part of a segment.

A value in global memory is behind a barrier of the whole grid, which costs more than most parts.
There are three ways around it. A small part is run by every block for itself, and its results stay
in shared memory. The result of a product may be read, tile by tile, on the block that computed the
tile. And short results travel in packets, whose elements show that they are there, to blocks that
wait for them.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.attention_kernel import PartsKernel, PointKernel
from ostinato.backends.cuda.rules.packets import UNIT_BYTES
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.rounding_nests import is_rounded_by
from ostinato.backends.cuda.rules.segment_steps import MOST_ARGUMENTS
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Load, Store, extent_of, max_extent
from ostinato.lower.program import Role
from ostinato.variables import Expr, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from ostinato.backends.cuda.render import weight_streams
    from ostinato.backends.cuda.rules.segment_shares import Shares
    from ostinato.lower.loopir.nodes import Statement
    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim
else:
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = ["Way", "Ways"]

#: Points of a part that every block runs for itself, at most, and of one that writes to memory.
_REPEATED_POINTS, _REPEATED_STORES = 8 << 10, 2 << 10

#: Bytes of a value that every block has, at most.
_BLOCK_BYTES = 32 << 10

#: Elements of a value whose packets are read where they are, or share by share, at most.
_POLLED_ELEMENTS = 64 << 10

#: Elements of a value of which blocks receive all packets, at most.
_PACKET_ELEMENTS = 16 << 10

#: Rows of such a value, at most, if parts read it whose blocks do not need all of it.
_PACKET_ROWS = 4


class Way(enum.Enum):
    """The ways of a value from the part that writes it to those that read it."""

    MEMORY = "by global memory, behind a barrier"
    TILES = "by global memory, on the block that has written it"
    BLOCK = "in the shared memory of each block, which has computed it"
    ROUNDED = "in the memory of the block that has computed it, which rounds it tile by tile"
    REPEATED = "by global memory, which every block that reads it has written"
    PACKETS = "in packets, which are copied into the shared memory of each block"
    POLLED = "in packets, which are read where they are"


class Ways:
    """The ways of all values that the parts of one segment write.

    Args:
        calls: that become the parts, in order.
        outside: buffers that others read, too.
        shares: the calls that blocks could run for shares.

    Attributes:
        everywhere: the calls that every block runs for itself.
        tiles_of: by call, the one before it whose tiles go to the same blocks.
        rounded: by call that rounds the tiles of a product where they are, the product.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        outside: Set[LoweredBuffer],
        shares: Shares,
        *,
        rounds: bool = False,
    ) -> None:
        self._shares = shares
        self._rounds = rounds
        self.rounded: dict[Call, Call] = {}
        self._writer: dict[LoweredBuffer, Call] = {}
        self._readers: dict[LoweredBuffer, list[Call]] = {}
        self._ways: dict[LoweredBuffer, Way] = {}
        self.everywhere: set[Call] = set()
        self.tiles_of: dict[Call, Call] = {}
        writes = Counter(buffer for call in calls for buffer in call.writes())
        unread = {
            buffer
            for buffer, times in writes.items()
            if times == 1 and buffer.role is Role.TEMP and buffer.home is None
        } - outside
        for call in calls:
            for buffer in call.reads():
                self._readers.setdefault(buffer, []).append(call)
                if buffer not in self._writer:
                    unread.discard(buffer)  # it is read before it is written, or never written
            self._writer |= dict.fromkeys(call.writes(), call)
        self._own = unread
        self._once = {buffer for buffer, times in writes.items() if times == 1}
        for call in calls:
            self._decide(call)

    def way(self, buffer: LoweredBuffer) -> Way:
        """The way of a value."""
        return self._ways.get(buffer, Way.MEMORY)

    def readers(self, buffer: LoweredBuffer) -> Sequence[Call]:
        """The calls that read a value."""
        return self._readers.get(buffer, ())

    def share(self, levels: Mapping[Call, int]) -> None:
        """Let blocks share the work of calls whose readers are behind a barrier anyway.

        Args:
            levels: by call, the number of barriers before it.
        """
        for call in list(self.everywhere):
            readers = [r for buffer in call.writes() for r in self._readers.get(buffer, ())]
            if all(levels[reader] > levels[call] for reader in readers):
                self.everywhere.remove(call)
                for buffer in call.writes():
                    self._ways[buffer] = Way.MEMORY

    def _decide(self, call: Call) -> None:
        """The ways of a call's results; those of the calls before it are known."""
        own = [buffer for buffer in call.writes() if buffer in self._own]
        if call in self.rounded:
            self._ways |= dict.fromkeys(own, Way.PACKETS)
            return
        others = [buffer for buffer in call.writes() if buffer not in self._own]
        most = _REPEATED_STORES if others else _REPEATED_POINTS
        if (
            _is_repeatable(call, most * max(map(self._shares.count, call.writes()), default=1))
            and all(map(self._is_short, own))
            and all(self._may_repeat(call, buffer) for buffer in others)
        ):
            self.everywhere.add(call)
            self._ways |= dict.fromkeys(own, Way.BLOCK)
            self._ways |= dict.fromkeys(others, Way.REPEATED)
            return
        if isinstance(call.kernel, PointKernel):
            self._ways |= {buffer: Way.POLLED for buffer in own if self._is_polled(call, buffer)}
            return
        for buffer in own:
            if self._rounds and self._is_rounded(call, buffer):
                self._ways[buffer] = Way.ROUNDED
            elif isinstance(call.kernel, Matmul) and self._reads_tiles(call, buffer):
                self._ways[buffer] = Way.TILES
            elif not _is_sendable(call, buffer):
                continue
            elif self._is_read_in_place(buffer) or self._is_read_by_stages(buffer):
                self._ways[buffer] = Way.POLLED
            elif self._is_received(call, buffer):
                self._ways[buffer] = Way.PACKETS

    def _may_repeat(self, call: Call, buffer: LoweredBuffer) -> bool:
        """Whether blocks may all write a result to memory: the same elements, which others read.

        A state is not the memory of anything that the part reads; a user's array may be.
        """
        kernel = call.kernel
        assert isinstance(kernel, CudaLoopNest)
        stores = [s for stage in kernel.stages for s in stage.statements if isinstance(s, Store)]
        return (
            buffer.role is Role.STATE
            and buffer in self._once
            and buffer not in call.reads()
            and bool(self._readers.get(buffer))
            and all(store.update == "set" for store in stores)
        )

    def _is_short(self, buffer: LoweredBuffer) -> bool:
        """Whether every block may have a value, or its share of it, in its memory."""
        return 0 < buffer.nbytes <= _BLOCK_BYTES * self._shares.count(buffer)

    def _is_polled(self, call: Call, buffer: LoweredBuffer) -> bool:
        """Whether the results of parts of attention are read by the kernel that adds them up."""
        readers = self._readers.get(buffer, [])
        elements = buffer.nbytes // buffer.type.dtype.itemsize
        return (
            len(readers) == 1
            and isinstance(readers[0].kernel, PartsKernel)
            and readers[0].buffers.count(buffer) == 1
            and buffer.type.dtype == FLOAT32
            and elements <= _POLLED_ELEMENTS
        )

    def _is_read_in_place(self, buffer: LoweredBuffer) -> bool:
        """Whether blocks read only some elements of a result each: packets of these will do."""
        readers = self._readers.get(buffer, [])
        return self._is_polled_whole(buffer) and all(_reads_some(r, buffer) for r in readers)

    def _is_read_by_stages(self, buffer: LoweredBuffer) -> bool:
        """Whether products wait for a result stage by stage, where weights come through a ring."""
        return self._is_polled_whole(buffer) and all(
            isinstance(reader.kernel, Matmul)
            and reader.buffers.count(buffer) == 1
            and weight_streams.reads_by_stages(reader.kernel, reader.buffers.index(buffer))
            for reader in self._readers.get(buffer, [])
        )

    def _is_polled_whole(self, buffer: LoweredBuffer) -> bool:
        """Whether parts may read packets of a result where they are: it is short, and no share."""
        short = buffer.nbytes // buffer.type.dtype.itemsize <= _POLLED_ELEMENTS
        return bool(self._readers.get(buffer)) and short and buffer not in self._shares.sizes

    def _is_received(self, call: Call, buffer: LoweredBuffer) -> bool:
        """Whether blocks have room for a result, or for their share of it."""
        elements = buffer.nbytes // buffer.type.dtype.itemsize
        if buffer in self._shares.sizes:
            return self._is_short(buffer) and elements <= _POLLED_ELEMENTS
        kernel = call.kernel
        few = isinstance(kernel, Matmul) and max_extent(kernel.m) <= _PACKET_ROWS
        readers = self._readers.get(buffer, [])
        wanted = bool(readers) and all(
            isinstance(reader.kernel, Matmul) or _is_repeatable(reader, _REPEATED_POINTS)
            for reader in readers
        )
        return (
            self._is_short(buffer)
            and elements <= _PACKET_ELEMENTS
            and (few or wanted or isinstance(kernel, PartsKernel))
        )

    def _is_rounded(self, call: Call, buffer: LoweredBuffer) -> bool:
        """Whether only a call that rounds them reads the tiles of a result, and all can be sent."""
        readers = self._readers.get(buffer, [])
        if len(readers) != 1 or not is_rounded_by(call, buffer, readers[0]):
            return False
        (reader,) = readers
        if any(weight in self._writer for weight in _weights(call)):
            return False
        if len({*call.buffers, *reader.buffers}) > MOST_ARGUMENTS:
            return False
        for result in reader.writes():
            dtype, users = result.type.dtype, self._readers.get(result, [])
            if result not in self._own or result in self._shares.sizes:
                return False
            if result.nbytes // dtype.itemsize > _PACKET_ELEMENTS or not self._is_short(result):
                return False
            if dtype == INT8 and result.nbytes % UNIT_BYTES:
                return False
            if not users or not all(isinstance(user.kernel, Matmul) for user in users):
                return False
        self.rounded[reader] = call
        return True

    def _reads_tiles(self, call: Call, buffer: LoweredBuffer) -> bool:
        """Whether all that read a result do so tile by tile; then they are bound to its blocks."""
        readers = self._readers.get(buffer, [])
        first = self.tiles_of.get(call, call)
        if not all(
            reader is not first
            and self.tiles_of.get(reader, first) is first
            and _has_same_tiles(call, reader, buffer)
            and not any(w in self._writer for p in (call, reader) for w in _weights(p))
            for reader in readers
        ):
            return False
        self.tiles_of |= dict.fromkeys(readers, first)
        return bool(readers)


def _is_repeatable(call: Call, most: int) -> bool:
    """Whether every block may run a call of at most so many points for itself."""
    kernel = call.kernel
    if isinstance(kernel, CudaLoopNest):
        inner = max((math.prod(map(max_extent, stage.axes)) for stage in kernel.stages), default=1)
        points = math.prod(map(max_extent, kernel.outer_axes)) * inner
        return kernel.parallel and not kernel.scratch_groups and points <= most
    return False


def _is_sendable(call: Call, buffer: LoweredBuffer) -> bool:
    """Whether a result may travel in packets: floats, each of which every run writes once."""
    kernel, shape = call.kernel, buffer.type.shape
    position = call.buffers.index(buffer)
    stores: Sequence[Statement]
    if isinstance(kernel, Matmul | PartsKernel):
        stores = kernel.stores if isinstance(kernel, Matmul) else (kernel.store,)
    elif _is_plain(call):
        assert isinstance(kernel, CudaLoopNest)
        stores = [s for stage in kernel.stages for s in stage.statements]
    else:
        return False
    own = [s for s in stores if isinstance(s, Store) and s.buffer == position]
    return (
        all(isinstance(size, int) for size in shape)
        and buffer.type.dtype in (FLOAT32, FLOAT16, BFLOAT16)
        and buffer.nbytes > 0
        and call.buffers.count(buffer) == 1
        and buffer not in call.reads()
        and len(own) == 1
        and own[0].update == "set"
        and not own[0].conditions
        and not own[0].bindings
        and all(isinstance(extent_of(symbol), int) for symbol in symbols(own[0].index))
    )


def _is_plain(call: Call) -> bool:
    """Whether a call is a loop nest whose threads have points of their own."""
    kernel = call.kernel
    return type(kernel) is CudaLoopNest and kernel.parallel and not kernel.scratch_groups


def _reads_some(reader: Call, buffer: LoweredBuffer) -> bool:
    """Whether a block reads only some elements of a value: in an epilogue or a long loop nest."""
    kernel = reader.kernel
    if reader.buffers.count(buffer) != 1:
        return False
    if isinstance(kernel, Matmul):
        position = reader.buffers.index(buffer)
        return all(load.buffer != position for load in _loads(kernel, operands=True))
    return _is_plain(reader) and not _is_repeatable(reader, _REPEATED_POINTS)


def _has_same_tiles(call: Call, reader: Call, buffer: LoweredBuffer) -> bool:
    """Whether a product reads of another one's result the elements that its own tiles have."""
    first, second = call.kernel, reader.kernel
    if not isinstance(first, Matmul) or not isinstance(second, Matmul):
        return False
    if max_extent(first.m) != max_extent(second.m):
        return False
    streams = [weight_streams.stream_of(kernel) for kernel in (first, second)]
    tiles = [stream and (stream.rows, stream.width) for stream in streams]
    if tiles[0] is None or tiles[0] != tiles[1]:
        return False
    position = call.buffers.index(buffer)
    written = [store.index for store in first.stores if store.buffer == position]
    places = [number for number, other in enumerate(reader.buffers) if other is buffer]
    read = [load for load in _loads(second, operands=False) if load.buffer in places]
    aside = [load for load in _loads(second, operands=True) if load.buffer in places]
    if len(written) != 1 or aside or len(places) != 1 or call.buffers.count(buffer) != 1:
        return False
    place = _at(written[0], first, first)
    return all(not load.bindings and _at(load.index, second, first) == place for load in read)


def _weights(call: Call) -> list[LoweredBuffer]:
    """The operands of a product that a ring would bring."""
    assert isinstance(call.kernel, Matmul)
    stream = weight_streams.stream_of(call.kernel)
    return [] if stream is None else [call.buffers[argument] for argument in stream.arguments]


def _loads(matmul: Matmul, *, operands: bool) -> list[Load]:
    """The loads of the operands, or those of the stores."""
    if operands:
        starts = list(matmul.operands)
    else:
        starts = [root for store in matmul.stores for root in roots(store)]
    return [scalar for scalar in reached(starts) if isinstance(scalar, Load)]


def _at(index: Dim, matmul: Matmul, other: Matmul) -> Dim:
    """An index of a matmul at a row and a column of another one."""
    row: Dim = 0 if max_extent(other.m) == 1 else Expr({(other.m,): 1}, 0)
    return substitute(index, {matmul.m: row, matmul.n: Expr({(other.n,): 1}, 0)})
