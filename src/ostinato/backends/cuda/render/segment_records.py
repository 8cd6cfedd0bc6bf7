"""The table of records of a segment: by part, its function, arguments, blocks and barrier.

A record names the blocks that have work of a part, so that blocks without any go on to the next. Of
an argument that comes through the ring, it has the number of the tensor map.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.segment_layout import RECORD_FIELDS
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind
from ostinato.dtypes import UINT16

if TYPE_CHECKING:
    from collections.abc import Set

    from ostinato.backends.cuda.render.segment_layout import SegmentLayout

__all__ = [
    "ARGUMENTS",
    "ARRAYS",
    "PLACE",
    "part_numbers",
    "place",
    "space_table",
    "table",
    "working_blocks",
]

PLACE = 2
"""The first field of those that become the place of the block."""

ARRAYS = RECORD_FIELDS - 1
"""The field with the start of the part's arrays."""

ARGUMENTS = RECORD_FIELDS
"""The field of the first argument."""


def table(layout: SegmentLayout, name: str) -> str:
    """The table of a segment's kernel of this name, as constants."""
    rows = []
    parts = zip(
        pairwise((None, *layout.parts)),
        layout.functions,
        layout.packets,
        working_blocks(layout),
        strict=True,
    )
    for (before, part), function, packets, (first, working) in parts:
        assert part is not None
        waits = before is not None and before.level != part.level
        alone = part.everywhere and part.shares_of is None
        shared = 0 if alone else working
        arrays = layout.pool_start(part) // 16
        streamed = layout.map_numbers(part, function)
        given = [streamed.get(i, position) for i, position in enumerate(part.arguments)]
        fields = [function.number, int(waits), shared, first, working, arrays, *given]
        fields += (packets[argument] for argument in sorted(packets))
        fields += [0] * (layout.width - len(fields))
        rows.append(f"    {', '.join(map(str, fields))},")
    if layout.fetched:
        rows.append(f"    {', '.join(map(str, layout.fetched))},")
    size = layout.record_bytes // UINT16.itemsize  # zeros up to whole vectors
    head = f"static __device__ const __align__(16) unsigned short {name}_records[{size}] = {{"
    return "\n".join([head, *rows, "};"])


def space_table(layout: SegmentLayout, name: str) -> str:
    """The places of a segment's spaces, as constants.

    They are offsets, all of them even, in the memory of the block; with one added, in the packets.
    """
    found = [
        space.offset + 1 if space.kind is SpaceKind.PACKETS else layout.value_start + space.offset
        for space in layout.segment.spaces
    ]
    head = f"static __device__ const unsigned {name}_spaces[{len(found)}]"
    return f"{head} = {{{', '.join(map(str, found))}}};"


def part_numbers(layout: SegmentLayout, name: str) -> str:
    """The numbers of the parts among all of the segment, as constants."""
    numbers = layout.numbers
    head = f"static __device__ const unsigned short {name}_numbers[{len(numbers)}]"
    return f"{head} = {{{', '.join(map(str, numbers))}}};"


def place(layout: SegmentLayout) -> list[str]:
    """Declarations of the record of a part, and of the block's place in it."""
    return [
        f"            const unsigned short* const record = records + i * {layout.width};",
        f"            const ost::place all = {{record[{PLACE}]}}, own = {{record[{PLACE + 1}]}};",
    ]


def working_blocks(layout: SegmentLayout) -> list[tuple[int, int]]:
    """By part, the first block that has work, and how many from there on do.

    The tiles of a part begin where those of the one before it end. What every block has for
    itself is computed by those that need it.
    """
    grid, following = layout.launch.grid, 0
    found: list[tuple[int, int]] = []
    for part, function in zip(layout.parts, layout.functions, strict=True):
        first = following if part.tiles_of is None else found[part.tiles_of][0]
        found.append((first, min(function.blocks, grid)))
        if not part.everywhere:
            following = (first + function.blocks) % grid
    needed: dict[int, set[int]] = {}
    numbered = list(enumerate(layout.parts))
    for number, part in reversed(numbered):
        own: set[int] = set()
        if part.shares_of is not None:
            found[number] = found[part.shares_of]
        elif part.everywhere:
            written = part.operands(writes=True)
            written += [part.arguments[argument] for argument in layout.packets[number]]
            own = own.union(*(needed.get(position, ()) for position in written))
            lasting = any(layout.segment.space(position) is None for position in written)
            found[number] = _range_around(own or {0} if lasting else own, grid)
        first, working = found[number]
        own = {(first + i) % grid for i in range(working)}
        for position in part.operands(writes=False):
            needed.setdefault(position, set()).update(own)
    return found


def _range_around(blocks: Set[int], grid: int) -> tuple[int, int]:
    """The first block and the number of the fewest, one after the other, that have all of these."""
    if not blocks:
        return 0, 0
    found = sorted(blocks)
    gaps = [(found[i] - found[i - 1] - 1) % grid for i in range(len(found))]
    longest = max(gaps) if len(found) > 1 else grid - 1
    first = found[gaps.index(longest)] if len(found) > 1 else found[0]
    return first, grid - longest
