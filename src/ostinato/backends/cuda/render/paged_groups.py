"""Rendering paged attention of many rows for groups of four warps, on pools of bfloat16.

A block works as those of :mod:`~ostinato.backends.cuda.render.attention_groups` do. The 64 rows of
a group are the query heads that share a key head, of a few rows of the step. The rows of a block
that are at neighbouring positions of one sequence are a *run*: they share tiles of keys. The group
that copies finds the runs, and says with the first tile of each which rows it is for.

Queries and weights are rounded to bfloat16.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.attention_group_code import (
    COPIED_ALL,
    COPY_BEGIN,
    COPY_END,
    COPYING,
    ITERATION,
    PLAIN,
    START,
    TILES,
    stored,
)
from ostinato.backends.cuda.render.attention_group_shapes import (
    CHUNK,
    GROUP,
    KEYS,
    PANEL,
    ROWS,
    GroupShape,
)
from ostinato.backends.cuda.render.attention_scores import (
    MINUS_INFINITY,
    MOST,
    SLACK,
    key_limits,
)
from ostinato.backends.cuda.render.frame import Frame, function
from ostinato.backends.cuda.render.packed_stores import Results
from ostinato.backends.cuda.render.paged_places import (
    has_vectors,
    places_text,
    query_text,
    sizes_of,
)
from ostinato.backends.cuda.render.paged_runs import columns_of, most_items, runs_text
from ostinato.backends.cuda.render.paged_scores import capped_text, exponent, sink_text
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["fits", "launch", "source"]

#: Rows up to which each has blocks of its own.
_FEW_ROWS = 16

#: Fours of elements of queries that a thread loads together.
_BATCH = 8

_BODY = Template(f"""\
    // Rows of a block from one up to another, at neighbouring positions, whose keys begin and end
    // there; whether the item has no other ones, and the block none behind them.
    struct run {{
        int first, next, least, high, last, ends;
    }};
    __shared__ run runs[$slots];
    if (threadIdx.x < $slots)
        runs[threadIdx.x] = {{}};
{START}\
$places
$runs\
    auto first_row_of = [&](int item) {{
        int which;
        return (long long)block_of(item, which) * $block_rows;
    }};
    auto shared_of = [&](int item) {{ return item / $member_blocks % $shared_heads; }};
    auto member_of = [&](int item) {{ return item % $member_blocks * $members; }};
{COPYING}\
        // The next run, from a row on, that attends to any key, and its sequence.
        auto find = [&](long long first_row, int there, int from, run& found, long long& owner) {{
            for (int first = from; first < there; first = found.next) {{
                owner = owner_of(first_row + first);
                const long long position = position_of(first_row + first);
                int next = first + 1;
                for (unsigned ends = 0; ends == 0 && next < there;) {{
                    const int own = next + lane;
                    const long long row = first_row + own;
                    const bool is_end = own >= there || owner_of(row) != owner
                        || position_of(row) != position + own - first;
                    ends = __ballot_sync(0xFFFFFFFFu, is_end);
                    next += ends == 0 ? 32 : __ffs((int)ends) - 1;
                }}
                const long long high = position + next - first, least = ost::maximum($begin, 0LL);
                found = {{first, next, (int)least, (int)high, 0, 0}};
                if (high > 0)
                    return true;
            }}
            return false;
        }};
        const int key_line = threadIdx.x % 128 / $key_spread;
        const int key_place = threadIdx.x % $key_spread * $chunk;
        const int value_line = threadIdx.x % 128 / $value_spread;
        const int value_place = threadIdx.x % $value_spread * $chunk;
        for (int round = 0, item; (item = item_of(round)) < items; round++) {{
            int which;
            const long long first_row = (long long)block_of(item, which) * $block_rows;
            const long long rest = rows - first_row;
            const int there = rest < $block_rows ? (int)rest : $block_rows;
            const int shared = shared_of(item);
            run following;
            long long next_owner;
            bool found = find(first_row, there, 0, following, next_owner), behind = false;
            for (int passed = 0; passed < which; passed++)
                found = find(first_row, there, following.next, following, next_owner);
            do {{
                // Where no row attends to a key, all have a tile that is empty.
                const bool has_keys = found;
                run own = {{0, 0, 0, 1, 1, 1}};
                const long long owner = has_keys ? next_owner : 0;
                if (has_keys) {{
                    own = following;
                    found = find(first_row, there, own.next, following, next_owner);
                    own.ends = !found;
                    own.last = !found || which >= 0;
                    found = found && which < 0;
                }}
                const int low = own.least / $keys * $keys, high = has_keys ? own.high : 0;
                long long next_blocks[$pages] = {{}};
                auto look_up = [&](int start) {{
#pragma unroll
                    for (int page = 0; page < $pages; page++)
                        if (start + page * $positions < high)
                            next_blocks[page] = block_at(owner, start / $positions + page);
                }};
                look_up(low);
                for (int start = low; start < own.high; start += $keys) {{
                    long long blocks[$pages];
#pragma unroll
                    for (int page = 0; page < $pages; page++)
                        blocks[page] = next_blocks[page];
                    look_up(start + $keys);
                    auto is_inside = [&](int line) {{
                        return start + line >= own.least && start + line < high;
                    }};
{COPY_BEGIN}\
                    if (start == low && threadIdx.x % 128 == 0)
                        ost::tell(runs + slot, own);
$load_keys
{COPY_END}
{COPY_BEGIN}\
$load_values
{COPY_END}
                }}
            }} while (found);
{COPIED_ALL}\
    auto bring_queries = [&](int item) {{
        const long long first_row = first_row_of(item);
        const int shared = shared_of(item), first_member = member_of(item);
        for (int begin = 0; begin < 4 * $depth; begin += 32 * $batch) {{
            float elements[$batch][4] = {{}};  // their loads are on their way together
#pragma unroll
            for (int b = 0; b < $batch; b++) {{
                const int i = begin + 32 * b + lane, stacked = warp * 16 + i / ($depth / 4);
                const long long row = first_row + group * $rows + stacked / $members;
                const int member = first_member + stacked % $members;
                const long long d = i % ($depth / 4) * 4;
                if (i < 4 * $depth && stacked < $stacked && row < rows && member < $group_heads) {{
$query
                }}
            }}
#pragma unroll
            for (int b = 0; b < $batch; b++) {{
                const int i = begin + 32 * b + lane, stacked = warp * 16 + i / ($depth / 4);
                const int d = i % ($depth / 4) * 4;
                if (i >= 4 * $depth)
                    break;
                ost::vector<unsigned short, 4> rounded;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    rounded.at[e] = ost::bfloat16_bits(elements[b][e]);
                *(ost::vector<unsigned short, 4>*)(
                    own_queries + d / ost::panel * 64 * ost::panel
                    + ost::in_panel(stacked, d % ost::panel)
                ) = rounded;
            }}
        }}
    }};
{ITERATION}\
        const long long first_row = first_row_of(item);
        const int shared = shared_of(item), first_member = member_of(item);
        // Of both rows of the thread: where they are in the item, and their positions.
        int own_rows[2], own_positions[2];
        bool exist[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {{
            const int stacked = warp * 16 + g + half * 8;
            own_rows[half] = group * $rows + stacked / $members;
            const long long row = first_row + own_rows[half];
            exist[half] = stacked < $stacked && row < rows
                && first_member + stacked % $members < $group_heads;
            own_positions[half] = exist[half] ? (int)ost::maximum(position_of(row), -1LL) : -1;
        }}
        bool last;
        do {{
            await(arrived + slot, parity);
            const run own = ost::told(runs + slot);
            last = own.last;
            const int low = own.least / $keys * $keys, high = own.high;
            // Keys from `sure` to `certain` have a score with every row of the run.
            [[maybe_unused]] const int sure = $sure, certain = high - (own.next - own.first) + 1;
            bool within[2];
            int positions[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {{
                within[half] = own_rows[half] >= own.first && own_rows[half] < own.next;
                positions[half] = within[half] ? own_positions[half] : -1;
            }}
{TILES}\
            if (last && item_of(round + 1) < items)
                bring_queries(item_of(round + 1));
            ost::group_wait<0>();
            ost::group_registers(sums);
            release(emptied + (slot == 0 ? $slots - 1 : slot - 1));
#pragma unroll
            for (int half = 0; half < 2; half++) {{
                totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 1);
                totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 2);
                if (positions[half] < 0) {{
                    totals[half] = 0;
#pragma unroll
                    for (int j = 0; j < $features / 8; j++)
                        sums[j][2 * half] = sums[j][2 * half + 1] = 0;
                }}
                const long long row = first_row + own_rows[half];
                const int member = first_member + (warp * 16 + g + half * 8) % $members;
                // Rows that attend to nothing are stored with those of the last run.
                const bool ends =
                    exist[half] && (positions[half] >= 0 || (own.ends && own_positions[half] < 0));
                float weights = totals[half], scale = 1;
$sink
                const float factor = weights == 0 ? 1 : scale / weights;
$store
            }}
        }} while (!last);
    }}
""")

_LOAD = Template("""\
#pragma unroll
                    for (int i = 0; i < $passes; i++) {
                        const int line = ${what}_line + i * $lines;
                        const long long block = blocks[i * $lines / $page_keys];
                        const int place = $place;
                        const long long $along = ${what}_place;
                        const unsigned char* from;
$address
                        if ($whole || ${what}_place < $length)
                            ost::copy_ahead(
                                ring + slot * $slot
                                    + ${what}_place / ost::panel * $keys * ost::panel
                                    + ost::in_panel(line, ${what}_place % ost::panel),
                                from, is_inside(line)
                            );
                    }""")


def fits(kernel: PagedAttentionKernel, target: CudaTarget) -> bool:
    """Whether there are many rows, which may be rounded, and the pools suit groups of warps."""
    spec = kernel.spec
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    positions, keys = max_extent(spec.place), max_extent(spec.page) * max_extent(spec.place)
    lines = GROUP // min(_spread(depth), _spread(features)) if depth and features else 0
    return (
        target.multiplies_by_groups
        and kernel.rounds
        and kernel.splits == 1
        and _FEW_ROWS < max_extent(spec.row) < MOST
        and 0 < keys < MOST
        and 0 < depth <= 2 * PANEL
        and depth % 16 == 0
        and features in (PANEL, 2 * PANEL)
        and (KEYS % positions == 0 or positions % KEYS == 0)
        and positions % lines == 0
        and has_vectors(kernel)
    )


def launch(kernel: PagedAttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: as many blocks as stay, or fewer."""
    shape = _shape(kernel, target)
    most = most_items(kernel, _members(kernel), _block_rows(kernel, shape))
    return shape.launch(target, most)


def source(kernel: PagedAttentionKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel."""
    spec, shape = kernel.spec, _shape(kernel, target)
    frame = Frame(kernel, spec.operands, [spec.store])
    names = {spec.depth: "d", spec.column: "n", spec.place: "place", spec.block: "block"}
    names |= {spec.row: "row", spec.shared: "shared", spec.member: "member"}
    positions = max_extent(spec.place)
    places = {**shape.places(), "minus_infinity": MINUS_INFINITY, "chunk": CHUNK}
    places |= {"positions": positions, "pages": max(1, KEYS // positions)}
    limits, holds = key_limits("place", "stop", 5, causal=True, window=spec.window)
    score = PLAIN.substitute(places, limits=limits, holds=holds)
    results = Results(kernel.args, [spec.store], spec.column, FLOAT32)
    block_rows = _block_rows(kernel, shape)
    early = target.starts_kernels_early
    waits = early and not kernel.variables
    body = _BODY.substitute(
        places,
        name=kernel.name,
        wait="    ost::wait_for_earlier_kernels();" if waits else "",
        places=places_text(kernel, frame),
        rows=_rows(kernel),
        block_rows=block_rows,
        runs=runs_text(kernel, _members(kernel), block_rows),
        stacked=_rows(kernel) * _members(kernel),
        members=_members(kernel),
        member_blocks=-(-spec.group // _members(kernel)),
        group_heads=spec.group,
        shared_heads=max_extent(spec.shared),
        begin="0LL" if spec.window is None else f"position - {spec.window - 1}",
        sure="low" if spec.window is None else f"high - {spec.window}",
        key_spread=_spread(shape.depth),
        value_spread=_spread(shape.features),
        load_keys=_load(frame, spec.k, "key", spec.depth, names, places),
        load_values=_load(frame, spec.v, "value", spec.column, names, places),
        batch=_BATCH,
        query=query_text(kernel, frame, names),
        format="bfloat16",
        score="\n".join(part for part in (capped_text(spec, KEYS), score) if part),
        slack=SLACK,
        exponent=exponent(spec),
        sink=sink_text(spec, frame, names),
        store=stored(frame, results, shape.features, names, "ends"),
    )
    return function(
        kernel,
        body,
        sizes_of(kernel),
        shape.threads,
        before='#include "barriers.cuh"\n#include "warpgroups.cuh"\n',
        resident=shape.block.resident,
        early=early and not waits,
    )


def _load(
    frame: Frame,
    load: Load,
    what: str,
    along: Symbol,
    names: Mapping[Symbol, str],
    places: Mapping[str, object],
) -> str:
    """Statements that copy a tile of keys or values."""
    length, spread = max_extent(along), _spread(max_extent(along))
    lines, positions = GROUP // spread, places["positions"]
    assert isinstance(positions, int)
    place = f"start % {positions} + line" if positions >= KEYS else f"line % {positions}"
    return _LOAD.substitute(
        places,
        what=what,
        passes=KEYS // lines,
        lines=lines,
        page_keys=min(KEYS, positions),
        place=place,
        along=names[along],
        address=frame.address(load, 6, names, "from"),
        whole=str(spread * CHUNK == length).lower(),
        length=length,
    )


def _spread(length: int) -> int:
    """Threads that copy a row of so many elements."""
    return 1 << (max(1, length // CHUNK) - 1).bit_length()


def _members(kernel: PagedAttentionKernel) -> int:
    """Heads of a group of warps."""
    return min(kernel.spec.group, ROWS)


def _rows(kernel: PagedAttentionKernel) -> int:
    """Rows of a group of warps."""
    return ROWS // _members(kernel)


def _block_rows(kernel: PagedAttentionKernel, shape: GroupShape) -> int:
    """Rows of a block."""
    return shape.block.groups * _rows(kernel)


def _shape(kernel: PagedAttentionKernel, target: CudaTarget) -> GroupShape:
    """The shape of blocks."""
    spec, columns = kernel.spec, columns_of(kernel, _members(kernel))

    def sets_of(groups: int) -> int:
        return columns * -(-max_extent(spec.row) // (groups * _rows(kernel)))

    return GroupShape.of(max_extent(spec.depth), max_extent(spec.column), sets_of, target)
