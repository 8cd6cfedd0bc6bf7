"""Which of the calls that run once must run again when a param is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.program import LoweredBuffer, Role
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.program import Call, Program

__all__ = ["Preparation", "passing_params", "preparations"]


@dataclass(frozen=True)
class Preparation:
    """Calls that share what they prepare, so that they run all together or not at all.

    Together, because a call may add to what another one wrote: run alone it would add twice.

    Attributes:
        calls: in the order in which they run.
        params: names of the params that they read.
    """

    calls: tuple[Call, ...]
    params: frozenset[str]


def preparations(calls: Sequence[Call]) -> list[Preparation]:
    """Divides the calls that prepare buffers, in the order in which they run, into such groups."""
    group_of: dict[LoweredBuffer, list[Call]] = {}
    for call in calls:
        joined = {id(group_of[b]): group_of[b] for b in _prepared([call]) if b in group_of}
        group = [*(other for part in joined.values() for other in part), call]
        group_of.update((b, group) for b in _prepared(group))
    position = {call: i for i, call in enumerate(calls)}
    groups = {id(group): group for group in group_of.values()}.values()
    return [_preparation(sorted(group, key=position.__getitem__)) for group in groups]


def passing_params(program: Program) -> frozenset[LoweredBuffer]:
    """Params that nothing reads once what is prepared from them is prepared.

    Neither a run reads them, nor what is prepared anew when another param is written.
    """
    needed = {b for call in program.calls for b in call.buffers if b.role is Role.PARAM}
    for group in preparations(program.prepare):
        if len(group.params) > 1:
            needed.update(program.params[name] for name in group.params)
    return frozenset(program.params.values()) - needed


def _prepared(calls: Sequence[Call]) -> set[LoweredBuffer]:
    return {b for call in calls for b in call.buffers if b.role is Role.PREPARED}


def _preparation(calls: Sequence[Call]) -> Preparation:
    params = {b.name for call in calls for b in call.buffers if b.role is Role.PARAM}
    return Preparation(tuple(calls), frozenset(params))
