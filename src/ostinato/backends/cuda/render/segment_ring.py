"""The ring of a segment, and the warp of each block that fills it.

The warp goes through the parts on its own. One of its threads fetches what the block will multiply
with, as far ahead as the ring has slots; an instruction or two copy a stage, by tensor maps.
Between them the warp brings operands of other parts into the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.ring_stages import LINE
from ostinato.backends.cuda.render.segment_records import ARGUMENTS, place
from ostinato.backends.cuda.target import SEGMENT_BLOCK

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.segment_functions import SegmentFunction
    from ostinato.backends.cuda.render.segment_layout import SegmentLayout
    from ostinato.backends.cuda.render.weight_streams import Stream

__all__ = ["form", "ring"]

#: Bytes that a ring has under way, about.
_BYTES_AHEAD = 32 << 10

#: Parts of its slots, where stages are large: less is under way while no more than the first are
#: empty, more while more than the second are, and still more with more than the third.
_SPARE, _SCARCE, _DRAINED = 1 / 4, 3 / 4, 1.0
_SPARE_OF_MANY, _SCARCE_OF_MANY, _DRAINED_OF_MANY = 1 / 4, 1 / 3, 1 / 2

#: Bytes of weights for a part, on average, of which a block has many: it waits for memory rather
#: than for other blocks.
_MANY_BYTES = 48 << 10


def form(layout: SegmentLayout, name: str) -> list[str]:
    """The declaration of the form of a segment's ring; see ``ost::ring_of``.

    Args:
        layout: of the segment.
        name: the symbol of its kernel.
    """
    slots, slot_bytes = layout.slots, layout.slot_bytes
    ahead = max(2, round(_BYTES_AHEAD / slot_bytes))
    large = ahead == 2 and slots >= 4
    fields = {
        "barriers": layout.fixed_bytes,
        "begin": layout.slot_start(slots),
        "count": slots,
        "bytes": slot_bytes,
        "ahead": ahead,
        **_limits(layout, large=large),
    }
    return [
        f"struct {name}_ring {{",
        f"    static constexpr int {', '.join(f'{k} = {v}' for k, v in fields.items())};",
        f"    static __device__ unsigned char* memory() {{ return {name}_memory; }}",
        "};",
    ]


def start(name: str) -> list[str]:
    """Statements of a segment's kernel of this name that start the ring: all threads meet next.

    A thread does so that brings no addresses into shared memory.
    """
    return [
        f"    ost::ring_of<{name}_ring> ring;",
        f"    if (threadIdx.x == {SEGMENT_BLOCK + 1}) ring.start();",
    ]


def ring(layout: SegmentLayout, name: str) -> list[str]:
    """Statements of the warp that fills the ring."""
    lines = [
        f"    if (threadIdx.x >= {SEGMENT_BLOCK}) {{",
        "        auto filled = ring;  // in registers: no function has its address",
        f"        for (int n = 0; n < {len(layout.fetched)}; n++) {{",
        f"            const int wanted = records[{layout.width * len(layout.parts)} + n];",
        f"            const int i = wanted / {layout.most_streams};",
        *place(layout),
        "            ost::place start = own;",
        "            ost::staged_rows those;",
        "            switch (record[0]) {",
    ]
    for function in layout.distinct:
        if function.streams:
            lines += _streamed(layout, function)
        elif layout.brought(function) is not None:
            lines += _brought(layout, function)
    for function in layout.touching:
        lines += _touch(layout, function, name)
    return [
        *lines,
        "            }",
        "            if (ost::is_chosen()) filled.fetch(start, all, those);",
        "        }",
        "        return;",
        "    }",
    ]


def _limits(layout: SegmentLayout, *, large: bool) -> dict[str, int]:
    """The numbers of empty slots beyond which more may be under way, by the fields of the ring."""
    if not large:
        return {"spare": 0, "scarce": layout.slots, "drained": layout.slots}
    many = layout.streamed_bytes >= _MANY_BYTES * layout.launch.grid * len(layout.parts)
    parts = (_SPARE, _SCARCE, _DRAINED)
    if many:
        parts = (_SPARE_OF_MANY, _SCARCE_OF_MANY, _DRAINED_OF_MANY)
    return {
        name: int(layout.slots * part)
        for name, part in zip(("spare", "scarce", "drained"), parts, strict=True)
    }


def _streamed(layout: SegmentLayout, function: SegmentFunction) -> list[str]:
    """The cases of a function whose right operands come through the ring, tiles by turns."""
    lines, before = [f"            case {function.number}:"], 0
    for number, stream in enumerate(function.streams):
        chosen = f"those = {{{', '.join(_fields(stream))}}};"
        if len(function.streams) > 1:
            chosen = f"{{ {chosen} start.x = ost::counted_on(own, all, {before}); }}"
            chosen = f"if (wanted % {layout.most_streams} == {number}) {chosen}"
        lines.append(f"                {chosen}")
        before += stream.tiles
    return [*lines, "                break;"]


def _fields(stream: Stream) -> list[str]:
    """The fields of ``ost::staged_rows`` for a right operand."""

    def map_of(argument: int) -> str:
        return f"maps.of + record[{ARGUMENTS + argument}]"

    weights, scales = stream.weights, stream.scales
    sizes = stream.rows, -(-weights.nbytes // LINE), stream.width, weights.piece // LINE
    fields = [map_of(weights.argument), *map(str, (*sizes, stream.columns))]
    fields.append("false" if stream.divided else "true")
    if scales is not None:
        fields += [map_of(scales.argument), str(scales.piece // 4)]
    return fields


def _brought(layout: SegmentLayout, function: SegmentFunction) -> list[str]:
    """The case of a function whose operand is a stage of its own, in blocks that have the part."""
    operand = layout.brought(function)
    assert operand is not None
    start = f"(const unsigned char*)at[record[{ARGUMENTS + operand.argument}]] + {operand.offset}"
    return [
        f"            case {function.number}:",
        "                if (own.x < all.x && ost::is_chosen())",
        f"                    filled.fetch_bytes({start}, {operand.nbytes});",
        "                continue;",
    ]


def _touch(layout: SegmentLayout, function: SegmentFunction, name: str) -> list[str]:
    """The case of a function whose operands the warp brings into the cache."""
    *types, _ = function.body.types()
    given = [f"({type_})at[record[{ARGUMENTS + i}]]" for i, type_ in enumerate(types)]
    call = ", ".join(["own", "all", *given, "variables"])
    return [
        f"            case {function.number}:",
        f"                if (own.x < all.x) {name}_{function.number}_touch({call});",
        "                continue;",
    ]
