"""Rendering attention for a few rows of queries at a time, whatever the dtype and the strides.

A block has some rows, and goes over the keys in tiles. A thread computes the scores of a key with
all rows; a warp turns the scores of a row into weights, by the greatest score so far; then threads
add up the values of some keys in a column each. What was summed before is scaled down whenever a
greater score turns up.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.dtypes import BOOL
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.variables import Symbol

__all__ = ["ROWS", "body", "launch", "result_text", "row_blocks", "score_text"]

ROWS = 8
"""Rows of a block, at most."""

#: Threads of a block, which are the keys of a tile.
_THREADS = 256

_WARP = 32

#: The most bytes of queries in shared memory at a time.
_QUERY_BYTES = 8192

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = threadIdx.x % $across, part = threadIdx.x / $across;
    const long long row_blocks = (rows + $rows - 1) / $rows;
    for (long long item = own.x; item < points * row_blocks * $splits; item += all.x) {
        const long long split = item % $splits, first_row = item / $splits % row_blocks * $rows;
        const long long point = item / $splits / row_blocks;
$batch
        if (threadIdx.x < $rows) {
            greatest[threadIdx.x] = $minus_infinity;
            totals[threadIdx.x] = 0;
        }
        long long low = keys, high = 0;
        for (int r = 0; r < $rows && first_row + r < rows; r++) {
            const long long position = (first_row + r) % length + keys - length;
            const long long first = $first_key, last = $last_key;
            low = first < low ? first : low;
            high = last > high ? last : high;
        }
        low = low < 0 ? 0 : low;
        high = high > keys ? keys : high;
        const long long share = high > low ? (high - low + $splits - 1) / $splits : 0;
        const long long begin = low + split * share;
        const long long end = begin + share < high ? begin + share : high;
        $acc sums[$rows][$columns] = {};
        for (long long start = begin; start < end; start += $threads) {
            const long long key = start + threadIdx.x;
            $acc products[$rows] = {};
            for (long long first = 0; first < $depth; first += $slice) {
                const int there = $depth - first < $slice ? (int)($depth - first) : $slice;
                OST_SYNC();
                for (int i = threadIdx.x; i < $rows * there; i += $threads) {
                    const int r = i / there;
                    const long long m = first_row + r, d = first + i % there;
                    $acc value = 0;
                    if (m < rows) {
$query
                    }
                    query[r][i % there] = value;
                }
                OST_SYNC();
                if (key < end) {
#pragma unroll 8
                    for (int i = 0; i < there; i += $count) {
                        const long long d = first + i;
                        $acc found[$count];
$key
#pragma unroll
                        for (int j = 0; j < $count; j++) {
#pragma unroll
                            for (int r = 0; r < $rows; r++)
                                products[r] = ost::add_product(
                                    query[r][i + j], found[j], products[r]
                                );
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < $rows; r++) {
                const long long m = first_row + r;
                [[maybe_unused]] const long long position = m % length + keys - length;
                $acc score = $minus_infinity;
                if (key < end && m < rows) {
$score
                }
                weights[r][threadIdx.x] = score;
            }
            OST_SYNC();
            for (int r = warp; r < $rows; r += $warps) {
                const $acc before = greatest[r];
                $acc most = before;
                for (int i = lane; i < $threads; i += 32)
                    most = ost::maximum(most, weights[r][i]);
                for (int step = 16; step > 0; step /= 2)
                    most = ost::maximum(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
                const $acc shift = most == $minus_infinity ? 0 : most;
                $acc total = 0;
                for (int i = lane; i < $threads; i += 32) {
                    const $acc weight = ost::exp(weights[r][i] - shift);
                    weights[r][i] = weight;
                    total += weight;
                }
                total = ost::sum_of_warp(total);
                __syncwarp();
                if (lane == 0) {
                    const $acc correction = before == most ? 1 : ost::exp(before - most);
                    corrections[r] = correction;
                    totals[r] = totals[r] * correction + total;
                    greatest[r] = most;
                }
            }
            OST_SYNC();
            const int count = end - start < $threads ? (int)(end - start) : $threads;
#pragma unroll
            for (int c = 0; c < $columns; c++) {
                const long long n = across + c * $across;
#pragma unroll
                for (int r = 0; r < $rows; r++)
                    sums[r][c] *= corrections[r];
                if (n < $features) {
#pragma unroll 8
                    for (int i = part; i < count; i += $parts) {
                        const long long key = start + i;
                        $acc value;
$value
#pragma unroll
                        for (int r = 0; r < $rows; r++)
                            sums[r][c] = ost::add_product(weights[r][i], value, sums[r][c]);
                    }
                }
            }
        }
        OST_SYNC();
#pragma unroll
        for (int c = 0; c < $columns; c++) {
#pragma unroll
            for (int r = 0; r < $rows; r++)
                weights[r][threadIdx.x] = sums[r][c];
            OST_SYNC();
            for (int i = threadIdx.x; i < $rows * $across; i += $threads) {
                const int r = i / $across, beside = i % $across;
                const long long m = first_row + r, n = beside + c * $across;
                if (m < rows && n < $features) {
                    $acc total = weights[r][beside];
                    for (int p = 1; p < $parts; p++)
                        total += weights[r][p * $across + beside];
$store
                }
            }
            OST_SYNC();
        }
    }
""")

#: Stores a result, or what a part of the keys contributes to it: `total`, a sum of values, then
#: the greatest score and the total of the weights.
_WHOLE = Template("""\
                    total /= $total == 0 ? 1 : $total;
$store""")
_PART = Template("""\
                    const auto kept =
                        b$scratch +
                        (int)((point * rows + m) * $splits + split) * ($features + 2);
                    kept[n] = total;
                    if (n == 0) {
                        kept[$features] = $greatest;
                        kept[$features + 1] = $total;
                    }""")


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for some rows and a part of the keys, or a few waves."""
    blocks = bounds(attention.points)[1] * row_blocks(attention) * attention.splits
    return Launch(grid_of(blocks, target), _THREADS)


def row_blocks(attention: AttentionKernel) -> int:
    """Blocks that share the rows of a point."""
    return -(-max_extent(attention.spec.m) // _rows(attention))


def _rows(attention: AttentionKernel) -> int:
    """Rows of a block."""
    return max(1, min(ROWS, max_extent(attention.spec.m)))


def body(attention: AttentionKernel) -> Body:
    """The code of a kernel."""
    frame = Frame(attention, attention.spec.operands, [attention.spec.store])
    acc, dialect = attention.spec.acc, CudaDialect()
    batch, names = frame.unravel(attention.spec.batch, "point", 2)
    names |= {
        attention.spec.m: "m",
        attention.spec.key: "key",
        attention.spec.depth: "d",
        attention.spec.column: "n",
    }
    depth, features = max_extent(attention.spec.depth), attention.features
    slice_ = min(depth, _QUERY_BYTES // ROWS // acc.itemsize)
    across = 1
    while across < min(features, _THREADS):
        across *= 2
    run = run_of(attention.spec.k, attention.spec.depth, slice_ if depth % slice_ == 0 else 1)
    count = 1 if run is None else run.count
    if run is None:
        key = frame.elements(attention.spec.k, attention.spec.depth, 1, acc, 6, names, "found")
    else:
        key = frame.vector(attention.spec.k, run.load, count, acc, 6, names, "found")
    store = result_text(attention, frame, names, greatest="greatest[r]", total="totals[r]")
    text = _BODY.substitute(
        acc=dialect.register_type(acc),
        minus_infinity=dialect.literal(acc, float("-inf")),
        rows=_rows(attention),
        slice=slice_,
        threads=_THREADS,
        warps=_THREADS // _WARP,
        across=across,
        parts=_THREADS // across,
        columns=max(1, -(-features // across)),
        splits=attention.splits,
        batch=batch,
        first_key="0"
        if attention.spec.window is None
        else f"position - {attention.spec.window - 1}",
        last_key="position + 1" if attention.spec.causal else "keys",
        depth=depth,
        features=features,
        count=count,
        query=frame.element(attention.spec.q, acc, 6, names, "value"),
        key=key,
        score=score_text(attention, frame, names, 5, "products[r]", "score"),
        value=frame.element(attention.spec.v, acc, 6, names, "value"),
        store=store,
    )
    sizes = {
        "points": attention.points,
        "rows": extent_of(attention.spec.m),
        "keys": extent_of(attention.spec.key),
        "length": attention.spec.length,
    }
    type_, rows = dialect.register_type(acc), _rows(attention)
    shapes: list[tuple[str, tuple[int, ...]]] = [("query", (rows, slice_))]
    shapes += [("weights", (rows, _THREADS)), ("greatest", (rows,))]
    shapes += [("totals", (rows,)), ("corrections", (rows,))]
    arrays = tuple(SharedArray(type_, acc.itemsize, name, shape) for name, shape in shapes)
    return body_of(attention, text, sizes, _THREADS, arrays=arrays)


def result_text(
    attention: AttentionKernel,
    frame: Frame,
    names: Mapping[Symbol, str],
    *,
    greatest: str = "most",
    total: str = "whole",
) -> str:
    """Statements that store what is in ``total``: a result, or what a part of the keys gives.

    Args:
        greatest: the greatest score.
        total: the total of the weights.
    """
    if attention.scratch is None:
        stored = frame.stores([attention.spec.store], attention.spec.acc, 5, names, "total")
        return _WHOLE.substitute(total=total, store=stored)
    return _PART.substitute(
        scratch=attention.scratch,
        splits=attention.splits,
        features=attention.features,
        greatest=greatest,
        total=total,
    )


def score_text(
    attention: AttentionKernel,
    frame: Frame,
    names: Mapping[Symbol, str],
    depth: int,
    product: str,
    target: str,
) -> str:
    """Statements that assign the score of a ``key`` with the row at ``position``, if it has one.

    Args:
        attention: the kernel.
        frame: it, too.
        names: by axis, the variable that has its value.
        depth: of the statements, in blocks.
        product: the sum of products of a query and a key.
        target: the variable that is assigned to, which has minus infinity.
    """
    point, xp = frame.point(depth, names), CNamespace()
    holds = ["key <= position"] if attention.spec.causal else []
    if attention.spec.window is not None:
        holds.append(f"position - key < {attention.spec.window}")
    score = point.scalars.code.keep(attention.spec.acc, product) * attention.spec.scale
    if attention.spec.softcap is not None:
        score = xp.tanh(score / attention.spec.softcap) * attention.spec.softcap
    if attention.spec.mask is not None:
        mask = point.scalars.value(attention.spec.mask, point.scope)
        if mask.dtype == BOOL:
            holds.append(mask.text)
        else:
            score = score + mask
    head = f"if ({' && '.join(holds)}) " if holds else ""
    point.writer.line(f"{head}{target} = {score.text};")
    return point.text
