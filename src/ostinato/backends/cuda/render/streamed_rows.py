"""Rendering a matmul of a few rows whose right operand arrives through a ring in shared memory.

It is part of a segment: a thread of the block fetches 8 columns at a time, 2 KiB of each a stage,
ahead of those that multiply, whatever they wait for. Four warps divide a stage between them, so two
stages are multiplied at a time; the sums of all warps meet in shared memory and are added in order.
Codes of half a byte come 1 KiB at a time, with the scales of their blocks behind them.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue
from ostinato.backends.cuda.render import nests
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.early_elements import EarlyElements, each
from ostinato.backends.cuda.render.frame import Frame, body_of
from ostinato.backends.cuda.render.joint_bodies import aliases
from ostinato.backends.cuda.render.mapping import mapping_of
from ostinato.backends.cuda.render.ring_stages import COLUMNS, GROUPS, PIECE, WARPS
from ostinato.backends.cuda.render.row_operands import INTEGERS, rows_of, stored
from ostinato.backends.cuda.render.streamed_left import left_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.backends.cuda.render.weight_streams import stream_of
from ostinato.backends.cuda.rules.joint_kernels import JointKernels
from ostinato.backends.cuda.rules.joint_products import JointProducts, products_of
from ostinato.backends.cuda.rules.product import BlockwiseProduct
from ostinato.backends.cuda.rules.rounded_products import MOST_TILES, RoundedProduct
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, INT8, INT32
from ostinato.lower.loopir.nodes import Load, Store, max_extent
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.render.row_operands import Rows
    from ostinato.backends.cuda.render.streamed_left import Left
    from ostinato.backends.cuda.render.weight_streams import Stream
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body"]

#: Codes of a stage that a lane of ``ost::bytes_by_codes`` has.
_LANE_CODES = 128

#: Bytes of the sums of tiles that are added up together, at most.
_PART_BYTES = 9 << 9

#: Rows of the left operand that warps keep in registers, and elements of each, at most.
_KEPT_ROWS, _KEPT_DEPTH = 8, 4096

_BODY = Template("""\
$left
    int turn = 0;
#pragma unroll 1
    for (int first = own.x; first * $width < (int)columns; first += all.x * $together) {
$early$multiply
$arrived        OST_SYNC();
$sums {
            const int t = i / ($rows * $width);
            const int row = i / $width % $rows, column = (first + t * all.x) * $width + i % $width;
            if (row < (int)rows && column < (int)columns) {
                const long long m = row, n = column;
                auto sum = parts[turn][t][0][row][i % $width];
#pragma unroll
                for (int w = 1; w < $warps; w++)
                    sum += parts[turn][t][w][row][i % $width];
                const $register total = ($register)sum;
$store
            }
        }
$rounded        turn ^= 1;
    }
""")

#: The tiles of a result, rounded by the block that has them.
_ROUNDED = Template("""\
        $meet();
        {
            const int first_tile = first, step = (int)all.x;
            const int rest = ((int)columns / $width - first_tile + step - 1) / step;
            const int there = min(rest, $together);
            const long long vars[] = {there};
            const ost::place own = {0}, all = {1};
$aliases
            if ($active) {
$nest
            }
        }
""")

#: The products of tiles, one after the other, or all at once.
_EACH_TILE = Template("""\
#pragma unroll 1
        for (int t = 0; t < $together; t++) {
            const int rest = (int)columns - (first + t * (int)all.x) * $width;
            if (rest <= 0) break;
            const int there = min(rest, $width);
            ring.go_to($call, there, parts[turn][t]$staged));
        }""")
_ALL_TILES = Template("""\
        ring.go_to(ost::multiply_row<$row, $wide, $together>(
            ring, left, $scales, (int)depth, first, all.x, (int)columns, parts[turn]
        ));""")

_TILES_OF_ROWS = Template("""\
        ring.go_to(ost::multiply_tiles_of_rows<$format, $rows, $depth, $together>(
            ring, left, pitch, (int)rows, (int)first, (int)all.x, (int)columns, parts[turn]
        ));""")

#: The scales of the left operand's blocks, in shared memory.
_SCALES = Template("""\
    for (int i = threadIdx.x; i < (int)rows * $blocks; i += $threads) {
        const long long m = i / $blocks, block = i % $blocks;
        float value;
$element
        row_scales[i] = value;
    }
    const float* const scales = row_scales;
$wait""")


def body(
    kernel: CudaKernel,
    target: CudaTarget,
    held: Collection[int] = (),
    padded: Collection[int] = (),
    polled: Collection[int] = (),
) -> Body:
    """The code of matmuls of the same rows, whose right operands are :func:`streams_of`.

    Args:
        kernel: one, :class:`JointProducts`, or :class:`RoundedProduct`.
        target: the GPU, with the blocks of a segment.
        held: the arguments that are in shared memory as it is.
        padded: those whose rows are apart there, as :func:`padded_row` says.
        polled: those whose elements are waited for where they are read.
    """
    (matmul, places), *_ = products_of(kernel)
    held, padded, polled = (
        {number for number, place in enumerate(places) if place in those}
        for those in (held, padded, polled)
    )
    rows, acc, stream = max(1, max_extent(matmul.m)), matmul.acc, stream_of(matmul)
    left = left_of(matmul, held, padded, polled)
    assert stream is not None
    assert left is not None
    arrays, wide = list(left.arrays), stream.wide
    operands = left.scalar, *((matmul.a_scale,) if isinstance(matmul, BlockwiseProduct) else ())
    frame = Frame(matmul, operands, matmul.stores)
    joint = isinstance(kernel, JointKernels)
    before = "".join(f"    {name}\n" for name in aliases(places)) if joint else ""
    if isinstance(matmul, BlockwiseProduct):
        scales, copied = _scales(matmul, left, held, frame)
        before += scales
        arrays += copied
    tile = (WARPS // GROUPS if wide else WARPS, rows, stream.width + 1)
    together = max(1, min(MOST_TILES, _PART_BYTES // (4 * math.prod(tile))))
    early = EarlyElements(matmul, held, polled, together, stream.width)
    text = _BODY.substitute(
        together=together,
        left=f"{before}{left.text(frame)}",
        early=early.copies,
        arrived=early.wait,
        multiply=_multiply(matmul, left, stream, together),
        width=stream.width,
        rows=rows,
        warps=tile[0],
        register="int" if acc == INT32 else "float",
        store=_stores(kernel, early, stream.width),
        rounded=_rounded(kernel, target, stream.width, together),
        sums=each(together * rows * stream.width),
    )
    type_ = "unsigned" if acc == INT32 else "float"
    sizes = (2, together, *tile)
    parts = SharedArray(type_, 4, "parts", sizes)
    columns = sum(max_extent(matmul.n) for matmul, _ in products_of(kernel))
    sized = {**matmul_sizes(matmul), "columns": columns}
    made = body_of(kernel, text, sized, SEGMENT_BLOCK, arrays=(parts, *arrays, *early.arrays))
    if joint:
        renamed = [f"{type_} joint{n}" for n, type_ in enumerate(made.types()[:-1])]
        made = replace(made, parameters=(*renamed, made.parameters[-1]))
    formats = '#include "float8.cuh"\n' if stored(matmul.b).dtype in FLOAT8 else ""
    includes = f'{made.includes}{formats}#include "staged_codes.cuh"\n'
    return replace(made, includes=includes, streams=True)


def _stores(kernel: CudaKernel, early: EarlyElements, width: int) -> str:
    """The statements that store a sum; of several matmuls, for the one that has its column.

    Args:
        kernel: the matmuls.
        early: the elements that stores read.
        width: columns of a tile.
    """
    products, before, lines = products_of(kernel), 0, []
    for matmul, places in products:
        point = Frame(matmul, (), matmul.stores).point(4, {matmul.m: "m", matmul.n: "n"})
        early.read(point)
        for store in matmul.stores:
            point.store(store, CValue(point.scalars.code, "total", matmul.acc))
        if isinstance(kernel, RoundedProduct):
            head = aliases(places)
            result = f"joint{places[kernel.result]} + t * {width} + i % {width}"
            head[kernel.result] = f"const auto b{kernel.result} = ost::element_at({result});"
            return "\n".join([*(f"                {line}" for line in head), point.text])
        if not isinstance(kernel, JointProducts):
            return point.text
        end = before + max_extent(matmul.n)
        head = [f"if (column >= {before} && column < {end}) {{", *aliases(places)]
        head.append(f"const long long n = column - {before};")
        lines += [*(f"                {line}" for line in head), point.text, "                }"]
        before = end
    return "\n".join(lines)


def _rounded(kernel: CudaKernel, target: CudaTarget, width: int, together: int) -> str:
    """The statements that round the tiles of a result, if the kernel does so.

    Args:
        kernel: the matmuls.
        target: the GPU, with the blocks of a segment.
        width: columns of a tile.
        together: tiles at a time.
    """
    if not isinstance(kernel, RoundedProduct):
        return ""
    nest, inside = kernel.nest_of_tiles(), replace(target, alone=True)
    # The warp that has a tile rounds it, an element for each thread, if it is that wide.
    apart = replace(inside, vector_accesses=False)
    by_warps = width == WARP == mapping_of(nest, apart).members
    made = nests.body(nest, apart if by_warps else inside)
    assert not made.arrays, f"{kernel.name} has no arrays"
    assert not made.dynamic, f"{kernel.name} has no temps"
    names = aliases(kernel.places[1])
    for stage in nest.stages:
        for store in stage.statements:
            if isinstance(store, Store):
                each, array = width if stage.axes else 1, f"joint{kernel.places[1][store.buffer]}"
                sent = f"ost::elements_of_tiles<{each}>({array}, first_tile, step)"
                names[store.buffer] = f"const auto b{store.buffer} = {sent};"
    return _ROUNDED.substitute(
        width=width,
        together=together,
        meet="__syncwarp" if by_warps else "OST_SYNC",
        active=f"(int)threadIdx.x / {WARP} < there" if by_warps else "true",
        aliases="\n".join(f"            {name}" for name in names),
        nest=made.text,
    )


def _scales(
    matmul: BlockwiseProduct, left: Left, held: Collection[int], frame: Frame
) -> tuple[str, list[SharedArray]]:
    """The statements that declare the scales of the left operand, and the array of their copies."""
    found = _held_scales(matmul, held)
    if found is not None:
        return f"    const float* const scales = b{found.argument} + {found.offset // 4};\n", []
    blocks = max_extent(matmul.blocks)
    text = _SCALES.substitute(
        blocks=blocks,
        threads=SEGMENT_BLOCK,
        element=frame.element(
            matmul.a_scale, FLOAT32, 2, {matmul.m: "m", matmul.blocks: "block"}, "value"
        ),
        wait="" if left.staged else "    OST_SYNC();\n",
    )
    size = max(1, max_extent(matmul.m)) * blocks
    return text, [SharedArray("float", 4, "row_scales", (size,))]


def _held_scales(matmul: BlockwiseProduct, held: Collection[int]) -> Rows | None:
    """The scales of the left operand, if they are in shared memory as the product reads them."""
    scale = matmul.a_scale
    if not isinstance(scale, Load) or scale.dtype != FLOAT32 or scale.buffer not in held:
        return None
    return rows_of(scale, matmul.m, matmul.blocks, 0)


def _multiply(matmul: Matmul, left: Left, stream: Stream, together: int) -> str:
    """The statements that multiply tiles."""
    rows, flags = max(1, max_extent(matmul.m)), {True: "true", False: "false"}
    wide = flags[stream.wide]
    if rows == 1 and left.shared and left.scalar.dtype in INTEGERS:
        row = (
            _row_of_codes(matmul, stream)
            if isinstance(matmul, BlockwiseProduct)
            else _row_of_bytes(matmul)
        )
        scales = "scales" if isinstance(matmul, BlockwiseProduct) else "nullptr"
        return _ALL_TILES.substitute(wide=wide, together=together, row=row, scales=scales)
    if _keeps_rows(matmul, left, stream):
        return _TILES_OF_ROWS.substitute(
            format=f"ost::{stored(matmul.b).dtype.name}_format",
            rows=rows,
            depth=max_extent(matmul.k[0]),
            together=together,
        )
    if isinstance(matmul, BlockwiseProduct):
        assert stream.columns == COLUMNS, f"{matmul.name} has its row in shared memory"
        given = f"ost::{stored(matmul.b_scale).dtype.name}_format, {matmul.group}, {rows}, {wide}"
        call = f"ost::multiply_codes<{given}>(ring, left, pitch, scales, (int)rows, (int)depth"
    else:
        whole = flags[max_extent(matmul.k[0]) * matmul.b.dtype.itemsize % PIECE == 0]
        format_, operand, depth = (
            f"ost::{stored(matmul.b).dtype.name}_format",
            "left, pitch",
            "depth",
        )
        if left.in_bytes:
            operand, depth = "(const unsigned short*)left, pitch / 2", "depth / 2"
            format_ = _byte_format(matmul)
        given = f"{format_}, {rows}, {whole}, {flags[left.shared]}, {wide}" + ", true" * left.polled
        call = f"ost::multiply_tile<{given}>(ring, {operand}, (int)rows, (int){depth}"
    staged = ", staged[0][0]" if left.passes else ""
    return _EACH_TILE.substitute(together=together, width=stream.width, call=call, staged=staged)


def _keeps_rows(matmul: Matmul, left: Left, stream: Stream) -> bool:
    """Whether warps keep the left operand of all tiles in registers."""
    depth = max_extent(matmul.k[0])
    return (
        matmul.b.dtype in (FLOAT16, BFLOAT16)
        and matmul.acc == FLOAT32
        and left.shared
        and max_extent(matmul.m) <= _KEPT_ROWS
        and depth * matmul.b.dtype.itemsize % PIECE == 0
        and depth <= _KEPT_DEPTH
        and not stream.wide
    )


def _row_of_bytes(matmul: Matmul) -> str:
    """The type of a lane's part of a row of bytes."""
    whole = "true" if max_extent(matmul.k[0]) % PIECE == 0 else "false"
    return f"ost::bytes_of_row<{_byte_format(matmul)}, {whole}>"


def _row_of_codes(matmul: BlockwiseProduct, stream: Stream) -> str:
    """The type of a lane's part of a row of bytes that codes multiply."""
    whole = "true" if max_extent(matmul.k[0]) % _LANE_CODES == 0 else "false"
    format_ = f"ost::{stored(matmul.b_scale).dtype.name}_format"
    return f"ost::bytes_by_codes<{format_}, {matmul.group}, {whole}, {stream.columns}>"


def _byte_format(matmul: Matmul) -> str:
    a, b = (stored(operand).dtype for operand in (matmul.a, matmul.b))
    if b in FLOAT8:
        return f"ost::float8_format<ost::{a.name}, ost::{b.name}>"
    signed = ("true" if dtype == INT8 else "false" for dtype in (a, b))
    return f"ost::byte_format<{', '.join(signed)}>"
