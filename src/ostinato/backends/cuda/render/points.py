"""Nests whose every point is one thread's: elementwise ones, windows, short reductions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.namespace import CNamespace
from ostinato.backends.common.clike.scopes import Index
from ostinato.backends.common.clike.values import CValue
from ostinato.backends.cuda.render.packs import packed_body
from ostinato.backends.cuda.render.reductions import RunningReduction
from ostinato.lower.loopir.dependences import roots, written_buffers
from ostinato.lower.loopir.nodes import Reduce, Scan, Store, extent_of
from ostinato.variables import axis, floor_div, prod, provably_less, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.lower.loopir.nodes import Stage
    from ostinato.variables import Symbol

#: Points whose loads a thread has under way together, where it has several.
_UNROLLED = 4

__all__ = ["every_stage", "grid_loop", "run_in_order", "thread_per_point"]

_NAMESPACE = CNamespace()


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
                code.scalars.store(statement, code.dtypes[statement.buffer], scope)


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
        code.writer.line(f"#pragma unroll {_UNROLLED}")
    with code.writer.block(head):
        yield code.enter(axes, Index(name, points.wide), code.outermost)


def run_in_order(code: NestCode, stage: Stage, scope: Scope) -> None:
    """One thread runs a stage at a point; its reductions become refs of ``scope``."""
    running = {
        s: RunningReduction.start(code, s) for s in stage.statements if isinstance(s, Reduce)
    }
    _loops(code, stage, stage.axes, scope, running, {})
    for reduction in running.values():
        reduction.result(scope)


def _loops(
    code: NestCode,
    stage: Stage,
    axes: Sequence[Symbol],
    scope: Scope,
    running: dict[Reduce, RunningReduction],
    sums: dict[Scan, str],
) -> None:
    if len(axes) == min(len(stage.axes), 1):  # in front of the loop that they run along
        sums = {s: _start_scan(code, s) for s in stage.statements if isinstance(s, Scan)}
    if not axes:
        _body(code, stage, scope if not stage.axes else scope.child(), running, sums)
        return
    axis = axes[0]
    if provably_less(0, prod(map(extent_of, axes))):
        starts = [root for s in stage.statements for root in roots(s)]
        code.scalars.hoist(starts, scope, frozenset(axes) | written_buffers(stage))
    stop = code.size(extent_of(axis), scope, 1)
    type_, name = code.dialect.index_type(stop.wide), code.writer.fresh("i")
    with code.writer.block(f"for ({type_} {name} = 0; {name} < {stop.text}; ++{name})"):
        inside = scope.child({axis: Index(name, stop.wide)})
        _loops(code, stage, axes[1:], inside, running, sums)


def _body(
    code: NestCode,
    stage: Stage,
    scope: Scope,
    running: dict[Reduce, RunningReduction],
    sums: dict[Scan, str],
) -> None:
    code.evaluate(stage.statements, scope)
    for statement in stage.statements:
        match statement:
            case Reduce():
                running[statement].add(scope)
            case Store():
                code.scalars.store(statement, code.dtypes[statement.buffer], scope)
            case Scan():
                _scan(code, statement, sums[statement], scope)


def _start_scan(code: NestCode, scan: Scan) -> str:
    name = code.writer.fresh("s")
    type_ = code.dialect.register_type(scan.dtype)
    neutral = code.dialect.literal(scan.dtype, scan.neutral)
    code.writer.line(f"{type_} {name} = {neutral};")
    return name


def _scan(code: NestCode, scan: Scan, name: str, scope: Scope) -> None:
    before = CValue(code.code, name, scan.dtype)
    value = code.scalars.value(scan.value, scope)
    after = getattr(_NAMESPACE, scan.combine)(before, value)
    written = before if scan.exclusive else after
    code.scalars.put(scan.buffer, code.dtypes[scan.buffer], scan.index, written, scope)
    code.writer.line(f"{name} = {after.text};")
