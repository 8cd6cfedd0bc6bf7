"""The ring of a segment, and the warps of each block that fill it.

These warps go through the parts on their own, and fetch what the block will multiply with, as far
ahead as the ring has slots: a stage each, in turn. Between them the first one brings operands of
other parts into the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.segment_records import ARGUMENTS, place
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.row_operands import Rows
    from ostinato.backends.cuda.render.segment_functions import SegmentFunction
    from ostinato.backends.cuda.render.segment_layout import SegmentLayout
    from ostinato.backends.cuda.render.weight_streams import Stream

__all__ = ["ring"]

#: Bytes that a ring has under way, about.
_BYTES_AHEAD = 32 << 10

#: Parts of its slots, where stages are large: less is under way while no more than the first are
#: empty, and more while more than the second are.
_SPARE, _SCARCE = 1 / 4, 3 / 4


def ring(layout: SegmentLayout, name: str) -> list[str]:
    """Statements of a segment's kernel of this name: the ring, and the warps that fill it."""
    slots, slot_bytes = layout.slots, layout.slot_bytes
    ahead = max(2, round(_BYTES_AHEAD / slot_bytes))
    large = ahead == 2 and slots >= 4
    lines = [
        "    ost::ring ring;",
        f"    ring.arrived = (ost::phased_barrier*)(memory + {layout.fixed_bytes});",
        f"    ring.emptied = ring.arrived + {slots};",
        f"    ring.slots = (unsigned char*)(ring.emptied + {slots});",
        f"    ring.count = {slots};",
        f"    ring.bytes = {slot_bytes};",
        f"    ring.fetchers = {layout.fetching_warps};",
        f"    ring.ahead = {ahead};",
        f"    ring.spare = {int(slots * _SPARE) if large else 0};",
        f"    ring.scarce = {int(slots * _SCARCE) if large else slots};",
        "    if (threadIdx.x == 0) ring.start();",
        "    __syncthreads();",
        f"    if (threadIdx.x >= {SEGMENT_BLOCK}) {{",
        "        ost::ring filled = ring;  // in registers: no function has its address",
        f"        for (int n = 0; n < {len(layout.fetched)}; n++) {{",
        f"            const int i = records[{layout.width * len(layout.parts)} + n];",
        *place(layout),
        "            ost::rows_of_memory those;",
        "            switch (record[0]) {",
    ]
    for function in layout.distinct:
        fields = _rows_fetched(layout, function)
        if fields:
            lines.append(f"            case {function.number}: those = {{{fields}}}; break;")
    for function in layout.touching:
        lines += _touch(layout, function, name)
    return [
        *lines,
        "            }",
        "            filled.fetch(own, all, those);"
        if layout.fetching_warps == 1
        else "            if (ost::is_chosen()) filled.fetch_own(own, all, those);",
        "        }",
        "        return;",
        "    }",
    ]


def _rows_fetched(layout: SegmentLayout, function: SegmentFunction) -> str:
    """The fields of ``ost::rows_of_memory`` that a function gets through the ring, if it does."""
    if function.stream is not None:
        return _streamed(function.stream)
    operand = layout.brought(function)
    if operand is None:
        return ""
    start = f"(const unsigned char*)at[record[{ARGUMENTS + operand.argument}]]"
    size = operand.nbytes  # one row, of blocks that have the part
    return f"{start} + {operand.offset}, 1, {size}, {size}, {size}, 1"


def _streamed(stream: Stream) -> str:
    """The fields of the rows of a right operand."""
    weights, scales = stream.weights, stream.scales
    given = [_first_byte(weights), stream.rows, weights.nbytes, weights.piece]
    given += [stream.pitch, stream.width]
    if scales is not None:
        given += [_first_byte(scales), scales.nbytes, scales.piece]
    return ", ".join(map(str, given))


def _first_byte(rows: Rows) -> str:
    """The address of the first byte of rows that are fetched."""
    start = f"(const unsigned char*)at[record[{ARGUMENTS + rows.argument}]]"
    return f"{start} + {rows.offset}" if rows.offset else start


def _touch(layout: SegmentLayout, function: SegmentFunction, name: str) -> list[str]:
    """The case of a function whose operands the warp brings into the cache."""
    *types, _ = function.body.types()
    given = [f"({type_})at[record[{ARGUMENTS + i}]]" for i, type_ in enumerate(types)]
    call = ", ".join(["own", "all", *given, "variables"])
    return [
        f"            case {function.number}:",
        f"                if (own.x < all.x && threadIdx.x < {SEGMENT_BLOCK + WARP})",
        f"                    {name}_{function.number}_touch({call});",
        "                continue;",
    ]
