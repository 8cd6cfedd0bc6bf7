"""Nests whose points take effect in order, as far as the order matters: scatters.

Points that touch different elements in any case need no order. The axes that tell them apart become
the parallel range, and the last one vectors, if its neighbours are neighbours in memory; the others
are loops within.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.independence import distinct_axes, only_store
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Stage
from ostinato.lower.rules.loops import BLOCK
from ostinato.variables import Symbol, coefficient

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["distinct_points_in_parallel"]

#: An axis of one point, of which no vectors are made.
_ALONE = Symbol("alone", 0, 0)


def distinct_points_in_parallel(nest: LoopNest) -> LoopNest:
    """``nest``, or one that keeps its points in order only where they touch one element."""
    store = None if nest.parallel or nest.inner_axis is not None else only_store(nest)
    if store is None:
        return nest
    dependences = Dependences(nest.stages)
    distinct = distinct_axes(store.index, store.conditions, nest.axes, dependences)
    shared = tuple(axis for axis in nest.axes if axis in distinct)
    rest = tuple(axis for axis in nest.axes if axis not in distinct)
    if not shared:
        return nest
    step = coefficient(store.index, shared[-1])
    if step is not None and step[0] == 1:
        return _parallel(nest, shared[:-1], Stage(rest, (store,)), shared[-1])
    return _parallel(nest, shared, Stage((*rest, _ALONE), (store,)), None)


def _parallel(
    nest: LoopNest, axes: Sequence[Symbol], stage: Stage, inner_axis: Symbol | None
) -> LoopNest:
    return LoopNest(
        nest.args,
        tuple(axes),
        (stage,),
        inner_axis=inner_axis,
        block=BLOCK,
        variables=nest.variables,
    )
