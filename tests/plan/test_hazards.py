"""Conflicts by byte ranges, against every pair of bytes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.plan.hazards import Hazard, HazardTracker, conflicts, hazards, overlap


@dataclass(frozen=True)
class Bytes:
    storage_id: int
    offset: int
    end: int

    def each(self) -> set[tuple[int, int]]:
        return {(self.storage_id, i) for i in range(self.offset, self.end)}


@dataclass(frozen=True)
class Op:
    reads: tuple[Bytes, ...] = ()
    writes: tuple[Bytes, ...] = ()


def touched(ranges: tuple[Bytes, ...]) -> set[tuple[int, int]]:
    return set().union(*(r.each() for r in ranges))


RANGES = st.builds(
    lambda storage, start, size: Bytes(storage, start, start + size),
    st.integers(0, 1),
    st.integers(0, 12),
    st.integers(0, 6),
)
OPS = st.builds(
    Op,
    st.lists(RANGES, max_size=3).map(tuple),
    st.lists(RANGES, max_size=2).map(tuple),
)


@given(RANGES, RANGES)
def test_overlap_is_having_a_byte_in_common(a: Bytes, b: Bytes) -> None:
    assert overlap(a, b) == overlap(b, a) == bool(a.each() & b.each())


@given(OPS, OPS)
def test_hazards_against_every_byte(a: Op, b: Op) -> None:
    expected = set()
    if touched(a.writes) & touched(b.reads):
        expected.add(Hazard.RAW)
    if touched(a.reads) & touched(b.writes):
        expected.add(Hazard.WAR)
    if touched(a.writes) & touched(b.writes):
        expected.add(Hazard.WAW)
    assert hazards(a, b) == expected
    assert conflicts(a, b) == conflicts(b, a) == bool(expected)


def reachable(dependencies: list[set[int]]) -> list[set[int]]:
    closed: list[set[int]] = []
    for direct in dependencies:
        closed.append(direct.union(*(closed[i] for i in direct)))
    return closed


@given(st.lists(OPS, max_size=12))
def test_tracked_ops_wait_for_all_they_conflict_with_and_nothing_else(ops: list[Op]) -> None:
    """A conflict dropped in favour of a later op is reached through that op."""
    tracker = HazardTracker()
    direct = [tracker.add(i, op) for i, op in enumerate(ops)]
    closed = reachable(direct)
    pairs = [{j for j in range(i) if conflicts(ops[j], ops[i])} for i in range(len(ops))]
    for i in range(len(ops)):
        assert direct[i] <= pairs[i]
        assert pairs[i] <= closed[i]


@given(st.lists(OPS, max_size=8), OPS)
def test_asking_changes_nothing(ops: list[Op], last: Op) -> None:
    tracker = HazardTracker()
    for i, op in enumerate(ops):
        tracker.add(i, op)
    assert tracker.conflicting(last) == tracker.conflicting(last) == tracker.add(99, last)


A, B = Bytes(1, 0, 8), Bytes(1, 8, 16)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Op(writes=(A,)), Op(reads=(A,)), {Hazard.RAW}),
        (Op(reads=(A,)), Op(writes=(A,)), {Hazard.WAR}),
        (Op(writes=(A,)), Op(writes=(A,)), {Hazard.WAW}),
        (Op(reads=(A,)), Op(reads=(A,)), set()),
        (Op(writes=(A,)), Op(writes=(B,)), set()),  # adjacent
        (Op(writes=(Bytes(1, 0, 9),)), Op(reads=(B,)), {Hazard.RAW}),  # one byte
        (Op(writes=(A,)), Op(reads=(Bytes(2, 0, 8),)), set()),  # another storage
        (Op(writes=(A,)), Op(reads=(Bytes(1, 4, 4),)), set()),  # nothing is read
        (Op((A,), (A,)), Op((A,), (A,)), set(Hazard)),
    ],
)
def test_the_kinds(first: Op, second: Op, expected: set[Hazard]) -> None:
    assert hazards(first, second) == expected


def test_after_waiting_nothing_conflicts() -> None:
    tracker = HazardTracker()
    tracker.add(0, Op(writes=(A,)))
    tracker.clear()
    assert tracker.add(1, Op(reads=(A,))) == set()
