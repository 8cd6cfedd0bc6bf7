"""Rendering attention of 16-bit floats for the few rows of a generated token, by tensor cores.

Keys and values go from memory to registers as tensor cores take them, without shared memory: since
a sum of products may be in any order, the elements of a lane are neighbouring features of a query
and of a key, and since columns of a result may be in any order, those of a value belong to several
tiles. A warp has 16 keys at a time, loads the next ones before it goes on with these, and has a
softmax of its own. What the warps have found is added up at the end, in a fixed order.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.render.attention_items import item_sizes, item_text, touch_text
from ostinato.backends.cuda.render.attention_rows import result_text, score_text
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load, Scalar
    from ostinato.variables import Symbol

__all__ = ["LOG2E", "body", "fits_tiles", "launch", "vector_loads"]

#: Threads of a block.
_THREADS = 256

_WARPS = _THREADS // 32

#: Rows of a block, at most: those of a tile.
_ROWS = 16

#: Elements of 16 bytes.
_CHUNK = 8

#: Features of a head are multiples of this: four lanes have a chunk each.
_GRAIN = 32

#: The most elements of a query, or features of a value: what registers hold.
_WIDEST = 128

LOG2E = f"{math.log2(math.e)!r}f"
"""The factor from powers of e to powers of 2."""

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
$item
        unsigned query[$depth / 16][4] = {};
#pragma unroll
        for (int half = 0; half < $halves; half++) {
            const long long own_row = first_row + g + half * 8;
            const long long m = own_row < rows ? own_row : rows - 1;
#pragma unroll
            for (int i = 0; i < $depth / 32; i++) {
                const long long d = i * 32 + t * 8;
                ost::vector<unsigned, 4> words;
$query
#pragma unroll
                for (int w = 0; w < 4; w++)
                    query[2 * i + w / 2][w % 2 * 2 + half] = words.at[w];
            }
        }
        float sums[$features / 8][4] = {}, greatest[$halves], totals[$halves] = {};
#pragma unroll
        for (int half = 0; half < $halves; half++) greatest[half] = $minus_infinity;
        ost::vector<unsigned, 4> next_keys[2][$depth / 32];
        ost::vector<unsigned, $across / 2> next_values[4][$features / (8 * $across)];
        const auto load = [&](long long start) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const long long wanted = start + half * 8 + g;
                const long long key = wanted < end ? wanted : end - 1;
#pragma unroll
                for (int i = 0; i < $depth / 32; i++) {
                    const long long d = i * 32 + t * 8;
$load_key
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const long long wanted = start + j / 2 * 8 + t * 2 + j % 2;
                const long long key = wanted < end ? wanted : end - 1;
#pragma unroll
                for (int i = 0; i < $features / (8 * $across); i++) {
                    const long long n = i * (8 * $across) + g * $across;
$load_value
                }
            }
        };
        const long long first = begin + warp * 16;
        if (first < end) load(first);
        for (long long start = first; start < end; start += $warps * 16) {
            ost::vector<unsigned, $across / 2> values[4][$features / (8 * $across)];
            float scores[2][4] = {};
#pragma unroll
            for (int i = 0; i < $depth / 32; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const ost::vector<unsigned, 4> words = next_keys[half][i];
#pragma unroll
                    for (int part = 0; part < 2; part++)
                        ost::multiply_tiles(
                            scores[half], query[2 * i + part], words.at[2 * part],
                            words.at[2 * part + 1], ost::${format}_format()
                        );
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int i = 0; i < $features / (8 * $across); i++)
                    values[j][i] = next_values[j][i];
            }
            if (start + $warps * 16 < end) load(start + $warps * 16);
            unsigned weights[4] = {};
#pragma unroll
            for (int half = 0; half < $halves; half++) {
                const long long m = first_row + g + half * 8;
                [[maybe_unused]] const long long position = m % length + keys - length;
                float own[4], most = greatest[half];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const long long key = start + e / 2 * 8 + t * 2 + e % 2;
                    const float product = scores[e / 2][2 * half + e % 2];
                    float score = $minus_infinity;
                    if (key < end && m < rows) {
$score
                    }
                    own[e] = score;
                    most = ost::maximum(most, score);
                }
#pragma unroll
                for (int step = 1; step < 4; step *= 2)
                    most = ost::maximum(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
                const float shift = most == $minus_infinity ? 0 : most;
                const float fall = (greatest[half] - shift) * $log2e;
                const float correction = greatest[half] == most ? 1 : ost::near_exp2(fall);
                greatest[half] = most;
                totals[half] *= correction;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    own[e] = ost::near_exp2((own[e] - shift) * $log2e);
                    totals[half] += own[e];
                }
#pragma unroll
                for (int j = 0; j < $features / 4; j++)
                    sums[j / 2][2 * half + j % 2] *= correction;
#pragma unroll
                for (int part = 0; part < 2; part++)
                    weights[2 * part + half] = ost::pair_bits(
                        own[2 * part], own[2 * part + 1], ost::${format}_format()
                    );
            }
#pragma unroll
            for (int i = 0; i < $features / (8 * $across); i++) {
#pragma unroll
                for (int w = 0; w < $across / 2; w++) {
                    unsigned low[2], high[2];  // of two features, the values of neighbouring keys
#pragma unroll
                    for (int part = 0; part < 2; part++) {
                        const unsigned one = values[2 * part][i].at[w];
                        const unsigned other = values[2 * part + 1][i].at[w];
                        low[part] = (one & 0xFFFFu) | other << 16;
                        high[part] = one >> 16 | (other & 0xFFFF0000u);
                    }
                    float(&tile)[4] = sums[i * $across + 2 * w];
                    float(&following)[4] = sums[i * $across + 2 * w + 1];
                    ost::multiply_tiles(tile, weights, low[0], low[1], ost::${format}_format());
                    ost::multiply_tiles(
                        following, weights, high[0], high[1], ost::${format}_format()
                    );
                }
            }
        }
#pragma unroll
        for (int half = 0; half < $halves; half++) {
            const int r = g + half * 8;
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 1);
            totals[half] += __shfl_xor_sync(0xFFFFFFFFu, totals[half], 2);
            if (r < $rows) {
                float* const own = found[warp][r];
                if (t == 0) {
                    own[$features] = greatest[half];
                    own[$features + 1] = totals[half];
                }
#pragma unroll
                for (int i = 0; i < $features / (8 * $across); i++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
#pragma unroll
                        for (int j = 0; j < $across; j++)
                            own[(i * 8 + 2 * t + e) * $across + j] =
                                sums[i * $across + j][2 * half + e];
                    }
                }
            }
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $rows * $features; i += $threads) {
            const int r = i / $features;
            const long long m = first_row + r, n = i % $features;
            if (m < rows) {
                float most, whole;
                float total =
                    ost::sum_of_groups<$features>(found, r, (int)n, $log2e, most, whole);
$store
            }
        }
        OST_SYNC();
    }
""")


def fits_tiles(attention: AttentionKernel, target: CudaTarget) -> bool:
    """Whether the rows are few, and keys and values are rows of vectors that tensor cores take."""
    spec = attention.spec
    sizes = extent_of(spec.depth), extent_of(spec.column)
    even = all(
        isinstance(size, int) and 0 < size <= _WIDEST and size % _GRAIN == 0 for size in sizes
    )
    same = spec.q.dtype == spec.k.dtype == spec.v.dtype and spec.acc == FLOAT32
    if not even or not same or max_extent(spec.m) > _ROWS or not target.fragments:
        return False
    runs = ((spec.q, spec.depth), (spec.k, spec.depth), (spec.v, spec.column))
    return all(_load(*run) for run in runs) and tensor_tiles.multiplies(spec.q.dtype, target)


def vector_loads(attention: AttentionKernel) -> tuple[Load, Load, Load]:
    """The first elements of a vector of a query, a key and a value, where tiles fit."""
    spec = attention.spec
    q, k = _load(spec.q, spec.depth), _load(spec.k, spec.depth)
    v = _load(spec.v, spec.column)
    assert q is not None
    assert k is not None
    assert v is not None
    return q, k, v


def _load(scalar: Scalar, along: Symbol) -> Load | None:
    """The first element of a vector of 16 bytes; ``None``: there are none."""
    run = run_of(scalar, along, extent_of(along))
    return None if run is None or run.count != _CHUNK or run.load is not scalar else run.load


def _across(attention: AttentionKernel) -> int:
    """Neighbouring features of a value that a lane has."""
    return _CHUNK if attention.features % (8 * _CHUNK) == 0 else _CHUNK // 2


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for the rows of a point and a part of the keys."""
    return Launch(grid_of(bounds(attention.points)[1] * attention.splits, target), _THREADS)


def body(attention: AttentionKernel) -> Body:
    """The code of a kernel that :func:`fits_tiles`."""
    spec = attention.spec
    frame = Frame(attention, spec.operands, [spec.store])
    batch, names = frame.unravel(spec.batch, "point", 2)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    q, k, v = vector_loads(attention)
    features, rows, across = attention.features, max(1, max_extent(spec.m)), _across(attention)
    item, four = item_text(attention, _ROWS, batch), "ost::vector<unsigned, 4>"
    text = _BODY.substitute(
        item=item,
        rows=rows,
        halves=1 if rows <= _ROWS // 2 else 2,
        depth=max_extent(spec.depth),
        features=features,
        across=across,
        warps=_WARPS,
        threads=_THREADS,
        format=spec.q.dtype.name,
        minus_infinity="ost::number<float>::least()",
        log2e=LOG2E,
        query=frame.words(q, four, 4, names, "words"),
        load_key=frame.words(k, four, 5, names, "next_keys[half][i]"),
        load_value=frame.words(
            v, f"ost::vector<unsigned, {across // 2}>", 5, names, "next_values[j][i]"
        ),
        score=score_text(attention, frame, names, 6, "product", "score"),
        store=result_text(attention, frame, names),
    )
    arrays = (SharedArray("float", 4, "found", (_WARPS, rows, features + 4)),)
    made = body_of(attention, text, item_sizes(attention), _THREADS, arrays=arrays)
    includes = f'{made.includes}#include "attention.cuh"\n'
    touch = touch_text(attention, frame, item, k, v, names)
    return replace(made, includes=includes, touch=touch)
