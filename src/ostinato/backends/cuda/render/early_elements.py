"""Elements that stores of a matmul read, copied into shared memory while tiles are multiplied."""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame
from ostinato.backends.cuda.render.row_operands import offset_of
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Guard, Load, max_extent
from ostinato.records import dataclass
from ostinato.variables import coefficient, symbols

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.backends.cuda.render.frame import Point
    from ostinato.backends.cuda.rules.product import Matmul

__all__ = ["EarlyElements", "each"]

#: Bytes of the shortest copy into shared memory.
_WORD = 4

#: Starts copies of the elements of some rows, by tile, row and column.
_COPIES = Template("""\
$elements {
            const int row = i / $width % $rows;
            const int column = (first + i / ($rows * $width) * all.x) * $width + i % $width;
            if (row < (int)rows && column < (int)columns) {
                [[maybe_unused]] const long long m = row, n = column;
$copies
            }
        }
""")


@dataclass(frozen=True)
class _EarlyLoad:
    """Elements that a store reads.

    Attributes:
        load: of them.
        rows: all, of which each has its own; or one, whose elements are those of all rows.
        polled: whether they come in packets.
    """

    load: Load
    rows: int
    polled: bool


class EarlyElements:
    """The elements that stores of a matmul read of global memory, which is too far to wait for.

    Packets of other blocks may not be there yet: those are waited for where they are used.

    Args:
        matmul: the kernel.
        held: the arguments that are in shared memory.
        polled: those that come in packets.
        tiles: whose sums are added up together.
        width: columns of a tile.
    """

    def __init__(
        self,
        matmul: Matmul,
        held: Collection[int],
        polled: Collection[int],
        tiles: int,
        width: int,
    ) -> None:
        self._matmul = matmul
        self._tiles = tiles
        self._width = width
        self._found = _early_loads(matmul, held, polled)

    @property
    def arrays(self) -> list[SharedArray]:
        """The copies: those of some tiles while the ones before are read."""
        dialect, arrays = CudaDialect(), []
        for number, found in enumerate(self._found):
            dtype, sizes = found.load.dtype, (2, self._tiles * found.rows * self._width)
            type_ = dialect.memory_type(dtype)
            arrays.append(SharedArray(type_, dtype.itemsize, f"early{number}", sizes))
        return arrays

    @property
    def copies(self) -> str:
        """The statements that start the copies."""
        frame, texts = Frame(self._matmul, (), self._matmul.stores), []
        for rows in dict.fromkeys(found.rows for found in self._found):
            point = frame.point(4, {self._matmul.m: "m", self._matmul.n: "n"})
            for number, found in enumerate(self._found):
                if found.rows == rows:
                    source = f"b{found.load.buffer}" + ".packets" * found.polled
                    what = "packets" if found.polled else "word"
                    copy = f"ost::copy_{what}(early{number}[turn] + i, {source} + "
                    first = "if (i % 2 == 0) " if found.load.dtype.itemsize < _WORD else ""
                    point.writer.line(f"{first}{copy}{point.index(found.load.index)});")
            elements = each(self._tiles * rows * self._width)
            texts.append(
                _COPIES.substitute(
                    elements=elements, rows=rows, width=self._width, copies=point.text
                )
            )
        return "".join([*texts, "        ost::copy_commit();\n"]) if texts else ""

    @property
    def wait(self) -> str:
        """The statements behind which a thread's copies are there."""
        return "        ost::copy_wait<0>();\n" if self._found else ""

    def read(self, point: Point) -> None:
        """Let the elements of a sum, whose number among those of all tiles is ``i``, be known.

        Args:
            point: where the sum is stored.
        """
        dialect = CudaDialect()
        for number, found in enumerate(self._found):
            load, place = found.load, "i"
            if found.rows == 1:
                place = f"t * {self._width} + i % {self._width}"
            element = f"early{number}[turn][{place}]"
            if found.polled:
                element = f"ost::settled({element}, b{load.buffer}, {point.index(load.index)})"
            value = dialect.from_memory(element, load.dtype)
            point.scope.values[id(load)] = point.scalars.code.keep(load.dtype, value)


def _early_loads(
    matmul: Matmul, held: Collection[int], polled: Collection[int]
) -> list[_EarlyLoad]:
    """The loads of stores whose elements are neighbours along the columns."""
    scalars = list(reached([root for store in matmul.stores for root in roots(store)]))
    if any(isinstance(s, Guard) for s in scalars) or any(s.conditions for s in matmul.stores):
        return []
    rows, found = max(1, max_extent(matmul.m)), []
    for load in scalars:
        if not isinstance(load, Load) or load.bindings or load.buffer in held:
            continue
        if load.dtype not in (FLOAT32, INT32, FLOAT16, BFLOAT16) or matmul.args[load.buffer].writes:
            continue
        by_row = rows > 1 and matmul.m in symbols(load.index)
        offset, per_word = _offset(load, matmul, by_row=by_row), _WORD // load.dtype.itemsize
        if offset is not None and offset % per_word == max_extent(matmul.n) % per_word == 0:
            found.append(_EarlyLoad(load, rows if by_row else 1, load.buffer in polled))
    return found


def _offset(load: Load, matmul: Matmul, *, by_row: bool) -> int | None:
    """Elements before those that a store reads, if these are neighbours along the columns; of those
    that rows have, the greatest number that divides the elements before any row's.
    """
    if not by_row:
        return offset_of(load.index, {matmul.n: 1, matmul.m: 0})
    divided = coefficient(load.index, matmul.m)
    if divided is None or not isinstance(divided[0], int):
        return None
    offset = offset_of(divided[1], {matmul.n: 1})
    return None if offset is None else math.gcd(offset, divided[0])


def each(count: int) -> str:
    """The head of statements that threads run for numbers below a count.

    A loop is not unrolled, and a single iteration is none: a block runs the code but a few times,
    and waits for its instructions.
    """
    if count <= SEGMENT_BLOCK:
        return f"        if (const int i = threadIdx.x; i < {count})"
    start = f"        for (int i = threadIdx.x; i < {count}; i += {SEGMENT_BLOCK})"
    return f"#pragma unroll 1\n{start}"
