"""Rendering attention of many queries for tensor cores.

A warp has one or two tiles of 16 rows of queries in registers, and reads what it multiplies them by
from shared memory once for both. Tiles of keys and values pass through shared memory, one on its
way while another is used. The scores of a warp's rows become weights where they are, in registers,
which is where the second product needs them; what was summed before is scaled down whenever a much
greater score turns up.

Only tiles at the ends of the keys that a block's rows attend to need conditions on each key.
Without a mask and a cap, scores stay products of queries and keys, and the scale is part of the
exponent.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.attention_rows import score_text
from ostinato.backends.cuda.render.attention_scores import (
    MINUS_INFINITY,
    MOST,
    SLACK,
    exponent,
    is_plain,
    key_limits,
    sure_keys,
)
from ostinato.backends.cuda.render.attention_tiles import key_range, loads_of, query_pairs
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.backends.cuda.render.packed_stores import Results, packed_stores, store_lanes
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["fits", "launch", "source"]

#: Elements of 16 bytes, and those that pad a row of shared memory against bank conflicts.
_CHUNK = 8

#: Keys of a tile.
_KEYS = 64

#: Bytes of shared memory of a block, for which every GPU has room where it is more than two tiles.
_SHARED_BYTES = 64 << 10

#: Blocks from which on larger ones still fill a GPU.
_FILLED = 256


class _Block(NamedTuple):
    """The shape of a block.

    Attributes:
        warps: of the block.
        tiles: of 16 rows that a warp has.
    """

    warps: int
    tiles: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.tiles


#: The shapes of blocks, largest first.
_BLOCKS = (_Block(4, 2), _Block(4, 1), _Block(2, 1))

_BODY = Template("""\
    extern __shared__ __align__(1024) unsigned char ${name}_memory[];
    unsigned short* const stages = (unsigned short*)${name}_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const long long row_blocks = (rows + $block - 1) / $block;
    for (long long item = blockIdx.x; item < points * row_blocks; item += gridDim.x) {
$order
$batch
        const long long last_row = first_row + $block < rows ? first_row + $block - 1 : rows - 1;
        long long low = 0, high = keys;
        // Keys from `sure` to `certain` have a score with every row of the block.
        long long sure = 0, certain = keys;
        [[maybe_unused]] const long long least = first_row % length + keys - length;
        [[maybe_unused]] const long long most = last_row % length + keys - length;
        if (first_row / length == last_row / length) {
$range
$certain
        } else {
            certain = $unsure;
        }
        const long long own_row = first_row + warp * $own_rows + g;
        unsigned query[$tiles][$depth / 16][4];
#pragma unroll
        for (int r = 0; r < $tiles; r++) {
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const long long m = own_row + r * 16 + part % 2 * 8;
                    unsigned short pair[2] = {};
                    if (m < rows) {
                        const long long d = i * 16 + part / 2 * 8 + t * 2;
$query
                    }
                    query[r][i][part] = pair[0] | (unsigned)pair[1] << 16;
                }
            }
        }
        float sums[$tiles][$features / 8][4] = {}, greatest[$tiles][2], totals[$tiles][2] = {};
#pragma unroll
        for (int r = 0; r < $tiles; r++)
            greatest[r][0] = greatest[r][1] = $minus_infinity;
$key_sources
$value_sources
        const int tiles = high > low ? (int)((high - low + $keys - 1) / $keys) : 0;
        const int count = (int)(high - low);
        auto load = [&](int number) {
            unsigned short* const loaded_keys = stages + number % $stages * $stage;
            unsigned short* const loaded_values = loaded_keys + $key_elements;
            const int left = count - number * $keys;
$load_keys
$load_values
        };
        for (int number = 0; number < $ahead; number++) {
            if (number < tiles)
                load(number);
            ost::copy_commit();
        }
        for (int number = 0; number < tiles; number++) {
            ost::copy_wait<$ahead - 1>();
            __syncthreads();  // so all warps are done with the tile that the next one replaces
            if (number + $ahead < tiles)
                load(number + $ahead);
            ost::copy_commit();
            const unsigned short* const loaded_keys = stages + number % $stages * $stage;
            [[maybe_unused]] const unsigned short* const loaded_values =
                loaded_keys + $key_elements;
            float scores[$tiles][$keys / 8][4] = {};
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
                for (int j = 0; j < $keys / 16; j++) {
                    unsigned b[4];
                    ost::load_matrices(
                        b,
                        loaded_keys + (j * 16 + lane / 16 * 8 + lane % 8) * $key_pitch + i * 16
                            + lane / 8 % 2 * 8
                    );
#pragma unroll
                    for (int r = 0; r < $tiles; r++) {
                        ost::multiply_tiles(
                            scores[r][2 * j], query[r][i], b[0], b[1], ost::${format}_format()
                        );
                        ost::multiply_tiles(
                            scores[r][2 * j + 1], query[r][i], b[2], b[3], ost::${format}_format()
                        );
                    }
                }
            }
            const long long start = low + (long long)number * $keys;
            float correction[$tiles][2];
$score
#pragma unroll
            for (int r = 0; r < $tiles; r++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float most = greatest[r][half];
#pragma unroll
                    for (int j = 0; j < $keys / 4; j++) {
                        most = ::fmaxf(most, scores[r][j / 2][2 * half + j % 2]);
                    }
#pragma unroll
                    for (int step = 1; step < 4; step *= 2) {
                        most = ::fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
                    }
                    // A score that is not much greater leaves what was summed before as it is.
                    if ((most - greatest[r][half]) * $exponent <= $slack)
                        most = greatest[r][half];
                    const float shift = most == $minus_infinity ? 0 : -most * $exponent;
                    const float fall = (greatest[r][half] - most) * $exponent;
                    correction[r][half] = greatest[r][half] == most ? 1 : ost::near_exp2(fall);
                    greatest[r][half] = most;
                    totals[r][half] *= correction[r][half];
#pragma unroll
                    for (int j = 0; j < $keys / 4; j++) {
                        float* const score = &scores[r][j / 2][2 * half + j % 2];
                        *score = ost::near_exp2(ost::add_product(*score, $exponent, shift));
                        totals[r][half] += *score;
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < $tiles; r++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (__any_sync(0xFFFFFFFFu, correction[r][half] != 1)) {
#pragma unroll
                        for (int j = 0; j < $features / 4; j++)
                            sums[r][j / 2][2 * half + j % 2] *= correction[r][half];
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < $keys / 16; i++) {
                unsigned a[$tiles][4];
#pragma unroll
                for (int r = 0; r < $tiles; r++) {
#pragma unroll
                    for (int part = 0; part < 4; part++) {
                        const float* const pair = &scores[r][2 * i + part / 2][part % 2 * 2];
                        a[r][part] = ost::pair_bits(pair[0], pair[1], ost::${format}_format());
                    }
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
                    for (int r = 0; r < $tiles; r++) {
                        ost::multiply_tiles(
                            sums[r][2 * j], a[r], b[0], b[1], ost::${format}_format()
                        );
                        ost::multiply_tiles(
                            sums[r][2 * j + 1], a[r], b[2], b[3], ost::${format}_format()
                        );
                    }
                }
            }
        }
        ost::copy_wait<0>();
#pragma unroll
        for (int r = 0; r < $tiles; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                totals[r][half] += __shfl_xor_sync(0xFFFFFFFFu, totals[r][half], 1);
                totals[r][half] += __shfl_xor_sync(0xFFFFFFFFu, totals[r][half], 2);
                const float weights = totals[r][half];
                const float factor = weights == 0 ? 1 : 1 / weights;
                const long long m = own_row + r * 16 + half * 8;
                if (m < rows) {
#pragma unroll
                    for (int j = 0; j < $features / 8; j++) {
$store
                    }
                }
            }
        }
        __syncthreads();
    }
""")

#: The rows of a block, where all have as many keys.
_IN_ORDER = Template("""\
        [[maybe_unused]] const long long point = item / row_blocks;
        const long long first_row = item % row_blocks * $block;""")

#: The same where later queries have more keys: blocks with the last queries of every head come
#: first, so that none of those that take longest begins when all others are done.
_LONGEST_FIRST = Template("""\
        const long long head_blocks = length / $block, heads = rows / length;
        const bool apart = length % $block == 0;
        const long long number = apart ? item % (points * heads) : item / row_blocks;
        [[maybe_unused]] const long long point = apart ? number / heads : number;
        const long long first_row = apart
            ? number % heads * length + (head_blocks - 1 - item / (points * heads)) * $block
            : (row_blocks - 1 - item % row_blocks) * $block;""")

#: Stores of two neighbouring features, together and one by one.
_STORED_PAIR = Template("""\
                        const long long n = j * 8 + t * 2;
                        ost::pack<float, 2> totals_of_pair;
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            totals_of_pair.at[e] = sums[r][j][2 * half + e] * factor;
$store""")
_STORED_SINGLY = Template("""\
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const long long n = j * 8 + t * 2 + e;
                            const float total = sums[r][j][2 * half + e] * factor;
$store
                        }""")

#: Leaves out the keys that a row does not attend to, of products that are scores.
_PLAIN = Template("""\
            if (start < sure || start + $keys > certain) {
#pragma unroll
                for (int r = 0; r < $tiles; r++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const long long m = own_row + r * 16 + half * 8;
                        [[maybe_unused]] const long long position = m % length + keys - length;
                        long long before = high;
                        [[maybe_unused]] long long first = 0;
$limits
                        const int end = (int)(before - start);
                        [[maybe_unused]] const int begin = (int)(first - start);
#pragma unroll
                        for (int j = 0; j < $keys / 4; j++) {
                            const int key = j / 2 * 8 + t * 2 + j % 2;
                            float* const score = &scores[r][j / 2][2 * half + j % 2];
                            *score = $holds ? *score : $minus_infinity;
                        }
                    }
                }
            }""")

#: Makes scores of products, one by one.
_GENERAL = Template("""\
#pragma unroll
            for (int r = 0; r < $tiles; r++) {
#pragma unroll
                for (int j = 0; j < $keys / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const long long key = start + j * 8 + t * 2 + e % 2;
                        const long long m = own_row + r * 16 + e / 2 * 8;
                        [[maybe_unused]] const long long position = m % length + keys - length;
                        const float product = scores[r][j][e];
                        float score = $minus_infinity;
                        if (key < high && m < rows) {
$score
                        }
                        scores[r][j][e] = score;
                    }
                }
            }""")

_SOURCES = Template("""\
        const unsigned short* ${what}_from[$count];
#pragma unroll
        for (int i = 0; i < $count; i++) {
            const int chunk = threadIdx.x + i * $threads;
            const long long key = low + chunk / ($length / $chunk);
            const long long $along = chunk % ($length / $chunk) * $chunk;
$place
        }
$step""")

_CHUNKS = Template("""\
#pragma unroll
            for (int i = 0; i < $count; i++) {
                const int chunk = threadIdx.x + i * $threads, line = chunk / ($length / $chunk);
                const int place = chunk % ($length / $chunk) * $chunk;
                if ($whole || line < $keys)
                    ost::copy_async(
                        loaded_${what}s + line * $pitch + place,
                        ${what}_from[i] + number * ${what}_step, line < left
                    );
            }""")


def fits(attention: AttentionKernel) -> bool:
    """Whether it is many rows of attention for which :mod:`attention_tiles` has instructions."""
    spec = attention.spec
    small = max(max_extent(spec.key), max_extent(spec.m)) < MOST
    return small and attention.splits == 1 and attention.scratch is None


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for some rows, or a few waves."""
    block = _block(attention, target)
    row_blocks = -(-max_extent(attention.spec.m) // block.rows)
    blocks = bounds(attention.points)[1] * row_blocks
    elements = _stages(attention) * _KEYS * sum(_pitches(attention))
    early = target.starts_kernels_early
    return Launch(grid_of(blocks, target), block.threads, 2 * elements, programmatic=early)


def source(attention: AttentionKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel."""
    spec, block = attention.spec, _block(attention, target)
    frame = Frame(attention, spec.operands, [spec.store])
    batch, names = frame.unravel(spec.batch, "point", 2)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    key_load, value_load = loads_of(attention)
    assert key_load is not None
    assert value_load is not None
    chunks = _Chunks(frame, attention, block, names)
    key_sources, load_keys = chunks.text(key_load, "key", spec.depth)
    value_sources, load_values = chunks.text(value_load, "value", spec.column)
    key_pitch, value_pitch = _pitches(attention)
    stages = _stages(attention)
    places: dict[str, object] = {
        "keys": _KEYS,
        "tiles": block.tiles,
        "minus_infinity": MINUS_INFINITY,
        "depth": max_extent(spec.depth),
        "features": attention.features,
        "key_pitch": key_pitch,
        "value_pitch": value_pitch,
        "format": spec.q.dtype.name,
        "stages": stages,
        "key_elements": _KEYS * key_pitch,
        "stage": _KEYS * (key_pitch + value_pitch),
    }
    if is_plain(attention):
        limits, holds = key_limits("key", "end", 6, causal=spec.causal, window=spec.window)
        score = _PLAIN.substitute(places, limits=limits, holds=holds)
    else:
        found = score_text(attention, frame, names, 7, "product", "score")
        score = _GENERAL.substitute(places, score=found)
    body = _BODY.substitute(
        places,
        name=attention.name,
        block=block.rows,
        own_rows=16 * block.tiles,
        batch=batch,
        order=(_LONGEST_FIRST if spec.causal else _IN_ORDER).substitute(block=block.rows),
        range=key_range(attention),
        certain=sure_keys(attention),
        unsure="0" if spec.causal or spec.window is not None else "keys",
        query=query_pairs(attention, frame, names, 6),
        key_sources=key_sources,
        value_sources=value_sources,
        load_keys=load_keys,
        load_values=load_values,
        ahead=stages - 1,
        score=score,
        slack=SLACK,
        exponent=exponent(attention),
        store=_store(attention, frame, names),
    )
    sizes = {
        "points": attention.points,
        "rows": extent_of(spec.m),
        "keys": extent_of(spec.key),
        "length": spec.length,
    }
    early = target.starts_kernels_early
    return function(attention, body, sizes, block.threads, early=early)


def _store(attention: AttentionKernel, frame: Frame, names: Mapping[Symbol, str]) -> str:
    """Statements that store two neighbouring features of a row."""
    spec = attention.spec
    results = Results(attention.args, [spec.store], spec.column, spec.acc)
    if store_lanes(results) > 1:
        stored = packed_stores(frame, results, 2, 6, names, "totals_of_pair")
        return _STORED_PAIR.substitute(store=stored)
    stored = frame.stores([spec.store], spec.acc, 7, names, "total")
    return _STORED_SINGLY.substitute(store=stored)


def _block(attention: AttentionKernel, target: CudaTarget) -> _Block:
    """The shape of blocks: the largest that registers hold of which there are enough."""

    def enough(block: _Block, least: int) -> bool:
        row_blocks = -(-max_extent(attention.spec.m) // block.rows)
        return bounds(attention.points)[1] * row_blocks >= least

    *larger, smallest = _BLOCKS[1:] if _is_wide(attention) else _BLOCKS
    return next((block for block in larger if enough(block, _FILLED)), smallest)


def _is_wide(attention: AttentionKernel) -> bool:
    """Whether queries or values take more than half of what registers hold of them."""
    return max(max_extent(attention.spec.depth), attention.features) > _KEYS


def _stages(attention: AttentionKernel) -> int:
    """Tiles in shared memory, of which two blocks have room; any GPU has it for two tiles."""
    tile = 2 * _KEYS * sum(_pitches(attention))
    return max(2, min(3, _SHARED_BYTES // tile))


def _pitches(attention: AttentionKernel) -> tuple[int, int]:
    """Elements from one key, and from one value, to the next in shared memory."""
    depth, features = max_extent(attention.spec.depth), attention.features
    return depth + _CHUNK, features + _CHUNK


@dataclass(frozen=True)
class _Chunks:
    """Statements that load tiles of keys and values.

    Attributes:
        frame: of the kernel.
        attention: the kernel.
        block: the shape of its blocks.
        names: by axis, the variable that has its value.
    """

    frame: Frame
    attention: AttentionKernel
    block: _Block
    names: Mapping[Symbol, str]

    def text(self, load: Load, what: str, along: Symbol) -> tuple[str, str]:
        """Statements that find where chunks come from, and that load a tile of them."""
        length, threads = max_extent(along), self.block.threads
        chunks = _KEYS * length // _CHUNK
        step = coefficient(load.index, self.attention.spec.key)
        assert step is not None
        point = self.frame.point(3, self.names)
        point.writer.line(f"{what}_from[i] = b{load.buffer} + {point.index(load.index)};")
        steps = self.frame.point(2, self.names)
        steps.writer.line(f"const long long {what}_step = {steps.index(step[0] * _KEYS)};")
        values: dict[str, object] = {
            "what": what,
            "count": -(-chunks // threads),
            "threads": threads,
            "length": length,
            "chunk": _CHUNK,
            "keys": _KEYS,
            "pitch": length + _CHUNK,
            "whole": str(chunks % threads == 0).lower(),
            "along": self.names[along],
            "place": point.text,
            "step": steps.text,
        }
        return _SOURCES.substitute(values), _CHUNKS.substitute(values)
