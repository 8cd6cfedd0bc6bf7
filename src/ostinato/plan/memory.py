"""Placement of intermediate buffers in one arena, by their lifetimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.control import loop_ranges
from ostinato.lower.program import Role
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.lower.program import LoweredBuffer, Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import PreparedOp

__all__ = [
    "ALIGNMENT",
    "Lifetime",
    "MemoryReport",
    "Placement",
    "arena_placement",
    "ops_memory",
    "place",
    "program_memory",
]

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
    """The offset of each buffer in the arena.

    Attributes:
        offsets: one per lifetime, multiples of :data:`ALIGNMENT`.
        arena_bytes: the arena's size.
        unshared_bytes: the sum of sizes, without sharing.
        lower_bound_bytes: the largest sum of bytes that are live at one step; no arena is smaller.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    unshared_bytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class MemoryReport:
    """A compiled graph's memory, in bytes.

    Attributes:
        arena_bytes: memory of intermediate values, which share it.
        unshared_bytes: the sum of their sizes, without sharing.
        lower_bound_bytes: the largest sum of bytes live at one time.
        param_bytes: params, constants, prepacked weights, and slots of resident experts.
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


def place(lifetimes: Sequence[Lifetime], *, apart: bool = False) -> Placement:
    """Offsets such that buffers alive at the same step never overlap; ``apart``: that none do.

    Greedy by size: the largest buffers are placed first, each at the lowest gap that fits between
    those already placed whose lifetimes overlap its own (Pisarchyk and Lee, "Efficient Memory
    Management for Deep Neural Net Inference", 2020).
    """
    sizes = [_aligned(life.nbytes) for life in lifetimes]
    offsets = [0] * len(lifetimes)
    live: dict[int, list[int]] = {}  # by step, the placed buffers that are live then
    starting: dict[int, list[int]] = {}  # by step, those whose lifetime begins then
    for i in sorted(range(len(lifetimes)), key=lambda i: (-sizes[i], lifetimes[i].first)):
        steps = range(1) if apart else range(lifetimes[i].first, lifetimes[i].last + 1)
        found = list(live.get(steps[0], ()))
        for step in steps[1:]:
            found += starting.get(step, ())
        offset = 0
        for start, size in sorted((offsets[j], sizes[j]) for j in found):
            if start - offset >= sizes[i]:
                break
            offset = max(offset, start + size)
        offsets[i] = offset
        starting.setdefault(steps[0], []).append(i)
        for step in steps:
            live.setdefault(step, []).append(i)
    arena = max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)
    return Placement(tuple(offsets), arena, sum(sizes), _lower_bound(lifetimes, sizes))


def arena_placement(
    program: Program, *, apart: bool = False
) -> tuple[Placement, list[LoweredBuffer]]:
    """Place the intermediate buffers of a program; return them in the placement's order."""
    first: dict[LoweredBuffer, int] = {}
    last: dict[LoweredBuffer, int] = {}
    for step, call in enumerate(program.calls):
        for buffer in call.buffers:
            if buffer.role is Role.TEMP:
                first.setdefault(buffer, step)
                last[buffer] = step
    for begin, end in loop_ranges(program.calls):
        for call in program.calls[begin : end + 1]:
            for buffer in call.buffers:
                if buffer in last and (first[buffer] < begin or last[buffer] > end):
                    first[buffer] = min(first[buffer], begin)
                    last[buffer] = max(last[buffer], end)
    for buffer in program.kept:
        if buffer in last:
            last[buffer] = len(program.calls) - 1
    buffers = list(first)
    lifetimes = [Lifetime(b.nbytes, first[b], last[b]) for b in buffers]
    return place(lifetimes, apart=apart), buffers


def program_memory(
    program: Program, placement: Placement, non_retained: Collection[LoweredBuffer] = ()
) -> MemoryReport:
    """The memory of a program with this placement of its intermediate buffers.

    Args:
        non_retained: non-retained params.
    """
    return MemoryReport(
        placement.arena_bytes,
        placement.unshared_bytes,
        placement.lower_bound_bytes,
        _total(program, (Role.PARAM, Role.CONSTANT, Role.PREPARED, Role.RESIDENT), non_retained),
        _total(program, (Role.STATE,)),
    )


def ops_memory(ops: Sequence[PreparedOp], held: Collection[Buffer]) -> MemoryReport:
    """The memory of ops on buffers that have an address; ``held`` ones are no intermediates."""
    outside = {buffer.storage_id for buffer in held}
    touched: dict[tuple[int, int, int], Lifetime] = {}
    storages: dict[int, int] = {}
    for step, op in enumerate(ops):
        for buffer in (*op.reads, *op.writes):
            if buffer.storage_id in outside:
                continue
            storages[buffer.storage_id] = buffer.storage.nbytes
            place_ = (buffer.storage_id, buffer.offset, buffer.end)
            since = touched[place_].first if place_ in touched else step
            touched[place_] = Lifetime(buffer.nbytes, since, step)
    ideal = place(list(touched.values()))
    arena = sum(storages.values())
    return MemoryReport(arena, ideal.unshared_bytes, ideal.lower_bound_bytes, 0)


def _total(
    program: Program, roles: tuple[Role, ...], without: Collection[LoweredBuffer] = ()
) -> int:
    used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
    listed = [*program.params.values(), *program.states.values(), *used]
    kept = [b for b in dict.fromkeys(listed) if b not in without]
    return sum(b.nbytes for b in kept if b.role in roles)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
