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
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.attention_group_code import (
    BODY,
    CHUNKS,
    COMPUTED,
    COPIED,
    GENERAL,
    PLAIN,
    SOURCE,
    STORED_EIGHT,
    STORED_PAIR,
    STORED_SINGLY,
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
from ostinato.backends.cuda.render.packed_stores import Results, packed_stores, store_lanes
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["fits", "launch", "source"]

#: Elements of 16 bytes, and of a line of shared memory as tensor cores read it.
_CHUNK, _PANEL = 8, 64

#: Threads of a group, and its rows.
_GROUP, _ROWS = 128, 64

#: Keys of a tile.
_KEYS = 128


@dataclass(frozen=True)
class _Block:
    """The shape of a block.

    Attributes:
        groups: that have rows.
        slots: of tiles of keys or values.
        registers: of a thread of these groups.
        copying: registers of a thread of the group that copies.
        resident: blocks of a multiprocessor.
    """

    groups: int
    slots: int
    registers: int
    copying: int
    resident: int = 1

    @property
    def threads(self) -> int:
        return _GROUP * (self.groups + 1)


#: The shapes for rows of up to 64 elements, and for wider ones, the largest first.
_NARROW = (_Block(3, 8, 160, 32), _Block(1, 6, 216, 40, 2))
_WIDE = (_Block(2, 5, 232, 40),)


def fits(attention: AttentionKernel, target: CudaTarget) -> bool:
    """Whether it is many rows of attention for which groups of warps have instructions.

    Tensor cores multiply what it does: see :func:`attention_tiles.fits`.
    """
    spec = attention.spec
    rows = max_extent(spec.m)
    several = _ROWS // 2 < rows < MOST and max_extent(spec.key) < MOST
    able = target.multiplies_by_groups and attention.features in (_PANEL, 2 * _PANEL)
    return able and several and attention.splits == 1 and attention.scratch is None


def launch(attention: AttentionKernel, target: CudaTarget) -> Launch:
    """The launch of a kernel: as many blocks as stay, or fewer."""
    block = _block(attention, target)
    elements = block.groups * _query_tile(attention) + block.slots * _slot(attention)
    grid = max(1, min(_sets(attention, block), block.resident * target.multiprocessors))
    early = target.starts_kernels_early
    return Launch(grid, block.threads, 2 * elements, programmatic=early)


def source(attention: AttentionKernel, target: CudaTarget) -> str:
    """CUDA C++ with the kernel."""
    spec, block = attention.spec, _block(attention, target)
    waits = target.starts_kernels_early and _waits_itself(attention)
    frame = Frame(attention, spec.operands, [spec.store])
    batch, names = frame.unravel(spec.batch, "point", 3)
    names |= {spec.m: "m", spec.key: "key", spec.depth: "d", spec.column: "n"}
    key_load, value_load = loads_of(attention)
    assert key_load is not None
    assert value_load is not None
    chunks = _Chunks(frame, attention, names)
    key_source, load_keys = chunks.text(key_load, "key", spec.depth)
    value_source, load_values = chunks.text(value_load, "value", spec.column)
    plain = is_plain(attention)
    places: dict[str, object] = {
        "keys": _KEYS,
        "minus_infinity": MINUS_INFINITY,
        "depth": max_extent(spec.depth),
    }
    if plain:
        limits, holds = key_limits(attention, "place", "stop", 5)
        score = PLAIN.substitute(places, limits=limits, holds=holds)
    else:
        found = score_text(attention, frame, names, 6, "product", "score")
        score = GENERAL.substitute(places, score=found)
    body = BODY.substitute(
        places,
        name=attention.name,
        groups=block.groups,
        slots=block.slots,
        registers=block.registers,
        copying=block.copying,
        wait="    ost::wait_for_earlier_kernels();" if waits else "",
        query_tile=_query_tile(attention),
        slot=_slot(attention),
        features=attention.features,
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
        store=_store(attention, frame, names),
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
        block.threads,
        before='#include "barriers.cuh"\n#include "warpgroups.cuh"\n',
        resident=block.resident,
        early=target.starts_kernels_early and not _waits_itself(attention),
    )


def _waits_itself(attention: AttentionKernel) -> bool:
    """Whether nothing but the body reads what kernels in front write."""
    return not attention.variables


def _block(attention: AttentionKernel, target: CudaTarget) -> _Block:
    """The shape of blocks: the largest of which there are enough."""
    wide = max(max_extent(attention.spec.depth), attention.features) > _PANEL
    *larger, smallest = _WIDE if wide else _NARROW
    enough = (block for block in larger if _sets(attention, block) >= target.multiprocessors)
    return next(enough, smallest)


def _sets(attention: AttentionKernel, block: _Block) -> int:
    """Sets of tiles, about, one of which a block has at a time."""
    rows = max_extent(attention.spec.m)
    heads = max(1, rows // max(1, bounds(attention.spec.length)[1]))
    tiles = heads * -(-rows // heads // _ROWS)
    return bounds(attention.points)[1] * -(-tiles // block.groups)


def _padded(attention: AttentionKernel) -> int:
    """Elements of a query in whole panels."""
    return -(-max_extent(attention.spec.depth) // _PANEL) * _PANEL


def _query_tile(attention: AttentionKernel) -> int:
    """Elements of the queries of a group."""
    return _ROWS * _padded(attention)


def _slot(attention: AttentionKernel) -> int:
    """Elements of a tile of keys or values."""
    return _KEYS * max(_padded(attention), attention.features)


def _brought(
    attention: AttentionKernel,
    frame: Frame,
    names: Mapping[Symbol, str],
    places: Mapping[str, object],
) -> str:
    """Statements that bring the queries of a warp to shared memory."""
    spec = attention.spec
    run = run_of(spec.q, spec.depth, extent_of(spec.depth))
    if run is None or run.count != _CHUNK or run.load is not spec.q:
        return COMPUTED.substitute(places, query=query_pairs(attention, frame, names, 5))
    point = frame.point(3, names)
    first = f"b{run.load.buffer} + {point.index(run.load.index)}"
    point.writer.line(f"const unsigned short* const from = {first};")
    return COPIED.substitute(places, chunk=_CHUNK, source=point.text)


def _store(attention: AttentionKernel, frame: Frame, names: Mapping[Symbol, str]) -> str:
    """Statements that store the features of a row, as many at once as there may be."""
    spec, features = attention.spec, attention.features
    results = Results(attention.args, [spec.store], spec.column, spec.acc)
    lanes = store_lanes(results)
    if lanes >= _CHUNK:
        stored = packed_stores(frame, results, _CHUNK, 5, names, "totals_of_eight")
        return STORED_EIGHT.substitute(store=stored, features=features)
    if lanes > 1:
        stored = packed_stores(frame, results, 2, 5, names, "totals_of_pair")
        return STORED_PAIR.substitute(store=stored, features=features)
    stored = frame.stores([spec.store], spec.acc, 6, names, "total")
    return STORED_SINGLY.substitute(store=stored, features=features)


@dataclass(frozen=True)
class _Chunks:
    """Statements that copy tiles of keys and values.

    Attributes:
        frame: of the kernel.
        attention: the kernel.
        names: by axis, the variable that has its value.
    """

    frame: Frame
    attention: AttentionKernel
    names: Mapping[Symbol, str]

    def text(self, load: Load, what: str, along: Symbol) -> tuple[str, str]:
        """Statements that find where chunks come from, and that copy a tile of them."""
        length = max_extent(along)
        spread = 1 << (length // _CHUNK - 1).bit_length()
        lines = _GROUP // spread
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
            "passes": _KEYS // lines,
            "length": length,
            "whole": str(spread * _CHUNK == length).lower(),
            "chunk": _CHUNK,
            "keys": _KEYS,
            "slot": _slot(self.attention),
            "along": self.names[along],
            "place": point.text,
            "step": steps.text,
        }
        return SOURCE.substitute(values), CHUNKS.substitute(values)
