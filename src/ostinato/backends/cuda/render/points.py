"""Nests whose every point is one thread's: elementwise ones, windows, short reductions."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.clike import points
from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.cuda.render.packs import packed_body
from ostinato.backends.cuda.render.reductions import RunningReduction
from ostinato.lower.loopir.nodes import Store, extent_of
from ostinato.variables import axis, bounds, floor_div, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Symbol

#: Points whose loads a thread has under way together, where it has several.
_UNROLLED = 4

__all__ = ["every_stage", "grid_loop", "run_in_order", "thread_per_point"]


def thread_per_point(code: NestCode, lanes: int) -> None:
    """A thread runs all stages at each of its points.

    Args:
        code: the function.
        lanes: neighbouring points of the last axis that a thread takes at once.
    """
    if lanes > 1:
        _thread_per_pack(code, lanes)
        return
    with grid_loop(code, code.nest.outer_axes) as scope:
        for stage in code.nest.stages:
            run_in_order(code, stage, scope)


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
