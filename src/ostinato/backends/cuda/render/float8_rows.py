"""Rendering a matmul of a few rows of 8-bit floats for tensor cores.

The warps of a block share the columns of a tile and divide ``k`` between them. Each lane loads 16
neighbours along ``k`` of both operands at once and makes float16 of them, in pairs: which lane has
which ``k`` does not matter, as long as both operands agree. Products are exact, sums are float32;
the partial sums of the warps meet in shared memory and are added in order.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import tensor_tiles
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.dtypes import FLOAT8, FLOAT16
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar

__all__ = ["body", "fits", "launch"]

_WARPS = 8

_THREADS = 32 * _WARPS

#: The most rows, those of a tensor core's tile.
_ROWS = 16

#: Neighbours along ``k`` that a lane loads: 16 bytes of them.
_DEPTHS = 16

#: Columns that a lane loads, at most.
_COUNT = 4

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const long long tiles = (columns + $width - 1) / $width;
    for (long long tile = own.x; tile < points * tiles; tile += all.x) {
        const long long first_column = tile % tiles * $width;
        [[maybe_unused]] const long long point = tile / tiles;
$batch
        float sums[$count][4] = {};
#pragma unroll 4
        for (long long start = warp * 4 * $depths; start < depth; start += $warps * 4 * $depths) {
            const long long k = start + t * $depths;
            ost::vector<unsigned, 4> left[2] = {}, right[$count] = {};
#pragma unroll
            for (int j = 0; j < $count; j++) {
                const long long n = first_column + j * 8 + g;
                if (n < columns && k < depth) {
$right
                }
            }
#pragma unroll
            for (int half = 0; half < $halves; half++) {
                const long long m = g + 8 * half;
                if (m < rows && k < depth) {
$left
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned a[4] = {};
#pragma unroll
                for (int half = 0; half < $halves; half++) {
                    a[half] = ost::halves_of<0>(left[half].at[i], ost::$a());
                    a[half + 2] = ost::halves_of<1>(left[half].at[i], ost::$a());
                }
#pragma unroll
                for (int j = 0; j < $count; j++)
                    ost::multiply_tiles(
                        sums[j], a, ost::halves_of<0>(right[j].at[i], ost::$b()),
                        ost::halves_of<1>(right[j].at[i], ost::$b()), ost::float16_format()
                    );
            }
        }
#pragma unroll
        for (int j = 0; j < $count; j++) {
#pragma unroll
            for (int e = 0; e < 2 * $halves; e++)
                parts[warp][g + e / 2 * 8][j * 8 + t * 2 + e % 2] = sums[j][e];
        }
        OST_SYNC();
        for (int i = threadIdx.x; i < $rows * $width; i += $threads) {
            const long long m = i / $width, n = first_column + i % $width;
            if (m < rows && n < columns) {
                float total = parts[0][m][i % $width];
                for (int w = 1; w < $warps; w++)
                    total += parts[w][m][i % $width];
$store
            }
        }
        OST_SYNC();
    }
""")


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether a matmul has few rows of 8-bit floats, side by side along ``k`` in both operands."""
    few = max_extent(matmul.m) <= _ROWS and len(matmul.k) == 1
    if not few or not tensor_tiles.multiplies(FLOAT16, target):
        return False
    return all(_is_packed(side, matmul) for side in (matmul.a, matmul.b))


def _is_packed(scalar: Scalar, matmul: Matmul) -> bool:
    """Whether lanes load an operand 16 neighbours at a time."""
    run = run_of(scalar, matmul.k[0], extent_of(matmul.k[0]))
    packed = run is not None and run.load is scalar and run.count == _DEPTHS
    return packed and scalar.dtype in FLOAT8


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of columns, or a few waves."""
    return Launch(grid_of(_tiles(matmul, _count(matmul, target)), target), _THREADS)


def body(matmul: Matmul, target: CudaTarget) -> Body:
    """The code of a matmul."""
    frame, count = Frame(matmul, (matmul.a, matmul.b), matmul.stores), _count(matmul, target)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    names |= {matmul.m: "m", matmul.n: "n", matmul.k[0]: "k"}
    halves, width = 2 if max_extent(matmul.m) > 8 else 1, 8 * count
    a, b, words = matmul.a, matmul.b, "ost::vector<unsigned, 4>"
    assert isinstance(a, Load)
    assert isinstance(b, Load)
    text = _BODY.substitute(
        warps=_WARPS,
        threads=_THREADS,
        depths=_DEPTHS,
        count=count,
        width=width,
        rows=8 * halves,
        halves=halves,
        a=a.dtype.name,
        b=b.dtype.name,
        batch=batch,
        right=frame.words(b, words, 5, names, "right[j]"),
        left=frame.words(a, words, 5, names, "left[half]"),
        store=frame.stores(matmul.stores, matmul.acc, 4, names, "total"),
    )
    parts = SharedArray("float", 4, "parts", (_WARPS, 8 * halves, width + 1))
    made = body_of(matmul, text, matmul_sizes(matmul), _THREADS, resident=2, arrays=(parts,))
    return replace(made, includes=f'{made.includes}#include "float8.cuh"\n')


def _count(matmul: Matmul, target: CudaTarget) -> int:
    """Columns that a lane loads: fewer where tiles would not be enough for all multiprocessors."""
    count = _COUNT
    while count > 1 and _tiles(matmul, count) < target.multiprocessors:
        count //= 2
    return count


def _tiles(matmul: Matmul, count: int) -> int:
    """Tiles of columns of the greatest result."""
    return bounds(matmul.points)[1] * -(-max_extent(matmul.n) // (8 * count))
