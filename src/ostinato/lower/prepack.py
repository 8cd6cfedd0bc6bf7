"""Splitting calls that run once per write of a param from those that run every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.program import Call, LoweredBuffer, Role

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

__all__ = ["split_prepared"]


def split_prepared(
    calls: Sequence[Call], kept: Container[LoweredBuffer] = ()
) -> tuple[list[Call], list[Call]]:
    """``(prepare, calls)``: first the calls that depend on params and constants alone.

    Every writer of a buffer goes the same way: one that runs at each run might undo, for the next
    run, what was prepared once. Buffers of prepared calls become :attr:`Role.PREPARED`. An empty
    buffer that no call writes, such as a concatenation of nothing, stays in the memory of runs.

    Args:
        calls: in the order in which they run.
        kept: buffers that each run is to write, even if they depend on params alone.
    """
    chosen = {id(c): c for c in calls if _may_prepare(c, kept)}
    written = {id(b) for c in calls for b in c.writes()}
    never = {id(b) for c in calls for b in c.buffers if b.role is Role.TEMP} - written
    changed = True
    while changed:
        loose = never | {id(b) for c in calls if id(c) not in chosen for b in c.writes()}
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


def _may_prepare(call: Call, kept: Container[LoweredBuffer]) -> bool:
    own = all(b.role is Role.TEMP and b not in kept for b in call.writes())
    return own and call.kernel.variable_free()


def _is_loose(buffer: LoweredBuffer, loose: set[int]) -> bool:
    """Whether a buffer's contents may differ from run to run."""
    return buffer.role in (Role.INPUT, Role.STATE, Role.RESIDENT) or id(buffer) in loose
