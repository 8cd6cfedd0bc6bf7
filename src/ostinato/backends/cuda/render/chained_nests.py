"""Rendering two nests of a segment, the second of which reads what the first one writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.joint_bodies import Section, joined
from ostinato.backends.cuda.render.mapping import mapping_of
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.lower.loopir.nodes import Store, extent_of
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.rules.gpu_nest import most_points
from ostinato.records import replace
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.kernel import CudaLoopNest
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["body"]


def body(
    args: Sequence[Arg],
    kernels: tuple[CudaLoopNest, CudaLoopNest],
    places: Sequence[Sequence[int]],
    target: CudaTarget,
) -> Body:
    """The code of both nests, with a barrier between them if a thread needs what another one has.

    Args:
        args: those of the whole.
        kernels: the nests, the second of which reads what the first one writes.
        places: of each, the positions of its arguments.
        target: the GPU, with the blocks of a segment.
    """
    (first, second), (own, others) = kernels, places
    bodies = first.body(target), _renamed(second.body(target))
    assert not bodies[1].dynamic, f"{second.name} has no temps"
    written = {place: n for n, place in enumerate(own) if first.args[n].writes}
    passed = [(written[place], n) for n, place in enumerate(others) if place in written]
    apart = all(_stays_with_threads(first, second, *pair, target) for pair in passed)
    sections = [
        Section(bodies[0], own, behind=[] if apart else ["OST_SYNC();"]),
        Section(bodies[1], others),
    ]
    arrays = bodies[0].arrays + bodies[1].arrays
    return replace(joined(args, sections, arrays=arrays), dynamic=bodies[0].dynamic)


def _renamed(body: Body) -> Body:
    """The same code, whose arrays have names that no other kernel's have."""
    text, arrays = body.text, []
    for array in body.arrays:
        arrays.append(replace(array, name=f"chained_{array.name}"))
        text = re.sub(rf"\b{array.name}\b", f"chained_{array.name}", text)
    return replace(body, text=text, arrays=tuple(arrays))


def _stays_with_threads(
    first: CudaLoopNest, second: CudaLoopNest, written: int, read: int, target: CudaTarget
) -> bool:
    """Whether each thread reads only those elements of a value that it has itself written.

    Args:
        first, second: the nests, of which the block has all points.
        written, read: the positions of the value among their arguments.
        target: the GPU.
    """
    lanes = _dealt(first, target)
    whole = SEGMENT_BLOCK * lanes
    if not lanes or _dealt(second, target) != lanes or second.whole_rows(target).get(read) != whole:
        return False
    kept = mapping_of(first, target).kept
    stores = [
        (number, store)
        for number, stage in enumerate(first.stages)
        for store in stage.statements
        if isinstance(store, Store) and store.buffer == written
    ]
    if kept is None or len(stores) != 1 or stores[0][0] not in kept.stages:
        return False
    ((number, store),) = stores
    axes = [*first.outer_axes, *first.stages[number].axes]
    place = linear_index([*map(extent_of, axes)], [Expr({(axis,): 1}, 0) for axis in axes])
    return store.index == place and not store.conditions and store.update == "set"


def _dealt(nest: CudaLoopNest, target: CudaTarget) -> int:
    """The neighbours that each thread has of a nest's rows, from as many times its number on.

    0, if it is not so: rows that do not fill the threads of a point leave some without any.
    """
    mapping, points = mapping_of(nest, target), most_points(nest.outer_axes)
    kept = mapping.kept
    if kept is None or kept.packs > 1 or points != mapping.points:
        return 0
    return kept.lanes if kept.extent == mapping.members * kept.lanes else 0
