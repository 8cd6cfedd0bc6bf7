"""Rendering a :class:`~ostinato.backends.cuda.rules.segment_kernel.SegmentKernel`.

The kernels become functions, each once, however often it is part of the segment. A table of records
has, for each part, its function, its arguments, its number of blocks and whether there is a barrier
in front; every block goes through it. Of layers, parts that repeat, the code is in place, and
looped over (``segment_layers.py``). Where weights are streamed, a warp of every block does so on
its own, and fetches what the block will multiply with, as far ahead as the ring has slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import ARRIVED, FAILED
from ostinato.backends.cuda.render import segment_records, segment_ring
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.map_parameters import opening
from ostinato.backends.cuda.render.segment_calls import call
from ostinato.backends.cuda.render.segment_layers import SegmentLayers
from ostinato.backends.cuda.render.segment_layout import RESIDENT, SegmentLayout
from ostinato.backends.cuda.render.segment_records import ARGUMENTS, ARRAYS, PLACE
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render.segment_functions import SegmentFunction
    from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["launch", "source", "stamped_form", "stamped_source"]


def launch(segment: SegmentKernel, target: CudaTarget, *, stamped: bool = False) -> Launch:
    """The launch of a segment: as many blocks as are resident at the same time.

    Parts that need no barrier between them have blocks of their own.
    """
    return SegmentLayout(segment, target, stamped=stamped).launch


def source(segment: SegmentKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a segment."""
    return _Renderer(SegmentLayout(segment, target), segment.name).source()


def stamped_source(segment: SegmentKernel, target: CudaTarget, name: str) -> str:
    """The same with a log of each block as the last argument; see ``stamps.cuh``.

    Args:
        segment, target: the segment, and the GPU.
        name: the symbol.
    """
    return _Renderer(SegmentLayout(segment, target, stamped=True), name).source()


def stamped_form(segment: SegmentKernel, target: CudaTarget) -> tuple[int, list[int]]:
    """The number of entries of the log of a block, at most; by part, the blocks that have work."""
    layout = SegmentLayout(segment, target, stamped=True)
    blocks = [0] * len(segment.parts)  # of those that other parts take over
    working = segment_records.working_blocks(layout)
    for number, (_, count) in zip(layout.numbers, working, strict=True):
        blocks[number] = count
    return layout.log_entries, blocks


class _Renderer:
    """The text of a segment, as a kernel of this name."""

    def __init__(self, layout: SegmentLayout, name: str) -> None:
        self.layout = layout
        self.segment = layout.segment
        self.stamped = layout.stamped
        self.name = name
        self.layers = SegmentLayers(layout, name)

    def source(self) -> str:
        """The whole text."""
        segment, layout, name, dialect = self.segment, self.layout, self.name, CudaDialect()
        includes = dict.fromkeys(
            line for f in layout.distinct for line in f.body.includes.splitlines() if line
        )
        parameters = ", ".join(
            f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
            for i, arg in enumerate(segment.args)
        )
        if self.stamped:
            parameters += f", long long* {self._log}"
        block = layout.launch.block
        resident = min(max(1, layout.launch.grid // layout.target.multiprocessors), RESIDENT)
        numbered = self.stamped and not segment.alone
        return "\n".join(
            [
                *(["#define OST_STAMPED"] if self.stamped else []),
                *(["#define OST_PRODUCTS_IN_PLACE"] if self.layers.multiply_in_place else []),
                '#include "segments.cuh"',
                *(['#include "packets.cuh"'] if segment.packets is not None else []),
                *includes,
                f"extern __shared__ __align__(1024) unsigned char {name}_memory[];",
                *(segment_ring.form(layout, name) if layout.streams else []),
                *(
                    f.body.part(
                        f"{name}_{f.number}",
                        f.sent,
                        f.polled,
                        f.awaited,
                        f.received,
                        in_place=f in self.layers.in_place,
                    )
                    for f in layout.distinct
                ),
                *(f.body.touching(f"{name}_{f.number}_touch") for f in layout.touching),
                *([] if segment.alone else [segment_records.table(layout, name)]),
                *([segment_records.space_table(layout, name)] if segment.spaces else []),
                *([segment_records.part_numbers(layout, name)] if numbered else []),
                f'extern "C" __global__ void __launch_bounds__({block}, {resident})',
                *opening(
                    layout.maps if layout.streams else (),
                    f"{name}({parameters}, const long long* vars",
                ),
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
        lines = ["    ost::wait_for_earlier_kernels();"] * self.layout.launch.programmatic
        if self.segment.guarded:
            lines.append(f"    if (vars[{FAILED}] != 0) return;")
        if self.stamped:
            lines.append(f"    ost::part_log log({self._log}, {self.layout.log_entries});")
        return lines

    def _one_after_the_other(self) -> list[str]:
        """The parts of a single block, which has all of each."""
        lines, layout = [], self.layout
        for position, nbytes in self.segment.fixed:
            given = f"b{position}, {nbytes}, threadIdx.x, {SEGMENT_BLOCK}"
            lines.append(f"    ost::prefetch({given});")
        lines += self._start()
        for number, (part, function) in enumerate(zip(layout.parts, layout.functions, strict=True)):
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
        segment, layout, block = self.segment, self.layout, self.layout.launch.block
        return [
            *self._start(),
            *([f"    const auto& numbers = {self.name}_numbers;"] if self.stamped else []),
            "    const void** const at = (const void**)memory;",
            *self._addresses(),
            "    unsigned short* const records = "
            f"(unsigned short*)(memory + {layout.address_bytes});",
            f"    ost::copy_vectors<{layout.record_bytes // 16}, {block}>"
            f"(records, {self.name}_records);",
            f"    long long* const variables = (long long*)(memory + {layout.variable_start});",
            f"    for (int i = threadIdx.x; i < {len(segment.variables)}; i += {block})",
            "        variables[i] = vars[i];",
            *(
                f"    ost::copy_bytes(memory + {place}, b{i}, {nbytes}, threadIdx.x, {block});"
                for i, (place, nbytes) in layout.copied.items()
            ),
            *(segment_ring.start(self.name) if layout.streams else []),
            "    __syncthreads();",
            f"    for (int i = threadIdx.x; i < {len(layout.parts)}; i += {block})",
            f"        ost::find_place(records + i * {layout.width} + {PLACE});",
            "    __syncthreads();",
            *(segment_ring.ring(layout, self.name) if layout.streams else []),
            *self._parts(),
        ]

    def _addresses(self) -> list[str]:
        """Statements that bring the addresses of arguments into memory that has an index."""
        copied, count = self.layout.copied, len(self.segment.args)
        found = [f"memory + {copied[i][0]}" if i in copied else f"b{i}" for i in range(count)]
        lines, block = [], self.layout.launch.block
        share = -(-count * WARP // block)
        for first in range(0, count, share):
            lines.append(f"    if (threadIdx.x == {first // share * WARP}) {{")
            own = enumerate(found[first : first + share], first)
            lines += [f"        at[{i}] = {address};" for i, address in own]
            lines.append("    }")
        if spaces := len(self.segment.spaces):
            packets = "0" if self.segment.packets is None else f"b{self.segment.packets}"
            lines += [
                f"    for (int i = threadIdx.x; i < {spaces}; i += {block}) {{",
                f"        const unsigned place = {self.name}_spaces[i];",
                f"        const unsigned char* const packets = (const unsigned char*){packets};",
                f"        at[{count} + i] = place % 2 ? packets + (place - 1) : memory + place;",
                "    }",
            ]
        return lines

    def _parts(self) -> list[str]:
        """The loop over all parts."""
        layout = self.layout
        shared = any(function.shares for function in layout.distinct)
        lines = []
        if not layout.independent:
            lines += [
                f"    unsigned* const arrived = (unsigned*)(vars + {ARRIVED});",
                "    unsigned awaited = gridDim.x;",
            ]
        if shared:
            lines += ["    unsigned item = 0;  // of attention", "    bool further = false;"]
        lines += [
            f"    for (int i = 0; i < {len(layout.parts)}; i++) {{",
            *self.layers.lines(),
            *segment_records.place(layout),
        ]
        if shared:
            lines.append("            if (!further) item = own.x;")
        if not layout.independent:
            lines += [
                f"            if (record[1]{' && !further' * shared}) {{",
                "                ost::arrive_and_wait(arrived, awaited);",
                "                awaited += gridDim.x;",
                "            }",
            ]
        skipped = "continue;"
        if self.stamped:
            skipped = "{ if (record[1]) log.end_part(numbers[i]); continue; }"
            lines.append("            const int number = numbers[i];")
        lines += [
            f"            if (own.x >= all.x) {skipped}",
            "            OST_SYNC();",
            "            switch (record[0]) {",
        ]
        for function in self.layers.by_record:
            lines.append(f"            case {function.number}: {{")
            lines += [f"                {line}" for line in self._call(function)]
            lines.append("            } break;")
        lines.append("            }")
        if self.stamped:
            lines += ["            OST_SYNC();", "            log.end_part(number);"]
        lines.append("    }")
        if self.stamped:
            lines.append("    log.end();")
        if not layout.independent:
            lines.append("    ost::arrive_last(arrived, awaited);")
        return lines

    def _call(self, function: SegmentFunction) -> list[str]:
        """The statements that call a function for a part, with the arguments of its record."""
        types = function.body.types()[:-1]
        count = len(types) + len(function.received)
        addresses = [f"at[record[{ARGUMENTS + i}]]" for i in range(count)]
        name = f"{self.name}_{function.number}"
        lines = call(self.layout, function, name, f"memory + 16 * record[{ARRAYS}]", addresses)
        if function.repeated:
            lines += [
                "item += all.x;",
                f"further = item < {function.shares[0]};",
                f"if (further) i -= {function.repeated + 1};",
            ]
        return lines
