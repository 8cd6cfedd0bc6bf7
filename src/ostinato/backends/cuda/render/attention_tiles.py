"""Rendering attention of 16-bit floats for tensor cores.

A warp has 16 rows of queries in registers. Tiles of keys and values pass through shared memory, one
on its way while another is used. The scores of a warp's rows become weights where they are, in
registers, which is where the second product needs them; what was summed before is scaled down
whenever a greater score turns up.

The warps of a block have rows of their own where there are many. The same few rows, as when tokens
are generated, they have together: each takes some keys of every tile, and their sums meet in shared
memory.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.render.attention_rows import score_text
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Symbol

__all__ = ["fits", "is_few", "key_range", "launch", "loads_of", "query_pairs", "source"]

_WARPS = 4

_THREADS = 32 * _WARPS

#: Rows of a warp.
_ROWS = 16

#: Keys of a tile.
_KEYS = 64

#: Elements of 16 bytes, and those that pad a row of shared memory against bank conflicts.
_CHUNK = 8

#: The factor from powers of e to powers of 2.
_LOG2E = f"{math.log2(math.e)!r}f"

#: The most elements of a query, or features of a value: what registers hold.
_WIDEST = 128

_BODY = Template("""\
    extern __shared__ __align__(16) unsigned char ${name}_memory[];
    unsigned short* const stages = (unsigned short*)${name}_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row_warp = warp / $key_warps, key_warp = warp % $key_warps;
    const int first_key = key_warp * $own_keys;
    const long long row_blocks = (rows + $block - 1) / $block;
    for (long long item = blockIdx.x; item < points * row_blocks * $splits; item += gridDim.x) {
        const long long split = item % $splits, first_row = item / $splits % row_blocks * $block;
        [[maybe_unused]] const long long point = item / $splits / row_blocks;
$batch
        const long long last_row = first_row + $block < rows ? first_row + $block - 1 : rows - 1;
        long long low = 0, high = keys;
        if (first_row / length == last_row / length) {
            [[maybe_unused]] const long long least = first_row % length + keys - length;
            [[maybe_unused]] const long long most = last_row % length + keys - length;
$range
        }
        const long long share = (high - low + $keys * $splits - 1) / ($keys * $splits) * $keys;
        low += split * share;
        high = low + share < high ? low + share : high;
        const long long own_row = first_row + row_warp * 16 + g;
        [[maybe_unused]] const long long positions[2] = {
            own_row % length + keys - length, (own_row + 8) % length + keys - length
        };
        unsigned query[$depth / 16][4];
#pragma unroll
        for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const long long m = own_row + part % 2 * 8;
                unsigned short pair[2] = {};
                if (m < rows) {
                    const long long d = i * 16 + part / 2 * 8 + t * 2;
$query
                }
                query[i][part] = pair[0] | (unsigned)pair[1] << 16;
            }
        }
        float sums[$features / 8][4] = {}, greatest[2] = {$minus_infinity, $minus_infinity};
        float totals[2] = {};
$key_sources
$value_sources
        const int tiles = high > low ? (int)((high - low + $keys - 1) / $keys) : 0;
        auto load = [&](int number) {
            unsigned short* const loaded_keys = stages + number % 2 * $stage;
            unsigned short* const loaded_values = loaded_keys + $key_elements;
$load_keys
$load_values
        };
        if (tiles > 0)
            load(0);
        ost::copy_commit();
        for (int number = 0; number < tiles; number++) {
            if (number + 1 < tiles)
                load(number + 1);
            ost::copy_commit();
            ost::copy_wait<1>();
            __syncthreads();
            const unsigned short* const loaded_keys = stages + number % 2 * $stage;
            const unsigned short* const loaded_values = loaded_keys + $key_elements;
            float scores[$own_keys / 8][4] = {};
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
                for (int j = 0; j < $own_keys / 16; j++) {
                    unsigned b[4];
                    ost::load_matrices(
                        b,
                        loaded_keys + (first_key + j * 16 + lane / 16 * 8 + lane % 8) * $key_pitch
                            + i * 16 + lane / 8 % 2 * 8
                    );
                    ost::multiply_tiles(
                        scores[2 * j], query[i], b[0], b[1], ost::${format}_format()
                    );
                    ost::multiply_tiles(
                        scores[2 * j + 1], query[i], b[2], b[3], ost::${format}_format()
                    );
                }
            }
#pragma unroll
            for (int j = 0; j < $own_keys / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int place = first_key + j * 8 + t * 2 + e % 2;
                    const long long key = low + number * $keys + place;
                    const long long m = own_row + e / 2 * 8;
                    [[maybe_unused]] const long long position = positions[e / 2];
                    const float product = scores[j][e];
                    float score = $minus_infinity;
                    if (key < high && m < rows) {
$score
                    }
                    scores[j][e] = score;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float most = greatest[half];
#pragma unroll
                for (int j = 0; j < $own_keys / 4; j++) {
                    const float score = scores[j / 2][2 * half + j % 2];
                    most = score > most ? score : most;
                }
#pragma unroll
                for (int step = 1; step < 4; step *= 2) {
                    const float other = __shfl_xor_sync(0xFFFFFFFFu, most, step);
                    most = other > most ? other : most;
                }
                const float shift = most == $minus_infinity ? 0 : most;
                const float fall = (greatest[half] - most) * $log2e;
                const float correction = greatest[half] == most ? 1 : ost::exp2(fall);
                greatest[half] = most;
                totals[half] *= correction;
#pragma unroll
                for (int j = 0; j < $own_keys / 4; j++) {
                    float* const score = &scores[j / 2][2 * half + j % 2];
                    *score = ost::exp2((*score - shift) * $log2e);
                    totals[half] += *score;
                }
#pragma unroll
                for (int j = 0; j < $features / 4; j++)
                    sums[j / 2][2 * half + j % 2] *= correction;
            }
#pragma unroll
            for (int i = 0; i < $own_keys / 16; i++) {
                unsigned a[4];
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const float* const pair = &scores[2 * i + part / 2][part % 2 * 2];
                    a[part] = ost::${format}_bits(pair[0])
                        | (unsigned)ost::${format}_bits(pair[1]) << 16;
                }
#pragma unroll
                for (int j = 0; j < $features / 16; j++) {
                    unsigned b[4];
                    ost::load_transposed(
                        b,
                        loaded_values + (first_key + i * 16 + lane % 16) * $value_pitch + j * 16
                            + lane / 16 * 8
                    );
                    ost::multiply_tiles(sums[2 * j], a, b[0], b[1], ost::${format}_format());
                    ost::multiply_tiles(sums[2 * j + 1], a, b[2], b[3], ost::${format}_format());
                }
            }
            __syncthreads();
        }
        ost::copy_wait<0>();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 1);
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 2);
        }
$finish
        __syncthreads();
    }
""")

#: Stores the sums of a warp that has rows of its own.
_APART = Template("""\
#pragma unroll
        for (int j = 0; j < $features / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const long long m = own_row + e / 2 * 8;
                const long long n = j * 8 + t * 2 + e % 2;
                if (m < rows) {
                    const float weights = totals[e / 2];
                    const float total = sums[j][e] / (weights == 0 ? 1 : weights);
$store
                }
            }
        }""")

#: Adds up the sums of the warps of a block in order, and stores the result.
_TOGETHER = Template("""\
        float* const finished = (float*)${name}_memory;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float* const own = finished + (key_warp * 16 + g + half * 8) * $finished_pitch;
            if (t == 0) {
                own[$features] = greatest[half];
                own[$features + 1] = totals[half];
            }
#pragma unroll
            for (int j = 0; j < $features / 4; j++)
                own[j / 2 * 8 + t * 2 + j % 2] = sums[j / 2][2 * half + j % 2];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * $features; i += $threads) {
            const long long m = first_row + i / $features;
            const int n = i % $features;
            if (m < rows) {
                const float* const first = finished + i / $features * $finished_pitch;
                float most = first[$features];
                for (int w = 1; w < $key_warps; w++) {
                    const float other = first[w * 16 * $finished_pitch + $features];
                    most = other > most ? other : most;
                }
                float total = 0, weights = 0;
                for (int w = 0; w < $key_warps; w++) {
                    const float* const part = first + w * 16 * $finished_pitch;
                    const float fall = (part[$features] - most) * $log2e;
                    const float weight = part[$features] == most ? 1 : ost::exp2(fall);
                    total = ost::add_product(weight, part[n], total);
                    weights = ost::add_product(weight, part[$features + 1], weights);
                }
$store
            }
        }""")

#: Stores a result, or what a part of the keys contributes to it.
_WHOLE = Template("""\
                total /= weights == 0 ? 1 : weights;
$store""")
_PART = Template("""\
                float* const kept =
                    b$scratch + ((point * rows + m) * $splits + split) * ($features + 2);
                kept[n] = total;
                if (n == 0) {
                    kept[$features] = most;
                    kept[$features + 1] = weights;
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
                        ${what}_from[i] + number * ${what}_step,
                        low + number * $keys + line < high
                    );
            }""")


def fits(attention: AttentionKernel, target: CudaTarget) -> bool:
    """Whether tensor cores multiply what attention does."""
    sizes = (max_extent(attention.spec.depth), attention.features)
    even = all(0 < size <= _WIDEST and size % 16 == 0 for size in sizes)
    dtypes = {attention.spec.q.dtype, attention.spec.k.dtype, attention.spec.v.dtype}
    divided = attention.splits == 1 or is_few(attention)
    divided = divided and target.block in (0, _THREADS)
    able = tensor_tiles.multiplies(attention.spec.q.dtype, target) and len(dtypes) == 1
    return divided and able and even and all(load is not None for load in loads_of(attention))


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for some rows and a part of the keys, or a few waves."""
    row_blocks = -(-max_extent(attention.spec.m) // _block(attention))
    blocks = bounds(attention.points)[1] * row_blocks * attention.splits
    stages = 2 * 2 * _KEYS * sum(_pitches(attention))
    finished = 4 * _WARPS * _ROWS * _finished_pitch(attention) if is_few(attention) else 0
    return Launch(grid_of(blocks, target), _THREADS, max(stages, finished))


def source(attention: AttentionKernel) -> str:
    """CUDA C++ with the kernel."""
    frame = Frame(attention, attention.spec.operands, [attention.spec.store])
    batch, names = frame.unravel(attention.spec.batch, "point", 2)
    names |= {
        attention.spec.m: "m",
        attention.spec.key: "key",
        attention.spec.depth: "d",
        attention.spec.column: "n",
    }
    key_load, value_load = loads_of(attention)
    assert key_load is not None
    assert value_load is not None
    key_pitch, value_pitch = _pitches(attention)
    depth, features = max_extent(attention.spec.depth), attention.features
    key_sources, load_keys = _chunks(attention, frame, key_load, "key", attention.spec.depth, names)
    value_sources, load_values = _chunks(
        attention, frame, value_load, "value", attention.spec.column, names
    )
    few = is_few(attention)
    body = _BODY.substitute(
        name=attention.name,
        block=_block(attention),
        key_warps=_WARPS if few else 1,
        splits=attention.splits,
        keys=_KEYS,
        own_keys=_KEYS // _WARPS if few else _KEYS,
        depth=depth,
        features=features,
        batch=batch,
        range=key_range(attention),
        query=query_pairs(attention, frame, names, 5),
        minus_infinity="ost::number<float>::least()",
        key_sources=key_sources,
        value_sources=value_sources,
        load_keys=load_keys,
        load_values=load_values,
        stage=_KEYS * (key_pitch + value_pitch),
        key_elements=_KEYS * key_pitch,
        key_pitch=key_pitch,
        value_pitch=value_pitch,
        format=attention.spec.q.dtype.name,
        score=score_text(attention, frame, names, 6, "product", "score"),
        log2e=_LOG2E,
        finish=_together(attention, frame, names) if few else _apart(attention, frame, names),
    )
    sizes = {
        "points": attention.points,
        "rows": extent_of(attention.spec.m),
        "keys": extent_of(attention.spec.key),
        "length": attention.spec.length,
    }
    return function(attention, body, sizes, _THREADS)


def is_few(attention: AttentionKernel) -> bool:
    """Whether the warps of a block have the same rows."""
    return max_extent(attention.spec.m) <= _ROWS


def _block(attention: AttentionKernel) -> int:
    """Rows of a block."""
    return _ROWS if is_few(attention) else _ROWS * _WARPS


def _finished_pitch(attention: AttentionKernel) -> int:
    """Elements from one row of finished sums to the next: the features, two more, and padding."""
    return attention.features + 4


def _apart(attention: AttentionKernel, frame: Frame, names: Mapping[Symbol, str]) -> str:
    store = frame.stores([attention.spec.store], attention.spec.acc, 5, names, "total")
    return _APART.substitute(features=attention.features, store=store)


def _together(attention: AttentionKernel, frame: Frame, names: Mapping[Symbol, str]) -> str:
    features = attention.features
    if attention.scratch is None:
        stored = frame.stores([attention.spec.store], attention.spec.acc, 4, names, "total")
        store = _WHOLE.substitute(store=stored)
    else:
        places = {"scratch": attention.scratch, "splits": attention.splits}
        store = _PART.substitute(places, features=features)
    return _TOGETHER.substitute(
        name=attention.name,
        features=features,
        finished_pitch=_finished_pitch(attention),
        key_warps=_WARPS,
        threads=_THREADS,
        log2e=_LOG2E,
        store=store,
    )


def _pitches(attention: AttentionKernel) -> tuple[int, int]:
    """Elements from one key, and from one value, to the next in shared memory."""
    return max_extent(attention.spec.depth) + _CHUNK, attention.features + _CHUNK


def loads_of(attention: AttentionKernel) -> tuple[Load | None, Load | None]:
    """The elements that chunks of keys and of values begin with, where there are chunks."""
    return (
        _load(attention, attention.spec.k, attention.spec.depth),
        _load(attention, attention.spec.v, attention.spec.column),
    )


def _load(attention: AttentionKernel, scalar: Scalar, along: Symbol) -> Load | None:
    run = run_of(scalar, along, extent_of(along))
    if run is None or run.count != _CHUNK or run.load is not scalar:
        return None
    return None if coefficient(run.load.index, attention.spec.key) is None else run.load


def key_range(attention: AttentionKernel) -> str:
    """Statements that leave out keys that no row attends to."""
    lines = []
    if attention.spec.causal:
        lines.append("high = most + 1 < high ? most + 1 : high;")
    if attention.spec.window is not None:
        first = f"least - {attention.spec.window - 1}"
        lines.append(f"low = {first} > 0 ? {first} : 0;")
    return "\n".join(f"            {line}" for line in lines)


def query_pairs(
    attention: AttentionKernel, frame: Frame, names: Mapping[Symbol, str], depth: int
) -> str:
    """Statements that assign the bits of two neighbouring elements of a query."""
    lines = []
    for i in range(2):
        point = frame.point(depth, {**names, attention.spec.depth: f"(d + {i})"})
        value = point.value(attention.spec.q, attention.spec.q.dtype)
        point.writer.line(f"pair[{i}] = {value.stored};")
        lines.append(f"                    {{\n{point.text}\n                    }}")
    return "\n".join(lines)


def _chunks(
    attention: AttentionKernel,
    frame: Frame,
    load: Load,
    what: str,
    along: Symbol,
    names: Mapping[Symbol, str],
) -> tuple[str, str]:
    """Statements that find where chunks come from, and that load a tile of them."""
    length = max_extent(along)
    chunks = _KEYS * length // _CHUNK
    step = coefficient(load.index, attention.spec.key)
    assert step is not None
    point = frame.point(3, names)
    point.writer.line(f"{what}_from[i] = b{load.buffer} + {point.index(load.index)};")
    steps = frame.point(2, names)
    steps.writer.line(f"const long long {what}_step = {steps.index(step[0] * _KEYS)};")
    values: dict[str, object] = {
        "what": what,
        "count": -(-chunks // _THREADS),
        "threads": _THREADS,
        "length": length,
        "chunk": _CHUNK,
        "keys": _KEYS,
        "pitch": length + _CHUNK,
        "whole": str(chunks % _THREADS == 0).lower(),
        "along": names[along],
        "place": point.text,
        "step": steps.text,
    }
    return _SOURCES.substitute(values), _CHUNKS.substitute(values)
