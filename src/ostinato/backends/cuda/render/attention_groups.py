"""Rendering attention of many queries for groups of four warps, for which tensor cores read keys.

Each group of a block has a tile of 64 rows, whose queries are in shared memory. One more group
copies tiles of keys and values to a ring of slots there, ahead of the others. Groups multiply
queries in turn: tensor cores multiply for one while the others make weights of their scores.

The blocks stay, and take one set of tiles after another, those with most keys first. The tiles of a
set have the same positions where they can, in several heads: they share keys.

Tiles of keys begin at multiples of their size, whatever rows attend to them: the sums of a row are
added up in an order that depends on that row alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.render.attention_group_code import (
    BODY,
    CHUNKS,
    COMPUTED,
    COPIED,
    GENERAL,
    PLAIN,
    SOURCE,
    stored,
)
from ostinato.backends.cuda.render.attention_group_shapes import (
    CHUNK,
    GROUP,
    KEYS,
    PANEL,
    ROWS,
    GroupShape,
)
from ostinato.backends.cuda.render.attention_rows import score_text
from ostinato.backends.cuda.render.attention_scores import (
    MINUS_INFINITY,
    MOST,
    SLACK,
    exponent,
    is_plain,
    key_limits,
    sure_keys,
)
from ostinato.backends.cuda.render.attention_tiles import key_range, loads_of, query_pairs
from ostinato.backends.cuda.render.frame import Frame, function
from ostinato.backends.cuda.render.packed_stores import Results
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["fits", "launch", "source"]


def fits(attention: AttentionKernel, target: CudaTarget) -> bool:
    """Whether it is many rows of attention for which groups of warps have instructions.

    Tensor cores multiply what it does: see :func:`attention_tiles.fits`.
    """
    spec = attention.spec
    rows = max_extent(spec.m)
    several = ROWS // 2 < rows < MOST and max_extent(spec.key) < MOST
    able = target.multiplies_by_groups and attention.features in (PANEL, 2 * PANEL)
    return able and several and attention.splits == 1 and attention.scratch is None


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: as many blocks as stay, or fewer."""
    return _shape(attention, target).launch(target)


def source(attention: AttentionKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel."""
    spec, shape = attention.spec, _shape(attention, target)
    waits = target.starts_kernels_early and _waits_itself(attention)
    frame = Frame(attention, spec.operands, [spec.store])
    batch, names = frame.unravel(spec.batch, "point", 3)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    key_load, value_load = loads_of(attention)
    assert key_load is not None
    assert value_load is not None
    chunks = _Chunks(frame, attention, names, shape)
    key_source, load_keys = chunks.text(key_load, "key", spec.depth)
    value_source, load_values = chunks.text(value_load, "value", spec.column)
    plain = is_plain(attention)
    results = Results(attention.args, [spec.store], spec.column, spec.acc)
    places = {**shape.places(), "minus_infinity": MINUS_INFINITY}
    if plain:
        limits, holds = key_limits("place", "stop", 5, causal=spec.causal, window=spec.window)
        score = PLAIN.substitute(places, limits=limits, holds=holds)
    else:
        found = score_text(attention, frame, names, 6, "product", "score")
        score = GENERAL.substitute(places, score=found)
    body = BODY.substitute(
        places,
        name=attention.name,
        wait="    ost::wait_for_earlier_kernels();" if waits else "",
        format=spec.q.dtype.name,
        batch=batch,
        range=key_range(attention),
        certain=sure_keys(attention),
        unsure="0" if spec.causal or spec.window is not None else "high",
        key_source=key_source,
        value_source=value_source,
        load_keys=load_keys,
        load_values=load_values,
        bring=_brought(attention, frame, names, places),
        score=score,
        slack=SLACK,
        exponent=exponent(attention),
        store=stored(frame, results, attention.features, names, "m < end"),
    )
    sizes = {
        "points": attention.points,
        "rows": extent_of(spec.m),
        "keys": extent_of(spec.key),
        "length": spec.length,
    }
    return function(
        attention,
        body,
        sizes,
        shape.threads,
        before='#include "barriers.cuh"\n#include "warpgroups.cuh"\n',
        resident=shape.block.resident,
        early=target.starts_kernels_early and not _waits_itself(attention),
    )


def _waits_itself(attention: AttentionKernel) -> bool:
    """Whether nothing but the body reads what kernels in front write."""
    return not attention.variables


def _shape(attention: AttentionKernel, target: CudaTarget) -> GroupShape:
    """The shape of blocks."""
    rows = max_extent(attention.spec.m)
    heads = max(1, rows // max(1, bounds(attention.spec.length)[1]))
    tiles = heads * -(-rows // heads // ROWS)

    def sets_of(groups: int) -> int:
        return bounds(attention.points)[1] * -(-tiles // groups)

    return GroupShape.of(max_extent(attention.spec.depth), attention.features, sets_of, target)


def _brought(
    attention: AttentionKernel,
    frame: Frame,
    names: Mapping[Symbol, str],
    places: Mapping[str, object],
) -> str:
    """Statements that bring the queries of a warp to shared memory."""
    spec = attention.spec
    run = run_of(spec.q, spec.depth, extent_of(spec.depth))
    if run is None or run.count != CHUNK or run.load is not spec.q:
        return COMPUTED.substitute(places, query=query_pairs(attention, frame, names, 5))
    point = frame.point(3, names)
    first = f"b{run.load.buffer} + {point.index(run.load.index)}"
    point.writer.line(f"const unsigned short* const from = {first};")
    return COPIED.substitute(places, chunk=CHUNK, source=point.text)


@dataclass(frozen=True)
class _Chunks:
    """Statements that copy tiles of keys and values.

    Attributes:
        frame: of the kernel.
        attention: the kernel.
        names: by axis, the variable that has its value.
        shape: of blocks.
    """

    frame: Frame
    attention: AttentionKernel
    names: Mapping[Symbol, str]
    shape: GroupShape

    def text(self, load: Load, what: str, along: Symbol) -> tuple[str, str]:
        """Statements that find where chunks come from, and that copy a tile of them."""
        length = max_extent(along)
        spread = 1 << (length // CHUNK - 1).bit_length()
        lines = GROUP // spread
        step = coefficient(load.index, self.attention.spec.key)
        assert step is not None
        point = self.frame.point(4, self.names)
        point.writer.line(f"{what}_from = b{load.buffer} + {point.index(load.index)};")
        steps = self.frame.point(3, self.names)
        steps.writer.line(f"const long long {what}_step = {steps.index(step[0])};")
        values: dict[str, object] = {
            "what": what,
            "spread": spread,
            "lines": lines,
            "passes": KEYS // lines,
            "length": length,
            "whole": str(spread * CHUNK == length).lower(),
            "chunk": CHUNK,
            "keys": KEYS,
            "slot": self.shape.slot,
            "along": self.names[along],
            "place": point.text,
            "step": steps.text,
        }
        return SOURCE.substitute(values), CHUNKS.substitute(values)
