"""Non-temporal stores: large results written past the caches.

A store of an ordinary kind first reads the cache line that it writes to, and leaves it in place of
another. For a result that caches cannot hold, and that no kernel reads, both are in vain.

A kernel that computes much in stages before it stores a row would wait for these stores, all of
which come at once: memory idles before. There the first stage fetches the lines of the row to be
written, and caches write them back while the next row is computed: more bytes, but beside
arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.kernel import CpuLoopNest
from ostinato.lower.fusion.cost import LONG, instructions
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Apply, Load, Reduce, Scan, Stage, Store, extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.records import replace
from ostinato.variables import Expr, coefficient, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.caches import CacheSizes
    from ostinato.lower.program import Call, LoweredBuffer, Program
    from ostinato.variables import Symbol

__all__ = ["stream_results"]

#: Results from so many second-level caches on are streamed: about a last-level cache.
_CACHES = 32

#: Short instructions for an element of a row that take longer than writing it. (A softmax alone has
#: half as many: to fetch its lines takes 1.2 times as long on Emerald Rapids.)
_MUCH = 2 * LONG


def stream_results(calls: Sequence[Call], program: Program, caches: CacheSizes) -> list[Call]:
    """The calls, with large results of ``program`` stored past the caches."""
    read = {buffer for call in (*program.prepare, *calls) for buffer in call.reads()}
    large = {
        buffer
        for buffer in program.outputs.values()
        if buffer not in read
        and buffer.home is None
        and buffer.type.max_bytes >= _CACHES * caches.second
    }
    return [_streamed(call, large) for call in calls] if large else [*calls]


def _streamed(call: Call, large: set[LoweredBuffer]) -> Call:
    nest = call.kernel
    if not isinstance(nest, CpuLoopNest):
        return call
    pairs = enumerate(zip(nest.args, call.buffers, strict=True))
    positions = [at for at, (arg, buffer) in pairs if arg.writes and buffer in large]
    stores = [store for at in positions if (store := _streamed_store(nest, at)) is not None]
    if not stores:
        return call
    fetched = _fetched(nest, stores[0])
    if fetched is not None:
        return replace(call, kernel=replace(nest, fetched=fetched))
    return replace(call, kernel=replace(nest, streamed=stores[0]))


def _fetched(nest: CpuLoopNest, store: Store) -> Load | None:
    """The element that ``store`` writes, at a point of the first stage.

    ``None`` unless rows take much arithmetic, and the first stage has a point for each element.
    """
    first, *_, last = (nest.stages[0], *nest.stages)
    if first is last or store not in last.statements or store.bindings:
        return None
    if not len(first.axes) == len(last.axes) == 1:
        return None
    (axis,), (stored,) = first.axes, last.axes
    starts = [root for stage in nest.stages for s in stage.statements for root in roots(s)]
    ops = [scalar.op for scalar in reached(starts) if isinstance(scalar, Apply)]
    much = sum(instructions(ELEMENTWISE[op]) for op in ops) >= _MUCH
    if not much or extent_of(axis) != extent_of(stored):
        return None
    index = substitute(store.index, {stored: Expr({(axis,): 1}, 0)})
    return Load(store.buffer, index, nest.args[store.buffer].dtype)


def _streamed_store(nest: CpuLoopNest, position: int) -> Store | None:
    """The store to an argument, if vectors of it may start wherever they are aligned in memory."""
    found = [
        (stage, statement)
        for stage in nest.stages
        for statement in stage.statements
        if isinstance(statement, Store) and statement.buffer == position
    ]
    if len(found) != 1:
        return None
    ((stage, store),) = found
    if store.update != "set" or store.conditions:
        return None
    if nest.inner_axis is None:
        fits = bool(stage.axes) and _is_map(stage) and _is_affine([stage], stage.axes[-1])
        lane = stage.axes[-1] if stage.axes else None
    else:
        lane = nest.inner_axis
        fits = not stage.axes and _is_affine(nest.stages, lane)
    if lane is None or not fits:
        return None
    step = coefficient(store.index, lane)
    return store if step is not None and step[0] == 1 else None


def _is_map(stage: Stage) -> bool:
    """Whether nothing is summed up along the stage: in which order would depend on addresses."""
    return not any(isinstance(statement, Reduce | Scan) for statement in stage.statements)


def _is_affine(stages: Sequence[Stage], lane: Symbol) -> bool:
    """Whether all indices step evenly along ``lane``, from wherever a vector starts."""
    dims = [dim for stage in stages for dim in index_expressions(stage.statements)]
    return all(isinstance(dim, int) or coefficient(dim, lane) is not None for dim in dims)
