"""Items of attention of a few rows: a part of the keys of some rows of a point, for each block."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import extent_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Dim, Symbol

__all__ = ["item_sizes", "item_text", "touch_text"]

#: Bytes of memory that are brought into the cache together.
_LINE = 128

#: Keys that are brought into the cache before the block has queries.
_TOUCHED_KEYS = 64

_ITEM = Template("""\
    const int row_blocks = ((int)rows + $rows - 1) / $rows;
    for (int item = own.x; item < (int)points * row_blocks * $splits; item += all.x) {
        const int split = item % $splits;
        const int first_row = item / $splits % row_blocks * $rows;
        const long long point = item / $splits / row_blocks;
$batch
$range
        const int share = high > low ? (int)(high - low + $splits - 1) / $splits : 0;
        const int begin = (int)low + split * share, end = min(begin + share, (int)high);""")

#: All keys, or those that some row attends to.
_ALL_KEYS = "        const long long low = 0, high = keys;"
_ATTENDED_KEYS = Template("""\
        long long low = keys, high = 0;
        for (int r = 0; r < $rows && first_row + r < rows; r++) {
            const long long position = (first_row + r) % length + keys - length;
            const long long first = $first_key, last = $last_key;
            low = first < low ? first : low;
            high = last > high ? last : high;
        }
        low = low < 0 ? 0 : low;
        high = high > keys ? keys : high;""")

#: Brings the rows of an item, line by line.
_TOUCH = Template("""\
    const int lane = threadIdx.x % 32;
$item
        const int count = end - begin < $most ? (int)(end - begin) : $most;
#pragma unroll 1
        for (int i = lane; i < count * $lines; i += 32) {
            const long long key = begin + i / $lines, d = i % $lines * $width, n = d;
            {
$key
            }
            {
$value
            }
        }
    }
""")


def item_sizes(attention: AttentionKernel) -> dict[str, Dim]:
    """The numbers that the text of items mentions, by name."""
    return {
        "points": attention.points,
        "rows": extent_of(attention.spec.m),
        "keys": extent_of(attention.spec.key),
        "length": attention.spec.length,
    }


def item_text(attention: AttentionKernel, rows: int, batch: str) -> str:
    """The head of the loop over items: statements that give the rows and the keys of one.

    Args:
        attention: the kernel.
        rows: of an item, at most.
        batch: declarations of the values of the outer axes at ``point``.
    """
    spec = attention.spec
    keys = _ALL_KEYS
    if spec.causal or spec.window is not None:
        keys = _ATTENDED_KEYS.substitute(
            rows=rows,
            first_key="0" if spec.window is None else f"position - {spec.window - 1}",
            last_key="position + 1" if spec.causal else "keys",
        )
    return _ITEM.substitute(rows=rows, splits=attention.splits, batch=batch, range=keys)


def touch_text(
    attention: AttentionKernel,
    frame: Frame,
    item: str,
    key: Load,
    value: Load,
    names: Mapping[Symbol, str],
) -> str:
    """Statements of a warp that bring the keys and values of items into the cache; see ``Body``.

    Args:
        attention: the kernel.
        frame: it, too.
        item: see :func:`item_text`.
        key, value: the first elements of their vectors.
        names: by axis, the variable that has its value.
    """
    width = _LINE // key.dtype.itemsize
    touch = _TOUCH.substitute(
        item=item,
        most=_TOUCHED_KEYS,
        lines=-(-attention.features // width),
        width=width,
        key=_prefetched(frame, key, names),
        value=_prefetched(frame, value, names),
    )
    return f"{frame.sizes(item_sizes(attention))}\n{touch}"


def _prefetched(frame: Frame, load: Load, names: Mapping[Symbol, str]) -> str:
    """Statements that bring a line."""
    point = frame.point(4, names)
    index = point.index(load.index)
    point.writer.line(f"ost::prefetch_line(b{load.buffer} + {index});")
    return point.text
