"""Rendering a :class:`~ostinato.backends.cuda.rules.matmul.FewRowsMatmul`.

The right operand is read once, with loads of up to 16 bytes, and goes nowhere but into registers.
Where its elements are neighbours along ``k``, a warp computes a column: each lane some of the
products, then the sum of all lanes. Otherwise a thread computes some neighbouring columns of a part
of ``k``, and the threads of a block that share columns add up their parts.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes, sum_type
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.common.clike.vectors import Run
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.variables import Symbol

__all__ = ["body", "launch"]

_THREADS = 256

_WARP = 32

#: Rows whose sums a thread holds together.
_ROWS = 8

#: Columns of a thread and rows together, at most.
_SUMS = 32

_BY_COLUMN = Template("""\
    const int lane = threadIdx.x % 32;
    const long long warps = (long long)all.x * $warps;
    for (long long item = (long long)own.x * $warps + threadIdx.x / 32;
         item < points * columns; item += warps) {
        [[maybe_unused]] const long long n = item % columns, point = item / columns;
$batch
        for (long long first_row = 0; first_row < rows; first_row += $rows) {
            $sum sums[$rows] = {};
#pragma unroll $unroll
            for (long long start = lane * $count; start < depth; start += 32 * $count) {
                $register right[$count];
$right
#pragma unroll
                for (int r = 0; r < $rows; r++) {
                    const long long m = first_row + r;
                    if (m < rows) {
                        $register left[$count];
$left
#pragma unroll
                        for (int i = 0; i < $count; i++)
                            sums[r] = ost::add_product(($sum)left[i], ($sum)right[i], sums[r]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < $rows; r++)
                sums[r] = ost::sum_of_warp(sums[r]);
            $sum mine = sums[0];
#pragma unroll
            for (int r = 1; r < $rows; r++)
                mine = lane == r ? sums[r] : mine;
            const long long m = first_row + lane;
            if (lane < $rows && m < rows) {
                const $register total = ($register)mine;
$store
            }
        }
    }
""")

_BY_PARTS = Template("""\
    const int part = threadIdx.x / $across, place = threadIdx.x % $across * $count;
    const long long tiles = (columns + $width - 1) / $width;
    for (long long tile = own.x; tile < points * tiles; tile += all.x) {
        const long long first_column = tile % tiles * $width;
        [[maybe_unused]] const long long point = tile / tiles;
        const long long start = first_column + place;
$batch
        for (long long first_row = 0; first_row < rows; first_row += $rows) {
            $sum sums[$rows][$count] = {};
            if (start < columns) {
#pragma unroll $unroll
                for (long long k = part; k < depth; k += $slices) {
                    $register right[$count];
$depths
$right
#pragma unroll
                    for (int r = 0; r < $rows; r++) {
                        const long long m = first_row + r;
                        if (m < rows) {
                            $register left;
$left
#pragma unroll
                            for (int i = 0; i < $count; i++)
                                sums[r][i] = ost::add_product(
                                    ($sum)left, ($sum)right[i], sums[r][i]
                                );
                        }
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < $rows; r++) {
#pragma unroll
                for (int i = 0; i < $count; i++)
                    parts[part][place + i] = sums[r][i];
                OST_SYNC();
                const long long m = first_row + r, n = first_column + threadIdx.x;
                if (threadIdx.x < $width && m < rows && n < columns) {
                    $sum all = parts[0][threadIdx.x];
                    for (int i = 1; i < $slices; i++)
                        all += parts[i][threadIdx.x];
                    const $register total = ($register)all;
$store
                }
                OST_SYNC();
            }
        }
    }
""")


@dataclass(frozen=True)
class _Shape:
    """The mapping of a matmul to threads.

    Attributes:
        run: the vectors of the right operand; ``None``: it is read element by element.
        by_column: whether a warp computes a column.
        rows: whose sums a thread holds.
        across: threads side by side in a block that computes by parts.
    """

    run: Run | None
    by_column: bool
    rows: int
    across: int

    @property
    def count(self) -> int:
        """Elements of the right operand that a thread reads at once."""
        return 1 if self.run is None else self.run.count

    @property
    def width(self) -> int:
        """Columns of a block that computes by parts."""
        return self.across * self.count


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: blocks for all columns of the greatest result, or a few waves."""
    shape = _shape(matmul, target)
    columns = _THREADS // _WARP if shape.by_column else shape.width
    points, n = bounds(matmul.points)[1], max_extent(matmul.n)
    blocks = -(-points * n // columns) if shape.by_column else points * -(-n // columns)
    return Launch(grid_of(blocks, target), _THREADS)


def body(matmul: Matmul, target: CudaTarget) -> Body:
    """The code of a matmul."""
    shape = _shape(matmul, target)
    if shape.by_column:
        return body_of(matmul, _by_column(matmul, shape), matmul_sizes(matmul), _THREADS)
    sizes = (_THREADS // shape.across, shape.width)
    parts = SharedArray(sum_type(matmul.acc), matmul.acc.itemsize, "parts", sizes)
    text = _by_parts(matmul, shape)
    return body_of(matmul, text, matmul_sizes(matmul), _THREADS, arrays=(parts,))


def _shape(matmul: Matmul, target: CudaTarget) -> _Shape:
    along_n = run_of(matmul.b, matmul.n, extent_of(matmul.n))
    along_k = None
    if len(matmul.k) == 1:
        along_k = run_of(matmul.b, matmul.k[0], extent_of(matmul.k[0]))
    rows = min(max_extent(matmul.m), _ROWS)
    if along_k is not None and along_n is None:
        return _Shape(along_k, True, max(1, rows), 0)
    count = 1 if along_n is None else along_n.count
    rows = max(1, min(rows, _SUMS // count))
    wanted = -(-max_extent(matmul.n) * bounds(matmul.points)[1] // target.multiprocessors)
    across = _WARP
    while across > 4 and across * count > wanted:
        across //= 2
    return _Shape(along_n, False, rows, across)


def _by_column(matmul: Matmul, shape: _Shape) -> str:
    frame = Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    names |= {matmul.m: "m", matmul.n: "n", matmul.k[0]: "start"}
    assert shape.run is not None
    text: str = _BY_COLUMN.substitute(
        _common(matmul, shape),
        warps=_THREADS // _WARP,
        batch=batch,
        right=frame.vector(matmul.b, shape.run.load, shape.count, matmul.acc, 4, names, "right"),
        left=_row(matmul, frame, shape.count, names),
        store=frame.stores(matmul.stores, matmul.acc, 4, names, "total"),
    )
    return text


def _row(matmul: Matmul, frame: Frame, count: int, names: Mapping[Symbol, str]) -> str:
    """Statements that assign consecutive elements of a row, loaded by as few vectors as fit.

    Elements of the left operand may be wider than those of the right one.
    """
    k = matmul.k[0]
    run = run_of(matmul.a, k, extent_of(k))
    if run is None or run.count == 1:
        return frame.elements(matmul.a, k, count, matmul.acc, 6, names, "left")
    step = min(run.count, count)
    parts = []
    for first in range(0, count, step):
        at = {**names, k: f"({names[k]} + {first})"} if first else names
        target = f"(left + {first})" if first else "left"
        part = frame.vector(matmul.a, run.load, step, matmul.acc, 6, at, target)
        parts.append(f"{{\n{part}\n}}")
    return "\n".join(parts)


def _by_parts(matmul: Matmul, shape: _Shape) -> str:
    frame = Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    depths, inner = frame.unravel(matmul.k, "k", 5)
    names |= inner | {matmul.m: "m", matmul.n: "n"}
    at = names | {matmul.n: "start"}
    if shape.run is None:
        right = frame.elements(matmul.b, matmul.n, 1, matmul.acc, 5, at, "right")
    else:
        right = frame.vector(matmul.b, shape.run.load, shape.count, matmul.acc, 5, at, "right")
    text: str = _BY_PARTS.substitute(
        _common(matmul, shape),
        slices=_THREADS // shape.across,
        across=shape.across,
        width=shape.width,
        batch=batch,
        depths=depths,
        right=right,
        left=frame.element(matmul.a, matmul.acc, 7, names, "left"),
        store=frame.stores(matmul.stores, matmul.acc, 5, names, "total"),
    )
    return text


def _common(matmul: Matmul, shape: _Shape) -> dict[str, object]:
    return {
        "sum": sum_type(matmul.acc),
        "register": CudaDialect().register_type(matmul.acc),
        "rows": shape.rows,
        "count": shape.count,
        "unroll": 4 if shape.count > 1 else 2,
    }
