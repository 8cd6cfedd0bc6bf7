"""Calls whose results nothing reads, since the rule of their reader went past them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.control import Control
from ostinato.lower.program import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.lower.program import Call, LoweredBuffer

__all__ = ["without_unread"]


def without_unread(calls: Sequence[Call], kept: Collection[LoweredBuffer]) -> list[Call]:
    """The calls without those that write temporary buffers alone which no later call reads.

    Args:
        calls: in order; where there are loops or branches, all stay.
        kept: buffers that have to be written.
    """
    if any(isinstance(call.kernel, Control) for call in calls):
        return list(calls)
    read: set[LoweredBuffer] = set(kept)
    found: list[Call] = []
    for call in reversed(calls):
        pairs = list(zip(call.buffers, call.kernel.args, strict=True))
        written = [buffer for buffer, arg in pairs if arg.writes]
        dead = bool(written) and all(
            buffer.role is Role.TEMP and (buffer.home or buffer) not in read for buffer in written
        )
        if not dead:
            found.append(call)
            read.update(buffer.home or buffer for buffer, arg in pairs if arg.reads)
    return found[::-1]
