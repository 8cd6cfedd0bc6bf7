"""The schedule of prepared ops: their order and dependencies."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ostinato.errors import PlanError
from ostinato.plan.hazards import HazardTracker
from ostinato.plan.prepared import PreparedOp
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["schedule"]


def schedule(ops: Sequence[PreparedOp]) -> tuple[PreparedOp, ...]:
    """``ops`` in an order in which they may run, each with all its dependencies.

    The order is the one given, but for ops that declare a dependency on a later one. In that
    order, an op that touches bytes that an earlier one writes, or writes bytes that it reads,
    depends on it.

    Raises:
        PlanError: an element is no op; two ops have one id; or an op depends on itself, on one that
            does not exist, or through others on itself. The message names them.
    """
    by_id = _numbered(ops)
    tracker = HazardTracker()
    ordered: list[PreparedOp] = []
    for op in _topological(by_id):
        found = tracker.add(op.id, op)
        ordered.append(replace(op, dependencies=tuple(sorted(found.union(op.dependencies)))))
    return tuple(ordered)


def _numbered(ops: Sequence[PreparedOp]) -> dict[int, PreparedOp]:
    by_id: dict[int, PreparedOp] = {}
    for op in ops:
        if not isinstance(op, PreparedOp):
            raise PlanError(f"a plan is made of prepared ops, got a {type(op).__name__}")
        if op.id in by_id:
            raise PlanError(f"{by_id[op.id]} and {op} have the same id")
        by_id[op.id] = op
    for op in ops:
        for other in op.dependencies:
            if other == op.id:
                raise PlanError(f"{op} depends on itself")
            if other not in by_id:
                raise PlanError(f"{op} depends on op {other}, which the plan does not have")
    return by_id


def _topological(by_id: Mapping[int, PreparedOp]) -> list[PreparedOp]:
    ops = list(by_id.values())
    position = {op.id: i for i, op in enumerate(ops)}
    waiting = {op.id: len(set(op.dependencies)) for op in ops}
    dependents: dict[int, list[int]] = {}
    for op in ops:
        for other in set(op.dependencies):
            dependents.setdefault(other, []).append(op.id)
    ready = [i for i, op in enumerate(ops) if not waiting[op.id]]
    ordered: list[PreparedOp] = []
    while ready:
        op = ops[heapq.heappop(ready)]
        ordered.append(op)
        for dependent in dependents.get(op.id, ()):
            waiting[dependent] -= 1
            if not waiting[dependent]:
                heapq.heappush(ready, position[dependent])
    if len(ordered) < len(ops):
        raise PlanError(f"these ops wait for each other: {_cycle(by_id, waiting)}")
    return ordered


def _cycle(by_id: Mapping[int, PreparedOp], waiting: Mapping[int, int]) -> str:
    """A cycle among the ops that never became ready: follow any dependency until one repeats."""
    op = next(by_id[key] for key, count in waiting.items() if count)
    path: list[PreparedOp] = []
    while op not in path:
        path.append(op)
        op = next(by_id[key] for key in op.dependencies if waiting[key])
    return " → ".join(str(member) for member in [*path[path.index(op) :], op])
