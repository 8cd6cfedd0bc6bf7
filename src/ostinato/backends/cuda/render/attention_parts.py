"""Rendering the mean of what parts of the keys give: blocks have rows, and threads features.

Each part has the greatest of its scores. The lanes of a warp have the weight of a part each.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import PartsKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body", "launch"]

_THREADS = 256

_BODY = Template("""\
    for (long long item = own.x; item < points * rows; item += all.x) {
        const long long m = item % rows, point = item / rows;
$batch
        for (int first = threadIdx.x / 32 * 32; first < $features; first += $threads) {
            const int n = min(first + (int)threadIdx.x % 32, $features - 1);
            const $acc total = ost::mean_of_parts<$splits, $features, $acc>(
                b$scratch + item * $count, n
            );
            if (first + (int)threadIdx.x % 32 < $features) {
$store
            }
        }
    }
""")


def launch(parts: PartsKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each row, or a few waves."""
    blocks = bounds(parts.points)[1] * max_extent(parts.m)
    return Launch(grid_of(blocks, target), _THREADS)


def body(parts: PartsKernel) -> Body:
    """The code of a kernel."""
    frame, dialect = Frame(parts, (), [parts.store]), CudaDialect()
    batch, names = frame.unravel(parts.batch, "point", 2)
    names |= {parts.m: "m", parts.column: "n"}
    features = max_extent(parts.column)
    text = _BODY.substitute(
        acc=dialect.register_type(parts.acc),
        scratch=parts.scratch,
        batch=batch,
        splits=parts.splits,
        features=features,
        count=parts.splits * (features + 2),
        threads=_THREADS,
        store=frame.stores([parts.store], parts.acc, 4, names, "total"),
    )
    sizes = {"points": parts.points, "rows": extent_of(parts.m)}
    made = body_of(parts, text, sizes, _THREADS)
    return replace(made, includes=f'{made.includes}#include "attention.cuh"\n')
