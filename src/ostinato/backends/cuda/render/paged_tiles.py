"""Rendering paged attention of many rows for tensor cores, on pools of bfloat16.

A block has some rows and a key head: the query heads that share it stand one below the other. Rows
at neighbouring positions of one sequence are a run, whose keys pass through shared memory tile by
tile, one on its way while another is used. What a row finds in the tiles of another run is never
stored, and keys to which no row of a run attends are zeros there.

Queries and weights are sums of two numbers of bfloat16: a product of float32 and bfloat16 is two
products of tensor cores, within 2^-16 of what it is in float32. Where they may be rounded, they are
one number each.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.render.attention_scores import MINUS_INFINITY, SLACK
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.backends.cuda.render.paged_places import (
    has_vectors,
    places_text,
    query_text,
    sizes_of,
)
from ostinato.backends.cuda.render.paged_runs import most_items, runs_text
from ostinato.backends.cuda.render.paged_scores import capped_text, exponent, sink_text
from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["fits", "launch", "source"]

_WARPS = 4
_THREADS, _STACKED = 32 * _WARPS, 16 * _WARPS

#: Keys of a tile; elements of 16 bytes, and those that pad a row of shared memory.
_KEYS, _CHUNK = 64, 8

#: Fours of elements of queries that a thread loads together.
_BATCH = 8

#: Elements of a row's queries up to which the block keeps them in registers.
_HELD = 128

#: Rows up to which each has blocks of its own, and features of a query and of a value, at most.
_FEW_ROWS, _MOST_FEATURES = 16, 256

_BODY = Template("""\
    extern __shared__ __align__(16) unsigned char ${name}_memory[];
    unsigned short* const queries = (unsigned short*)${name}_memory;
    unsigned short* const stages = queries + $parts * $stacked * $key_pitch;
    long long* const positions = (long long*)(stages + $stages * $stage);
    long long* const sequences = positions + $rows;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const auto within_tile = [](long long key) {
        return (int)ost::maximum(ost::minimum(key, ${keys}LL), 0LL);
    };
$places
$runs\
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int first_member = item % $member_blocks * $members;
        const int shared = item / $member_blocks % $shared_heads;
        int which;
        const long long first_row = (long long)block_of(item, which) * $rows;
        const int there = rows - first_row < $rows ? (int)(rows - first_row) : $rows;
        if (threadIdx.x < there) {
            positions[threadIdx.x] = position_of(first_row + threadIdx.x);
            sequences[threadIdx.x] = owner_of(first_row + threadIdx.x);
        }
        for (int begin = threadIdx.x; begin < $stacked * $depth / 4; begin += $batch * $threads) {
            float elements[$batch][4] = {};  // their loads are on their way together
#pragma unroll
            for (int b = 0; b < $batch; b++) {
                const int i = begin + b * $threads, stacked = i / ($depth / 4);
                const int own = stacked / $members, member = first_member + stacked % $members;
                const long long d = i % ($depth / 4) * 4, row = first_row + own;
                if (own < there && member < $group) {
$query
                }
            }
#pragma unroll
            for (int b = 0; b < $batch; b++) {
                const int i = begin + b * $threads, stacked = i / ($depth / 4);
                if (stacked >= $stacked) break;
                unsigned short* const to = queries + stacked * $key_pitch + i % ($depth / 4) * 4;
#pragma unroll
                for (int part = 0; part < $parts; part++) {
                    ost::vector<unsigned short, 4> rounded;
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        rounded.at[e] = ost::bfloat16_bits(elements[b][e]);
                        elements[b][e] -= ost::from_bfloat16(rounded.at[e]);
                    }
                    *(ost::vector<unsigned short, 4>*)(to + part * $stacked * $key_pitch) = rounded;
                }
            }
        }
        __syncthreads();
        const auto load_queries = [&](unsigned (&a)[$parts][4], int i) {
#pragma unroll
            for (int part = 0; part < $parts; part++)
                ost::load_matrices(
                    a[part],
                    queries + (part * $stacked + warp * 16 + lane % 16) * $key_pitch + i * 16
                        + lane / 16 * 8
                );
        };
$held_fragments
        for (int first = 0, next, passed = 0; first < there; first = next) {
            const long long owner = sequences[first];
            for (next = first + 1; next < there; next++)
                if (sequences[next] != owner || positions[next] != positions[next - 1] + 1) break;
            const long long position = positions[first], high = positions[next - 1] + 1;
            // Rows without keys are stored with the first run that has some.
            const int run = high > 0 ? passed++ : 0;
            if (which >= 0 && run != which)
                continue;
            const long long least = ost::maximum($begin, 0LL), low = least / $keys * $keys;
            float sums[$features / 8][4] = {}, greatest[2], totals[2] = {};
            long long own_first[2], own_end[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                greatest[half] = $minus_infinity;
                const int own = (warp * 16 + g + half * 8) / $members;
                const bool within = own >= first && own < next;
                const long long position = within ? positions[own] : -1;
                own_end[half] = position + 1;
                own_first[half] = $begin;
            }
            // Keys from `sure` to `certain` have a score with every row of the run.
            const long long sure = $sure, certain = position + 1;
            const int tiles = high > low ? (int)((high - low + $keys - 1) / $keys) : 0;
$first_block
            const auto load = [&](int number) {
                unsigned short* const loaded_keys = stages + number % $stages * $stage;
                unsigned short* const loaded_values = loaded_keys + $keys * $key_pitch;
                const long long start = low + (long long)number * $keys;
                constexpr int chunks = ($depth + $features) / 8;
$block_of_tile
                for (int i = threadIdx.x; i < $keys * chunks; i += $threads) {
                    const int line = i / chunks, chunk = i % chunks;
                    const bool inside = start + line >= least && start + line < high;
$place
                    const unsigned char* from;
                    if (chunk < $depth / 8) {
                        const long long d = chunk * 8;
$key
                        ost::copy_async(
                            loaded_keys + line * $key_pitch + chunk * 8, from, inside
                        );
                    } else {
                        const long long n = chunk * 8 - $depth;
$value
                        ost::copy_async(
                            loaded_values + line * $value_pitch + n, from, inside
                        );
                    }
                }
            };
#pragma unroll
            for (int number = 0; number < $stages - 1; number++) {
                if (number < tiles)
                    load(number);
                ost::copy_commit();
            }
            for (int number = 0; number < tiles; number++) {
                if ($stages > 1)
                    __syncthreads();  // all warps are done with the tile that is replaced
                if (number + $stages - 1 < tiles)
                    load(number + $stages - 1);
                ost::copy_commit();
                ost::copy_wait<$stages - 1>();
                __syncthreads();
                const unsigned short* const loaded_keys = stages + number % $stages * $stage;
                const unsigned short* const loaded_values = loaded_keys + $keys * $key_pitch;
                float scores[$keys / 8][4] = {};
#pragma unroll
                for (int i = 0; i < $depth / 16; i++) {
$fragments
#pragma unroll
                    for (int j = 0; j < $keys / 16; j++) {
                        unsigned b[4];
                        ost::load_matrices(
                            b,
                            loaded_keys + (j * 16 + lane / 16 * 8 + lane % 8) * $key_pitch
                                + i * 16 + lane / 8 % 2 * 8
                        );
#pragma unroll
                        for (int part = $parts - 1; part >= 0; part--) {
                            ost::multiply_tiles(
                                scores[2 * j], a[part], b[0], b[1], ost::bfloat16_format()
                            );
                            ost::multiply_tiles(
                                scores[2 * j + 1], a[part], b[2], b[3], ost::bfloat16_format()
                            );
                        }
                    }
                }
$capped
                const long long start = low + (long long)number * $keys;
                if (start < sure || start + $keys > certain) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int begin = within_tile(own_first[half] - start) - t * 2;
                        const int end = within_tile(own_end[half] - start) - t * 2;
#pragma unroll
                        for (int j = 0; j < $keys / 4; j++) {
                            const int place = j / 2 * 8 + j % 2;
                            float* const score = &scores[j / 2][2 * half + j % 2];
                            *score = place >= begin && place < end ? *score : $minus_infinity;
                        }
                    }
                }
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
                    const float correction = greatest[half] == most ? 1 : ost::near_exp2(fall);
                    greatest[half] = most;
                    totals[half] *= correction;
#pragma unroll
                    for (int j = 0; j < $keys / 4; j++) {
                        float* const score = &scores[j / 2][2 * half + j % 2];
                        *score = ost::near_exp2(ost::add_product(*score, $exponent, shift));
                        totals[half] += *score;
                    }
                    if (__any_sync(0xFFFFFFFFu, correction != 1)) {
#pragma unroll
                        for (int j = 0; j < $features / 4; j++)
                            sums[j / 2][2 * half + j % 2] *= correction;
                    }
                }
#pragma unroll
                for (int i = 0; i < $keys / 16; i++) {
                    unsigned a[$parts][4];
#pragma unroll
                    for (int part = 0; part < 4; part++) {
                        float* const pair = &scores[2 * i + part / 2][part % 2 * 2];
#pragma unroll
                        for (int q = 0; q < $parts; q++)
                            a[q][part] = ost::take_pair(pair[0], pair[1]);
                    }
#pragma unroll
                    for (int j = 0; j < $features / 16; j++) {
                        unsigned b[4];
                        ost::load_transposed(
                            b,
                            loaded_values + (i * 16 + lane % 16) * $value_pitch + j * 16
                                + lane / 16 * 8
                        );
#pragma unroll
                        for (int part = $parts - 1; part >= 0; part--) {
                            ost::multiply_tiles(
                                sums[2 * j], a[part], b[0], b[1], ost::bfloat16_format()
                            );
                            ost::multiply_tiles(
                                sums[2 * j + 1], a[part], b[2], b[3], ost::bfloat16_format()
                            );
                        }
                    }
                }
                if ($stages == 1)
                    __syncthreads();
            }
            ost::copy_wait<0>();
#pragma unroll
            for (int half = 0; half < 2; half++) {
                totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 1);
                totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 2);
                const int stacked = warp * 16 + g + half * 8, own = stacked / $members;
                const long long row = first_row + own;
                const int member = first_member + stacked % $members;
                if (own >= first && own < next && member < $group) {
                    float weights = totals[half];
                    float scale = 1;
$sink
                    const float factor = weights == 0 ? 1 : scale / weights;
#pragma unroll
                    for (int j = 0; j < $features / 8; j++) {
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const long long n = j * 8 + t * 2 + e;
                            const float total = sums[j][2 * half + e] * factor;
$store
                        }
                    }
                }
            }
            __syncthreads();  // before tiles of the next run replace these
        }
        __syncthreads();
    }
""")

#: The place of a key of a tile: in the one block that has the tile, which is looked up while the
#: tile before it is used, or in one of several.
_FIRST_BLOCK = Template("""\
            long long next_block = tiles > 0 ? block_at(owner, low / $positions) : 0;""")
_IN_ONE_BLOCK = Template("""\
                const long long block = next_block;
                const int first_place = (int)(start % $positions);
                if (number + 1 < tiles) next_block = block_at(owner, (start + $keys) / $positions);\
""")
_PLACE_IN_IT = "                    const int place = first_place + line;"
_PLACE = Template("""\
                    const long long key = inside ? start + line : least;
                    const long long block = block_at(owner, key / $positions);
                    const long long place = key % $positions;""")

#: Queries as tensor cores take them: all in registers, or loaded for each tile.
_HELD_FRAGMENTS = Template("""\
        unsigned held[$depth / 16][$parts][4];
#pragma unroll
        for (int i = 0; i < $depth / 16; i++) load_queries(held[i], i);""")
_FRAGMENTS_HELD = Template("""\
                    const unsigned(&a)[$parts][4] = held[i];""")
_FRAGMENTS_LOADED = Template("""\
                    unsigned a[$parts][4];
                    load_queries(a, i);""")


def fits(kernel: PagedAttentionKernel, target: CudaTarget) -> bool:
    """Whether there are many rows, and the pools suit tensor cores."""
    spec = kernel.spec
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    return (
        tensor_tiles.multiplies(BFLOAT16, target)
        and kernel.splits == 1
        and max_extent(spec.row) > _FEW_ROWS
        and not (depth % 16 or features % 16)
        and 0 < features <= _MOST_FEATURES >= depth
        and has_vectors(kernel)
        and _shared_bytes(kernel, 1) <= target.shared_bytes_per_block
    )


def launch(kernel: PagedAttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for some rows and a key head, or a few waves."""
    blocks = most_items(kernel, _members(kernel), _rows(kernel))
    shared_bytes = _shared_bytes(kernel, _stages(kernel, target))
    return Launch(grid_of(blocks, target), _THREADS, shared_bytes)


def source(kernel: PagedAttentionKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel."""
    spec = kernel.spec
    frame = Frame(kernel, spec.operands, [spec.store])
    key_pitch, value_pitch = _pitches(kernel)
    names = {spec.depth: "d", spec.column: "n", spec.place: "place", spec.block: "block"}
    names |= {spec.row: "row", spec.shared: "shared", spec.member: "member"}
    positions = max_extent(spec.place)
    whole = positions % _KEYS == 0
    begin, sure = "0LL", "low"
    if spec.window is not None:
        begin, sure = f"position - {spec.window - 1}", f"high - {spec.window}"
    depth = max_extent(spec.depth)
    sizes = {"depth": depth, "parts": _parts(kernel)}
    held = depth * _parts(kernel) <= _HELD
    text = _BODY.substitute(
        sizes,
        name=kernel.name,
        places=places_text(kernel, frame),
        runs=runs_text(kernel, _members(kernel), _rows(kernel)),
        stacked=_STACKED,
        threads=_THREADS,
        keys=_KEYS,
        rows=_rows(kernel),
        members=_members(kernel),
        member_blocks=-(-spec.group // _members(kernel)),
        group=spec.group,
        shared_heads=max_extent(spec.shared),
        first_block=_FIRST_BLOCK.substitute(positions=positions) if whole else "",
        block_of_tile=_IN_ONE_BLOCK.substitute(positions=positions, keys=_KEYS) if whole else "",
        place=_PLACE_IN_IT if whole else _PLACE.substitute(positions=positions),
        features=max_extent(spec.column),
        held_fragments=_HELD_FRAGMENTS.substitute(sizes) if held else "",
        fragments=(_FRAGMENTS_HELD if held else _FRAGMENTS_LOADED).substitute(sizes),
        key_pitch=key_pitch,
        value_pitch=value_pitch,
        stage=_KEYS * (key_pitch + value_pitch),
        stages=_stages(kernel, target),
        begin=begin,
        sure=sure,
        capped=capped_text(spec, _KEYS),
        exponent=exponent(spec),
        slack=SLACK,
        minus_infinity=MINUS_INFINITY,
        batch=_BATCH,
        query=query_text(kernel, frame, names),
        key=frame.address(spec.k, 6, names, "from"),
        value=frame.address(spec.v, 6, names, "from"),
        sink=sink_text(spec, frame, names),
        store=frame.stores([spec.store], FLOAT32, 7, names, "total"),
    )
    return function(kernel, text, sizes_of(kernel), _THREADS)


def _parts(kernel: PagedAttentionKernel) -> int:
    """Numbers of bfloat16 for each query, and for each weight."""
    return 1 if kernel.rounds else 2


def _members(kernel: PagedAttentionKernel) -> int:
    """Heads of a block."""
    return min(kernel.spec.group, _STACKED)


def _rows(kernel: PagedAttentionKernel) -> int:
    """Rows of a block."""
    return _STACKED // _members(kernel)


def _pitches(kernel: PagedAttentionKernel) -> tuple[int, int]:
    """Elements between rows of keys, and of queries, and between rows of values."""
    spec = kernel.spec
    return max_extent(spec.depth) + _CHUNK, max_extent(spec.column) + _CHUNK


def _stages(kernel: PagedAttentionKernel, target: CudaTarget) -> int:
    """Tiles in shared memory."""
    return 2 if _shared_bytes(kernel, 2) <= target.shared_bytes_per_block else 1


def _shared_bytes(kernel: PagedAttentionKernel, stages: int) -> int:
    key_pitch, value_pitch = _pitches(kernel)
    elements = _parts(kernel) * _STACKED * key_pitch + stages * _KEYS * (key_pitch + value_pitch)
    return 2 * elements + 16 * _rows(kernel)
