"""The sequence of a row of paged attention, and the places of its keys."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import extent_of, max_extent

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.variables import Dim

__all__ = ["places_text", "sizes_of"]

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
