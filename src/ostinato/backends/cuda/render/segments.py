"""Rendering a :class:`~ostinato.backends.cuda.rules.segment_kernel.SegmentKernel`.

The kernels become functions, each once, however often it is part of the segment. A table of records
has, for each part, its function, its arguments, its number of blocks and whether there is a barrier
in front; every block goes through it. Where weights are streamed, a warp of every block does so on
its own, and fetches what the block will multiply with, as far ahead as the ring has slots.

Shared memory has the addresses of all arguments, the records, the Variables, the values that every
block has, the arrays of the part that runs, and the ring.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import ARRIVED, FAILED, Launch
from ostinato.backends.cuda.render import streamed_rows
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.receipts import Receipts
from ostinato.backends.cuda.render.segment_functions import Form, Operand, SegmentFunction
from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
from ostinato.backends.cuda.rules.packets import ClearPackets, ReceivePackets
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Set

    from ostinato.backends.cuda.render.streamed_rows import Rows
    from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["launch", "source", "stamped_form", "stamped_source"]

#: Blocks that share a multiprocessor, at most, where they have no ring.
_RESIDENT = 2

#: Bytes of shared memory that the driver takes for each block.
_RESERVED = 1 << 10

#: Fields of a record before the arguments: the function, whether there is a barrier of the grid in
#: front, the blocks that share the work (0: each has all of it), the first block that has work, the
#: number of blocks from there on that do, and where its arrays begin, in units of 16 bytes.
_FIELDS = 6

#: The first field of those that become the place of the block.
_PLACE = 2

#: Slots of a ring, at least and at most.
_LEAST_SLOTS, _MOST_SLOTS = 4, 32

#: Bytes that a ring has under way, about.
_BYTES_AHEAD = 32 << 10

#: Blocks of a segment of independent parts, at most: what a field of a record holds.
_MOST_BLOCKS = (1 << 16) - 1

#: Bytes of static shared memory where parts are timed.
_STAMP_BYTES = 16

#: Bytes of a barrier in shared memory.
_BARRIER_BYTES = 8


def launch(segment: SegmentKernel, target: CudaTarget, *, stamped: bool = False) -> Launch:
    """The launch of a segment: as many blocks as are resident at the same time.

    Parts that need no barrier between them have blocks of their own.
    """
    return _Renderer(segment, target, stamped=stamped).launch


def source(segment: SegmentKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a segment."""
    return _Renderer(segment, target).source(segment.name)


def stamped_source(segment: SegmentKernel, target: CudaTarget, name: str) -> str:
    """The same with a log of each block as the last argument; see ``stamps.cuh``.

    Args:
        segment, target: the segment, and the GPU.
        name: the symbol.
    """
    return _Renderer(segment, target, stamped=True).source(name)


def stamped_form(segment: SegmentKernel, target: CudaTarget) -> tuple[int, list[int]]:
    """The number of entries of the log of a block, at most; by part, the blocks that have work."""
    renderer = _Renderer(segment, target, stamped=True)
    blocks = [0] * len(segment.parts)  # of those that other parts take over
    for number, (_, working) in zip(renderer.numbers, renderer._blocks(), strict=True):
        blocks[number] = working
    return renderer.log_entries, blocks


class _Renderer:
    """The text of a segment."""

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
        self.width = _FIELDS + max(
            len(part.arguments) + len(packets)
            for part, packets in zip(self.parts, self.packets, strict=True)
        )
        self.independent = _is_independent(segment)
        streams = target.copies_in_bulk and any(part.streams for part in self.parts)
        self.streams = streams and not self.independent
        self._collect()
        if self.streams and self.slots < _LEAST_SLOTS:
            self.streams = False
            self._collect()
        if sum(function.blocks for function in self.functions) > _MOST_BLOCKS:
            self.independent = False

    def _collect(self) -> None:
        """The functions of all parts, each once."""
        inside = replace(self.target, block=SEGMENT_BLOCK, early_starts=False)
        if self.segment.alone:
            inside = replace(inside, multiprocessors=1)
        self._inside = inside
        self._padded = self._padded_rows()
        found: dict[Form, SegmentFunction] = {}
        self.functions = []
        for number, part in enumerate(self.parts):
            how = self._how(part, number)
            if how not in found:
                found[how] = SegmentFunction(len(found), part, self._inside, how)
            self.functions.append(found[how])
        self.distinct = list(found.values())

    def _how(self, part: Part, place: int) -> Form:
        streams = self.streams and part.streams
        sent: set[int] = set()
        polled: set[int] = set()
        held: set[int] = set()
        padded = {}
        whole = isinstance(part.kernel, ClearPackets | ReceivePackets)
        for number, (arg, position) in enumerate(
            zip(part.kernel.args, part.arguments, strict=True)
        ):
            space = self.segment.space(position)
            if space is None:
                continue
            if space.kind is SpaceKind.BLOCK and (row := self._padded.get(position)):
                padded[number] = row
            if space.kind is SpaceKind.BLOCK and streams:
                held.add(number)
            elif space.kind is SpaceKind.PACKETS and not whole:
                (sent if arg.writes else polled).add(number)
        awaited: tuple[tuple[int, int], ...] = ()
        if isinstance(part.kernel, Matmul) and not streams:
            found = {number: streamed_rows.elements(part.kernel, number) for number in polled}
            awaited = tuple((number, count) for number, count in sorted(found.items()) if count)
        shares: tuple[int, ...] = ()
        repeated = 0
        if part.shares_of is not None:
            reader = self.parts[part.shares_of].kernel
            assert isinstance(reader, AttentionKernel)
            each, points = reader.items_of_point(self._inside), bounds(reader.points)[1]
            shares = (points * each, each, *part.strides)
            if part.shares_of == place:
                repeated = sum(p.shares_of == place for p in self.parts) - 1
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
            frozenset(n for n, position in readable if not self.segment.args[position].writes),
            all(position not in self._written_by_others for _, position in readable),
            frozenset(self.packets[place]),
        )

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
                row = 0
                if part.streams and isinstance(kernel, Matmul):
                    row = streamed_rows.padded_row(kernel, number)
                found.setdefault(position, set()).add(row)
        return {position: min(rows) for position, rows in found.items() if len(rows) == 1}

    @cached_property
    def _written_by_others(self) -> set[int]:
        """The arguments that a block reads as other blocks have written them."""
        return {
            position
            for part in self.parts
            if not part.everywhere
            for position in self._operands(part, writes=True)
        }

    # -- memory -----------------------------------------------------------------------------

    @property
    def address_bytes(self) -> int:
        """Bytes of the table of addresses."""
        return _whole(8 * (len(self.segment.args) + len(self.segment.spaces)))

    @property
    def table_size(self) -> int:
        """Numbers of the table of records, with the parts behind them that need fetching."""
        return self.width * len(self.parts) + len(self._fetched)

    @property
    def record_bytes(self) -> int:
        """Bytes of the table of records."""
        return _whole(2 * self.table_size)

    @property
    def variable_start(self) -> int:
        """Bytes before the copy of the Variables."""
        return self.address_bytes + self.record_bytes

    @property
    def value_start(self) -> int:
        """Bytes before the values that the block has."""
        return self.sink_start + 4 * WARP

    @property
    def sink_start(self) -> int:
        """Bytes before the words of the lanes that bring operands into the cache."""
        return self.variable_start + _whole(8 * len(self.segment.variables))

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
        return max(f.stream.slot_bytes for f in self.distinct if f.stream is not None)

    @property
    def slots(self) -> int:
        """Slots of the ring: all that there is room for."""
        each = self.slot_bytes + 2 * _BARRIER_BYTES
        return min((self.room - self.fixed_bytes) // each, _MOST_SLOTS)

    @cached_property
    def launch(self) -> Launch:
        """See :func:`launch`."""
        blocks, shared = self.target.multiprocessors, self.fixed_bytes
        if self.segment.alone:
            early = self.target.starts_kernels_early
            return Launch(1, SEGMENT_BLOCK, shared, programmatic=early)
        if self.independent:
            grid, early = sum(f.blocks for f in self.functions), self.target.starts_kernels_early
            return Launch(grid, SEGMENT_BLOCK, shared, programmatic=early)
        if self.streams:
            shared += self.slots * (self.slot_bytes + 2 * _BARRIER_BYTES)
            return Launch(blocks, SEGMENT_BLOCK + WARP, shared, cooperative=True)
        fits = _RESIDENT * (shared + _RESERVED) <= self.room
        resident = _RESIDENT if fits else 1
        return Launch(resident * blocks, SEGMENT_BLOCK, shared, cooperative=True)

    # -- text -------------------------------------------------------------------------------

    @property
    def log_entries(self) -> int:
        """Entries of the log of a block, at most: those of the only one."""
        repeated = ((f.repeated + 1) * (f.shares[0] - 1) for f in self.functions if f.repeated)
        return 1 + len(self.parts) + sum(repeated)

    def source(self, name: str) -> str:
        """The whole text, of a kernel with this symbol."""
        self.name = name
        segment, dialect = self.segment, CudaDialect()
        includes = dict.fromkeys(
            line for f in self.distinct for line in f.body.includes.splitlines() if line
        )
        parameters = ", ".join(
            f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
            for i, arg in enumerate(segment.args)
        )
        if self.stamped:
            parameters += f", long long* {self._log}"
        block = self.launch.block
        resident = min(max(1, self.launch.grid // self.target.multiprocessors), _RESIDENT)
        return "\n".join(
            [
                *(["#define OST_STAMPED"] if self.stamped else []),
                '#include "segments.cuh"',
                *(['#include "packets.cuh"'] if segment.packets is not None else []),
                *includes,
                *(
                    f.body.part(f"{name}_{f.number}", f.sent, f.polled, f.awaited, f.received)
                    for f in self.distinct
                ),
                *(f.body.touching(f"{name}_{f.number}_touch") for f in self._touching),
                *([] if segment.alone else [self._records()]),
                *([self._numbers()] if self.stamped and not segment.alone else []),
                f'extern "C" __global__ void __launch_bounds__({block}, {resident})',
                f"{name}({parameters}, const long long* vars) {{",
                f"    extern __shared__ __align__(16) unsigned char {name}_memory[];",
                f"    unsigned char* const memory = {name}_memory;",
                *(self._one_after_the_other() if segment.alone else self._by_table()),
                "}\n",
            ]
        )

    @property
    def _log(self) -> str:
        """The argument that has the logs, where parts are timed."""
        return f"b{len(self.segment.args)}"

    def _start(self) -> list[str]:
        """Statements before all that depends on earlier kernels."""
        lines = ["    ost::wait_for_earlier_kernels();"] * self.launch.programmatic
        if self.segment.guarded:
            lines.append(f"    if (vars[{FAILED}] != 0) return;")
        if self.stamped:
            lines.append(f"    ost::part_log log({self._log}, {self.log_entries});")
        return lines

    def _one_after_the_other(self) -> list[str]:
        """The parts of a single block, which has all of each."""
        lines = []
        for position, nbytes in self.segment.fixed:
            lines.append(f"    ost::prefetch(b{position}, {nbytes});")
        lines += self._start()
        for number, (part, function) in enumerate(zip(self.parts, self.functions, strict=True)):
            *types, _ = function.body.types()
            pairs = zip(types, part.arguments, strict=True)
            given = ", ".join(f"({type_})b{position}" for type_, position in pairs)
            call = f"{self.name}_{function.number}({{0}}, {{1}}, memory, {given}, vars);"
            lines += ["    OST_SYNC();"] * (number > 0) + [f"    {call}"]
            if self.stamped:
                lines += ["    OST_SYNC();", f"    log.end_part({number});"]
        return lines + ["    log.end();"] * self.stamped

    def _by_table(self) -> list[str]:
        """The parts as records of a table, which every block goes through."""
        segment, block = self.segment, self.launch.block
        return [
            *self._start(),
            *([f"    const auto& numbers = {self.name}_numbers;"] if self.stamped else []),
            "    const void** const at = (const void**)memory;",
            *self._addresses(),
            "    unsigned short* const records = "
            f"(unsigned short*)(memory + {self.address_bytes});",
            f"    for (int i = threadIdx.x; i < {self.table_size}; i += {block})",
            f"        records[i] = {self.name}_records[i];",
            f"    long long* const variables = (long long*)(memory + {self.variable_start});",
            f"    for (int i = threadIdx.x; i < {len(segment.variables)}; i += {block})",
            "        variables[i] = vars[i];",
            "    __syncthreads();",
            f"    for (int i = threadIdx.x; i < {len(self.parts)}; i += {block})",
            f"        ost::find_place(records + i * {self.width} + {_PLACE});",
            *(self._ring() if self.streams else ["    __syncthreads();"]),
            *self._parts(),
        ]

    def _addresses(self) -> list[str]:
        """Statements that bring the addresses of arguments into memory that has an index."""
        found = [f"b{i}" for i in range(len(self.segment.args))]
        for space in self.segment.spaces:
            if space.kind is SpaceKind.PACKETS:
                found.append(f"(unsigned char*)b{self.segment.packets} + {space.offset}")
            else:
                found.append(f"memory + {self.value_start + space.offset}")
        lines = []
        share = -(-len(found) * WARP // SEGMENT_BLOCK)
        for first in range(0, len(found), share):
            lines.append(f"    if (threadIdx.x == {first // share * WARP}) {{")
            own = enumerate(found[first : first + share], first)
            lines += [f"        at[{i}] = {address};" for i, address in own]
            lines.append("    }")
        return lines

    def _records(self) -> str:
        """The table, as constants."""
        rows = []
        parts = zip(
            pairwise((None, *self.parts)),
            self.functions,
            self.packets,
            self._blocks(),
            strict=True,
        )
        for (before, part), function, packets, (first, working) in parts:
            assert part is not None
            waits = before is not None and before.level != part.level
            alone = part.everywhere and part.shares_of is None
            shared = 0 if alone else working
            arrays = self.pool_start(part) // 16
            fields = [function.number, int(waits), shared, first, working, arrays, *part.arguments]
            fields += (packets[argument] for argument in sorted(packets))
            fields += [0] * (self.width - len(fields))
            rows.append(f"    {', '.join(map(str, fields))},")
        if self._fetched:
            rows.append(f"    {', '.join(map(str, self._fetched))},")
        name = f"{self.name}_records[{self.table_size}]"
        head = f"static __device__ const unsigned short {name} = {{"
        return "\n".join([head, *rows, "};"])

    def _numbers(self) -> str:
        """The numbers of the parts among all of the segment, as constants."""
        head = f"static __device__ const unsigned short {self.name}_numbers[{len(self.numbers)}]"
        return f"{head} = {{{', '.join(map(str, self.numbers))}}};"

    def _blocks(self) -> list[tuple[int, int]]:
        """By part, the first block that has work, and how many from there on do.

        The tiles of a part begin where those of the one before it end. What every block has for
        itself is computed by those that need it.
        """
        grid, following = self.launch.grid, 0
        found: list[tuple[int, int]] = []
        for part, function in zip(self.parts, self.functions, strict=True):
            first = following if part.tiles_of is None else found[part.tiles_of][0]
            found.append((first, min(function.blocks, grid)))
            if not part.everywhere:
                following = (first + function.blocks) % grid
        needed: dict[int, set[int]] = {}
        numbered = list(enumerate(self.parts))
        for number, part in reversed(numbered):
            own: set[int] = set()
            if part.shares_of is not None:
                found[number] = found[part.shares_of]
            elif part.everywhere:
                written = self._operands(part, writes=True)
                written += [part.arguments[argument] for argument in self.packets[number]]
                own = own.union(*(needed.get(position, ()) for position in written))
                lasting = any(self.segment.space(position) is None for position in written)
                found[number] = _range_around(own or {0} if lasting else own, grid)
            first, working = found[number]
            own = {(first + i) % grid for i in range(working)}
            for position in self._operands(part, writes=False):
                needed.setdefault(position, set()).update(own)
        return found

    def _operands(self, part: Part, *, writes: bool) -> list[int]:
        """The positions of what a part writes, or of what it only reads."""
        return [
            position
            for arg, position in zip(part.kernel.args, part.arguments, strict=True)
            if arg.writes is writes
        ]

    def _ring(self) -> list[str]:
        """The ring, and the warp that fills it."""
        lines = [
            "    ost::ring ring;",
            f"    ring.arrived = (ost::phased_barrier*)(memory + {self.fixed_bytes});",
            f"    ring.emptied = ring.arrived + {self.slots};",
            f"    ring.slots = (unsigned char*)(ring.emptied + {self.slots});",
            f"    ring.count = {self.slots};",
            f"    ring.bytes = {self.slot_bytes};",
            f"    ring.ahead = {max(2, round(_BYTES_AHEAD / self.slot_bytes))};",
            "    if (threadIdx.x == 0) ring.start();",
            "    __syncthreads();",
            f"    if (threadIdx.x >= {SEGMENT_BLOCK}) {{",
            "        ost::ring filled = ring;  // in registers: no function has its address",
            f"        for (int n = 0; n < {len(self._fetched)}; n++) {{",
            f"            const int i = records[{self.width * len(self.parts)} + n];",
            *self._place(),
            "            ost::rows_of_memory those;",
            "            switch (record[0]) {",
        ]
        for function in self.distinct:
            if (stream := function.stream) is not None:
                weights, scales = stream.weights, stream.scales
                given = [self._first_byte(weights), stream.rows, weights.nbytes, weights.piece]
                given += [stream.pitch, stream.width]
                if scales is not None:
                    given += [self._first_byte(scales), scales.nbytes, scales.piece]
                fields = ", ".join(map(str, given))
                lines.append(f"            case {function.number}: those = {{{fields}}}; break;")
            elif (operand := self._brought(function)) is not None:
                start = f"(const unsigned char*)at[record[{_FIELDS + operand.argument}]]"
                size = operand.nbytes  # one row, of blocks that have the part
                fields = f"{start} + {operand.offset}, 1, {size}, {size}, {size}, 1"
                lines.append(f"            case {function.number}: those = {{{fields}}}; break;")
        return [
            *lines,
            *self._touches(),
            "            }",
            "            filled.fetch(own, all, those);",
            "        }",
            "        return;",
            "    }",
        ]

    @staticmethod
    def _first_byte(rows: Rows) -> str:
        """The address of the first byte of rows that are fetched."""
        start = f"(const unsigned char*)at[record[{_FIELDS + rows.argument}]]"
        return f"{start} + {rows.offset}" if rows.offset else start

    @property
    def _touching(self) -> list[SegmentFunction]:
        """The functions whose operands the warp that fills the ring brings into the cache."""
        if not self.streams:
            return []
        return [f for f in self.distinct if f.body.touch and self._brought(f) is None]

    @property
    def _fetched(self) -> list[int]:
        """The parts for which the warp that fills the ring fetches something, in their order."""
        if not self.streams:
            return []
        return [
            number
            for number, f in enumerate(self.functions)
            if f.stream is not None or f.body.touch or self._brought(f) is not None
        ]

    def _brought(self, function: SegmentFunction) -> Operand | None:
        """The operand of a loop nest that comes through the ring, as a stage of its own."""
        operand = function.operand
        fits = self.streams and operand is not None and operand.nbytes <= self.slot_bytes
        return operand if fits else None

    def _touches(self) -> list[str]:
        """The cases of these functions."""
        lines = []
        for function in self._touching:
            *types, _ = function.body.types()
            given = [f"({type_})at[record[{_FIELDS + i}]]" for i, type_ in enumerate(types)]
            sink = f"(volatile unsigned*)(memory + {self.sink_start})"
            call = ", ".join(["own", "all", sink, *given, "variables"])
            lines += [
                f"            case {function.number}:",
                "                if (own.x < all.x)",
                f"                    {self.name}_{function.number}_touch({call});",
                "                continue;",
            ]
        return lines

    def _parts(self) -> list[str]:
        """The loop over all parts."""
        lines = (
            []
            if self.independent
            else [
                f"    unsigned* const arrived = (unsigned*)(vars + {ARRIVED});",
                "    unsigned awaited = gridDim.x;",
            ]
        )
        shared = any(function.shares for function in self.distinct)
        if shared:
            lines += ["    unsigned item = 0;  // of attention", "    bool further = false;"]
        skipped = "continue;"
        if self.stamped:
            skipped = "{ if (record[1]) log.end_part(numbers[i]); continue; }"
        lines += [
            f"    for (int i = 0; i < {len(self.parts)}; i++) {{",
            *self._place(),
        ]
        if shared:
            lines.append("            if (!further) item = own.x;")
        if not self.independent:
            lines += [
                f"            if (record[1]{' && !further' * shared}) {{",
                "                ost::arrive_and_wait(arrived, awaited);",
                "                awaited += gridDim.x;",
                "            }",
            ]
        lines += [
            *(["            const int number = numbers[i];"] if self.stamped else []),
            f"            if (own.x >= all.x) {skipped}",
            "            OST_SYNC();",
            "            switch (record[0]) {",
        ]
        for function in self.distinct:
            *types, _ = function.body.types(function.sent, function.polled, function.received)
            given = [f"({type_})at[record[{_FIELDS + i}]]" for i, type_ in enumerate(types)]
            for i, argument in enumerate(function.received, len(types)):
                stored = function.body.stored_type(argument)
                packets = f"(const {stored}*)at[record[{_FIELDS + i}]]"
                held = f"({stored}*)at[record[{_FIELDS + argument}]]"
                given[argument] = f"{{{packets}, {held}}}"
            name, place = f"{self.name}_{function.number}", ["own", "all"]
            lines.append(f"            case {function.number}:")
            before, further = [], []
            if (operand := self._brought(function)) is not None:
                number, offset = operand.argument, operand.offset
                before = ["            {", "                const auto stage = ring.await();"]
                given[number] = f"({types[number]})(stage - {offset})"
                further = [
                    "                OST_SYNC();",
                    "                if (threadIdx.x / 32 < ost::ring::sharing) ring.release();",
                    "                ring.advance();",
                    "            }",
                ]
            elif function.shares:
                items, each, *strides = function.shares
                place = ["{0}", "{1}"]
                given = [
                    f"{argument} + (long long)(item / {each}) * {stride}" if stride else argument
                    for argument, stride in zip(given, strides, strict=True)
                ]
                if function.repeated:
                    place = ["{item}", f"{{{items}}}"]
                    further = [
                        "                item += all.x;",
                        f"                further = item < {items};",
                        f"                if (further) i -= {function.repeated + 1};",
                    ]
            ring = ["ring"] * (function.stream is not None)
            call = ", ".join(
                [*place, f"memory + 16 * record[{_FIELDS - 1}]", *ring, *given, "variables"]
            )
            if self.stamped and function.receives:  # the first warp waits for what others receive
                further.append(
                    "                { const ost::waiting timed(&ost::waits::values); OST_SYNC(); }"
                )
            lines += [*before, f"                {name}({call});", *further]
            lines.append("            break;")
        lines.append("            }")
        if self.stamped:
            lines += ["            OST_SYNC();", "            log.end_part(number);"]
        last = [] if self.independent else ["    ost::arrive_last(arrived, awaited);"]
        return [*lines, "    }", *(["    log.end();"] if self.stamped else []), *last]

    def _place(self) -> list[str]:
        """Declarations of the record of a part, and of the block's place in it."""
        return [
            f"            const unsigned short* const record = records + i * {self.width};",
            f"            const ost::place all = {{record[{_PLACE}]}}, "
            f"own = {{record[{_PLACE + 1}]}};",
        ]


def _is_independent(segment: SegmentKernel) -> bool:
    """Whether no part waits for another one."""
    together = segment.parts[0].level == segment.parts[-1].level
    apart = all(p.tiles_of is None and not p.everywhere for p in segment.parts)
    return together and apart and not segment.spaces and not segment.alone


def _range_around(blocks: Set[int], grid: int) -> tuple[int, int]:
    """The first block and the number of the fewest, one after the other, that have all of these."""
    if not blocks:
        return 0, 0
    found = sorted(blocks)
    gaps = [(found[i] - found[i - 1] - 1) % grid for i in range(len(found))]
    longest = max(gaps) if len(found) > 1 else grid - 1
    first = found[gaps.index(longest)] if len(found) > 1 else found[0]
    return first, grid - longest


def _whole(nbytes: int) -> int:
    """Bytes up to the next multiple of 16."""
    return -(-nbytes // 16) * 16
