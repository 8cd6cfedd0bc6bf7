"""Rendering matmuls of one row each by matrices of 16-bit floats, such as those of chosen experts.

Blocks take the matrices of a batch in turn, and copy the row that belongs to one into shared memory
as floats. A warp computes a column: its lanes load it from end to end, some loads ahead of the
products, past the cache of the multiprocessor, which nothing would find it in again. All blocks are
resident, so that requests go on from column to column; the columns of a block are as far apart as
there are blocks, so that all multiprocessors have work to the end.
"""

from __future__ import annotations

from itertools import pairwise
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import FewRowsProduct, Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar

__all__ = ["body", "fits", "launch", "suits"]

_WARPS = 8

_THREADS = 32 * _WARPS

#: Elements of a column that a lane loads at once; the depth is a multiple.
_VECTOR = 8

#: Elements of the row that a thread copies at once, at least.
_PART = 4

#: Elements of a row, at most: shared memory has room for some blocks.
_MOST_DEPTH = 8 << 10

#: Blocks that a multiprocessor runs at a time: registers are enough for that.
_RESIDENT = 2

_BODY = Template("""\
    const long long m = 0, ways = max(1LL, min(points, (long long)all.x));
    const long long share = all.x / ways, first = own.x / ways;
    ost::columns_ahead<ost::${format}_format, $depth> ahead;
$begin
    for (long long point = own.x % ways; point < points && first < share; point += ways) {
$batch
$matrices
        long long n = threadIdx.x / 32 * share + first;
        if (n < columns) ahead.request(matrix0 + n * $length);
$wait
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
        for (; n < columns; n += share * $warps) {
            const long long after = n + share * $warps;
            const unsigned short* const end = after < columns ? matrix0 + after * $length : nullptr;
$totals
            if (threadIdx.x % 32 == 0) {
$store
            }
        }
    }
$end
""")

#: Kernels that request their first columns before the kernel in front has ended.
_BEGIN = "    bool waits = true;"
_WAIT = """\
        if (waits) ost::wait_for_earlier_kernels();
        waits = false;"""
_END = "    if (waits) ost::wait_for_earlier_kernels();"


def fits(matmul: FewRowsProduct, target: CudaTarget) -> bool:
    """Whether each row of a batch has a matrix of its own, whose columns are rows of memory.

    Parts of segments have another way: the row would take the shared memory of the ring.
    """
    return not target.block and suits(matmul)


def suits(matmul: FewRowsProduct) -> bool:
    """The same, wherever the kernel is."""
    if not matmul.batch or len(matmul.k) != 1 or extent_of(matmul.m) != 1:
        return False
    depth = extent_of(matmul.k[0])
    if not isinstance(depth, int) or not 0 < depth <= _MOST_DEPTH or depth % _VECTOR:
        return False
    rights = matmul.rights
    lengths = set()
    for right in rights:
        found = run_of(right, matmul.k[0], depth)
        if found is None or found.load is not right or found.count != _VECTOR:
            return False
        lengths.add((right.dtype, _length(found.load, matmul)))
    ((dtype, length), *others) = lengths
    floats = matmul.acc == FLOAT32 and dtype in (FLOAT16, BFLOAT16)
    return floats and length is not None and not others


def _length(load: Scalar, matmul: Matmul) -> int | None:
    """Elements from one column to the next, if that is a number."""
    assert isinstance(load, Load)
    step = coefficient(load.index, matmul.n)
    return step[0] if step is not None and isinstance(step[0], int) else None


def launch(matmul: FewRowsProduct, target: CudaTarget) -> Launch:
    """The launch of a kernel: warps for all columns, or all blocks that are resident at a time."""
    blocks = bounds(matmul.points)[1] * -(-max_extent(matmul.n) // _WARPS)
    early = target.starts_kernels_early
    grid = max(1, min(blocks, _RESIDENT * target.multiprocessors))
    return Launch(grid, _THREADS, programmatic=early)


def body(matmul: FewRowsProduct, target: CudaTarget) -> Body:
    """The code of a matmul."""
    rights = matmul.rights
    frame = Frame(matmul, (matmul.a, *rights), matmul.stores)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    names |= {matmul.m: "m", matmul.n: "n", matmul.k[0]: "k"}
    depth = max_extent(matmul.k[0])
    point = frame.point(2, names | {matmul.n: "0LL", matmul.k[0]: "0LL"})
    for number, load in enumerate(rights):
        assert isinstance(load, Load)
        start = f"b{load.buffer} + {point.index(load.index)}"
        point.writer.line(f"const unsigned short* const matrix{number} = {start};")
    run = run_of(matmul.a, matmul.k[0], depth)
    if run is not None and run.count >= _PART:
        step = run.count
        left = frame.vector(matmul.a, run.load, step, FLOAT32, 3, names, "left")
    else:
        step = _PART
        left = frame.elements(matmul.a, matmul.k[0], step, FLOAT32, 3, names, "left")
    length = _length(matmul.b, matmul)
    columns = [f"matrix{number} + n * {length}" for number in range(len(rights))]
    pairs = enumerate(pairwise((*columns, "end")))
    totals = [
        f"            const float total{i} = ahead.multiply({column}, {following}, row);"
        for i, (column, following) in pairs
    ]
    starts_early = target.starts_kernels_early
    requests = starts_early and matmul.complete and not matmul.guarded
    text = _BODY.substitute(
        begin=_BEGIN * requests,
        wait=_WAIT * requests,
        end=_END * requests,
        batch=batch,
        matrices=point.text,
        step=step,
        depth=depth,
        threads=_THREADS,
        left=left,
        warps=_WARPS,
        format=rights[0].dtype.name,
        length=length,
        totals="\n".join(totals),
        store=frame.stores(
            matmul.stores, FLOAT32, 4, names, *(f"total{i}" for i in range(len(rights)))
        ),
    )
    row = SharedArray("ost::vector<float, 4>", 16, "row", (depth // 4,))
    early = starts_early and not requests
    sizes = matmul_sizes(matmul)
    return body_of(matmul, text, sizes, _THREADS, None, _RESIDENT, (row,), early=early)
