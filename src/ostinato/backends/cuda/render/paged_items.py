"""Items of paged attention of few rows: a part of the keys of a row, and some of its heads."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.lower.loopir.nodes import max_extent

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
    from ostinato.variables import Symbol

__all__ = ["capped_score", "item_text", "names_of", "store_text", "touch_text"]

#: Bytes of memory, and keys, that are brought into the cache before a block has queries.
_LINE, _TOUCHED_KEYS = 128, 256

#: The head of the loop over items, up to the keys of a part.
_ITEM = Template("""\
    for (long long item = own.x; item < rows * ${shared_heads}LL * $head_blocks * $splits;
         item += all.x) {
        const int part = (int)(item % $splits);
        const int first_head = (int)(item / $splits % $head_blocks) * $heads;
        const int shared = (int)(item / ($splits * $head_blocks) % $shared_heads);
        const long long row = item / ($splits * $head_blocks * ${shared_heads}LL);
        const long long owner = owner_of(row), position = position_of(row);
        const long long first = $first, low = first / $grain * $grain;
        const long long wanted = position + 1 - low;
        const long long of_part =
            ((wanted + $splits - 1) / $splits + $step - 1) / $step * $step;
        const long long begin = low + part * of_part;
        const long long end = begin + of_part < position + 1 ? begin + of_part : position + 1;""")

#: Brings the first keys and values of a part into the cache that multiprocessors share.
_TOUCH = Template("""\
$places
    const int lane = threadIdx.x % 32;
$item
        const int touched = end - begin < $most ? (int)(end - begin) : $most;
#pragma unroll 1
        for (int i = lane; i < touched * $lines; i += 32) {
            const long long wanted = begin + i / $lines, key = wanted < first ? first : wanted;
            const long long block = block_at(owner, key / $positions), place = key % $positions;
            const long long d = i % $lines * $width, n = d;
            const unsigned char* line;
            if (d < $depth) {
$key
                ost::prefetch_line(line);
            }
            if (n < $features) {
$value
                ost::prefetch_line(line);
            }
        }
    }
""")

#: A part's sums, with its greatest score and its total behind them.
_STORED_PART = Template("""\
                const long long head = (row * $shared_heads + shared) * $group + member;
                const long long at = (head * $splits + part) * ($features + 2);
                b$scratch[at + n] = total;
                if (n == 0) {
                    b$scratch[at + $features] = most;
                    b$scratch[at + $features + 1] = whole;
                }""")

#: The result of a row that has but one part.
_STORED_ROW = Template("""\
                total = total / (whole == 0 ? 1 : whole);
$store""")


def names_of(kernel: PagedAttentionKernel) -> dict[Symbol, str]:
    """By axis, the variable that has its value."""
    spec = kernel.spec
    names = {spec.depth: "d", spec.column: "n", spec.place: "place", spec.block: "block"}
    return names | {spec.row: "row", spec.shared: "shared", spec.member: "member"}


def item_text(kernel: PagedAttentionKernel, heads: int, step: int, grain: int = 1) -> str:
    """The head of the loop over items: statements that give the row, the heads and the keys of one.

    Args:
        kernel: the attention.
        heads: of a block.
        step: a part has a multiple of so many keys.
        grain: it begins at a multiple of this; keys before ``first`` are not the row's.
    """
    spec, window = kernel.spec, kernel.spec.window
    return _ITEM.substitute(
        heads=heads,
        head_blocks=-(-spec.group // heads),
        shared_heads=max_extent(spec.shared),
        splits=kernel.splits,
        step=step,
        grain=grain,
        first="0" if window is None else f"ost::maximum(position - {window - 1}, 0LL)",
    )


def touch_text(kernel: PagedAttentionKernel, frame: Frame, item: str, places: str) -> str:
    """Statements of a warp that bring the keys and values of items into the cache; see ``Body``.

    Args:
        kernel: the attention.
        frame: it, too.
        item: see :func:`item_text`.
        places: see :func:`~ostinato.backends.cuda.render.paged_places.places_text`.
    """
    spec, names = kernel.spec, names_of(kernel)
    depth, features = max_extent(spec.depth), max_extent(spec.column)
    return _TOUCH.substitute(
        item=item,
        places=places,
        positions=max_extent(spec.place),
        depth=depth,
        features=features,
        most=_TOUCHED_KEYS,
        lines=-(-max(depth, features) * spec.k.dtype.itemsize // _LINE),
        width=_LINE // spec.k.dtype.itemsize,
        key=frame.address(spec.k, 4, names, "line"),
        value=frame.address(spec.v, 4, names, "line"),
    )


def capped_score(kernel: PagedAttentionKernel) -> str:
    """The score that ``score``, a product with the scale, becomes."""
    spec, dialect = kernel.spec, CudaDialect()
    if spec.softcap is None:
        return "score"
    cap = dialect.literal(spec.acc, spec.softcap)
    return f"ost::multiply({cap}, ost::tanh(ost::divide(score, {cap})))"


def store_text(kernel: PagedAttentionKernel, frame: Frame) -> str:
    """Statements that store the ``total`` of a feature, or what a part contributes to it."""
    spec = kernel.spec
    if kernel.splits == 1:
        stored = frame.stores([spec.store], spec.acc, 4, names_of(kernel), "total")
        return _STORED_ROW.substitute(store=stored)
    return _STORED_PART.substitute(
        shared_heads=max_extent(spec.shared),
        group=spec.group,
        splits=kernel.splits,
        features=max_extent(spec.column),
        scratch=spec.store.buffer,
    )
