"""Prepacking: groups of calls that run once, and again when one of their params is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.program import LoweredBuffer, Role
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.program import Call, Program

__all__ = ["Preparation", "non_retained_params", "preparations"]


@dataclass(frozen=True)
class Preparation:
    """Calls that write the same prepacked buffers, so that they run all together or not at all.

    A call may accumulate into the output of another: run alone, it would accumulate twice.

    Attributes:
        calls: in execution order.
        params: names of the params that they read.
    """

    calls: tuple[Call, ...]
    params: frozenset[str]


def preparations(calls: Sequence[Call]) -> list[Preparation]:
    """Divide the calls that prepack buffers, in execution order, into such groups."""
    group_of: dict[LoweredBuffer, list[Call]] = {}
    for call in calls:
        joined = {id(group_of[b]): group_of[b] for b in _prepared([call]) if b in group_of}
        group = [*(other for part in joined.values() for other in part), call]
        group_of.update((b, group) for b in _prepared(group))
    position = {call: i for i, call in enumerate(calls)}
    groups = {id(group): group for group in group_of.values()}.values()
    return [_preparation(sorted(group, key=position.__getitem__)) for group in groups]


def non_retained_params(program: Program) -> frozenset[LoweredBuffer]:
    """Non-retained weights: params that nothing reads once they are prepacked.

    Neither runs read them, nor calls that prepack again when another param is written.
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
