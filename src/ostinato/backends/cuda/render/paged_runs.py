"""The items of paged attention of many rows: blocks of rows, and the runs of the first of them.

A step of a language model has the rows of answers first, one or a few of each, then those of
prompts. The rows of a block at neighbouring positions of one sequence are a *run*. The runs of a
block follow each other, but those of the first blocks are items of their own.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel

__all__ = ["columns_of", "most_items", "runs_text"]

#: Rows that may be those of answers.
_FRONT = 64

_RUNS = Template("""\
    const int row_blocks = (int)((rows + $block_rows - 1) / $block_rows);
    const int front = row_blocks < $fronts ? row_blocks : $fronts;
    int runs_of[$fronts], front_runs = 0;  // of the first blocks, those with keys
#pragma unroll
    for (int block = 0; block < $fronts; block++) {
        runs_of[block] = 0;
#pragma unroll
        for (int begin = 0; begin < $block_rows; begin += 32) {
            const int own = begin + lane;
            const long long row = block * $block_rows + own;
            const long long position = own < $block_rows && row < rows ? position_of(row) : -1;
            const bool ends = position >= 0
                && (own == $block_rows - 1 || row + 1 >= rows || owner_of(row + 1) != owner_of(row)
                    || position_of(row + 1) != position + 1);
            runs_of[block] += __popc(__ballot_sync(0xFFFFFFFFu, ends));
        }
        if (block < front) {
            runs_of[block] = runs_of[block] > 0 ? runs_of[block] : 1;
            front_runs += runs_of[block];
        }
    }
    const int items = (front_runs + row_blocks - front) * $columns;
    // The block of rows of an item, and which of its runs it is; -1: all of them. Of the others,
    // later rows come first: they attend to most keys.
    auto block_of = [&](int item, int& which) {
        int place = item / $columns, found = 0;
        which = -1;
        if (place >= front_runs)
            return row_blocks - 1 - (place - front_runs);
#pragma unroll
        for (int block = 0; block < $fronts - 1; block++) {
            if (found == block && place >= runs_of[block]) {
                place -= runs_of[block];
                found++;
            }
        }
        which = place;
        return found;
    };
""")


def columns_of(kernel: PagedAttentionKernel, members: int) -> int:
    """Items of the same rows, which follow each other: those of each ``members`` query heads."""
    return max_extent(kernel.spec.shared) * -(-kernel.spec.group // members)


def runs_text(kernel: PagedAttentionKernel, members: int, block_rows: int) -> str:
    """Statements that find the items: their number ``items``, and ``block_of(item, which)``.

    All lanes of a warp have to come there.

    Args:
        kernel: the kernel.
        members: query heads of an item.
        block_rows: rows of a block.
    """
    columns = columns_of(kernel, members)
    return _RUNS.substitute(block_rows=block_rows, fronts=_fronts(block_rows), columns=columns)


def most_items(kernel: PagedAttentionKernel, members: int, block_rows: int) -> int:
    """The most items that there may be: each of the first rows may be a run.

    Args:
        kernel, members, block_rows: see :func:`runs_text`.
    """
    rows, front = max_extent(kernel.spec.row), _fronts(block_rows)
    items = min(rows, front * block_rows) + max(0, -(-rows // block_rows) - front)
    return items * columns_of(kernel, members)


def _fronts(block_rows: int) -> int:
    """Blocks of rows whose runs are items."""
    return -(-_FRONT // block_rows)
