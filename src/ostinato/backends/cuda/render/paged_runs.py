"""The items of paged attention of many rows: blocks of rows, and the runs of the first of them.

A step of a language model has the rows of answers first, one or a few of each, then those of
prompts. The rows of a block at neighbouring positions of one sequence are a *run*. The runs of a
block follow each other, but those of the first blocks are items of their own.
"""

from __future__ import annotations

from string import Template

__all__ = ["most_items", "runs_text"]

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


def runs_text(block_rows: int, columns: int) -> str:
    """Statements that find the items: their number ``items``, and ``block_of(item, which)``.

    All lanes of a warp have to come there.

    Args:
        block_rows: rows of a block.
        columns: items of a block's rows, such as one for each head; the items of the same rows
            follow each other.
    """
    fronts = -(-_FRONT // block_rows)
    return _RUNS.substitute(block_rows=block_rows, fronts=fronts, columns=columns)


def most_items(block_rows: int, rows: int) -> int:
    """The most items of one column: each of the first rows may be a run.

    Args:
        block_rows: rows of a block.
        rows: all of them.
    """
    blocks, front = -(-rows // block_rows), -(-_FRONT // block_rows)
    return min(rows, front * block_rows) + max(0, blocks - front)
