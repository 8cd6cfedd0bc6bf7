"""Rendering the sum of the results of parts of the keys: a block for each row.

Each part has the greatest of its scores. Threads compute the weights of the parts first, one each.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.attention_kernel import PartsKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["body", "gathers", "launch"]

_THREADS = 256

_BODY = Template("""\
    for (long long item = own.x; item < points * rows; item += all.x) {
        const long long m = item % rows, point = item / rows;
$batch
$kept
        for (int own_part = threadIdx.x; own_part < $splits; own_part += $threads) {
            $acc most = $minus_infinity;
#pragma unroll 8
            for (int s = 0; s < $splits; s++)
                most = ost::maximum(most, kept[s * ($features + 2) + $features]);
            const $acc greatest = kept[own_part * ($features + 2) + $features];
            weight_of[own_part] = greatest == most ? 1 : ost::exp(greatest - most);
        }
        OST_SYNC();
        for (long long n = threadIdx.x; n < $features; n += $threads) {
            $acc sum = 0, weights = 0;
#pragma unroll 8
            for (int s = 0; s < $splits; s++) {
                const $acc* const part = kept + s * ($features + 2);
                sum = ost::add_product(weight_of[s], part[n], sum);
                weights = ost::add_product(weight_of[s], part[$features + 1], weights);
            }
            const $acc total = sum / (weights == 0 ? 1 : weights);
$store
        }
        OST_SYNC();
    }
""")

#: The results of the parts of a row in shared memory, or where they are.
_GATHERED = Template("""\
        ost::gather<$count>(b$scratch + item * $count, gathered);
        OST_SYNC();
        const $acc* const kept = gathered;""")
_IN_PLACE = Template("""\
        const $acc* const kept = b$scratch + item * $count;""")

#: The most bytes of them that a block copies.
_GATHERED_BYTES = 16 << 10


def gathers(parts: PartsKernel) -> bool:
    """Whether a block copies the results of the parts of a row before it adds them up."""
    return _elements(parts) * parts.acc.itemsize <= _GATHERED_BYTES


def _elements(parts: PartsKernel) -> int:
    """Elements of the results of the parts of a row."""
    return parts.splits * (max_extent(parts.column) + 2)


def launch(parts: PartsKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each row, or a few waves."""
    blocks = bounds(parts.points)[1] * max_extent(parts.m)
    return Launch(grid_of(blocks, target), _THREADS)


def body(parts: PartsKernel) -> Body:
    """The code of a kernel."""
    frame, dialect = Frame(parts, (), [parts.store]), CudaDialect()
    batch, names = frame.unravel(parts.batch, "point", 2)
    names |= {parts.m: "m", parts.column: "n"}
    type_, whole = dialect.register_type(parts.acc), gathers(parts)
    kept = _GATHERED if whole else _IN_PLACE
    itemsize = parts.acc.itemsize
    arrays = [SharedArray(type_, itemsize, "weight_of", (parts.splits,))]
    if whole:
        arrays.append(SharedArray(type_, itemsize, "gathered", (_elements(parts),)))
    text = _BODY.substitute(
        kept=kept.substitute(acc=type_, scratch=parts.scratch, count=_elements(parts)),
        acc=dialect.register_type(parts.acc),
        minus_infinity=dialect.literal(parts.acc, float("-inf")),
        batch=batch,
        splits=parts.splits,
        features=max_extent(parts.column),
        threads=_THREADS,
        store=frame.stores([parts.store], parts.acc, 3, names, "total"),
    )
    sizes = {"points": parts.points, "rows": extent_of(parts.m)}
    made = body_of(parts, text, sizes, _THREADS, arrays=tuple(arrays))
    return replace(made, includes=f'{made.includes}#include "packets.cuh"\n')
