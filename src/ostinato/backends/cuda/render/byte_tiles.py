"""Rendering matmuls of many rows of bytes, by bytes or codes of half a byte, for tensor cores.

A block computes a tile of the result from slices of both operands, which asynchronous copies bring
into shared memory: one slice is on its way while another one is multiplied. Both operands have to
be neighbours along ``k``. Sums of bytes are exact. Codes are taken apart in registers: tensor cores
do not mind which ``k`` comes first, so the even ones of eight come before the odd ones, on both
sides. Their sums of 32 products each are exact; floats add them up, times both scales.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import VECTOR_BYTES
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render import byte_rows
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.dtypes import FLOAT32, INT8, INT32
from ostinato.lower.loopir.nodes import max_extent
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.product import BlockwiseProduct, Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["blockwise_source", "fits", "launch", "multiplies", "source"]

#: The first architecture with these instructions.
_CAPABILITY = 80

_THREADS = 256

#: The result's tile of a block: four warps of 32 rows each, two of 32 columns.
_ROWS, _COLUMNS = 128, 64

#: Products of a slice.
_SLICE = 64

_BODY = Template("""\
    __shared__ __align__(16) unsigned char lefts[2][$rows][$slice + 16];
    __shared__ __align__(16) unsigned char rights[2][$columns][$packed + 16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row = warp % 4 * 32, column = warp / 4 * 32;
    const long long row_tiles = (rows + $rows - 1) / $rows;
    const long long column_tiles = (columns + $columns - 1) / $columns;
    const long long tiles = row_tiles * column_tiles, slices = (depth + $slice - 1) / $slice;
    for (long long item = blockIdx.x; item < points * tiles; item += gridDim.x) {
        [[maybe_unused]] const long long point = item / tiles;
        const long long first_row = item % tiles % row_tiles * $rows;
        const long long first_column = item % tiles / row_tiles * $columns;
$batch
        const auto copy_slice = [&](long long slice) {
#pragma unroll
            for (int i = threadIdx.x; i < $rows * $slice / 16; i += $threads) {
                const int place = i / ($slice / 16), chunk = i % ($slice / 16) * 16;
                const long long m = first_row + place, k = slice * $slice + chunk;
                const unsigned char* from;
$left
                ost::copy_async(&lefts[slice % 2][place][chunk], from, m < rows && k < depth);
            }
#pragma unroll
            for (int i = threadIdx.x; i < $columns * $packed / 16; i += $threads) {
                const int place = i / ($packed / 16), chunk = i % ($packed / 16) * 16;
                const long long n = first_column + place;
                const long long k = slice * $slice + chunk * ($slice / $packed);
                const unsigned char* from;
$right
                ost::copy_async(&rights[slice % 2][place][chunk], from, n < columns && k < depth);
            }
            ost::copy_commit();
        };
        $sum sums[2][4][4] = {};
        if (slices > 0) copy_slice(0);
        for (long long slice = 0; slice < slices; slice++) {
            if (slice + 1 < slices) {
                copy_slice(slice + 1);
                ost::copy_wait<1>();
            } else {
                ost::copy_wait<0>();
            }
            __syncthreads();
            const auto& left = lefts[slice % 2];
            const auto& right = rights[slice % 2];
#pragma unroll
            for (int step = 0; step < $slice; step += 32) {
$products
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const long long m = first_row + row + i * 16 + g + e / 2 * 8;
                    const long long n = first_column + column + j * 8 + t * 2 + e % 2;
                    if (m < rows && n < columns) {
                        const $register total = ($register)sums[i][j][e];
$store
                    }
                }
            }
        }
    }
""")

_BYTES = Template("""\
                unsigned a[2][4];
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int part = 0; part < 4; part++)
                        a[i][part] = *(const unsigned*)
                            &left[row + i * 16 + g + part % 2 * 8][step + t * 4 + part / 2 * 16];
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned char* from = &right[column + j * 8 + g][step + t * 4];
                    const unsigned b0 = *(const unsigned*)from, b1 = *(const unsigned*)(from + 16);
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        ost::multiply_bytes<$left_signed, $right_signed>(sums[i][j], a[i], b0, b1);
                }""")

_CODES = Template("""\
                const long long start = slice * $slice + step;
                unsigned a[2][4];
                float row_scales[2][2], column_scales[4][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int place = row + i * 16 + g + half * 8;
                        const long long m = first_row + place;
                        const unsigned* from = (const unsigned*)&left[place][step + t * 8];
                        a[i][half] = ost::even_bytes(from[0], from[1]);
                        a[i][half + 2] = ost::odd_bytes(from[0], from[1]);
                        float scale = 0;
                        if (m < rows && start < depth) {
$row_scale
                        }
                        row_scales[i][half] = scale;
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const long long n = first_column + column + j * 8 + t * 2 + e;
                        float scale = 0;
                        if (n < columns && start < depth) {
$column_scale
                        }
                        column_scales[j][e] = scale;
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned codes =
                        *(const unsigned*)&right[column + j * 8 + g][step / 2 + t * 4];
                    const unsigned b0 = ost::signed_codes(codes & 0x0F0F0F0Fu);
                    const unsigned b1 = ost::signed_codes(codes >> 4 & 0x0F0F0F0Fu);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        unsigned exact[4] = {};
                        ost::multiply_bytes<true, true>(exact, a[i], b0, b1);
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            sums[i][j][e] = fmaf(
                                (float)(int)exact[e],
                                row_scales[i][e / 2] * column_scales[j][e % 2], sums[i][j][e]
                            );
                    }
                }""")


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether tensor cores multiply the bytes of a matmul, which lie side by side along ``k``."""
    if not (byte_rows.fits(matmul) and multiplies(target)):
        return False
    sides = (matmul.a, matmul.b)
    return all(byte_rows.packed_along(side, matmul.k[0]) == VECTOR_BYTES for side in sides)


def multiplies(target: CudaTarget) -> bool:
    """Whether tensor cores multiply bytes."""
    return target.capability >= _CAPABILITY


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of the greatest result, or a few waves."""
    tiles = -(-max_extent(matmul.m) // _ROWS) * -(-max_extent(matmul.n) // _COLUMNS)
    return Launch(grid_of(bounds(matmul.points)[1] * tiles, target), _THREADS)


def source(matmul: Matmul) -> str:
    """CUDA C++ with the kernel of a matmul of bytes."""
    left, right = (byte_rows.load_along(side, matmul.k[0]) for side in (matmul.a, matmul.b))
    frame = Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = byte_rows.axis_names(matmul, frame)
    names |= {matmul.k[0]: "k"}
    products = _BYTES.substitute(
        left_signed=str(left.dtype == INT8).lower(),
        right_signed=str(right.dtype == INT8).lower(),
    )
    return _source(
        matmul,
        sum="unsigned",
        register="int",
        packed=_SLICE,
        batch=batch,
        left=frame.address(left, 4, names, "from"),
        right=frame.address(right, 4, names, "from"),
        products=products,
        store=frame.stores(matmul.stores, INT32, 6, names, "total"),
    )


def blockwise_source(matmul: BlockwiseProduct) -> str:
    """CUDA C++ with the kernel of a matmul of bytes by codes, both with scales by block."""
    operands = (matmul.a, matmul.b, matmul.a_scale, matmul.b_scale)
    frame = Frame(matmul, operands, matmul.stores)
    batch, names = byte_rows.axis_names(matmul, frame)
    names |= {
        matmul.k[0]: "k",
        matmul.pairs: "(k / 2)",
        matmul.blocks: f"(start / {matmul.group})",
    }
    products = _CODES.substitute(
        slice=_SLICE,
        row_scale=frame.element(matmul.a_scale, FLOAT32, 7, names, "scale"),
        column_scale=frame.element(matmul.b_scale, FLOAT32, 7, names, "scale"),
    )
    left = byte_rows.load_along(matmul.a, matmul.k[0])
    right = byte_rows.load_along(matmul.b, matmul.pairs)
    return _source(
        matmul,
        sum="float",
        register="float",
        packed=_SLICE // 2,
        batch=batch,
        left=frame.address(left, 4, names, "from"),
        right=frame.address(right, 4, names, "from"),
        products=products,
        store=frame.stores(matmul.stores, FLOAT32, 6, names, "total"),
    )


def _source(matmul: Matmul, **parts: str | int) -> str:
    """The kernel with these parts of the template."""
    body = _BODY.substitute(rows=_ROWS, columns=_COLUMNS, slice=_SLICE, threads=_THREADS, **parts)
    return function(matmul, body, matmul_sizes(matmul), _THREADS)
