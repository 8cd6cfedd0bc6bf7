"""Rendering a :class:`~ostinato.backends.cuda.rules.matmul.TiledMatmul`: register tiles.

A block computes a tile of the result of 64 by 64, or 128 by 128: 16 by 16 threads with 4 by 4, or
8 by 8, sums each. Slices of both operands pass through shared memory, converted to the dtype of the
sums; while one is multiplied, the next one is on its way to registers. The finished sums go through
shared memory once more, so that the code of the epilogue stands there once, and neighbouring
threads store neighbouring elements.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes, runs_along, stores_along_rows, sum_type
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Symbol

__all__ = ["launch", "source"]

_THREADS = 256

#: Rows, and columns, of a tile of 4 sums a thread.
_SIDE = 64

#: Products between two barriers.
_SLICE = 16

#: Neighbouring elements that a thread fetches at once, at most.
_VECTOR = 4

#: Rows and columns from which a tile of 8 by 8 sums a thread is filled.
_LARGE = 512

_BODY = Template("""\
    __shared__ __align__(16) unsigned char memory[$bytes];
    $sum (*const left)[$side] = ($sum (*)[$side])memory;
    $sum (*const right)[$side] = ($sum (*)[$side])(memory + $slice * $side * sizeof($sum));
    $sum (*const finished)[$side + 1] = ($sum (*)[$side + 1])memory;
    const int column = threadIdx.x % 16 * 4, row = threadIdx.x / 16 * 4;
    const long long row_tiles = (rows + $side - 1) / $side;
    const long long column_tiles = (columns + $side - 1) / $side;
    for (long long tile = blockIdx.x; tile < points * row_tiles * column_tiles;
         tile += gridDim.x) {
        const long long first_column = tile % column_tiles * $side;
        const long long first_row = tile / column_tiles % row_tiles * $side;
        [[maybe_unused]] const long long point = tile / column_tiles / row_tiles;
$batch
        $sum sums[$groups * 4][$groups * 4] = {};
        $register left_next[$share], right_next[$share];
        auto fetch = [&](long long start) {
#pragma unroll
            for (int j = 0; j < $share; j += $left_count) {
                const int i = threadIdx.x * $left_count + j * $threads;
                const int at = $left_row, d = $left_depth;
                const long long m = first_row + at, k = start + d;
                $register* const found = left_next + j;
                if (m < rows && k < depth) {
$depths
$left
                } else {
#pragma unroll
                    for (int e = 0; e < $left_count; e++)
                        found[e] = 0;
                }
            }
#pragma unroll
            for (int j = 0; j < $share; j += $right_count) {
                const int i = threadIdx.x * $right_count + j * $threads;
                const int at = $right_column, d = $right_depth;
                const long long n = first_column + at, k = start + d;
                $register* const found = right_next + j;
                if (n < columns && k < depth) {
$depths
$right
                } else {
#pragma unroll
                    for (int e = 0; e < $right_count; e++)
                        found[e] = 0;
                }
            }
        };
        fetch(0);
        for (long long start = 0; start < depth; start += $slice) {
#pragma unroll
            for (int j = 0; j < $share; j++) {
                const int i =
                    threadIdx.x * $left_count + j / $left_count * $left_count * $threads
                    + j % $left_count;
                left[$left_depth][$left_row] = left_next[j];
            }
#pragma unroll
            for (int j = 0; j < $share; j++) {
                const int i =
                    threadIdx.x * $right_count + j / $right_count * $right_count * $threads
                    + j % $right_count;
                right[$right_depth][$right_column] = right_next[j];
            }
            __syncthreads();
            if (start + $slice < depth)
                fetch(start + $slice);
#pragma unroll
            for (int d = 0; d < $slice; d++) {
                $sum some[$groups * 4], others[$groups * 4];
#pragma unroll
                for (int i = 0; i < $groups * 4; i++) {
                    some[i] = left[d][i / 4 * $group + row + i % 4];
                    others[i] = right[d][i / 4 * $group + column + i % 4];
                }
#pragma unroll
                for (int i = 0; i < $groups * 4; i++) {
#pragma unroll
                    for (int j = 0; j < $groups * 4; j++)
                        sums[i][j] = ost::add_product(some[i], others[j], sums[i][j]);
                }
            }
            __syncthreads();
        }
        for (int group = 0; group < $groups; group++) {
#pragma unroll
            for (int i = 0; i < $groups * 4; i++) {
#pragma unroll
                for (int j = 0; j < $groups * 4; j++) {
                    if (i / 4 == group)
                        finished[row + i % 4][j / 4 * $group + column + j % 4] = sums[i][j];
                }
            }
            __syncthreads();
#pragma unroll 4
            for (int j = 0; j < $group * $side / $threads; j++) {
                const int i = threadIdx.x + j * $threads, at = $store_row, beside = $store_column;
                const long long m = first_row + group * $group + at, n = first_column + beside;
                if (m < rows && n < columns) {
                    const $register total = ($register)finished[at][beside];
$store
                }
            }
            __syncthreads();
        }
    }
""")


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of the greatest result, or a few waves."""
    side = _groups(matmul) * _SIDE
    row_tiles, column_tiles = (-(-max_extent(axis) // side) for axis in (matmul.m, matmul.n))
    blocks = bounds(matmul.points)[1] * row_tiles * column_tiles
    return Launch(grid_of(blocks, target), _THREADS)


def source(matmul: Matmul) -> str:
    """CUDA C++ with the kernel of a matmul."""
    groups, frame = _groups(matmul), Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    sum_, side = sum_type(matmul.acc), groups * _SIDE
    register = CudaDialect().register_type(matmul.acc)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    depths, inner = frame.unravel(matmul.k, "k", 5)
    names |= {matmul.m: "m", matmul.n: "n"}
    names_within = names | inner
    left, left_count = _fetched(matmul, matmul.a, matmul.m, frame, names_within)
    right, right_count = _fetched(matmul, matmul.b, matmul.n, frame, names_within)
    operands_bytes = 2 * _SLICE * side * matmul.acc.itemsize
    inner_axis = matmul.k[-1]
    along_rows, along_columns = (runs_along(s, inner_axis) for s in (matmul.a, matmul.b))
    by_depth, by_place = (f"i / {_SLICE}", f"i % {_SLICE}"), (f"i % {side}", f"i / {side}")
    left_row, left_depth = by_depth if along_rows else by_place
    right_column, right_depth = by_depth if along_columns else by_place
    by_column, by_row = (f"i / {side}", f"i % {side}"), (f"i % {_SIDE}", f"i / {_SIDE}")
    store_row, store_column = by_row if stores_along_rows(matmul) else by_column
    body = _BODY.substitute(
        sum=sum_,
        register=register,
        side=side,
        slice=_SLICE,
        share=side * _SLICE // _THREADS,
        groups=groups,
        group=_SIDE,
        threads=_THREADS,
        bytes=max(operands_bytes, _SIDE * (side + 1) * max(matmul.acc.itemsize, 4)),
        batch=batch,
        depths=depths,
        left=left,
        right=right,
        left_count=left_count,
        right_count=right_count,
        left_row=left_row,
        left_depth=left_depth,
        right_column=right_column,
        right_depth=right_depth,
        store_row=store_row,
        store_column=store_column,
        store=frame.stores(matmul.stores, matmul.acc, 5, names, "total"),
    )
    return function(matmul, body, matmul_sizes(matmul), _THREADS, resident=2)


def _fetched(
    matmul: Matmul, scalar: Scalar, outer: Symbol, frame: Frame, names: Mapping[Symbol, str]
) -> tuple[str, int]:
    """Statements that assign neighbouring elements of an operand to ``found``, and their number.

    Args:
        matmul: the kernel.
        scalar: the operand's element.
        outer: its other axis than ``k``.
        frame: the kernel's.
        names: by axis, the variable that has its value.
    """
    axis = matmul.k[-1] if runs_along(scalar, matmul.k[-1]) else outer
    run = run_of(scalar, axis, extent_of(axis))
    count = 1 if run is None else min(run.count, _VECTOR)
    if run is None or count == 1:
        return frame.element(scalar, matmul.acc, 5, names, "found[0]"), 1
    return frame.vector(scalar, run.load, count, matmul.acc, 5, names, "found"), count


def _groups(matmul: Matmul) -> int:
    """Groups of 4 rows, and of 4 columns, of a thread."""
    large = min(max_extent(matmul.m), max_extent(matmul.n)) >= _LARGE
    return 2 if large and matmul.acc.itemsize <= 4 else 1
