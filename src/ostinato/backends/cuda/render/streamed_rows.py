"""Rendering a matmul of a few rows whose right operand arrives through a ring in shared memory.

It is part of a segment: a warp of the block fetches 8 columns at a time, 2 KiB of each a stage,
ahead of those that multiply, whatever they wait for. Four warps divide a stage between them, so two
stages are multiplied at a time; the sums of all warps meet in shared memory and are added in order.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import VECTOR_BYTES, run_of
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import Frame, body_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.records import dataclass, replace
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.variables import Dim, Symbol

__all__ = ["COLUMNS", "SLOT_BYTES", "Stream", "body", "stream_of", "tiles"]

COLUMNS = 8
"""Columns of a tile."""

#: Bytes of a column in a stage, and from one column to the next: those of ``ost::ring``.
_PIECE, _PITCH = 2048, 2064

SLOT_BYTES = COLUMNS * _PITCH
"""Bytes of a slot of the ring."""

_WARPS = SEGMENT_BLOCK // WARP

#: Columns are multiples of these bytes: tensor cores take 16 elements of 16 bits at a time.
_GRAIN = 32

#: The most rows, those of a tensor core's tile.
_ROWS = 16

#: Bytes of the left operand that a block copies into shared memory, at most.
_LEFT_BYTES = 40 << 10

#: Elements behind a row of the left operand in shared memory, against bank conflicts.
_PADDING_BYTES = 16

_BODY = Template("""\
$left
    int turn = 0;
    for (long long tile = own.x; tile * $width < columns; tile += all.x) {
        const long long rest = columns - tile * $width;
        const int there = rest < $width ? (int)rest : $width;
        ost::multiply_tile<ost::${format}_format, $rows, $whole, $shared>(
            ring, left, pitch, (int)rows, (int)depth, there, parts[turn]
        );
        OST_SYNC();
        for (int i = threadIdx.x; i < $rows * $width; i += $threads) {
            const long long m = i / $width, n = tile * $width + i % $width;
            if (m < rows && n < columns) {
                float total = parts[turn][0][m][i % $width];
#pragma unroll
                for (int w = 1; w < $warps; w++)
                    total += parts[turn][w][m][i % $width];
$store
            }
        }
        turn ^= 1;
    }
""")

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
    const $type* const left = b$buffer + place;""")


@dataclass(frozen=True)
class Stream:
    """The right operand of a matmul as rows in memory.

    Attributes:
        argument: its position among the arguments.
        offset: bytes before the first row.
        rows: the matmul's columns.
        nbytes: of a row.
    """

    argument: int
    offset: int
    rows: int
    nbytes: int


def stream_of(matmul: Matmul) -> Stream | None:
    """The right operand as rows, if a ring can bring them."""
    b, a = matmul.b, matmul.a
    if matmul.batch or len(matmul.k) != 1 or max_extent(matmul.m) > _ROWS:
        return None
    if not isinstance(b, Load) or b.bindings or b.dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        return None
    columns, depth = extent_of(matmul.n), extent_of(matmul.k[0])
    if not isinstance(columns, int) or not isinstance(depth, int) or not columns * depth:
        return None
    row = depth * b.dtype.itemsize
    offset = _rest(b.index, {matmul.n: depth, matmul.k[0]: 1})
    if offset is None or row % _GRAIN or offset * b.dtype.itemsize % VECTOR_BYTES:
        return None
    if matmul.acc != FLOAT32 or a.dtype != b.dtype or _left_of(matmul) is None:
        return None
    return Stream(b.buffer, offset * b.dtype.itemsize, columns, row)


def tiles(matmul: Matmul) -> int:
    """Tiles of columns."""
    return -(-max_extent(matmul.n) // COLUMNS)


def body(matmul: Matmul, held: Collection[int] = ()) -> Body:
    """The code of a matmul, whose right operand is :func:`stream_of`.

    Args:
        matmul: the kernel.
        held: the arguments that are in shared memory as it is.
    """
    dtype, rows = matmul.b.dtype, max(1, max_extent(matmul.m))
    frame, names = Frame(matmul, (matmul.a,), matmul.stores), {matmul.m: "m", matmul.n: "n"}
    left = _left_of(matmul, held)
    assert left is not None
    text = _BODY.substitute(
        left=left.text(frame),
        width=COLUMNS,
        format=dtype.name,
        whole="false" if max_extent(matmul.k[0]) * dtype.itemsize % _PIECE else "true",
        shared="true" if left.shared else "false",
        rows=rows,
        threads=SEGMENT_BLOCK,
        warps=_WARPS,
        store=frame.stores(matmul.stores, matmul.acc, 4, names, "total"),
    )
    parts = SharedArray("float", 4, "parts", (2, _WARPS, rows, COLUMNS + 1))
    arrays = (parts, *left.arrays)
    made = body_of(matmul, text, matmul_sizes(matmul), SEGMENT_BLOCK, arrays=arrays)
    includes = f'{made.includes}#include "rings.cuh"\n'
    return replace(made, includes=includes, streams=True)


@dataclass(frozen=True)
class _Left:
    """The way to the left operand.

    Attributes:
        matmul: the matmul.
        pitch: elements from one row to the next; where it is read in place.
        staged: whether a block copies it into shared memory.
        held: whether it is there already.
    """

    matmul: Matmul
    pitch: int
    staged: bool
    held: bool = False

    @property
    def shared(self) -> bool:
        """Whether it is read from shared memory."""
        return self.staged or self.held

    @property
    def type(self) -> str:
        return "float" if self.matmul.a.dtype == FLOAT32 else "unsigned short"

    @property
    def arrays(self) -> tuple[SharedArray, ...]:
        """The copy."""
        if not self.staged:
            return ()
        itemsize = self.matmul.a.dtype.itemsize
        size = max(1, max_extent(self.matmul.m)) * self.pitch
        return (SharedArray(self.type, itemsize, "row_elements", (size,)),)

    def text(self, frame: Frame) -> str:
        """Declarations of ``left``, its first element, and of ``pitch``."""
        matmul, a = self.matmul, self.matmul.a
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


def _left_of(matmul: Matmul, held: Collection[int] = ()) -> _Left | None:
    """The way to the left operand, if there is one."""
    a, depth = matmul.a, max_extent(matmul.k[0])
    if isinstance(a, Load) and a.buffer in held and max_extent(matmul.m) == 1:
        run = run_of(a, matmul.k[0], depth)
        if run is not None and run.load is a and run.count * a.dtype.itemsize == VECTOR_BYTES:
            return _Left(matmul, depth, staged=False, held=True)
    padded = depth + _PADDING_BYTES // a.dtype.itemsize
    if max_extent(matmul.m) * padded * a.dtype.itemsize <= _LEFT_BYTES:
        return _Left(matmul, padded, staged=True)
    if not isinstance(a, Load) or a.bindings:
        return None
    run = run_of(a, matmul.k[0], depth)
    if run is None or run.load is not a or run.count * a.dtype.itemsize != VECTOR_BYTES:
        return None
    rest = _rest(a.index, {matmul.m: depth, matmul.k[0]: 1})
    return None if rest is None else _Left(matmul, depth, staged=False)


def _rest(index: Dim, factors: Mapping[Symbol, int]) -> int | None:
    """The constant by which ``index`` differs from the sum of symbols times their factors."""
    for symbol, factor in factors.items():
        found = coefficient(index, symbol)
        if found is None or (found[0] != factor and max_extent(symbol) > 1):
            return None
        index = found[1]
    return index if isinstance(index, int) else None
