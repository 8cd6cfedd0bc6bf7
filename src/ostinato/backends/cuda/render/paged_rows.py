"""Rendering paged attention of any rows, for pools and sizes that are not for tensor cores.

A block has a row, some of the heads that share a key head, and a part of the row's keys. A few
neighbouring lanes share a key: each has some features of it, of its value and of all queries, in
registers, and loads the next keys before it goes on with these. Threads have a softmax each, and
what they have found is added up at the end, in a fixed order.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
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
from ostinato.backends.cuda.render.paged_places import places_text, sizes_of
from ostinato.lower.loopir.nodes import max_extent
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["body", "head_blocks", "launch"]

_THREADS, _WARP = 256, 32

#: Bytes of a vector, and features of queries and values that a thread has registers for.
_VECTOR_BYTES, _ELEMENTS = 16, 64

#: Floats of shared memory for sums, at most, where a block has several heads.
_SHARED_SUMS = 4 << 10

#: Keys of a thread whose loads are on their way together.
_KEYS = 2

_BODY = Template("""\
$places
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own_lane = threadIdx.x % $lanes, own_group = threadIdx.x / $lanes;
$item
        $acc query[$heads][$key_chunks * $count];
#pragma unroll
        for (int h = 0; h < $heads; h++) {
#pragma unroll
            for (int c = 0; c < $key_chunks; c++) {
                const long long d = (c * $lanes + own_lane) * $count;
                const long long member = first_head + h < $group ? first_head + h : $group - 1;
                $acc found[$count] = {};
                if (d < $depth) {
$query
                }
#pragma unroll
                for (int e = 0; e < $count; e++) query[h][c * $count + e] = found[e];
            }
        }
        ost::contribution<$acc, $value_chunks * $count> found[$heads];
        $key_vector next_keys[$keys][$key_chunks];
        $value_vector next_values[$keys][$value_chunks];
$scales
        const auto load = [&](long long start) {
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                const long long sought = start + i * $groups + own_group;
                const long long key = sought < end ? sought : end - 1;
                const long long block = block_at(owner, key / $positions), place = key % $positions;
#pragma unroll
                for (int c = 0; c < $key_chunks; c++) {
                    const long long d = (c * $lanes + own_lane) * $count;
                    if (d < $depth) {
$load_key
                    }
                }
#pragma unroll
                for (int c = 0; c < $value_chunks; c++) {
                    const long long n = (c * $lanes + own_lane) * $count;
                    if (n < $features) {
$load_value
                    }
                }
$load_scales
            }
        };
        if (begin < end) load(begin);
        for (long long start = begin; start < end; start += $step) {
            $acc values[$keys][$value_chunks * $count] = {}, scores[$heads][$keys];
            $acc products[$keys][$heads] = {};
#pragma unroll
            for (int i = 0; i < $keys; i++) {
#pragma unroll
                for (int c = 0; c < $key_chunks; c++) {
                    const $key_vector key_here = next_keys[i][c];
                    $acc elements[$count] = {};
                    if ((c * $lanes + own_lane) * $count < $depth) {
$key
                    }
#pragma unroll
                    for (int e = 0; e < $count; e++) {
#pragma unroll
                        for (int h = 0; h < $heads; h++)
                            products[i][h] = ost::add_product(
                                query[h][c * $count + e], elements[e], products[i][h]
                            );
                    }
                }
#pragma unroll
                for (int c = 0; c < $value_chunks; c++) {
                    const $value_vector value_here = next_values[i][c];
                    $acc elements[$count] = {};
                    if ((c * $lanes + own_lane) * $count < $features) {
$value
                    }
#pragma unroll
                    for (int e = 0; e < $count; e++)
                        values[i][c * $count + e] = elements[e]$value_factor;
                }
            }
$take_scales
            if (start + $step < end) load(start + $step);
#pragma unroll
            for (int step = $lanes / 2; step > 0; step /= 2) {
#pragma unroll
                for (int i = 0; i < $keys; i++) {
#pragma unroll
                    for (int h = 0; h < $heads; h++)
                        products[i][h] += __shfl_xor_sync(0xFFFFFFFFu, products[i][h], step);
                }
            }
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                const bool there = start + i * $groups + own_group < end;
#pragma unroll
                for (int h = 0; h < $heads; h++) {
                    const $acc score = ost::multiply(products[i][h]$key_factor, $scale);
                    scores[h][i] = there ? $capped : $minus_infinity;
                }
            }
#pragma unroll
            for (int h = 0; h < $heads; h++) found[h].add(scores[h], values);
        }
#pragma unroll
        for (int h = 0; h < $heads; h++) {
            const int first_sum = found[h].template gather<$lanes>();
#pragma unroll
            for (int j = 0; j < $kept; j++) {
                const int i = first_sum + j;
                if (lane >= $writing) break;
                sums[warp][h][(i / $count * $lanes + own_lane) * $count + i % $count] =
                    found[h].sums[j];
            }
            if (lane == 0) {
                greatest[warp][h] = found[h].most;
                totals[warp][h] = found[h].total;
            }
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $heads * $warps; i += $threads) {
            const int h = i / $warps, w = i % $warps;
            $acc most = greatest[0][h], more = 0;
#pragma unroll
            for (int other = 1; other < $warps; other++)
                most = ost::maximum(most, greatest[other][h]);
$sink
            weights[w][h] = greatest[w][h] == most ? 1 : ost::exp(greatest[w][h] - most);
            if (w == 0) {
                weights[$warps][h] = most;
                weights[$warps + 1][h] = more;
            }
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $heads * $features; i += $threads) {
            const int h = i / $features, n = i % $features;
            const long long member = first_head + h;
            if (member < $group) {
                const $acc most = weights[$warps][h];
                $acc total = 0, whole = weights[$warps + 1][h];
#pragma unroll
                for (int w = 0; w < $warps; w++) {
                    total = ost::add_product(weights[w][h], sums[w][h][n], total);
                    whole = ost::add_product(weights[w][h], totals[w][h], whole);
                }
$store
            }
        }
        OST_SYNC();
    }
""")

#: A score that counts without a key: the first part has it.
_SINK = Template("""\
            if (part == 0) {
                const long long member = first_head + h < $group ? first_head + h : $group - 1;
                $acc sink;
$element
                most = ost::maximum(most, sink);
                more = sink == $minus_infinity ? 0 : ost::exp(sink - most);
            }""")


class _Shape(NamedTuple):
    """The division of a block's work.

    Attributes:
        features: of a vector.
        lanes: that share a key.
        key_chunks, value_chunks: vectors of a key, and of a value, that a lane has.
        heads: of a block.
    """

    features: int
    lanes: int
    key_chunks: int
    value_chunks: int
    heads: int


def launch(kernel: PagedAttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each row, its heads and its parts, or a few waves."""
    spec = kernel.spec
    blocks = max_extent(spec.row) * max_extent(spec.shared) * kernel.splits
    return Launch(grid_of(blocks * head_blocks(kernel), target), _THREADS)


def head_blocks(kernel: PagedAttentionKernel) -> int:
    """Blocks that share the heads of a key head."""
    return -(-kernel.spec.group // _shape(kernel).heads)


def body(kernel: PagedAttentionKernel) -> Body:
    """The code of a kernel."""
    spec, shape = kernel.spec, _shape(kernel)
    frame, dialect = Frame(kernel, spec.operands, [spec.store]), CudaDialect()
    acc, type_ = spec.acc, dialect.register_type(spec.acc)
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    count, lanes = shape.features, shape.lanes
    groups, warps = _THREADS // lanes, _THREADS // _WARP
    names = names_of(kernel)
    vectors = [
        f"ost::vector<{dialect.memory_type(load.dtype)}, {count}>" for load in (spec.k, spec.v)
    ]
    wide = shape.value_chunks * lanes * count  # with places for lanes that have no features
    q = run_of(spec.q, spec.depth, depth)
    if q is not None and q.count >= count > 1:
        query = frame.vector(spec.q, q.load, count, acc, 5, names, "found")
    else:
        query = frame.elements(spec.q, spec.depth, count, acc, 5, names, "found")
    lowest, sink = dialect.literal(acc, float("-inf")), ""
    if spec.sink is not None:
        element = frame.element(spec.sink, acc, 4, names, "sink")
        sink = _SINK.substitute(acc=type_, group=spec.group, element=element, minus_infinity=lowest)
    sizes = {
        "heads": shape.heads,
        "step": _KEYS * groups,
        "positions": max_extent(spec.place),
        "depth": depth,
        "features": features,
    }
    item = item_text(kernel, shape.heads, _KEYS * groups)
    places = places_text(kernel, frame)
    text = _BODY.substitute(
        sizes,
        item=item,
        places=places,
        acc=type_,
        count=count,
        lanes=lanes,
        key_chunks=shape.key_chunks,
        value_chunks=shape.value_chunks,
        group=spec.group,
        keys=_KEYS,
        groups=groups,
        kept=max(1, shape.value_chunks * count * lanes // _WARP),
        writing=min(_WARP, wide),
        threads=_THREADS,
        warps=warps,
        query=query,
        key_vector=vectors[0],
        value_vector=vectors[1],
        load_key=frame.words(spec.k, vectors[0], 6, names, "next_keys[i][c]"),
        load_value=frame.words(spec.v, vectors[1], 6, names, "next_values[i][c]"),
        key=frame.converted(spec.k, spec.k, count, acc, 6, names, "key_here", "elements"),
        value=frame.converted(spec.v, spec.v, count, acc, 6, names, "value_here", "elements"),
        scale=dialect.literal(acc, spec.scale),
        capped=capped_score(kernel),
        minus_infinity=lowest,
        sink=sink,
        store=store_text(kernel, frame),
        **_scales(kernel, frame, type_, names),
    )
    sums = (warps, shape.heads, wide)
    arrays = [SharedArray(type_, acc.itemsize, "sums", sums)]
    for name, size in (("greatest", warps), ("totals", warps), ("weights", warps + 2)):
        arrays.append(SharedArray(type_, acc.itemsize, name, (size, shape.heads)))
    made = body_of(kernel, text, sizes_of(kernel), _THREADS, arrays=tuple(arrays))
    includes = f'{made.includes}#include "attention.cuh"\n'
    touch = touch_text(kernel, frame, item, places)
    touch = f"{frame.sizes(sizes_of(kernel))}\n{touch}"
    return replace(made, includes=includes, touch=touch)


def _scales(
    kernel: PagedAttentionKernel, frame: Frame, type_: str, names: Mapping[Symbol, str]
) -> dict[str, str]:
    """The statements about the factors of keys and values, if there are any."""
    spec = kernel.spec
    parts = ("scales", "load_scales", "take_scales", "key_factor", "value_factor")
    if spec.k_scale is None or spec.v_scale is None:
        return dict.fromkeys(parts, "")
    loads = []
    for number, scale in enumerate((spec.k_scale, spec.v_scale)):
        element = frame.element(scale, spec.acc, 5, names, f"next_factors[i][{number}]")
        loads.append(f"                {{\n{element}\n                }}")
    taken = [
        f"            {type_} key_factors[{_KEYS}];",
        "#pragma unroll",
        f"            for (int i = 0; i < {_KEYS}; i++) key_factors[i] = next_factors[i][0];",
    ]
    return {
        "scales": f"        {type_} next_factors[{_KEYS}][2] = {{}};",
        "load_scales": "\n".join(loads),
        "take_scales": "\n".join(taken),
        "key_factor": " * key_factors[i]",
        "value_factor": " * next_factors[i][1]",
    }


def _shape(kernel: PagedAttentionKernel) -> _Shape:
    spec = kernel.spec
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    count = min(_vector(spec.k, spec.depth, depth), _vector(spec.v, spec.column, features))
    most = max(-(-depth // count), -(-features // count), 1)
    lanes = min(_WARP, 1 << (most - 1).bit_length())
    key_chunks, value_chunks = (max(1, -(-n // (count * lanes))) for n in (depth, features))
    value_chunks = 1 << (value_chunks - 1).bit_length()
    heads = _ELEMENTS // ((key_chunks + value_chunks) * count)
    sums = _THREADS // _WARP * value_chunks * count * lanes
    heads = min(heads, _SHARED_SUMS // sums, spec.group)
    return _Shape(count, lanes, key_chunks, value_chunks, max(1, heads))


def _vector(load: Load, symbol: Symbol, size: int) -> int:
    """Neighbouring elements that are loaded at once."""
    run = run_of(load, symbol, size)
    return 1 if run is None else math.gcd(run.count, _VECTOR_BYTES // load.dtype.itemsize)
