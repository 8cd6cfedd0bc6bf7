"""Elements that stores read for each column, copied ahead while tiles are multiplied."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.row_operands import offset_of
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Guard, Load, max_extent
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.product import Matmul

__all__ = ["copies", "each", "early_loads"]

#: Bytes of the shortest copy into shared memory.
_WORD = 4

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


def early_loads(matmul: Matmul, others: Collection[int]) -> list[Load]:
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
        offset = offset_of(load.index, {matmul.n: 1, matmul.m: 0})
        per_word = _WORD // load.dtype.itemsize
        if (
            load.dtype in (FLOAT32, INT32, FLOAT16, BFLOAT16)
            and offset is not None
            and offset % per_word == max_extent(matmul.n) % per_word == 0
            and not matmul.args[load.buffer].writes
        ):
            found.append(load)
    return found


def copies(frame: Frame, early: list[Load], matmul: Matmul, together: int, width: int) -> str:
    """The statements that start the copies of what stores read."""
    if not early:
        return ""
    point = frame.point(4, {matmul.m: "0LL", matmul.n: "n"})
    for number, load in enumerate(early):
        copy = f"ost::copy_word(early{number}[turn] + i, b{load.buffer} + "
        first = "if (i % 2 == 0) " if load.dtype.itemsize < _WORD else ""
        point.writer.line(f"{first}{copy}{point.index(load.index)});")
    return _EARLY.substitute(elements=each(together * width), width=width, copies=point.text)


def each(count: int) -> str:
    """The head of statements that threads run for numbers below a count.

    A loop is not unrolled, and a single iteration is none: a block runs the code but a few times,
    and waits for its instructions.
    """
    if count <= SEGMENT_BLOCK:
        return f"        if (const int i = threadIdx.x; i < {count})"
    start = f"        for (int i = threadIdx.x; i < {count}; i += {SEGMENT_BLOCK})"
    return f"#pragma unroll 1\n{start}"
