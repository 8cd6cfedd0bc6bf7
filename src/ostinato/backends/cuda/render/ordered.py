"""Nests whose points take effect in order: scatters.

Axes whose points touch different elements in any case are dealt out to threads. The points of the
others are seen in order by several threads each, and each takes those whose element is its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.points import grid_loop, run_in_order
from ostinato.lower.loopir.independence import distinct_axes, only_store
from ostinato.lower.loopir.nodes import Store, max_extent
from ostinato.variables import (
    axis,
    floor_div,
    provably_nonnegative,
    remainder,
    substitute,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode
    from ostinato.variables import Dim, Symbol

__all__ = ["in_order"]


def in_order(code: NestCode) -> None:
    """The points of a nest, in order where that can be seen."""
    store = only_store(code.nest)
    if store is None:
        _one_thread(code)
        return
    axes = code.nest.outer_axes
    distinct = distinct_axes(store.index, store.conditions, axes, code.dependences)
    shared = tuple(symbol for symbol in axes if symbol in distinct)
    rest = tuple(symbol for symbol in axes if symbol not in distinct)
    threads = code.launch.grid * code.launch.block
    owners = threads // max(math.prod(map(max_extent, shared)), 1) if rest else 1
    owner = axis("owner", max(owners, 1))
    key = remainder(_number_of_element(store.index, shared), max(owners, 1))
    with grid_loop(code, (*symbols(owner), *shared)) as scope:
        _loops(code, rest, scope, lambda inside: _take_own(code, store, inside, key, owner))


def _number_of_element(index: Dim, shared: Sequence[Symbol]) -> Dim:
    """A number that is the same for equal elements of a point of the shared axes, and dense."""
    values: dict[Symbol, Dim] = dict.fromkeys(shared, 0)
    rest = substitute(index, values)
    if isinstance(rest, int):
        return 0
    return floor_div(rest - rest.const, math.gcd(*(factor for _, factor in rest.terms)))


def _one_thread(code: NestCode) -> None:
    with code.writer.block("if (own.x == 0 && threadIdx.x == 0)"):

        def stages(scope: Scope) -> None:
            for stage in code.nest.stages:
                run_in_order(code, stage, scope)

        _loops(code, code.nest.outer_axes, code.outermost.child(), stages)


def _loops(
    code: NestCode, axes: Sequence[Symbol], scope: Scope, body: Callable[[Scope], None]
) -> None:
    """Loops of one thread around ``body``."""
    if not axes:
        body(scope)
        return
    with code.loop(axes[0], scope) as inside:
        _loops(code, axes[1:], inside, body)


def _take_own(code: NestCode, store: Store, scope: Scope, key: Dim, owner: Dim) -> None:
    """The store, if its element is one of this thread's."""
    indices, conditions = code.scalars.indices, store.conditions
    conditions = tuple(c for c in conditions if not provably_nonnegative(c))
    head = f"if ({code.scalars.conditions(conditions, scope)})" if conditions else ""
    with code.writer.block(head):
        inside = scope.child()
        mine = f"{indices.value(key, inside).text} == {indices.value(owner, inside).text}"
        with code.writer.block(f"if ({mine})" if key != 0 else ""):
            code.scalars.store(store, code.dtype(store.buffer), inside.child())
