"""Rendering matmuls of one row each by matrices of 16-bit floats, such as those of chosen experts.

Blocks take the matrices of a batch in turn, and copy the row that belongs to one into shared memory
as floats. A warp computes a column: its lanes load it from end to end, some loads ahead of the
products, past the cache of the multiprocessor, which nothing would find it in again.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body", "fits", "launch"]

_WARPS = 8

_THREADS = 32 * _WARPS

#: Elements of a column that a lane loads at once; the depth is a multiple.
_VECTOR = 8

#: Elements of the row that a thread copies at once, at least.
_PART = 4

#: Elements of a row, at most: shared memory has room for some blocks.
_MOST_DEPTH = 8 << 10

#: Blocks that a multiprocessor runs at a time, at least: registers are enough for that.
_RESIDENT = 2

_BODY = Template("""\
    const long long m = 0, ways = max(1LL, min(points, (long long)all.x));
    const long long share = all.x / ways, first = own.x / ways;
    for (long long point = own.x % ways; point < points && first < share; point += ways) {
$batch
        const unsigned short* matrix;
$matrix
        OST_SYNC();
#pragma unroll 4
        for (int k = threadIdx.x * $step; k < $depth; k += $threads * $step) {
            float left[$step];
$left
#pragma unroll
            for (int i = 0; i < $step; i += 4)
                row[ost::part_of_row<$depth>(k + i)] = {
                    left[i], left[i + 1], left[i + 2], left[i + 3]
                };
        }
        OST_SYNC();
        for (long long n = first * $warps + threadIdx.x / 32; n < columns; n += share * $warps) {
            const float total = ost::multiply_column<ost::${format}_format, $depth>(
                matrix + n * $length, row
            );
            if (threadIdx.x % 32 == 0) {
$store
            }
        }
    }
""")


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether each row of a batch has a matrix of its own, whose columns are rows of memory.

    Parts of segments have another way: the row would take the shared memory of the ring.
    """
    if target.block or not matmul.batch or len(matmul.k) != 1 or extent_of(matmul.m) != 1:
        return False
    depth = extent_of(matmul.k[0])
    if not isinstance(depth, int) or not 0 < depth <= _MOST_DEPTH or depth % _VECTOR:
        return False
    found = run_of(matmul.b, matmul.k[0], depth)
    floats = matmul.acc == FLOAT32 and matmul.b.dtype in (FLOAT16, BFLOAT16)
    return (
        floats
        and found is not None
        and found.load is matmul.b
        and found.count == _VECTOR
        and _length(found.load, matmul) is not None
    )


def _length(load: Load, matmul: Matmul) -> int | None:
    """Elements from one column to the next, if that is a number."""
    step = coefficient(load.index, matmul.n)
    return step[0] if step is not None and isinstance(step[0], int) else None


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: warps for all columns of the greatest result, or a few waves."""
    blocks = bounds(matmul.points)[1] * -(-max_extent(matmul.n) // _WARPS)
    early = target.starts_kernels_early
    return Launch(grid_of(blocks, target), _THREADS, programmatic=early)


def body(matmul: Matmul, target: CudaTarget) -> Body:
    """The code of a matmul."""
    frame = Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    names |= {matmul.m: "m", matmul.n: "n", matmul.k[0]: "k"}
    depth, load = max_extent(matmul.k[0]), matmul.b
    assert isinstance(load, Load)
    point = frame.point(2, names | {matmul.n: "0LL", matmul.k[0]: "0LL"})
    point.writer.line(f"matrix = b{load.buffer} + {point.index(load.index)};")
    run = run_of(matmul.a, matmul.k[0], depth)
    if run is not None and run.count >= _PART:
        step = run.count
        left = frame.vector(matmul.a, run.load, step, FLOAT32, 3, names, "left")
    else:
        step = _PART
        left = frame.elements(matmul.a, matmul.k[0], step, FLOAT32, 3, names, "left")
    text = _BODY.substitute(
        batch=batch,
        step=step,
        depth=depth,
        threads=_THREADS,
        left=left,
        matrix=point.text,
        warps=_WARPS,
        format=load.dtype.name,
        length=_length(load, matmul),
        store=frame.stores(matmul.stores, FLOAT32, 4, names, "total"),
    )
    row = SharedArray("ost::vector<float, 4>", 16, "row", (depth // 4,))
    early = target.starts_kernels_early
    sizes = matmul_sizes(matmul)
    return body_of(matmul, text, sizes, _THREADS, None, _RESIDENT, (row,), early=early)
