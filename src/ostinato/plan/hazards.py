"""Hazards between ops, from the bytes that they read and write.

Two ops conflict when one writes bytes that the other reads or writes. Bytes are ranges within a
storage, whichever handle names them: two views of one buffer conflict exactly if they overlap.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Hazard", "HazardTracker", "conflicts", "hazards", "overlap"]


class Range(Protocol):
    """Bytes ``offset`` to ``end`` of a storage."""

    @property
    def storage_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def end(self) -> int: ...


class Accesses(Protocol):
    """The ranges that an op reads and writes."""

    @property
    def reads(self) -> Sequence[Range]: ...
    @property
    def writes(self) -> Sequence[Range]: ...


class Hazard(enum.Enum):
    """A reason for an op to wait for an earlier one."""

    RAW = "reads what the earlier one writes"
    WAR = "writes what the earlier one reads"
    WAW = "writes what the earlier one writes"


def overlap(a: Range, b: Range) -> bool:
    """Whether the ranges have a byte in common; an empty one has none."""
    return (
        a.storage_id == b.storage_id
        and a.offset < b.end
        and b.offset < a.end
        and a.offset < a.end
        and b.offset < b.end
    )


def hazards(earlier: Accesses, later: Accesses) -> frozenset[Hazard]:
    """Every reason for ``later`` to wait for ``earlier``."""
    kinds = (
        (Hazard.RAW, earlier.writes, later.reads),
        (Hazard.WAR, earlier.reads, later.writes),
        (Hazard.WAW, earlier.writes, later.writes),
    )
    return frozenset(
        kind for kind, left, right in kinds if any(overlap(a, b) for a in left for b in right)
    )


def conflicts(a: Accesses, b: Accesses) -> bool:
    """Whether two ops must keep their order."""
    return bool(hazards(a, b))


@dataclass
class _Uses:
    """Reads and writes of a storage: ``(begin, end, op)``."""

    reads: list[tuple[int, int, int]] = field(default_factory=list)
    writes: list[tuple[int, int, int]] = field(default_factory=list)


class HazardTracker:
    """Finds, for each op in order, the earlier ops that it must wait for.

    Waiting is transitive, so an op is dropped once a later one has overwritten all that it touched:
    an op that conflicts with the former conflicts with the latter, which waits for the former.
    """

    def __init__(self) -> None:
        self._uses: dict[int, _Uses] = {}

    def conflicting(self, op: Accesses) -> set[int]:
        """The ids of ops added before that ``op`` must wait for."""
        found: set[int] = set()
        for range_ in op.reads:
            if (uses := self._uses.get(range_.storage_id)) is not None:
                _collect(uses.writes, range_, found)
        for range_ in op.writes:
            if (uses := self._uses.get(range_.storage_id)) is not None:
                _collect(uses.writes, range_, found)
                _collect(uses.reads, range_, found)
        return found

    def add(self, id: int, op: Accesses) -> set[int]:
        """Add ``op`` as ``id``; return the ids that it must wait for."""
        found = self.conflicting(op)
        for range_ in op.writes:
            uses = self._uses.setdefault(range_.storage_id, _Uses())
            uses.reads = _beyond(uses.reads, range_)
            uses.writes = _beyond(uses.writes, range_)
        for range_ in op.writes:
            self._uses[range_.storage_id].writes.append((range_.offset, range_.end, id))
        for range_ in op.reads:
            uses = self._uses.setdefault(range_.storage_id, _Uses())
            uses.reads.append((range_.offset, range_.end, id))
        return found

    def clear(self) -> None:
        """Drop all ops, as after a barrier."""
        self._uses.clear()


def _collect(uses: Sequence[tuple[int, int, int]], range_: Range, found: set[int]) -> None:
    begin, end = range_.offset, range_.end
    for start, stop, op in uses:
        if max(begin, start) < min(end, stop):
            found.add(op)


def _beyond(uses: Sequence[tuple[int, int, int]], range_: Range) -> list[tuple[int, int, int]]:
    """The uses that reach outside the range."""
    return [use for use in uses if use[0] < range_.offset or range_.end < use[1]]
