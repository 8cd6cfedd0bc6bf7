"""Rendering attention for the few rows of a generated token, whose keys are rows of vectors.

A few neighbouring lanes share a key: each has some features of it, of its value and of all queries,
in registers, and loads the next keys before it goes on with these. Threads have a softmax each, and
what they have found is added up at the end, in a fixed order. So the keys of many threads are on
their way from memory at once, and there is but one barrier.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.attention_items import item_sizes, item_text, touch_text
from ostinato.backends.cuda.render.attention_rows import result_text, score_text
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load

__all__ = ["body", "fits", "launch", "row_blocks"]

#: Threads of a block.
_THREADS = 256

_WARP = 32

#: Rows that attention of few rows has at most.
_FEW_ROWS = 8

#: Elements of queries that a thread has, at most: of so many, it has as many sums.
_QUERY_ELEMENTS = 32

#: Keys of a thread whose loads are on their way together.
_KEYS = 2

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int feature = threadIdx.x % $lanes * $count, place = threadIdx.x / $lanes;
$item
        $acc query[$rows][$count];
#pragma unroll
        for (int r = 0; r < $rows; r++) {
            const long long m = first_row + r < rows ? first_row + r : rows - 1, d = feature;
$query
        }
        ost::contribution<$acc, $count> found[$rows];
        $key_vector next_keys[$keys];
        $value_vector next_values[$keys];
        const auto load = [&](long long start) {
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                const long long wanted = start + i * $places + place;
                const long long key = wanted < end ? wanted : end - 1, d = feature, n = feature;
                {
$load_key
                }
                {
$load_value
                }
            }
        };
        if (begin < end) load(begin);
        for (long long start = begin; start < end; start += $keys * $places) {
            $acc values[$keys][$count], scores[$rows][$keys];
            $acc products[$keys][$rows] = {};
            $key_vector keys_here[$keys];
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                const $value_vector values_here = next_values[i];
                keys_here[i] = next_keys[i];
$value
            }
            if (start + $keys * $places < end) load(start + $keys * $places);
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                $acc elements[$count];
$key
#pragma unroll
                for (int j = 0; j < $count; j++) {
#pragma unroll
                    for (int r = 0; r < $rows; r++)
                        products[i][r] = ost::add_product(
                            query[r][j], elements[j], products[i][r]
                        );
                }
            }
#pragma unroll
            for (int step = $lanes / 2; step > 0; step /= 2) {
#pragma unroll
                for (int i = 0; i < $keys; i++) {
#pragma unroll
                    for (int r = 0; r < $rows; r++)
                        products[i][r] += __shfl_xor_sync(0xFFFFFFFFu, products[i][r], step);
                }
            }
#pragma unroll
            for (int i = 0; i < $keys; i++) {
                const long long key = start + i * $places + place;
#pragma unroll
                for (int r = 0; r < $rows; r++) {
                    const long long m = first_row + r;
                    [[maybe_unused]] const long long position = m % length + keys - length;
                    $acc score = $minus_infinity;
                    if (key < end && m < rows) {
$score
                    }
                    scores[r][i] = score;
                }
            }
#pragma unroll
            for (int r = 0; r < $rows; r++) found[r].add(scores[r], values);
        }
#pragma unroll
        for (int r = 0; r < $rows; r++) {
            const int first = found[r].gather<$lanes>();
            if (lane < $writing) {
#pragma unroll
                for (int j = 0; j < $kept; j++)
                    sums[warp][r][feature + first + j] = found[r].sums[j];
            }
            if (lane == 0) {
                greatest[warp][r] = found[r].most;
                totals[warp][r] = found[r].total;
            }
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $rows * $warps; i += $threads) {
            const int r = i / $warps, w = i % $warps;
            $acc most = greatest[0][r];
#pragma unroll
            for (int other = 1; other < $warps; other++)
                most = ost::maximum(most, greatest[other][r]);
            weights[w][r] = greatest[w][r] == most ? 1 : ost::exp(greatest[w][r] - most);
            if (w == 0) weights[$warps][r] = most;
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $rows * $features; i += $threads) {
            const int r = i / $features;
            const long long m = first_row + r, n = i % $features;
            if (m < rows) {
                [[maybe_unused]] const $acc most = weights[$warps][r];
                $acc total = 0, whole = 0;
#pragma unroll
                for (int w = 0; w < $warps; w++) {
                    total = ost::add_product(weights[w][r], sums[w][r][n], total);
                    whole = ost::add_product(weights[w][r], totals[w][r], whole);
                }
$store
            }
        }
        OST_SYNC();
    }
""")


def fits(attention: AttentionKernel) -> bool:
    """Whether the rows are few, and keys and values are rows of equal vectors."""
    spec = attention.spec
    depth, features = extent_of(spec.depth), extent_of(spec.column)
    if not isinstance(depth, int) or depth != features or max_extent(spec.m) > _FEW_ROWS:
        return False
    if spec.acc != FLOAT32:
        return False
    count = _count(attention)
    if count < 4 or depth % count:
        return False
    lanes = depth // count
    return 2 <= lanes <= _WARP and lanes & (lanes - 1) == 0


def _count(attention: AttentionKernel) -> int:
    """Features of a thread; 0: keys or values are no vectors."""
    spec = attention.spec
    k = run_of(spec.k, spec.depth, extent_of(spec.depth))
    v = run_of(spec.v, spec.column, extent_of(spec.column))
    return 0 if k is None or v is None else min(k.count, v.count)


def _rows(attention: AttentionKernel) -> int:
    """Rows of a block."""
    return max(1, min(_QUERY_ELEMENTS // _count(attention), max_extent(attention.spec.m)))


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for some rows and a part of the keys, or a few waves."""
    blocks = bounds(attention.points)[1] * row_blocks(attention) * attention.splits
    return Launch(grid_of(blocks, target), _THREADS)


def row_blocks(attention: AttentionKernel) -> int:
    """Blocks that share the rows of a point."""
    return -(-max_extent(attention.spec.m) // _rows(attention))


def body(attention: AttentionKernel) -> Body:
    """The code of a kernel that :func:`fits`."""
    spec = attention.spec
    frame, dialect = Frame(attention, spec.operands, [spec.store]), CudaDialect()
    acc, type_ = spec.acc, dialect.register_type(spec.acc)
    batch, names = frame.unravel(spec.batch, "point", 2)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    depth, features, count = extent_of(spec.depth), attention.features, _count(attention)
    lanes, rows = features // count, _rows(attention)
    groups = _WARP // lanes
    k, v = run_of(spec.k, spec.depth, depth), run_of(spec.v, spec.column, depth)
    assert k is not None
    assert v is not None
    q = run_of(spec.q, spec.depth, depth)
    if q is not None and q.count >= count:
        query = frame.vector(spec.q, q.load, count, acc, 4, names, "query[r]")
    else:
        query = frame.elements(spec.q, spec.depth, count, acc, 4, names, "query[r]")
    item = item_text(attention, rows, batch)
    text = _BODY.substitute(
        item=item,
        acc=type_,
        minus_infinity=dialect.literal(acc, float("-inf")),
        rows=rows,
        count=count,
        lanes=lanes,
        kept=max(1, count // groups),
        writing=min(_WARP, features),
        keys=_KEYS,
        places=_THREADS // lanes,
        threads=_THREADS,
        warps=_THREADS // _WARP,
        features=features,
        query=query,
        key_vector=_vector(k.load, count),
        value_vector=_vector(v.load, count),
        load_key=frame.words(k.load, _vector(k.load, count), 5, names, "next_keys[i]"),
        load_value=frame.words(v.load, _vector(v.load, count), 5, names, "next_values[i]"),
        key=frame.converted(spec.k, k.load, count, acc, 4, names, "keys_here[i]", "elements"),
        value=frame.converted(spec.v, v.load, count, acc, 4, names, "values_here", "values[i]"),
        score=score_text(attention, frame, names, 6, "products[i][r]", "score"),
        store=result_text(attention, frame, names),
    )
    warps = _THREADS // _WARP
    shapes: list[tuple[str, tuple[int, ...]]] = [("sums", (warps, rows, features))]
    shapes += [(name, (warps, rows)) for name in ("greatest", "totals")]
    shapes.append(("weights", (warps + 1, rows)))  # and the greatest score of each row
    arrays = tuple(SharedArray(type_, acc.itemsize, name, shape) for name, shape in shapes)
    made = body_of(attention, text, item_sizes(attention), _THREADS, arrays=arrays)
    touch = touch_text(attention, frame, item, k.load, v.load, names)
    includes = f'{made.includes}#include "attention.cuh"\n'
    return replace(made, includes=includes, touch=touch)


def _vector(load: Load, count: int) -> str:
    """The type of elements that are loaded at once."""
    return f"ost::vector<{CudaDialect().memory_type(load.dtype)}, {count}>"
