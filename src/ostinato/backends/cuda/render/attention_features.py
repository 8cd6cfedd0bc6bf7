"""Rendering attention of a few rows and few keys by tensor cores: warps divide the features.

A block has a part of the keys of a few rows. Each of its warps computes the scores of two tiles of
16 keys with all rows, and multiplies their weights by 16 features of the values; where features are
fewer than warps can have, groups of warps have tiles of their own, and add up their results in
shared memory. Keys are the rows of the tiles and queries the columns, so up to 8 queries take one
instruction for 16 features and no zeros; the weights are transposed in registers.

Few instructions count here: in a segment they run once per layer, and none of them is in a near
cache.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.attention_fragments import LOG2E, fits_tiles, vector_loads
from ostinato.backends.cuda.render.attention_items import item_sizes, item_text, touch_text
from ostinato.backends.cuda.render.attention_rows import result_text, score_text
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of
from ostinato.lower.loopir.nodes import max_extent
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body", "fits"]

#: Threads of a block.
_THREADS = 256

_WARPS = _THREADS // 32

#: Rows of a block, at most: those of two tiles.
_ROWS = 16

#: Features of a warp, and keys of a tile.
_TILE = 16

#: Keys of a block, at most: warps have 32 at a time, and repeat the scores of others.
_MOST_KEYS = 256

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
$item
        unsigned query[$halves][$depth / 16][2];
#pragma unroll
        for (int half = 0; half < $halves; half++) {
            const int own_row = first_row + g + half * 8;
            const int m = own_row < rows ? own_row : rows - 1;
#pragma unroll
            for (int i = 0; i < $depth / 32; i++) {
                const int d = i * 32 + t * 8;
                ost::vector<unsigned, 4> words;
$query
#pragma unroll
                for (int w = 0; w < 4; w++) query[half][2 * i + w / 2][w % 2] = words.at[w];
            }
        }
        // Of rows 2 t and 2 t + 1 of each half: sums of features 2 g and 2 g + 1, and of weights.
        float sums[$halves][4] = {}, totals[$halves][4] = {}, greatest[$halves][2];
#pragma unroll
        for (int i = 0; i < 2 * $halves; i++) greatest[i / 2][i % 2] = $minus_infinity;
        const int group = warp / $divisions, feature = warp % $divisions * 16 + 2 * g;
        const int step = 2 * $groups * 16, last = end - 1;
#pragma unroll 1
        for (int start = group < $groups ? begin + group * 16 : end; start < end; start += step) {
            // Of two tiles, which are on their way together.
            ost::vector<unsigned, 4> found[2][2][$depth / 32];
            unsigned turned[2][4];
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                const int first = start + tile * $groups * 16;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int key = min(first + half * 8 + g, last);
#pragma unroll
                    for (int i = 0; i < $depth / 32; i++) {
                        const int d = i * 32 + t * 8;
$load_key
                    }
                }
                unsigned values[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int key = min(first + j / 2 * 8 + t * 2 + j % 2, last), n = feature;
$load_value
                }
                turned[tile][0] = ost::low_halves(values[0], values[1]);
                turned[tile][1] = ost::high_halves(values[0], values[1]);
                turned[tile][2] = ost::low_halves(values[2], values[3]);
                turned[tile][3] = ost::high_halves(values[2], values[3]);
            }
#pragma unroll
            for (int half = 0; half < $halves; half++) {
                float scores[2][4] = {}, most[2] = {greatest[half][0], greatest[half][1]};
#pragma unroll
                for (int tile = 0; tile < 2; tile++) {
#pragma unroll
                    for (int i = 0; i < $depth / 16; i++) {
                        const unsigned(&one)[4] = found[tile][0][i / 2].at;
                        const unsigned(&other)[4] = found[tile][1][i / 2].at;
                        const unsigned keys_of[4] = {
                            one[i % 2 * 2], other[i % 2 * 2], one[i % 2 * 2 + 1],
                            other[i % 2 * 2 + 1]
                        };
                        const unsigned(&columns)[2] = query[half][i];
                        ost::multiply_tiles(
                            scores[tile], keys_of, columns[0], columns[1], ost::${format}_format()
                        );
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int key = start + tile * $groups * 16 + e / 2 * 8 + g;
                        const int own_row = first_row + half * 8 + 2 * t + e % 2;
                        const int m = own_row < rows ? own_row : rows - 1;
                        [[maybe_unused]] const int position =
                            m % (int)length + (int)(keys - length);
                        const float product = scores[tile][e];
                        float score = $minus_infinity;
                        if (key < end) {
$score
                        }
                        scores[tile][e] = score;
                        most[e % 2] = ost::maximum(most[e % 2], score);
                    }
                }
#pragma unroll
                for (int lanes = 4; lanes < 32; lanes *= 2) {
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        most[i] =
                            ost::maximum(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], lanes));
                }
                float shift[2], correction[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    shift[i] = most[i] == $minus_infinity ? 0 : most[i];
                    correction[i] = ost::near_exp2((greatest[half][i] - shift[i]) * $log2e);
                    greatest[half][i] = most[i];
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sums[half][e] *= correction[e % 2];
                    totals[half][e] *= correction[e % 2];
                }
                const unsigned one = ost::pair_bits(1.0f, 1.0f, ost::${format}_format());
                const unsigned ones[4] = {one, one, one, one};
#pragma unroll
                for (int tile = 0; tile < 2; tile++) {
                    float(&own)[4] = scores[tile];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        own[e] = ost::near_exp2((own[e] - shift[e % 2]) * $log2e);
                    unsigned weights[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        weights[i] = ost::transposed(
                            ost::pair_bits(own[2 * i], own[2 * i + 1], ost::${format}_format())
                        );
                    ost::multiply_tiles(
                        totals[half], ones, weights[0], weights[1], ost::${format}_format()
                    );
                    ost::multiply_tiles(
                        sums[half], turned[tile], weights[0], weights[1], ost::${format}_format()
                    );
                }
            }
        }
        if (group < $groups) {
#pragma unroll
            for (int half = 0; half < $halves; half++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int r = half * 8 + 2 * t + i;
                    if (r >= $rows) continue;
                    parts[group][r][feature] = sums[half][i];
                    parts[group][r][feature + 1] = sums[half][i + 2];
                    if (feature == 0) {
                        parts[group][r][$features] = greatest[half][i];
                        parts[group][r][$features + 1] = totals[half][i];
                    }
                }
            }
        }
        OST_SYNC();
#pragma unroll 1
        for (int i = threadIdx.x; i < $rows * $features; i += $threads) {
            const int r = i / $features, n = i % $features;
            const int m = first_row + r;
            if (m < rows) {
                float most, whole;
                float total =
                    ost::sum_of_groups<$features>(parts, r, n, $log2e, most, whole);
$store
            }
        }
        OST_SYNC();
    }
""")


def fits(attention: AttentionKernel, target: CudaTarget) -> bool:
    """Whether tensor cores take the operands, and a block has few keys."""
    few = max_extent(attention.spec.key) <= _MOST_KEYS * attention.splits
    return few and target.divided_features and fits_tiles(attention, target)


def body(attention: AttentionKernel) -> Body:
    """The code of a kernel that :func:`fits`."""
    spec = attention.spec
    frame = Frame(attention, spec.operands, [spec.store])
    batch, names = frame.unravel(spec.batch, "point", 2)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    q, k, v = vector_loads(attention)
    features, rows = attention.features, max(1, max_extent(spec.m))
    divisions = features // _TILE
    groups = _WARPS // divisions
    item, four = item_text(attention, _ROWS, batch), "ost::vector<unsigned, 4>"
    text = _BODY.substitute(
        item=item,
        rows=rows,
        halves=1 if rows <= _ROWS // 2 else 2,
        depth=max_extent(spec.depth),
        features=features,
        divisions=divisions,
        groups=groups,
        threads=_THREADS,
        format=spec.q.dtype.name,
        minus_infinity="ost::number<float>::least()",
        log2e=LOG2E,
        query=frame.words(q, four, 4, names, "words"),
        load_key=frame.words(k, four, 6, names, "found[tile][half][i]"),
        load_value=frame.words(v, "unsigned", 5, names, "values[j]"),
        score=score_text(attention, frame, names, 7, "product", "score"),
        store=result_text(attention, frame, names),
    )
    arrays = (SharedArray("float", 4, "parts", (groups, rows, features + 2)),)
    made = body_of(attention, text, item_sizes(attention), _THREADS, arrays=arrays)
    includes = f'{made.includes}#include "attention.cuh"\n'
    touch = touch_text(attention, frame, item, k, v, names)
    return replace(made, includes=includes, touch=touch)
