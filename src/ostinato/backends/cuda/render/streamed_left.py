"""The left operand of a matmul whose right one arrives through a ring: where threads read it."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import VECTOR_BYTES, run_of
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.ring_stages import GROUPS, MOST_ROWS, PIECE, WARPS
from ostinato.backends.cuda.render.row_operands import BYTES, offset_of, stored
from ostinato.backends.cuda.rules.product import BlockwiseProduct
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import Load, max_extent
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.lower.loopir.nodes import Scalar

__all__ = ["MOST_PADDING", "Left", "is_whole", "left_of", "padded_row"]

#: Elements of 16 bits from row to row of what a warp has of the left operand in a stage: those of
#: ``ost::left_part``.
_PART_PITCH = PIECE // 2 * GROUPS // WARPS + 8

#: Bytes of the left operand that a block copies into shared memory, at most.
_LEFT_BYTES = 40 << 10

#: Bytes behind a row of the left operand in shared memory, against bank conflicts.
_PADDING_BYTES = 16

MOST_PADDING = MOST_ROWS * _PADDING_BYTES
"""Bytes behind all rows of a left operand, at most."""

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
class Left:
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
        unconverted = stored(self.matmul.a)
        return unconverted if unconverted.dtype in BYTES else self.matmul.a

    @property
    def in_bytes(self) -> bool:
        """Whether its elements are bytes."""
        return self.scalar.dtype in BYTES

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
            sizes = (WARPS, max(1, max_extent(self.matmul.m)), _PART_PITCH)
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
        narrowed = point.scalars.code.dialect.to_memory("value", a.dtype)
        register = point.scalars.code.dialect.register_type(a.dtype)
        element = frame.element(a, a.dtype, 2, names, "value")
        return _BY_ELEMENT.substitute(given, element=element, register=register, stored=narrowed)


def left_of(
    matmul: Matmul,
    held: Collection[int] = (),
    padded: Collection[int] = (),
    polled: Collection[int] = (),
) -> Left | None:
    """The way to the left operand, if there is one."""
    depth = max_extent(matmul.k[0])
    a = Left(matmul, depth, staged=False).scalar
    pitch = depth + _PADDING_BYTES // a.dtype.itemsize
    if isinstance(a, Load) and a.buffer in held and is_whole(a, matmul):
        if a.buffer in padded:
            return Left(matmul, pitch, staged=False, held=True)
        if max_extent(matmul.m) == 1:
            return Left(matmul, depth, staged=False, held=True)
    apart = isinstance(a, Load) and a.buffer in polled
    if not apart and max_extent(matmul.m) * pitch * a.dtype.itemsize <= _LEFT_BYTES:
        return Left(matmul, pitch, staged=True)
    if not isinstance(a, Load) or a.bindings or not is_whole(a, matmul):
        return None
    rest = offset_of(a.index, {matmul.m: depth, matmul.k[0]: 1})
    return None if rest is None else Left(matmul, depth, staged=False, polled=apart)


def padded_row(matmul: Matmul, argument: int) -> int:
    """The elements of a row of an argument that is the left operand; 0: it is not, or has one row.

    Such rows may be 16 bytes further apart in shared memory than they are long.
    """
    a, depth = Left(matmul, 0, staged=False).scalar, max_extent(matmul.k[0])
    if max_extent(matmul.m) == 1 or not isinstance(a, Load) or a.buffer != argument:
        return 0
    whole = is_whole(a, matmul) and offset_of(a.index, {matmul.m: depth, matmul.k[0]: 1}) == 0
    return depth if whole else 0


def is_whole(a: Load, matmul: Matmul) -> bool:
    """Whether the left operand is vectors of 16 bytes."""
    run = run_of(a, matmul.k[0], max_extent(matmul.k[0]))
    return run is not None and run.load is a and run.count * a.dtype.itemsize == VECTOR_BYTES
