"""The sequence and the queries of a row of paged attention, and the places of its keys."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.dtypes import BFLOAT16, FLOAT32, INT64
from ostinato.lower.loopir.nodes import extent_of, max_extent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.variables import Dim, Symbol

__all__ = ["has_vectors", "places_text", "query_text", "sizes_of"]

#: Elements of 16 bytes.
_CHUNK = 8

#: Numbers are taken as ``take`` takes indices.
_PLACES = Template("""\
    const auto owner_of = [&](long long row) {
        long long number;
$sequence
        return ost::maximum(ost::minimum(number < 0 ? number + owners : number, owners - 1), 0LL);
    };
    const auto position_of = [&](long long row) {
        long long number;
$position
        return ost::minimum(number, pages * $positions - 1);
    };
    const auto block_at = [&](long long owner, long long page) {
        long long number;
$table
        return ost::maximum(ost::minimum(number < 0 ? number + blocks : number, blocks - 1), 0LL);
    };
""")


def sizes_of(kernel: PagedAttentionKernel) -> dict[str, Dim]:
    """The sizes that a kernel computes first, by name."""
    spec = kernel.spec
    return {
        "rows": extent_of(spec.row),
        "blocks": extent_of(spec.block),
        "owners": extent_of(spec.owner),
        "pages": extent_of(spec.page),
    }


def places_text(kernel: PagedAttentionKernel, frame: Frame) -> str:
    """Functions of the numbers of rows, sequences and pages.

    ``owner_of(row)`` is its sequence, ``position_of(row)`` its position or a negative number, and
    ``block_at(owner, page)`` a block of the pools.
    """
    spec = kernel.spec
    return _PLACES.substitute(
        sequence=frame.element(spec.sequence, INT64, 2, {spec.row: "row"}, "number"),
        position=frame.element(spec.position, INT64, 2, {spec.row: "row"}, "number"),
        table=frame.element(
            spec.table, INT64, 2, {spec.owner: "owner", spec.page: "page"}, "number"
        ),
        positions=max_extent(spec.place),
    )


def query_text(kernel: PagedAttentionKernel, frame: Frame, names: Mapping[Symbol, str]) -> str:
    """Statements that assign four neighbouring elements of a query to ``elements[b]``."""
    spec, target = kernel.spec, "elements[b]"
    run = run_of(spec.q, spec.depth, max_extent(spec.depth))
    if run is not None and run.count % 4 == 0:
        return frame.vector(spec.q, run.load, 4, FLOAT32, 5, names, target)
    return frame.elements(spec.q, spec.depth, 4, FLOAT32, 5, names, target)


def has_vectors(kernel: PagedAttentionKernel) -> bool:
    """Whether keys and values are bfloat16 without scales, in vectors of 16 bytes."""
    spec = kernel.spec
    runs = (
        (load, run_of(load, symbol, max_extent(symbol)))
        for load, symbol in ((spec.k, spec.depth), (spec.v, spec.column))
    )
    return (
        spec.acc == FLOAT32
        and spec.k_scale is None
        and all(
            load.dtype == BFLOAT16 and run is not None and run.count % _CHUNK == 0
            for load, run in runs
        )
    )
