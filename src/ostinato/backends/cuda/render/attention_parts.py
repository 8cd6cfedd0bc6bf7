"""Rendering the sum of the results of parts of the keys: a block for each row."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.lower.loopir.nodes import extent_of, max_extent
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
        const $acc* const kept = b$scratch + item * $splits * ($features + 2);
        $acc most = $minus_infinity;
        for (int s = 0; s < $splits; s++)
            most = ost::maximum(most, kept[s * ($features + 2) + $features]);
        for (long long n = threadIdx.x; n < $features; n += $threads) {
            $acc sum = 0, weights = 0;
            for (int s = 0; s < $splits; s++) {
                const $acc* const part = kept + s * ($features + 2);
                const $acc greatest = part[$features];
                const $acc weight = greatest == most ? 1 : ost::exp(greatest - most);
                sum = ost::add_product(weight, part[n], sum);
                weights = ost::add_product(weight, part[$features + 1], weights);
            }
            const $acc total = sum / (weights == 0 ? 1 : weights);
$store
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
    text = _BODY.substitute(
        acc=dialect.register_type(parts.acc),
        minus_infinity=dialect.literal(parts.acc, float("-inf")),
        batch=batch,
        scratch=parts.scratch,
        splits=parts.splits,
        features=max_extent(parts.column),
        threads=_THREADS,
        store=frame.stores([parts.store], parts.acc, 3, names, "total"),
    )
    sizes = {"points": parts.points, "rows": extent_of(parts.m)}
    return body_of(parts, text, sizes, _THREADS)
