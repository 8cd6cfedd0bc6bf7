"""CUDA C++ of attention by groups of four warps, with places for what depends on the kernel.

:mod:`~ostinato.backends.cuda.render.attention_groups` says how a block works.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.attention_group_shapes import CHUNK
from ostinato.backends.cuda.render.packed_stores import packed_stores, store_lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.render.packed_stores import Results
    from ostinato.variables import Symbol

__all__ = [
    "BODY",
    "CHUNKS",
    "COMPUTED",
    "COPIED",
    "COPIED_ALL",
    "COPYING",
    "COPY_BEGIN",
    "COPY_END",
    "GENERAL",
    "ITERATION",
    "PLAIN",
    "SOURCE",
    "START",
    "TILES",
    "stored",
]

#: A block's shared memory, its barriers, and its groups; then the items that it has by turns, and
#: the beginning of the group that copies.
START = """\
    extern __shared__ __align__(1024) unsigned char ${name}_memory[];
    __shared__ ost::phased_barrier arrived[$slots], emptied[$slots], turns[$groups];
    unsigned short* const queries = (unsigned short*)${name}_memory;
    unsigned short* const ring = queries + $groups * $query_tile;
    if (threadIdx.x == 0) {
        for (int i = 0; i < $slots; i++) {
            ost::barrier_start(arrived + i, 128);
            ost::barrier_start(emptied + i, 4 * $groups);
        }
        for (int i = 0; i < $groups; i++)
            ost::barrier_start(turns + i, 4);
        ost::barriers_started();
    }
    __syncthreads();
$wait
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
    // No call may stand beside the products of groups, or ptxas has each of them waited for.
    auto await = [](ost::phased_barrier* barrier, unsigned phase) {
        if (!ost::barrier_await(barrier, phase))
            __trap();
        __syncwarp();
    };
    // Every other round goes backwards, so that blocks have as many keys in all.
    auto item_of = [&](int round) {
        const int place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        return round * (int)gridDim.x + place;
    };
    int slot = 0;
    unsigned parity = 0;
    auto advance = [&](int count) {
        slot += count;
        if (slot >= $slots) {
            slot -= $slots;
            parity ^= 1;
        }
    };
"""
COPYING = """\
    if (group == $groups) {
        ost::give_registers<$copying>();
        int shown = 0;
        auto show = [&]() {
            ost::show_to_tensor_cores();
            ost::barrier_arrive(arrived + shown);
            shown = shown + 1 == $slots ? 0 : shown + 1;
        };
"""

#: The end of that group, and the beginning of those that have rows; then their loop over items,
#: whose queries ``bring_queries`` brings.
COPIED_ALL = """\
            if (behind) {
                ost::copy_wait<0>();
                show();
            }
        }
        return;
    }
    ost::take_registers<$registers>();
    const int g = lane / 4, t = lane % 4;
    unsigned short* const own_queries = queries + group * $query_tile;
"""
ITERATION = """\
    // Groups multiply queries in turn: while one does, the others compute weights.
    unsigned turn = group == 0;
    if (item_of(0) < items)
        bring_queries(item_of(0));
    for (int round = 0, item; (item = item_of(round)) < items; round++) {
"""

#: The tiles of keys from ``low`` to ``high``: what the rows of a group gather of them.
TILES = """\
        float sums[$features / 8][4] = {}, scores[$keys / 8][4];
        float greatest[2] = {$minus_infinity, $minus_infinity}, totals[2] = {}, correction[2];
        unsigned weights[$keys / 16][4];
        auto release = [&](ost::phased_barrier* barrier) {
            __syncwarp();
            if (lane == 0)
                ost::barrier_arrive(barrier);
        };
        auto multiply_queries = [&](int at) {
            const ost::panels left(own_queries, 0), right(ring + at * $slot, 0);
            ost::group_begin();
            ost::multiply_group<false, false>(scores, left, right, ost::${format}_format());
#pragma unroll
            for (int i = 1; i < $depth / 16; i++)
                ost::multiply_group<false>(
                    scores, left + (i / 4 * 64 * ost::panel + i % 4 * 16),
                    right + (i / 4 * $keys * ost::panel + i % 4 * 16), ost::${format}_format()
                );
            ost::group_commit();
        };
        auto multiply_weights = [&](int at) {
            const ost::panels right(ring + at * $slot, $keys * ost::panel);
            ost::group_registers(weights);
            ost::group_registers(sums);
            ost::group_begin();
#pragma unroll
            for (int i = 0; i < $keys / 16; i++)
                ost::multiply_group<true>(
                    sums, weights[i], right + i * 16 * ost::panel, ost::${format}_format()
                );
            ost::group_commit();
        };
        // Makes weights of scores, relative to the greatest score so far.
        auto weigh = [&](int start) {
$score
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float most = greatest[half];
#pragma unroll
                for (int j = 0; j < $keys / 4; j++)
                    most = ::fmaxf(most, scores[j / 2][2 * half + j % 2]);
#pragma unroll
                for (int step = 1; step < 4; step *= 2)
                    most = ::fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
                // A score that is not much greater leaves what was summed before as it is.
                if ((most - greatest[half]) * $exponent <= $slack)
                    most = greatest[half];
                const float shift = most == $minus_infinity ? 0 : -most * $exponent;
                const float fall = (greatest[half] - most) * $exponent;
                correction[half] = greatest[half] == most ? 1 : ost::near_exp2(fall);
                greatest[half] = most;
                totals[half] *= correction[half];
#pragma unroll
                for (int j = 0; j < $keys / 4; j++) {
                    float* const score = &scores[j / 2][2 * half + j % 2];
                    *score = ost::near_exp2(ost::add_product(*score, $exponent, shift));
                    totals[half] += *score;
                }
            }
        };
        auto take_weights = [&]() {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (__any_sync(0xFFFFFFFFu, correction[half] != 1)) {
#pragma unroll
                    for (int j = 0; j < $features / 4; j++)
                        sums[j / 2][2 * half + j % 2] *= correction[half];
                }
            }
#pragma unroll
            for (int i = 0; i < $keys / 16; i++) {
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const float* const pair = &scores[2 * i + part / 2][part % 2 * 2];
                    weights[i][part] = ost::pair_bits(pair[0], pair[1], ost::${format}_format());
                }
            }
        };
        ost::copy_wait<0>();
        ost::show_to_tensor_cores();
        ost::group_sync();
        for (int start = low; start < high; start += $keys) {
            await(arrived + slot, parity);
            await(turns + group, turn);
            turn ^= 1;
            multiply_queries(slot);
            ost::group_wait<0>();
            ost::group_registers(scores);
            ost::group_registers(sums);
            release(turns + (group + 1) % $groups);
            if (start > low)
                release(emptied + (slot == 0 ? $slots - 1 : slot - 1));
            release(emptied + slot);
            weigh(start);
            take_weights();
            advance(1);
            await(arrived + slot, parity);
            multiply_weights(slot);
            advance(1);
        }
"""

_ITEMS = """\
    // A tile has rows of one head where that has enough of them.
    const bool apart = length >= 64;
    const int heads = apart ? (int)(rows / length) : 1, head_rows = (int)(rows / heads);
    const int head_tiles = (head_rows + 63) / 64, tiles = head_tiles * heads;
    const int sets = (tiles + $groups - 1) / $groups, items = (int)points * sets;
    // Tiles of later positions come first: their rows attend to most keys.
    auto first_row_of = [&](int tile) {
        return tile % heads * head_rows + (head_tiles - 1 - tile / heads) * 64;
    };
    auto end_of = [&](int tile) { return (tile % heads + 1) * head_rows; };
    // Keys that any row of some tiles attends to, by their first and last positions.
    auto range_of = [&](int first_tile, int last_tile, int& first_key, int& end_key) {
        [[maybe_unused]] long long least = keys - length, most = keys - 1;
        if (apart) {
            const int last_row = (head_tiles - 1 - first_tile / heads) * 64 + 63;
            least += (head_tiles - 1 - last_tile / heads) * 64;
            most = (last_row < length ? last_row : length - 1) + keys - length;
        }
        long long low = 0, high = keys;
$range
        first_key = (int)low / $keys * $keys;
        end_key = (int)high;
    };
    // The last set may be short of tiles.
    auto last_of = [&](int set) {
        return set * $groups + $groups <= tiles ? set * $groups + $groups - 1 : tiles - 1;
    };
"""
_COPIES = """\
        for (int round = 0, item; (item = item_of(round)) < items; round++) {
            [[maybe_unused]] const long long point = item % (int)points;
            const int set = item / (int)points;
$batch
            int low, high;
            range_of(set * $groups, last_of(set), low, high);
$key_source
$value_source
            bool behind = false;
            for (int start = low; start < high; start += $keys) {
$load_keys
$load_values
            }
"""
_QUERIES = """\
    auto bring_queries = [&](int item) {
        [[maybe_unused]] const long long point = item % (int)points;
        const int tile = item / (int)points * $groups + group;
        const int first_row = tile < tiles ? first_row_of(tile) : 0;
        const int end = tile < tiles ? end_of(tile) : 0;
$batch
$bring
    };
"""
_RANGE = """\
        [[maybe_unused]] const long long point = item % (int)points;
        const int set = item / (int)points, given = set * $groups + group;
        const int tile = given < tiles ? given : tiles - 1, end = given < tiles ? end_of(tile) : 0;
        const int own_row = first_row_of(tile) + warp * 16 + g;
$batch
        int low, high;
        range_of(set * $groups, last_of(set), low, high);
        // Keys from `sure` to `certain` have a score with every row of the tile.
        [[maybe_unused]] long long sure = low, certain = high;
        if (apart) {
            const int first = (head_tiles - 1 - tile / heads) * 64;
            [[maybe_unused]] const long long least = first + keys - length;
            [[maybe_unused]] const long long most = least + 63;
$certain
        } else {
            certain = $unsure;
        }
        [[maybe_unused]] int positions[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            positions[half] = (int)((own_row + half * 8) % length + keys - length);
"""
_END = """\
        if (item_of(round + 1) < items)
            bring_queries(item_of(round + 1));
        ost::group_wait<0>();
        ost::group_registers(sums);
        if (low < high)
            release(emptied + (slot == 0 ? $slots - 1 : slot - 1));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 1);
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 2);
            const float factor = totals[half] == 0 ? 1 : 1 / totals[half];
            const long long m = own_row + half * 8;
$store
        }
    }
"""

BODY = Template(
    f"{START}{_ITEMS}{COPYING}{_COPIES}{COPIED_ALL}{_QUERIES}{ITERATION}{_RANGE}{TILES}{_END}"
)

#: The first chunk of a thread in a tile of keys or values, and how far the next line's is.
SOURCE = Template("""\
            const int ${what}_line = threadIdx.x % 128 / $spread;
            const int ${what}_place = threadIdx.x % $spread * $chunk;
            const unsigned short* ${what}_from;
            {
                const long long key = low + ${what}_line, $along = ${what}_place;
$place
            }
$step""")

#: In front of the copies of a tile, and behind them. It is shown once the next one is under way, or
#: has no room yet.
COPY_BEGIN = """\
                if (behind && !ost::barrier_passed(emptied + slot, parity ^ 1)) {
                    ost::copy_wait<0>();
                    show();
                    behind = false;
                }
                await(emptied + slot, parity ^ 1);
"""
COPY_END = """\
                ost::copy_commit();
                advance(1);
                if (behind) {
                    ost::copy_wait<1>();
                    show();
                }
                behind = true;"""

CHUNKS = Template(
    COPY_BEGIN
    + """\
#pragma unroll
                for (int i = 0; i < $passes; i++) {
                    const int line = ${what}_line + i * $lines;
                    if ($whole || ${what}_place < $length)
                        ost::copy_ahead(
                            ring + slot * $slot + ${what}_place / ost::panel * $keys * ost::panel
                                + ost::in_panel(line, ${what}_place % ost::panel),
                            ${what}_from + i * ${what}_step * $lines, start + line < high
                        );
                }
                ${what}_from += ${what}_step * $keys;
"""
    + COPY_END
)

#: Queries that chunks of memory have, and those that are computed: each warp brings its rows.
COPIED = Template("""\
#pragma unroll
        for (int i = 0; i < $depth / 16; i++) {
            const int chunk = lane + i * 32, line = warp * 16 + chunk / ($depth / $chunk);
            const int place = chunk % ($depth / $chunk) * $chunk;
            const long long m = first_row + line, d = place;
$source
            ost::copy_async(
                own_queries + place / ost::panel * 64 * ost::panel
                    + ost::in_panel(line, place % ost::panel),
                from, m < end
            );
        }
        ost::copy_commit();""")
COMPUTED = Template("""\
#pragma unroll
        for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const int line = warp * 16 + part % 2 * 8 + g;
                const int place = i % 4 * 16 + part / 2 * 8 + t * 2;
                const long long m = first_row + line;
                unsigned short pair[2] = {};
                if (m < end) {
                    const long long d = i * 16 + part / 2 * 8 + t * 2;
$query
                }
                *(unsigned*)(own_queries + i / 4 * 64 * ost::panel + ost::in_panel(line, place)) =
                    pair[0] | (unsigned)pair[1] << 16;
            }
        }""")

#: Leaves out the keys that a row does not attend to, of products that are scores.
PLAIN = Template("""\
            if (start < sure || start + $keys > certain) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    [[maybe_unused]] const int position = positions[half];
                    int before = high;
                    [[maybe_unused]] int first = 0;
$limits
                    const int stop = before - start - t * 2;
                    [[maybe_unused]] const int begin = first - start - t * 2;
#pragma unroll
                    for (int j = 0; j < $keys / 4; j++) {
                        const int place = j / 2 * 8 + j % 2;
                        float* const score = &scores[j / 2][2 * half + j % 2];
                        *score = $holds ? *score : $minus_infinity;
                    }
                }
            }""")

#: Makes scores of products, one by one.
GENERAL = Template("""\
#pragma unroll
            for (int j = 0; j < $keys / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const long long key = start + j * 8 + t * 2 + e % 2;
                    const long long m = own_row + e / 2 * 8;
                    [[maybe_unused]] const long long position = positions[e / 2];
                    const float product = scores[j][e];
                    float score = $minus_infinity;
                    if (key < high && m < end) {
$score
                    }
                    scores[j][e] = score;
                }
            }""")

#: Stores of eight neighbouring features, which four lanes have of as many rows, and of two of them,
#: together and one by one.
_STORED_EIGHT = Template("""\
#pragma unroll
            for (int j = 0; j < $features / 8; j += 4) {
                ost::pack<float, 8> totals_of_eight;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float held[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        held[i] = sums[j + i][2 * half + e] * factor;
                    ost::transpose_lanes(held);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        totals_of_eight.at[2 * i + e] = held[i];
                }
                const long long n = (j + t) * 8;
                if ($holds) {
$store
                }
            }""")
_STORED_PAIR = Template("""\
#pragma unroll
            for (int j = 0; j < $features / 8; j++) {
                if ($holds) {
                    const long long n = j * 8 + t * 2;
                    ost::pack<float, 2> totals_of_pair;
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        totals_of_pair.at[e] = sums[j][2 * half + e] * factor;
$store
                }
            }""")
_STORED_SINGLY = Template("""\
#pragma unroll
            for (int j = 0; j < $features / 8; j++) {
                if ($holds) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const long long n = j * 8 + t * 2 + e;
                        const float total = sums[j][2 * half + e] * factor;
$store
                    }
                }
            }""")


def stored(
    frame: Frame,
    results: Results,
    features: int,
    names: Mapping[Symbol, str],
    holds: str,
) -> str:
    """Statements that store the features of a row, as many at once as there may be.

    Args:
        frame: of the kernel.
        results: its result.
        features: of a row.
        names: by axis, the variable that has its value.
        holds: the condition on rows whose features are stored.
    """
    places = {"features": features, "holds": holds}
    lanes = store_lanes(results)
    if lanes >= CHUNK:
        text = packed_stores(frame, results, CHUNK, 5, names, "totals_of_eight")
        return _STORED_EIGHT.substitute(places, store=text)
    if lanes > 1:
        text = packed_stores(frame, results, 2, 5, names, "totals_of_pair")
        return _STORED_PAIR.substitute(places, store=text)
    text = frame.stores(results.stores, results.acc, 6, names, "total")
    return _STORED_SINGLY.substitute(places, store=text)
