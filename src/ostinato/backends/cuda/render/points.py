"""Nests whose every point is one thread's: elementwise ones, windows, short reductions."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.clike import points
from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.common.clike.statements import interleaves
from ostinato.backends.common.clike.values import CValue
from ostinato.backends.cuda.render.packs import packed_body
from ostinato.backends.cuda.render.reductions import RunningReduction
from ostinato.lower.loopir.nodes import Reduce, Store, extent_of
from ostinato.variables import axis, bounds, floor_div, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Symbol

#: Points whose loads a thread has under way together, where it has several.
_UNROLLED = 4

__all__ = ["every_stage", "grid_loop", "points_of_block", "run_in_order", "thread_per_point"]


def thread_per_point(code: NestCode, lanes: int) -> None:
    """A thread runs all stages at each of its points.

    Args:
        code: the function.
        lanes: neighbouring points of the last axis that a thread takes at once.
    """
    if lanes > 1:
        _thread_per_pack(code, lanes)
        return
    if code.alone and _reads_before_writes(code):
        _batches_of_points(code)
        return
    with grid_loop(code, code.nest.outer_axes) as scope:
        for stage in code.nest.stages:
            run_in_order(code, stage, scope)


def _reads_before_writes(code: NestCode) -> bool:
    """Whether all that a point writes is a few elements in the end, of many points of a thread."""
    *before, last = code.nest.stages
    stores = [s for s in last.statements if isinstance(s, Store)]
    plain = all(s.update == "set" and not s.conditions for s in stores)
    whole = len(stores) == len(last.statements) and not last.axes and not code.nest.temps
    reduced = all(isinstance(s, Reduce) for stage in before for s in stage.statements)
    several = bounds(prod(map(extent_of, code.nest.outer_axes)))[1] > code.launch.block
    return several and plain and whole and reduced and not interleaves(stores)


def _batches_of_points(code: NestCode) -> None:
    """The only block: a thread computes some points before it writes, so that their loads overlap.

    The compiler cannot do that: for all it knows, a write is what the next point reads.
    """
    axes, block, count = code.nest.outer_axes, code.launch.block, 2 * _UNROLLED
    *before, last = code.nest.stages
    stores = [s for s in last.statements if isinstance(s, Store)]
    writer, total = code.writer, prod(map(extent_of, axes))
    points = code.size(total, code.outermost, 2 * count * block)
    type_ = code.dialect.index_type(points.wide)
    first, lane = writer.fresh("p"), writer.fresh("l")
    values = [writer.fresh("w") for _ in stores]
    head = f"{type_} {first} = threadIdx.x; {first} < {points.text}; {first} += {count * block}"
    with writer.block(f"for ({head})"):
        for store, value in zip(stores, values, strict=True):
            register = code.dialect.register_type(code.dtype(store.buffer))
            writer.line(f"{register} {value}[{count}];")
        each, point = f"for (int {lane} = 0; {lane} < {count}; ++{lane})", writer.fresh("p")
        place = f"{first} + {lane} * {block}"
        writer.line("#pragma unroll")
        with writer.block(each):
            # Behind the last point, that one is computed once more.
            bounded = f"min(({type_})({place}), ({type_})({points.text} - 1))"
            writer.line(f"const {type_} {point} = {bounded};")
            scope = code.enter(axes, Index(point, points.wide), code.outermost)
            for stage in before:
                run_in_order(code, stage, scope)
            for store, value in zip(stores, values, strict=True):
                found = code.scalars.value(store.value, scope).astype(code.dtype(store.buffer))
                writer.line(f"{value}[{lane}] = {found.text};")
        point = writer.fresh("p")
        writer.line("#pragma unroll")
        with writer.block(each):
            writer.line(f"const {type_} {point} = {place};")
            writer.line(f"if ({point} >= {points.text}) break;")
            scope = code.enter(axes, Index(point, points.wide), code.outermost)
            for store, value in zip(stores, values, strict=True):
                dtype = code.dtype(store.buffer)
                element = CValue(code.code, f"{value}[{lane}]", dtype)
                code.scalars.put(store.buffer, dtype, store.index, element, scope)


def _thread_per_pack(code: NestCode, lanes: int) -> None:
    *outer, last = code.nest.outer_axes
    packs = axis(f"{last.name}.packs", floor_div(extent_of(last), lanes))
    (stage,) = code.nest.stages
    with grid_loop(code, (*outer, *symbols(packs))) as scope:
        first = code.scalars.indices.value(packs * lanes, scope)
        packed_body(code, stage, last, lanes, scope, first, {})


def every_stage(code: NestCode) -> None:
    """A thread runs a stage's statements at each of its points of that stage."""
    for stage in code.nest.stages:
        with grid_loop(code, (*code.nest.outer_axes, *stage.axes)) as scope:
            for statement in stage.statements:
                assert isinstance(statement, Store)
                code.scalars.store(statement, code.dtype(statement.buffer), scope)


def points_of_block(code: NestCode, first: int) -> None:
    """The threads of one block run the only stage, which has no axes, at all points.

    Args:
        code: the function.
        first: the thread that has the first point.
    """
    block, axes = code.launch.block, code.nest.outer_axes
    points = code.size(prod(map(extent_of, axes)), code.outermost, block)
    type_, name = code.dialect.index_type(points.wide), code.writer.fresh("p")
    start = f"(threadIdx.x + {block - first}) % {block}" if first else "threadIdx.x"
    head = f"if (const {type_} {name} = {start}; {name} < {points.text})"
    if bounds(prod(map(extent_of, axes)))[1] > block:
        code.writer.line("#pragma unroll 1")
        head = f"for ({type_} {name} = {start}; {name} < {points.text}; {name} += {block})"
    with code.writer.block(head):
        scope = code.enter(axes, Index(name, points.wide), code.outermost)
        (stage,) = code.nest.stages
        run_in_order(code, stage, scope)


@contextmanager
def grid_loop(code: NestCode, axes: Sequence[Symbol]) -> Iterator[Scope]:
    """A loop of the grid's threads over all points of ``axes``, neighbours at neighbouring ones."""
    threads = code.launch.grid * code.launch.block
    points = code.size(prod(map(extent_of, axes)), code.outermost, threads)
    type_, name = code.dialect.index_type(points.wide), code.writer.fresh("p")
    block = code.launch.block
    start = f"({type_})own.x * {block} + threadIdx.x"
    step = f"({type_})all.x * {block}"
    head = f"for ({type_} {name} = {start}; {name} < {points.text}; {name} += {step})"
    if code.repeats:
        once = bounds(prod(map(extent_of, axes)))[1] <= block
        code.writer.line(f"#pragma unroll {1 if once else _UNROLLED}")
    with code.writer.block(head):
        yield code.enter(axes, Index(name, points.wide), code.outermost)


def run_in_order(code: NestCode, stage: Stage, scope: Scope) -> None:
    """One thread runs a stage at a point; its reductions become refs of ``scope``."""
    points.run_in_order(code, stage, scope, partial(RunningReduction.start, code))
