"""Nests whose every point is one thread's: elementwise ones, windows, short reductions."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.clike import points
from ostinato.backends.webgpu.render.mapping import THREADS
from ostinato.backends.webgpu.render.parts import Parts, parts_of
from ostinato.backends.webgpu.render.reductions import RunningReduction
from ostinato.lower.loopir.nodes import Store, extent_of
from ostinato.variables import ceil_div, maximum, prod

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.render.code import NestCode
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Dim, Symbol

__all__ = ["every_stage", "run_in_order", "thread_per_point", "threads_over"]


def thread_per_point(code: NestCode) -> Dim:
    """A thread runs all stages at each of its points; returns the number of workgroups."""
    nest = code.nest
    parts = None
    if len(nest.stages) == 1 and not nest.stages[0].axes and nest.outer_axes:
        parts = parts_of(code, nest.stages[0], nest.outer_axes[-1], alone=len(nest.outer_axes) == 1)
    if parts is not None:
        return _thread_per_word(code, parts)
    with threads_over(code, nest.outer_axes) as scope:
        for stage in nest.stages:
            run_in_order(code, stage, scope)
    return ceil_div(prod(map(extent_of, nest.outer_axes)), THREADS)


def _thread_per_word(code: NestCode, parts: Parts) -> Dim:
    """A thread has all points whose results are parts of the same words."""
    *outer, last = code.nest.outer_axes
    packs = ceil_div(extent_of(last), parts.lanes)
    count = prod(map(extent_of, outer)) * packs
    stop = code.size(count, code.outermost)
    number = code.declare("p", f"i32(group * {THREADS}u + thread)")
    with code.writer.block(f"if ({number} < {stop})"):
        scope, first = code.outermost.child(), number
        if outer:
            row = code.size(packs, scope)
            rest = code.declare("p", f"{number} / {row}")
            scope = code.enter(outer, rest, scope)
            first = code.declare("p", f"{number} - {rest} * {row}")
        first = code.declare("p", f"{first} * {parts.lanes}")
        parts.write(scope, first)
    return ceil_div(count, THREADS)


def every_stage(code: NestCode) -> Dim:
    """A thread runs each stage's statements at one of its points, stages in any order."""
    groups: Dim = 0
    for stage in code.nest.stages:
        axes = (*code.nest.outer_axes, *stage.axes)
        with threads_over(code, axes) as scope:
            for statement in stage.statements:
                assert isinstance(statement, Store)
                code.store(statement, scope)
        groups = maximum(groups, ceil_div(prod(map(extent_of, axes)), THREADS))
    return groups


@contextmanager
def threads_over(code: NestCode, axes: Sequence[Symbol]) -> Iterator[Scope]:
    """A thread for each point of ``axes``, neighbours at neighbouring ones."""
    stop = code.size(prod(map(extent_of, axes)), code.outermost)
    number = code.declare("p", f"i32(group * {THREADS}u + thread)")
    with code.writer.block(f"if ({number} < {stop})"):
        yield code.enter(axes, number, code.outermost)


def run_in_order(code: NestCode, stage: Stage, scope: Scope) -> None:
    """One thread runs a stage at a point; its reductions become refs of ``scope``."""
    points.run_in_order(code, stage, scope, partial(RunningReduction.start, code))
