"""Temps that share memory: a row takes the place of an earlier one that is read no more.

A chain of row-wise ops keeps a row after each stage. Where a stage reads an element of one row and
writes the same element of the next, both can be in one place, which then stays in the first-level
cache: four rows of 4096 float32 do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Load, Reduce, Stage, Store
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import replace
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Statement
    from ostinato.variables import Dim

__all__ = ["share_temps"]


def share_temps(nest: LoopNest) -> LoopNest:
    """``nest`` with rows in the memory of earlier ones; what it computes stays the same.

    For devices that run the stages of an outer point one after another, and the statements of a
    stage in order wherever one reads what another writes.
    """
    if nest.inner_axis is not None or len(nest.temps) < 2:
        return nest
    first = len(nest.args)
    stages = [*nest.stages]
    in_place: set[int] = set()
    holds: dict[int, int] = {}  # by the temp whose memory it is, the temp that is in it by now
    numbers: dict[int, int] = {}
    for temp, form in enumerate(nest.temps):
        place = temp
        for candidate, held in holds.items():
            at = _start_after(stages, first + held, first + temp)
            if nest.temps[candidate] != form or at is None:
                continue
            if _touches(stages[at], first + held):
                stage = (
                    None if at in in_place else _in_place(stages[at], first + held, first + temp)
                )
                if stage is None:
                    continue
                stages[at] = stage
                in_place.add(at)
            place = candidate
            break
        holds[place] = temp
        numbers[first + temp] = place
    kept = sorted(holds)
    if len(kept) == len(nest.temps):
        return nest
    numbers = {number: first + kept.index(place) for number, place in numbers.items()}
    rewriter = Rewriter(buffer=lambda number: numbers.get(number, number))
    done = (Stage(stage.axes, tuple(map(rewriter.statement, stage.statements))) for stage in stages)
    return replace(nest, stages=tuple(done), temps=tuple(nest.temps[place] for place in kept))


def _start_after(stages: Sequence[Stage], old: int, new: int) -> int | None:
    """The stage in which row ``new`` starts, if nothing touches row ``old`` after that stage."""
    using = [at for at, stage in enumerate(stages) if _touches(stage, new)]
    before = [at for at, stage in enumerate(stages) if _touches(stage, old)]
    if not using or not before or max(before) > using[0]:
        return None
    return using[0]


def _in_place(stage: Stage, old: int, new: int) -> Stage | None:
    """``stage`` with the store to ``new`` last, if it reads of ``old`` just the element stored."""
    stores = [s for s in stage.statements if _written(s) == new]
    if len(stores) != 1 or len(stage.axes) != 1:
        return None
    (store,) = stores
    if not isinstance(store, Store) or store.update != "set" or store.bindings or store.conditions:
        return None
    if store.index != Expr({(stage.axes[0],): 1}, 0):
        return None
    if any(_written(statement) == old for statement in stage.statements):
        return None
    if _read(stage.statements, new) or _read(stage.statements, old) != {store.index}:
        return None
    others = [statement for statement in stage.statements if statement is not store]
    return Stage(stage.axes, (*others, store))


def _touches(stage: Stage, buffer: int) -> bool:
    written = any(_written(statement) == buffer for statement in stage.statements)
    return written or bool(_read(stage.statements, buffer))


def _written(statement: Statement) -> int | None:
    return None if isinstance(statement, Reduce) else statement.buffer


def _read(statements: Sequence[Statement], buffer: int) -> set[Dim]:
    """The indices at which statements read a buffer."""
    scalars = reached(root for statement in statements for root in roots(statement))
    return {s.index for s in scalars if isinstance(s, Load) and s.buffer == buffer}
