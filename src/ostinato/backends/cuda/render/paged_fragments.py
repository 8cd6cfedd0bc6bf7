"""Rendering paged attention of few rows for tensor cores, on pools of bfloat16.

A block has a row, up to 8 of the heads that share a key head, and a part of the row's keys. Each
of its warps has a tile of 16 keys at a time, whose keys and values go from the pools to registers
together. Keys, and then features, are the rows of a product, and heads its columns. Warps have a
softmax each; what they have found is added up at the end, in a fixed order.

Registers count here: a segment keeps in memory what it has no register for, also between other
parts. With two tiles at a time, a step takes 1.3 times as long.

Queries and weights are sums of two numbers of bfloat16, as those of many rows are; see
:mod:`~ostinato.backends.cuda.render.paged_tiles`.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.render.attention_fragments import LOG2E
from ostinato.backends.cuda.render.attention_scores import MINUS_INFINITY, MOST
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.backends.cuda.render.paged_items import (
    capped_score,
    item_text,
    names_of,
    store_text,
    touch_text,
)
from ostinato.backends.cuda.render.paged_places import (
    has_vectors,
    places_text,
    query_text,
    sizes_of,
)
from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import max_extent
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body", "fits", "head_blocks", "launch"]

_THREADS, _WARPS = 256, 8

#: Keys of a tile, and heads of a block, at most: the columns of one.
_TILE, _HEADS = 16, 8

#: Elements of 16 bytes, which four lanes have of a key: features are multiples of the grain.
_CHUNK, _GRAIN = 8, 32

#: The most elements of a query, or features of a value: what registers hold.
_WIDEST = 128

_BODY = Template("""\
$places
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
$item
        unsigned query[$parts][$depth / 16][2];
        {
            const int own_head = first_head + min(g, $heads - 1);
            const int member = own_head < $group ? own_head : $group - 1;
#pragma unroll
            for (int i = 0; i < $depth / 32; i++) {
                float elements[2][4];
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const long long d = i * 32 + t * 8 + b * 4;
$query
                }
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    float* const pair = &elements[w / 2][w % 2 * 2];
#pragma unroll
                    for (int q = 0; q < $parts; q++)
                        query[q][2 * i + w / 2][w % 2] = ost::take_pair(pair[0], pair[1]);
                }
            }
        }
        // Of heads 2 t and 2 t + 1: sums of two features for each tile of 16, and of weights.
        float sums[$features / 16][4] = {}, totals[2] = {};
        float greatest[2] = {$minus_infinity, $minus_infinity};
#pragma unroll 1
        for (int start = (int)begin + warp * 16; start < end; start += $warps * 16) {
            ost::vector<unsigned, 4> keys[2][$depth / 32];
            ost::vector<unsigned, $across / 2> values[4][$features / (8 * $across)];
            const long long block = block_at(owner, start / $positions);
            const int in_block = start % $positions;
            const int least = start < first ? (int)first - start : 0;
            const int last = min((int)end - start, 16) - 1;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int place = in_block + max(min(half * 8 + g, last), least);
#pragma unroll
                for (int i = 0; i < $depth / 32; i++) {
                    const long long d = i * 32 + t * 8;
$load_key
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int place = in_block + max(min(j / 2 * 8 + t * 2 + j % 2, last), least);
#pragma unroll
                for (int i = 0; i < $features / (8 * $across); i++) {
                    const long long n = i * (8 * $across) + g * $across;
$load_value
                }
            }
            float own[4] = {}, most[2] = {greatest[0], greatest[1]};
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
                const unsigned(&one)[4] = keys[0][i / 2].at;
                const unsigned(&other)[4] = keys[1][i / 2].at;
                const unsigned rows_of[4] = {
                    one[i % 2 * 2], other[i % 2 * 2], one[i % 2 * 2 + 1], other[i % 2 * 2 + 1]
                };
#pragma unroll
                for (int q = $parts - 1; q >= 0; q--)
                    ost::multiply_tiles(
                        own, rows_of, query[q][i][0], query[q][i][1], ost::bfloat16_format()
                    );
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = start + e / 2 * 8 + g;
                const float score = own[e] * $scale;
                own[e] = key >= first && key < end ? $capped : $minus_infinity;
                most[e % 2] = ost::maximum(most[e % 2], own[e]);
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
                correction[i] = ost::near_exp2((greatest[i] - shift[i]) * $log2e);
                greatest[i] = most[i];
                totals[i] *= correction[i];
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                own[e] = ost::near_exp2((own[e] - shift[e % 2]) * $log2e);
                totals[e % 2] += own[e];
            }
#pragma unroll
            for (int i = 0; i < $features / 4; i++) sums[i / 4][i % 4] *= correction[i % 2];
            unsigned weights[2][2];
#pragma unroll
            for (int q = 0; q < 2; q++) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    weights[q][i] =
                        ost::transposed(ost::take_pair(own[2 * i], own[2 * i + 1]));
            }
#pragma unroll
            for (int i = 0; i < $features / 16; i++) {
                unsigned words[4], turned[4];  // of two features, values of neighbouring keys
#pragma unroll
                for (int j = 0; j < 4; j++)
                    words[j] = values[j][i / ($across / 2)].at[i % ($across / 2)];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    turned[2 * j] = ost::low_halves(words[2 * j], words[2 * j + 1]);
                    turned[2 * j + 1] = ost::high_halves(words[2 * j], words[2 * j + 1]);
                }
#pragma unroll
                for (int q = 1; q >= 0; q--)
                    ost::multiply_tiles(
                        sums[i], turned, weights[q][0], weights[q][1], ost::bfloat16_format()
                    );
            }
        }
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                totals[i] += __shfl_xor_sync(0xFFFFFFFFu, totals[i], lanes);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int h = 2 * t + i;
            if (h >= $heads) continue;
            float* const own = found[warp][h];
            if (g == 0) {
                own[$features] = greatest[i];
                own[$features + 1] = totals[i];
            }
#pragma unroll
            for (int j = 0; j < $features / 16; j++) {
                const int chunk = j / ($across / 2), word = j % ($across / 2);
                const int n = (chunk * 8 + g) * $across + word * 2;
                own[n] = sums[j][i];
                own[n + 1] = sums[j][2 + i];
            }
        }
        OST_SYNC();
#pragma unroll 1
        for (int i = threadIdx.x; i < $heads * $features; i += $threads) {
            const int h = i / $features, n = i % $features;
            const int member = first_head + h;
            if (member < $group) {
                float most, whole;
                float total = ost::sum_of_groups<$features>(found, h, n, $log2e, most, whole);
$sink
$store
            }
        }
        OST_SYNC();
    }
""")

#: A score that counts without a key: the first part has it.
_SINK = Template("""\
                if (part == 0) {
                    float sink;
$element
                    const float above = ost::maximum(most, sink);
                    const float factor = most == above ? 1 : ost::exp(most - above);
                    total *= factor;
                    whole = whole * factor + (sink == $minus_infinity ? 0 : ost::exp(sink - above));
                    most = above;
                }""")


def fits(kernel: PagedAttentionKernel, target: CudaTarget) -> bool:
    """Whether the pools suit tensor cores, and tiles of keys lie within a block of them."""
    spec = kernel.spec
    sizes = max_extent(spec.depth), max_extent(spec.column)
    keys = max_extent(spec.page) * max_extent(spec.place)
    return (
        tensor_tiles.multiplies(BFLOAT16, target)
        and target.fragments
        and all(0 < size <= _WIDEST and size % _GRAIN == 0 for size in sizes)
        and 0 < keys < MOST
        and max_extent(spec.place) % _TILE == 0
        and has_vectors(kernel)
    )


def launch(kernel: PagedAttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each row, its heads and its parts, or a few waves."""
    spec = kernel.spec
    blocks = max_extent(spec.row) * max_extent(spec.shared) * kernel.splits
    return Launch(grid_of(blocks * head_blocks(kernel), target), _THREADS)


def head_blocks(kernel: PagedAttentionKernel) -> int:
    """Blocks that share the heads of a key head."""
    return -(-kernel.spec.group // _heads(kernel))


def body(kernel: PagedAttentionKernel) -> Body:
    """The code of a kernel that :func:`fits`."""
    spec, heads = kernel.spec, _heads(kernel)
    frame, dialect = Frame(kernel, spec.operands, [spec.store]), CudaDialect()
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    names, places = names_of(kernel), places_text(kernel, frame)
    item = item_text(kernel, heads, _TILE, _TILE)
    across = _CHUNK if features % (8 * _CHUNK) == 0 else _CHUNK // 2
    sink = ""
    if spec.sink is not None:
        element = frame.element(spec.sink, FLOAT32, 5, names, "sink")
        sink = _SINK.substitute(element=element, minus_infinity=MINUS_INFINITY)
    text = _BODY.substitute(
        places=places,
        item=item,
        parts=1 if spec.q.dtype == BFLOAT16 else 2,
        heads=heads,
        group=spec.group,
        depth=depth,
        features=features,
        across=across,
        warps=_WARPS,
        threads=_THREADS,
        positions=max_extent(spec.place),
        minus_infinity=MINUS_INFINITY,
        log2e=LOG2E,
        scale=dialect.literal(FLOAT32, spec.scale),
        capped=capped_score(kernel),
        query=query_text(kernel, frame, names),
        load_key=frame.words(spec.k, "ost::vector<unsigned, 4>", 5, names, "keys[half][i]"),
        load_value=frame.words(
            spec.v, f"ost::vector<unsigned, {across // 2}>", 5, names, "values[j][i]"
        ),
        sink=sink,
        store=store_text(kernel, frame),
    )
    arrays = (SharedArray("float", 4, "found", (_WARPS, heads, features + 4)),)
    made = body_of(kernel, text, sizes_of(kernel), _THREADS, arrays=arrays)
    includes = f'{made.includes}#include "attention.cuh"\n'
    touch = touch_text(kernel, frame, item, places)
    touch = f"{frame.sizes(sizes_of(kernel))}\n{touch}"
    return replace(made, includes=includes, touch=touch)


def _heads(kernel: PagedAttentionKernel) -> int:
    """Heads of a block."""
    return min(kernel.spec.group, _HEADS)
