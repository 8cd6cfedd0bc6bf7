"""Rendering a matmul of a few rows of 16-bit floats for tensor cores.

The warps of a block share the columns of a tile and divide ``k`` between them. Each lane loads the
right operand straight into the registers that tensor cores take, up to 16 bytes at once, along
whichever axis its elements are neighbours: which lane has which ``k`` does not matter, as long as
both operands agree. The partial sums of the warps meet in shared memory and are added in order.
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
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.common.clike.vectors import Run
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.variables import Dim, Symbol

__all__ = ["body", "fits", "launch"]

_WARPS = 8

_THREADS = 32 * _WARPS

#: The most rows, those of a tensor core's tile.
_ROWS = 16

_BODY = Template("""\
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const long long tiles = (columns + $width - 1) / $width;
    for (long long tile = own.x; tile < points * tiles; tile += all.x) {
        const long long first_column = tile % tiles * $width;
        [[maybe_unused]] const long long point = tile / tiles;
$batch
        float sums[$count][4] = {};
#pragma unroll $unroll
        for (long long start = warp * 4 * $depths; start < depth; start += $warps * 4 * $depths) {
            const long long k = start + t * $depths;
            unsigned short left[2][$depths] = {}, right[$depths][$count] = {};
$right
#pragma unroll
            for (int half = 0; half < $halves; half++) {
                const long long m = g + 8 * half;
                if (m < rows && $k_inside) {
$left
                }
            }
#pragma unroll
            for (int s = 0; s < $depths; s += 4) {
                const unsigned a[4] = {
                    left[0][s] | (unsigned)left[0][s + 1] << 16,
                    left[1][s] | (unsigned)left[1][s + 1] << 16,
                    left[0][s + 2] | (unsigned)left[0][s + 3] << 16,
                    left[1][s + 2] | (unsigned)left[1][s + 3] << 16,
                };
#pragma unroll
                for (int j = 0; j < $count; j++)
                    ost::multiply_tiles(
                        sums[j], a, right[s][j] | (unsigned)right[s + 1][j] << 16,
                        right[s + 2][j] | (unsigned)right[s + 3][j] << 16, ost::${format}_format()
                    );
            }
        }
#pragma unroll
        for (int j = 0; j < $count; j++) {
#pragma unroll
            for (int e = 0; e < 2 * $halves; e++) {
                const int column = t * 2 + e % 2;
                parts[warp][g + e / 2 * 8][$place] = sums[j][e];
            }
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

#: Vectors of the right operand along columns, and along ``k``.
_ALONG_COLUMNS = Template("""\
            const long long n = first_column + g * $count;
#pragma unroll
            for (int c = 0; c < $depths; c++) {
                if (n < columns && $row_inside) {
$index
                    const ost::vector<unsigned short, $count> found =
                        *(const ost::vector<unsigned short, $count>*)(b$buffer + place);
#pragma unroll
                    for (int j = 0; j < $count; j++)
                        right[c][j] = found.at[j];
                }
            }""")
_ALONG_DEPTH = Template("""\
#pragma unroll
            for (int j = 0; j < $count; j++) {
                const long long n = first_column + j * 8 + g;
                if (n < columns && $k_inside) {
$index
                    const ost::vector<unsigned short, $depths> found =
                        *(const ost::vector<unsigned short, $depths>*)(b$buffer + place);
#pragma unroll
                    for (int c = 0; c < $depths; c++)
                        right[c][j] = found.at[c];
                }
            }""")


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether tensor cores multiply what a matmul does, straight from memory."""
    few = max_extent(matmul.m) <= _ROWS and len(matmul.k) == 1
    return few and tensor_tiles.fits(matmul, target) and _run(matmul) is not None


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of columns, or a few waves."""
    blocks = _tiles(matmul, _Shape(matmul, target).width)
    return Launch(grid_of(blocks, target), _THREADS)


def body(matmul: Matmul, target: CudaTarget) -> Body:
    """The code of a matmul."""
    shape, frame = _Shape(matmul, target), Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = frame.unravel(matmul.batch, "point", 2)
    names |= {matmul.m: "m", matmul.n: "n", matmul.k[0]: "k"}
    whole = _is_multiple(matmul.depth, 4 * shape.depths)
    halves = 2 if max_extent(matmul.m) > 8 else 1
    places: dict[str, object] = {
        "count": shape.count,
        "depths": shape.depths,
        "k_inside": "true" if whole else "k < depth",
        "row_inside": "true" if whole else "k + c < depth",
        "buffer": shape.run.load.buffer,
    }
    at = names if shape.along_depth else names | {matmul.k[0]: "(k + c)"}
    right = _ALONG_DEPTH if shape.along_depth else _ALONG_COLUMNS
    point = frame.point(5, at)
    point.writer.line(f"const long long place = {point.index(shape.run.load.index)};")
    text = _BODY.substitute(
        places,
        warps=_WARPS,
        threads=_THREADS,
        rows=8 * halves,
        halves=halves,
        width=shape.width,
        unroll=2 if shape.count > 4 else 4,
        format=matmul.a.dtype.name,
        batch=batch,
        right=right.substitute(places, index=point.text),
        left=_left(matmul, frame, shape.depths, names),
        place="j * 8 + column" if shape.along_depth else f"column * {shape.count} + j",
        store=frame.stores(matmul.stores, matmul.acc, 4, names, "total"),
    )
    parts = SharedArray("float", 4, "parts", (_WARPS, 8 * halves, shape.width + 1))
    sizes = matmul_sizes(matmul)
    return body_of(matmul, text, sizes, _THREADS, resident=2, arrays=(parts,))


class _Shape:
    """The mapping of a matmul to lanes.

    Attributes:
        run: the vectors of the right operand.
        along_depth: whether they run along ``k``.
        depths: consecutive values of ``k`` that a lane has.
        count: columns that a lane loads.
        width: columns of a block.
    """

    def __init__(self, matmul: Matmul, target: CudaTarget) -> None:
        found = _run(matmul)
        assert found is not None
        self.run, self.along_depth = found
        self.depths = 8 if self.along_depth else 4
        self.count = 4 if self.along_depth else self.run.count
        while self.count > 1 and _tiles(matmul, 8 * self.count) < target.multiprocessors:
            self.count //= 2
        self.width = 8 * self.count


def _run(matmul: Matmul) -> tuple[Run, bool] | None:
    """The vectors of the right operand, and whether they run along ``k``."""
    along_n = run_of(matmul.b, matmul.n, extent_of(matmul.n))
    if along_n is not None and along_n.load is matmul.b:
        return along_n, False
    along_k = run_of(matmul.b, matmul.k[0], extent_of(matmul.k[0]))
    if along_k is not None and along_k.load is matmul.b and along_k.count == 8:
        return along_k, True
    return None


def _left(matmul: Matmul, frame: Frame, depths: int, names: Mapping[Symbol, str]) -> str:
    """Statements that bring consecutive elements of a row of the left operand into registers."""
    run = run_of(matmul.a, matmul.k[0], extent_of(matmul.k[0]))
    if run is not None and run.load is matmul.a and run.count >= depths:
        point = frame.point(5, names)
        type_ = f"ost::vector<unsigned short, {depths}>"
        place = f"b{run.load.buffer} + {point.index(run.load.index)}"
        point.writer.line(f"const {type_} found = *(const {type_}*)({place});")
        for i in range(depths):
            point.writer.line(f"left[half][{i}] = found.at[{i}];")
        return point.text
    lines = []
    for i in range(depths):
        point = frame.point(5, {**names, matmul.k[0]: f"(k + {i})"})
        with point.writer.block(f"if (k + {i} < depth)"):
            value = point.value(matmul.a, matmul.a.dtype)
            point.writer.line(f"left[half][{i}] = {value.stored};")
        lines.append(point.text)
    return "\n".join(lines)


def _tiles(matmul: Matmul, width: int) -> int:
    """Tiles of columns of the greatest result."""
    return bounds(matmul.points)[1] * -(-max_extent(matmul.n) // width)


def _is_multiple(dim: Dim, number: int) -> bool:
    return isinstance(dim, int) and dim % number == 0
