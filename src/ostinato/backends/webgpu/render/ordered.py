"""Nests whose points take effect in order: scatters.

Axes whose points touch different elements in any case are dealt out to threads. The points of the
others are seen in order by several threads each, and each takes those whose element is its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.arrays import word
from ostinato.backends.webgpu.render.mapping import THREADS
from ostinato.backends.webgpu.render.points import run_in_order, threads_over
from ostinato.lower.loopir.independence import distinct_axes, only_store
from ostinato.lower.loopir.nodes import Store, extent_of, max_extent
from ostinato.variables import (
    axis,
    ceil_div,
    prod,
    provably_nonnegative,
    substitute,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.render.code import NestCode
    from ostinato.variables import Dim, Symbol

__all__ = ["in_order"]

#: Threads among which the elements are divided that several points may touch.
_MANY = 1 << 12

#: Points that a thread looks at in an iteration: their elements are read side by side. It also
#: keeps loops short: Mesa's software adapter ends those of more than 65,535 iterations.
_UNROLLED = 4


def in_order(code: NestCode) -> Dim:
    """The points of a nest, in order where that can be seen; returns the number of workgroups."""
    store = only_store(code.nest)
    if store is None:
        _one_thread(code)
        return 1
    axes = code.nest.outer_axes
    distinct = distinct_axes(store.index, store.conditions, axes, code.dependences)
    shared = tuple(symbol for symbol in axes if symbol in distinct)
    rest = tuple(symbol for symbol in axes if symbol not in distinct)
    owners = max(_MANY // max(math.prod(map(max_extent, shared)), 1), 1) if rest else 1
    owner = axis("owner", owners)
    step = _step_of_elements(store.index, shared)
    over = (*symbols(owner), *shared)
    with threads_over(code, over) as scope:
        mine = code.narrow(code.scalars.indices.value(owner, scope))

        def take(inside: Scope) -> None:
            _take_own(code, store, inside, f"/ {step}u % {owners}u == u32({mine})" * (owners > 1))

        _loops(code, rest, scope, take, unrolled=_UNROLLED)
    return ceil_div(prod(map(extent_of, over)), THREADS)


def _step_of_elements(index: Dim, shared: Sequence[Symbol]) -> int:
    """A divisor of the distances between elements of a point of the shared axes."""
    values: dict[Symbol, Dim] = dict.fromkeys(shared, 0)
    rest = substitute(index, values)
    return 1 if isinstance(rest, int) else math.gcd(*(factor for _, factor in rest.terms))


def _one_thread(code: NestCode) -> None:
    with code.writer.block("if (group == 0u && thread == 0u)"):

        def stages(scope: Scope) -> None:
            for stage in code.nest.stages:
                run_in_order(code, stage, scope)

        _loops(code, code.nest.outer_axes, code.outermost.child(), stages)


def _loops(
    code: NestCode,
    axes: Sequence[Symbol],
    scope: Scope,
    body: Callable[[Scope], None],
    unrolled: int = 1,
) -> None:
    """Loops of one thread around ``body``, which the innermost one may have several times."""
    if not axes:
        body(scope)
        return
    if len(axes) > 1 or unrolled == 1:
        with code.loop(axes[0], scope) as inside:
            _loops(code, axes[1:], inside, body, unrolled)
        return
    stop, name = code.size(extent_of(axes[0]), scope), code.writer.fresh("e")
    head = f"for (var {name} = 0i; {name} < {stop}; {name} += {unrolled})"
    with code.repeat(head, ceil_div(extent_of(axes[0]), unrolled)):
        for number in range(unrolled):
            point = code.declare("e", f"{name} + {number}")
            with code.writer.block(f"if ({point} < {stop})" if number else ""):
                body(code.at({axes[0]: point}, scope))


def _take_own(code: NestCode, store: Store, scope: Scope, is_mine: str) -> None:
    """The store, if its element is one of this thread's.

    Args:
        code: the kernel.
        store: the statement.
        scope: around it.
        is_mine: what follows the element's number in the condition; empty: all are.
    """
    conditions = tuple(c for c in store.conditions if not provably_nonnegative(c))
    head = f"if ({code.scalars.conditions(conditions, scope)})" if conditions else ""
    with code.writer.block(head):
        inside = scope.child()
        head = ""
        if is_mine:
            element = word(code.scalars.indices.value(store.index, inside))
            head = f"if ({element} {is_mine})"
        with code.writer.block(head):
            code.store(store, inside.child())
