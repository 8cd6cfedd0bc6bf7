"""Rendering a matmul of a few rows whose right operand arrives through a ring in shared memory.

It is part of a segment: a warp of the block fetches 8 columns at a time, 2 KiB of each a stage,
ahead of those that multiply, whatever they wait for. Four warps divide a stage between them, so two
stages are multiplied at a time; the sums of all warps meet in shared memory and are added in order.
Codes of half a byte come 1 KiB at a time, with the scales of their blocks behind them.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue
from ostinato.backends.common.clike.vectors import VECTOR_BYTES, run_of
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.backends.cuda.rules.product import BlockwiseProduct
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, INT8, INT32, UINT8
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Apply, Guard, Load, extent_of, max_extent
from ostinato.records import dataclass, replace
from ostinato.variables import coefficient, symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim, Symbol

__all__ = [
    "MOST_PADDING",
    "Rows",
    "Stream",
    "body",
    "elements",
    "padded_row",
    "reads_by_stages",
    "stream_of",
    "tiles",
]

_WARPS = SEGMENT_BLOCK // WARP

#: Groups of warps, which read a stage each: those of ``ost::ring``.
_GROUPS = 2

#: Rows of memory of a stage: columns of the matmul.
_COLUMNS = 8

#: Bytes of a column in a stage, and from one column to the next: those of ``ost::ring``.
_PIECE, _PITCH = 2048, 2064

#: The same of a column of codes, without its scales; that of ``ost::stage_codes``.
_CODE_PIECE = 1024

#: Elements of 16 bits from row to row of what a warp has of the left operand in a stage: those of
#: ``ost::left_part``.
_PART_PITCH = _PIECE // 2 * _GROUPS // _WARPS + 8

#: Codes with a scale of their own, at most: a warp takes so many at a time.
_MOST_BLOCK = 128

#: Codes of a stage that a lane of ``ost::bytes_by_codes`` has.
_LANE_CODES = 128


#: Tiles whose sums are added up together, at most, and the bytes that these may have.
_MOST_TOGETHER, _PART_BYTES = 8, 4 << 10

#: Bytes of the shortest copy into shared memory.
_WORD = 4

#: Columns are multiples of these bytes: tensor cores take 16 elements of 16 bits at a time.
_GRAIN = 32

#: The dtypes of weights and of scales, those of weights whose sums are integers, and all of a byte.
_FLOATS, _INTEGERS = (FLOAT32, FLOAT16, BFLOAT16), (INT8, UINT8)
_BYTES = (*_INTEGERS, *FLOAT8)

#: The most rows, those of a tensor core's tile.
_ROWS = 16

#: Rows of the left operand that warps keep in registers, and elements of each, at most.
_KEPT_ROWS, _KEPT_DEPTH = 8, 4096

#: Stages of a column from which on the left operand is awaited stage by stage.
_FEW_STAGES = 2 * _GROUPS

#: Bytes of the left operand that a block copies into shared memory, at most.
_LEFT_BYTES = 40 << 10

#: Bytes behind a row of the left operand in shared memory, against bank conflicts.
_PADDING_BYTES = 16

MOST_PADDING = _ROWS * _PADDING_BYTES
"""Bytes behind all rows of a left operand, at most."""

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
        turn ^= 1;
    }
""")

#: Elements that stores read for each column, on their way while tiles are multiplied.
_EARLY = Template("""\
$elements {
            const int column = (first + i / $width * all.x) * $width + i % $width;
            if (column < (int)columns) {
                const long long n = column;
$copies
            }
        }
        ost::copy_commit();
""")

#: The products of tiles, one after the other, or all at once.
_EACH_TILE = Template("""\
#pragma unroll 1
        for (int t = 0; t < $together; t++) {
            const int rest = (int)columns - (first + t * (int)all.x) * $width;
            if (rest <= 0) break;
            const int there = min(rest, $width);
            $call, there, parts[turn][t]$staged);
        }""")
_ALL_TILES = Template("""\
        ost::multiply_row<$row, $wide, $together>(
            ring, left, $scales, (int)depth, first, all.x, (int)columns, parts[turn]
        );""")

_TILES_OF_ROWS = Template("""\
        ost::multiply_tiles_of_rows<$format, $rows, $depth, $together>(
            ring, left, pitch, (int)rows, (int)first, (int)all.x, (int)columns, parts[turn]
        );""")

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

#: The left operand in shared memory, by elements or by vectors, or where it is.
_BY_ELEMENT = Template("""\
    const long long pitch = $depth + $padding;
    for (int i = threadIdx.x; i < (int)rows * $depth; i += $threads) {
        const long long m = i / $depth, k = i % $depth;
        $register value;
$element
        row_elements[m * pitch + k] = $stored;
    }
    const $type* const left = row_elements;
    OST_SYNC();""")
_BY_VECTOR = Template("""\
    const long long pitch = $depth + $padding;
    for (int i = threadIdx.x * $count; i < (int)rows * $depth; i += $threads * $count) {
        const long long m = i / $depth, k = i % $depth;
$place
        *(ost::vector<$type, $count>*)(row_elements + m * pitch + k) =
            *(const ost::vector<$type, $count>*)(b$buffer + place);
    }
    const $type* const left = row_elements;
    OST_SYNC();""")
_IN_PLACE = Template("""\
    const long long pitch = $pitch;
    const long long m = 0, k = 0;
$place
    const auto left = b$buffer + place;""")


@dataclass(frozen=True)
class Rows:
    """An operand of a matmul as rows in memory.

    Attributes:
        argument: its position among the arguments.
        offset: bytes before the first row.
        nbytes: of a row.
        piece: bytes of a row in a stage, at most.
    """

    argument: int
    offset: int
    nbytes: int
    piece: int


@dataclass(frozen=True)
class Stream:
    """The right operand of a matmul as rows in memory.

    Attributes:
        rows: the matmul's columns.
        weights: their elements, or codes.
        scales: those of blocks of codes.
        width: columns of a tile: those of a stage, or, where that has all of them, of all stages
            that are read at a time.
    """

    rows: int
    weights: Rows
    scales: Rows | None
    width: int

    @property
    def pitch(self) -> int:
        """Bytes from a column to the next one in a stage; those of codes as in ``code_pitch``."""
        if self.scales is None:
            return _PITCH
        return self.weights.piece + (self.scales.piece // 32 * 2 + 1) * 16

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring."""
        return _COLUMNS * self.pitch

    @property
    def arguments(self) -> list[int]:
        """The arguments that are fetched."""
        return [rows.argument for rows in (self.weights, self.scales) if rows is not None]


def stream_of(matmul: Matmul) -> Stream | None:
    """The right operand as rows, if a ring can bring them."""
    if matmul.batch or len(matmul.k) != 1 or max_extent(matmul.m) > _ROWS:
        return None
    columns, depth = extent_of(matmul.n), extent_of(matmul.k[0])
    if not isinstance(columns, int) or not isinstance(depth, int) or not columns * depth:
        return None
    scales: Rows | None = None
    if isinstance(matmul, BlockwiseProduct):
        if matmul.group > _MOST_BLOCK or _stored(matmul.a).dtype != INT8:
            return None
        weights = _rows_of(matmul.b, matmul.n, matmul.pairs, _CODE_PIECE)
        pieces = 2 * _CODE_PIECE // matmul.group * _stored(matmul.b_scale).dtype.itemsize
        scales = _rows_of(matmul.b_scale, matmul.n, matmul.blocks, pieces)
        if scales is None or _stored(matmul.b_scale).dtype not in _FLOATS:
            return None
    else:
        weights = _rows_of(matmul.b, matmul.n, matmul.k[0], _PIECE)
        if weights is None or weights.nbytes % _GRAIN or not _multiplies(matmul):
            return None
    if weights is None or _left_of(matmul) is None:
        return None
    wide = weights.nbytes <= weights.piece and matmul.b.dtype != FLOAT32
    return Stream(columns, weights, scales, _COLUMNS * _GROUPS if wide else _COLUMNS)


def _multiplies(matmul: Matmul) -> bool:
    """Whether there is code for the operands' dtypes."""
    a, b = _stored(matmul.a).dtype, _stored(matmul.b).dtype
    if matmul.acc == INT32:
        return a in _INTEGERS and b in _INTEGERS
    if a in FLOAT8 and b in FLOAT8:
        return True
    return matmul.acc == FLOAT32 and matmul.a.dtype == matmul.b.dtype == b and b in _FLOATS


def _rows_of(scalar: Scalar, row: Symbol, column: Symbol, piece: int) -> Rows | None:
    """An operand as rows, if it is one in memory, perhaps converted."""
    load = _stored(scalar)
    length = extent_of(column)
    if not isinstance(load, Load) or load.bindings or not isinstance(length, int):
        return None
    offset, itemsize = _rest(load.index, {row: length, column: 1}), load.dtype.itemsize
    nbytes = length * itemsize
    if offset is None or nbytes % VECTOR_BYTES or offset * itemsize % VECTOR_BYTES:
        return None
    return Rows(load.buffer, offset * itemsize, nbytes, piece)


def _stored(scalar: Scalar) -> Scalar:
    """An operand as it is in memory, before any conversion."""
    while isinstance(scalar, Apply) and scalar.op == "cast":
        (scalar,) = scalar.operands
    return scalar


def tiles(matmul: Matmul) -> int:
    """Tiles of columns."""
    stream = stream_of(matmul)
    assert stream is not None
    return -(-stream.rows // stream.width)


def padded_row(matmul: Matmul, argument: int) -> int:
    """The elements of a row of an argument that is the left operand; 0: it is not, or has one row.

    Such rows may be 16 bytes further apart in shared memory than they are long.
    """
    a, depth = _Left(matmul, 0, staged=False).scalar, max_extent(matmul.k[0])
    if max_extent(matmul.m) == 1 or not isinstance(a, Load) or a.buffer != argument:
        return 0
    whole = _is_whole(a, matmul) and _rest(a.index, {matmul.m: depth, matmul.k[0]: 1}) == 0
    return depth if whole else 0


def reads_by_stages(matmul: Matmul, argument: int) -> bool:
    """Whether warps may wait for the left operand stage by stage: an argument in packets.

    That is worth it where there are many stages: the last ones are what there is to wait for.
    """
    stream, a = stream_of(matmul), matmul.a
    if stream is None or isinstance(matmul, BlockwiseProduct) or stream.width > _COLUMNS:
        return False
    if not isinstance(a, Load) or a.buffer != argument or a.bindings or a.dtype == FLOAT32:
        return False
    depth = max_extent(matmul.k[0])
    many = depth * a.dtype.itemsize >= _FEW_STAGES * _PIECE
    return many and _is_whole(a, matmul) and _rest(a.index, {matmul.m: depth, matmul.k[0]: 1}) == 0


def elements(matmul: Matmul, argument: int) -> int:
    """The elements of an argument that :func:`reads_by_stages`; 0: it does not."""
    if not reads_by_stages(matmul, argument):
        return 0
    return max_extent(matmul.m) * max_extent(matmul.k[0])


def _is_whole(a: Load, matmul: Matmul) -> bool:
    """Whether the left operand is vectors of 16 bytes."""
    run = run_of(a, matmul.k[0], max_extent(matmul.k[0]))
    return run is not None and run.load is a and run.count * a.dtype.itemsize == VECTOR_BYTES


def body(
    matmul: Matmul,
    held: Collection[int] = (),
    padded: Collection[int] = (),
    polled: Collection[int] = (),
) -> Body:
    """The code of a matmul, whose right operand is :func:`stream_of`.

    Args:
        matmul: the kernel.
        held: the arguments that are in shared memory as it is.
        padded: those whose rows are apart there, as :func:`padded_row` says.
        polled: those whose elements are waited for where they are read.
    """
    rows, acc = max(1, max_extent(matmul.m)), matmul.acc
    stream, left = stream_of(matmul), _left_of(matmul, held, padded, polled)
    assert stream is not None
    assert left is not None
    arrays, wide = list(left.arrays), stream.width > _COLUMNS
    operands = left.scalar, *((matmul.a_scale,) if isinstance(matmul, BlockwiseProduct) else ())
    frame, names = Frame(matmul, operands, matmul.stores), {matmul.m: "m", matmul.n: "n"}
    before = ""
    if isinstance(matmul, BlockwiseProduct):
        rows_of_scales = _held_scales(matmul, held)
        if rows_of_scales is None:
            blocks = max_extent(matmul.blocks)
            arrays.append(SharedArray("float", 4, "row_scales", (rows * blocks,)))
            at = {matmul.m: "m", matmul.blocks: "block"}
            before = _SCALES.substitute(
                blocks=blocks,
                threads=SEGMENT_BLOCK,
                element=frame.element(matmul.a_scale, FLOAT32, 2, at, "value"),
                wait="" if left.staged else "    OST_SYNC();\n",
            )
        else:
            start = f"b{rows_of_scales.argument} + {rows_of_scales.offset // 4}"
            before = f"    const float* const scales = {start};\n"
    tile = (_WARPS // _GROUPS if wide else _WARPS, rows, stream.width + 1)
    together = max(1, min(_MOST_TOGETHER, _PART_BYTES // (4 * math.prod(tile))))
    early = _early_loads(matmul, {*held, *polled})
    point = frame.point(4, names)
    for number, load in enumerate(early):
        dialect = CudaDialect()
        place = f"early{number}[turn][t * {stream.width} + i % {stream.width}]"
        element = dialect.from_memory(place, load.dtype)
        point.scope.values[id(load)] = point.scalars.code.keep(load.dtype, element)
        stored, room = dialect.memory_type(load.dtype), (2, together * stream.width)
        arrays.append(SharedArray(stored, load.dtype.itemsize, f"early{number}", room))
    for store in matmul.stores:
        point.store(store, CValue(point.scalars.code, "total", acc))
    text = _BODY.substitute(
        together=together,
        left=f"{before}{left.text(frame)}",
        early=_copies(frame, early, matmul, together, stream.width),
        arrived="        ost::copy_wait<0>();\n" if early else "",
        multiply=_multiply(matmul, left, stream, together),
        width=stream.width,
        rows=rows,
        warps=tile[0],
        register="int" if acc == INT32 else "float",
        store=point.text,
        sums=_each(together * rows * stream.width),
    )
    type_ = "unsigned" if acc == INT32 else "float"
    sizes = (2, together, *tile)
    parts = SharedArray(type_, 4, "parts", sizes)
    made = body_of(matmul, text, matmul_sizes(matmul), SEGMENT_BLOCK, arrays=(parts, *arrays))
    formats = '#include "float8.cuh"\n' if _stored(matmul.b).dtype in FLOAT8 else ""
    includes = f'{made.includes}{formats}#include "rings.cuh"\n'
    return replace(made, includes=includes, streams=True)


def _early_loads(matmul: Matmul, others: Collection[int]) -> list[Load]:
    """The loads of stores that read an element for each column, the same for all rows.

    They come from memory, or from the cache of all multiprocessors: too far to wait for.

    Args:
        matmul: the kernel.
        others: the arguments that are elsewhere, or may not be there yet.
    """
    scalars = list(reached([root for store in matmul.stores for root in roots(store)]))
    if any(isinstance(s, Guard) for s in scalars) or any(s.conditions for s in matmul.stores):
        return []
    found = []
    for load in scalars:
        if not isinstance(load, Load) or load.bindings or load.buffer in others:
            continue
        if max_extent(matmul.m) > 1 and matmul.m in symbols(load.index):
            continue
        offset = _rest(load.index, {matmul.n: 1, matmul.m: 0})
        per_word = _WORD // load.dtype.itemsize
        if (
            load.dtype in (FLOAT32, INT32, FLOAT16, BFLOAT16)
            and offset is not None
            and offset % per_word == max_extent(matmul.n) % per_word == 0
            and not matmul.args[load.buffer].writes
        ):
            found.append(load)
    return found


def _copies(frame: Frame, early: list[Load], matmul: Matmul, together: int, width: int) -> str:
    """The statements that start the copies of what stores read."""
    if not early:
        return ""
    point = frame.point(4, {matmul.m: "0LL", matmul.n: "n"})
    for number, load in enumerate(early):
        copy = f"ost::copy_word(early{number}[turn] + i, b{load.buffer} + "
        first = "if (i % 2 == 0) " if load.dtype.itemsize < _WORD else ""
        point.writer.line(f"{first}{copy}{point.index(load.index)});")
    return _EARLY.substitute(elements=_each(together * width), width=width, copies=point.text)


def _each(count: int) -> str:
    """The head of statements that threads run for numbers below a count.

    A loop is not unrolled, and a single iteration is none: a block runs the code but a few times,
    and waits for its instructions.
    """
    if count <= SEGMENT_BLOCK:
        return f"        if (const int i = threadIdx.x; i < {count})"
    start = f"        for (int i = threadIdx.x; i < {count}; i += {SEGMENT_BLOCK})"
    return f"#pragma unroll 1\n{start}"


def _held_scales(matmul: BlockwiseProduct, held: Collection[int]) -> Rows | None:
    """The scales of the left operand, if they are in shared memory as the product reads them."""
    scale = matmul.a_scale
    if not isinstance(scale, Load) or scale.dtype != FLOAT32 or scale.buffer not in held:
        return None
    return _rows_of(scale, matmul.m, matmul.blocks, 0)


def _multiply(matmul: Matmul, left: _Left, stream: Stream, together: int) -> str:
    """The statements that multiply tiles."""
    rows, flags = max(1, max_extent(matmul.m)), {True: "true", False: "false"}
    wide = flags[stream.width > _COLUMNS]
    if rows == 1 and left.shared and left.scalar.dtype in _INTEGERS:
        row = (
            _row_of_codes(matmul) if isinstance(matmul, BlockwiseProduct) else _row_of_bytes(matmul)
        )
        scales = "scales" if isinstance(matmul, BlockwiseProduct) else "nullptr"
        return _ALL_TILES.substitute(wide=wide, together=together, row=row, scales=scales)
    if _keeps_rows(matmul, left, stream):
        return _TILES_OF_ROWS.substitute(
            format=f"ost::{_stored(matmul.b).dtype.name}_format",
            rows=rows,
            depth=max_extent(matmul.k[0]),
            together=together,
        )
    if isinstance(matmul, BlockwiseProduct):
        given = f"ost::{_stored(matmul.b_scale).dtype.name}_format, {matmul.group}, {rows}, {wide}"
        call = f"ost::multiply_codes<{given}>(ring, left, pitch, scales, (int)rows, (int)depth"
    else:
        whole = flags[max_extent(matmul.k[0]) * matmul.b.dtype.itemsize % _PIECE == 0]
        format_, operand, depth = (
            f"ost::{_stored(matmul.b).dtype.name}_format",
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


def _keeps_rows(matmul: Matmul, left: _Left, stream: Stream) -> bool:
    """Whether warps keep the left operand of all tiles in registers."""
    depth = max_extent(matmul.k[0])
    return (
        matmul.b.dtype in (FLOAT16, BFLOAT16)
        and matmul.acc == FLOAT32
        and left.shared
        and max_extent(matmul.m) <= _KEPT_ROWS
        and depth * matmul.b.dtype.itemsize % _PIECE == 0
        and depth <= _KEPT_DEPTH
        and stream.width == _COLUMNS
    )


def _row_of_bytes(matmul: Matmul) -> str:
    """The type of a lane's part of a row of bytes."""
    whole = "true" if max_extent(matmul.k[0]) % _PIECE == 0 else "false"
    return f"ost::bytes_of_row<{_byte_format(matmul)}, {whole}>"


def _row_of_codes(matmul: BlockwiseProduct) -> str:
    """The type of a lane's part of a row of bytes that codes multiply."""
    whole = "true" if max_extent(matmul.k[0]) % _LANE_CODES == 0 else "false"
    format_ = f"ost::{_stored(matmul.b_scale).dtype.name}_format"
    return f"ost::bytes_by_codes<{format_}, {matmul.group}, {whole}>"


def _byte_format(matmul: Matmul) -> str:
    a, b = (_stored(operand).dtype for operand in (matmul.a, matmul.b))
    if b in FLOAT8:
        return f"ost::float8_format<ost::{a.name}, ost::{b.name}>"
    signed = ("true" if dtype == INT8 else "false" for dtype in (a, b))
    return f"ost::byte_format<{', '.join(signed)}>"


@dataclass(frozen=True)
class _Left:
    """The way to the left operand.

    Attributes:
        matmul: the matmul.
        pitch: elements from one row to the next; where it is read in place.
        staged: whether a block copies it into shared memory.
        held: whether it is there already.
        polled: whether its elements are waited for where they are read.
    """

    matmul: Matmul
    pitch: int
    staged: bool
    held: bool = False
    polled: bool = False

    @property
    def shared(self) -> bool:
        """Whether it is read from shared memory."""
        return self.staged or self.held

    @property
    def scalar(self) -> Scalar:
        """An element: bytes as they are in memory."""
        stored = _stored(self.matmul.a)
        return stored if stored.dtype in _BYTES else self.matmul.a

    @property
    def in_bytes(self) -> bool:
        """Whether its elements are bytes."""
        return self.scalar.dtype in _BYTES

    @property
    def type(self) -> str:
        return CudaDialect().memory_type(self.scalar.dtype)

    @property
    def passes(self) -> bool:
        """Whether warps bring it into shared memory stage by stage."""
        whole = self.shared or isinstance(self.matmul, BlockwiseProduct)
        return not whole and self.matmul.a.dtype != FLOAT32

    @property
    def arrays(self) -> tuple[SharedArray, ...]:
        """The copy, or those of the parts that warps have of a stage."""
        if self.passes:
            sizes = (_WARPS, max(1, max_extent(self.matmul.m)), _PART_PITCH)
            return (SharedArray("unsigned short", 2, "staged", sizes),)
        if not self.staged:
            return ()
        itemsize = self.scalar.dtype.itemsize
        size = max(1, max_extent(self.matmul.m)) * self.pitch
        return (SharedArray(self.type, itemsize, "row_elements", (size,)),)

    def text(self, frame: Frame) -> str:
        """Declarations of ``left``, its first element, and of ``pitch``."""
        matmul, a = self.matmul, self.scalar
        names = {matmul.m: "m", matmul.k[0]: "k"}
        depth = max_extent(matmul.k[0])
        run = run_of(a, matmul.k[0], depth)
        given: dict[str, object] = {
            "type": self.type,
            "threads": SEGMENT_BLOCK,
            "depth": depth,
            "padding": _PADDING_BYTES // a.dtype.itemsize,
            "pitch": self.pitch,
        }
        whole = run is not None and run.load is a and run.count * a.dtype.itemsize == VECTOR_BYTES
        if run is not None and (whole or not self.staged):
            point = frame.point(2 if self.staged else 1, names)
            point.writer.line(f"const long long place = {point.index(run.load.index)};")
            template = _BY_VECTOR if self.staged else _IN_PLACE
            return template.substitute(
                given, place=point.text, buffer=run.load.buffer, count=run.count
            )
        point = frame.point(2, names)
        stored = point.scalars.code.dialect.to_memory("value", a.dtype)
        register = point.scalars.code.dialect.register_type(a.dtype)
        element = frame.element(a, a.dtype, 2, names, "value")
        return _BY_ELEMENT.substitute(given, element=element, register=register, stored=stored)


def _left_of(
    matmul: Matmul,
    held: Collection[int] = (),
    padded: Collection[int] = (),
    polled: Collection[int] = (),
) -> _Left | None:
    """The way to the left operand, if there is one."""
    depth = max_extent(matmul.k[0])
    a = _Left(matmul, depth, staged=False).scalar
    pitch = depth + _PADDING_BYTES // a.dtype.itemsize
    if isinstance(a, Load) and a.buffer in held and _is_whole(a, matmul):
        if a.buffer in padded:
            return _Left(matmul, pitch, staged=False, held=True)
        if max_extent(matmul.m) == 1:
            return _Left(matmul, depth, staged=False, held=True)
    apart = isinstance(a, Load) and a.buffer in polled
    if not apart and max_extent(matmul.m) * pitch * a.dtype.itemsize <= _LEFT_BYTES:
        return _Left(matmul, pitch, staged=True)
    if not isinstance(a, Load) or a.bindings or not _is_whole(a, matmul):
        return None
    rest = _rest(a.index, {matmul.m: depth, matmul.k[0]: 1})
    return None if rest is None else _Left(matmul, depth, staged=False, polled=apart)


def _rest(index: Dim, factors: Mapping[Symbol, int]) -> int | None:
    """The constant by which ``index`` differs from the sum of symbols times their factors."""
    for symbol, factor in factors.items():
        found = coefficient(index, symbol)
        if found is None or (found[0] != factor and max_extent(symbol) > 1):
            return None
        index = found[1]
    return index if isinstance(index, int) else None
