"""Placing buffers that live at different times in one arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALIGNMENT", "Lifetime", "MemoryReport", "Placement", "place"]

#: Every buffer starts on a cache line, which is also the widest vector.
ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """A buffer's size and the first and last step, inclusive, that touch it."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """Where each buffer starts in the arena.

    Attributes:
        offsets: one per lifetime, multiples of :data:`ALIGNMENT`.
        arena_bytes: the arena's size.
        unshared_bytes: what the buffers would take if none shared memory.
        lower_bound_bytes: the largest sum of bytes that are live at one step; no arena is smaller.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    unshared_bytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class MemoryReport:
    """A compiled graph's memory, in bytes (SPEC section 3).

    Attributes:
        arena_bytes: what intermediate values take, sharing memory where they can.
        unshared_bytes: what they would take without sharing.
        lower_bound_bytes: the largest sum of bytes live at one time.
        param_bytes: params, constants, and what was prepared from them.
        state_bytes: states.
    """

    arena_bytes: int
    unshared_bytes: int
    lower_bound_bytes: int
    param_bytes: int
    state_bytes: int = 0

    def __str__(self) -> str:
        rows = [
            ("arena", self.arena_bytes),
            ("without sharing", self.unshared_bytes),
            ("lower bound", self.lower_bound_bytes),
            ("params and constants", self.param_bytes),
            ("states", self.state_bytes),
        ]
        return "\n".join(f"{name:<22}{nbytes:>16,} B" for name, nbytes in rows)


def place(lifetimes: Sequence[Lifetime]) -> Placement:
    """Offsets such that buffers alive at the same step never overlap.

    Greedy by size: the largest buffers are placed first, each at the lowest gap that fits between
    those already placed whose lifetimes overlap its own (Pisarchyk and Lee, "Efficient Memory
    Management for Deep Neural Net Inference", 2020).
    """
    sizes = [_aligned(life.nbytes) for life in lifetimes]
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: (-sizes[i], lifetimes[i].first)):
        rivals = sorted(
            (offsets[j], sizes[j]) for j in placed if _overlap(lifetimes[i], lifetimes[j])
        )
        offset = 0
        for start, size in rivals:
            if start - offset >= sizes[i]:
                break
            offset = max(offset, start + size)
        offsets[i] = offset
        placed.append(i)
    arena = max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)
    return Placement(tuple(offsets), arena, sum(sizes), _lower_bound(lifetimes, sizes))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def _lower_bound(lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> int:
    changes: dict[int, int] = {}
    for life, size in zip(lifetimes, sizes, strict=True):
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most
