"""Which calls run once per write of a param, and which at every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.nodes import LoopNest
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ostinato.variables import Symbol

__all__ = ["split_prepared"]


def split_prepared(
    calls: Sequence[Call], variables: tuple[Symbol, ...], told: Container[LoweredBuffer] = ()
) -> tuple[list[Call], list[Call]]:
    """``(prepare, calls)``: first the calls that depend on params and constants alone.

    Every writer of a buffer goes the same way: one that runs at each run might undo, for the next
    run, what was prepared once. Buffers of prepared calls become :attr:`Role.PREPARED`.

    Args:
        calls: in the order in which they run.
        variables: what kernels take the values of.
        told: what each run is to write, whatever it depends on: which experts it has called.
    """
    chosen = {id(c): c for c in calls if _may_prepare(c, variables, told)}
    changed = True
    while changed:
        loose = {id(b) for c in calls if id(c) not in chosen for b in c.writes()}
        dropped = [c for c in chosen.values() if any(_is_loose(b, loose) for b in c.buffers)]
        for call in dropped:
            del chosen[id(call)]
        changed = bool(dropped)
    for call in chosen.values():
        for buffer in call.writes():
            buffer.role = Role.PREPARED
    return (
        [c for c in calls if id(c) in chosen],
        [c for c in calls if id(c) not in chosen],
    )


def _may_prepare(call: Call, variables: tuple[Symbol, ...], told: Container[LoweredBuffer]) -> bool:
    own = all(b.role is Role.TEMP and b not in told for b in call.writes())
    return own and _variable_free(call, variables)


def _is_loose(buffer: LoweredBuffer, loose: set[int]) -> bool:
    """Whether a buffer's contents may differ from run to run."""
    return buffer.role in (Role.INPUT, Role.STATE, Role.PLACED) or id(buffer) in loose


def _variable_free(call: Call, variables: tuple[Symbol, ...]) -> bool:
    """Whether a call does the same whatever the Variables' values are."""
    if not variables:
        return True
    kernel = call.kernel
    if not isinstance(kernel, LoopNest):
        return False
    dims = [s.extent for s in (*kernel.axes, kernel.lane_axis) if s is not None]
    for stage in kernel.stages:
        dims += [s.extent for s in stage.axes]
        dims += index_expressions(stage.statements)
    known = set(variables)
    return not any(symbols(d) & known for d in dims if d is not None)
