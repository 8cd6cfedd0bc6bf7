"""Pools of resident experts: promotion, eviction, and the schedule of refreshes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost


def ids_with(hits: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(hits)), hits)


def test_the_most_used_get_the_places():
    pool = ost.ExpertPool(5, 3)
    assert pool.resident == [0, 1, 2]
    assert pool.refresh_from_indices(ids_with([10, 50, 30, 0, 50]))
    assert set(pool.resident) == {1, 4, 2}
    assert (pool.promotions, pool.demotions) == (1, 1)


def test_of_equals_the_lower_number_gets_a_place():
    pool = ost.ExpertPool(6, 2)
    pool.refresh_from_indices(ids_with([0, 0, 7, 7, 7, 7]))
    assert pool.resident == [2, 3]


def test_who_was_not_used_is_not_promoted_and_makes_room_only_where_it_must():
    pool = ost.ExpertPool(6, 4)
    pool.refresh_from_indices([5])
    assert pool.resident == [0, 1, 2, 5]  # of 0 to 3, all unused, the last one left
    assert not pool.refresh_from_indices([])
    assert pool.resident == [0, 1, 2, 5]
    pool.refresh_from_indices([[1, 1, 4], [2, 4, 4]])
    assert pool.resident == [0, 1, 2, 4]
    assert (pool.promotions, pool.demotions) == (2, 2)


def test_budgets_at_the_ends():
    everything = ost.ExpertPool(3, 9)
    assert everything.budget == 3
    assert not everything.refresh_from_indices([2, 2])
    nothing = ost.ExpertPool(3, 0)
    assert not nothing.refresh_from_indices([2, 2])
    assert nothing.resident == []


@pytest.mark.parametrize(
    "ids", [[0, 5], [-1], [[0.0]], ["a"], [True], np.array([2**63], np.uint64)]
)
def test_what_is_no_expert_is_refused_and_changes_nothing(ids):
    pool = ost.ExpertPool(5, 2)
    for call in (pool.refresh_from_indices, pool.observe):
        with pytest.raises(ost.InputError):
            call(ids)
    assert (pool.resident, pool.hits, pool.misses, pool.promotions) == ([0, 1], 0, 0, 0)


@pytest.mark.parametrize(
    ("experts", "budget"), [(0, 0), (-1, 1), (2, -1), (2.0, 1), (True, 1), (2, "1")]
)
def test_pools_that_make_no_sense(experts, budget):
    with pytest.raises(ost.InputError):
        ost.ExpertPool(experts, budget)


@pytest.mark.parametrize("hits", [[1, 2], [1, -1, 0], [1.0, float("nan"), 0], None, "abc"])
def test_hits_that_make_no_sense(hits):
    with pytest.raises(ost.InputError):
        ost.ExpertPool(3, 1).refresh_from_hits(hits)


def test_hits_and_misses():
    pool = ost.ExpertPool(4, 2)
    assert pool.hit_rate == 1
    np.testing.assert_array_equal(pool.observe([[0, 3], [0, 1], [0, 2]]), [3, 1, 1, 1])
    assert (pool.hits, pool.misses, pool.hit_rate) == (2, 2, 0.5)


@settings(deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.integers(0, n),
            st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), max_size=6),
        )
    )
)
def test_places_are_those_of_the_rule(case):
    budget, rounds = case
    pool = ost.ExpertPool(len(rounds[0]) if rounds else budget + 1, budget)
    for hits in rounds:
        before = pool.resident
        pool.refresh_from_indices(ids_with(hits))
        most = sorted((e for e in range(len(hits)) if hits[e]), key=lambda e: (-hits[e], e))[
            :budget
        ]
        assert set(most) <= set(pool.resident)
        assert len(pool.resident) == budget
        assert set(pool.resident) - set(most) <= set(before)
        assert pool.promotions == pool.demotions


def test_interval_three_refreshes_at_steps_0_3_6():
    policy = ost.TidePolicy(refresh_every=3)
    assert [step for step in range(8) if policy.due(step)] == [0, 3, 6]
    assert not any(policy.due(step, [ost.ExpertPool(4, 4)]) for step in range(8))
    assert policy.due(0, [ost.ExpertPool(4, 4), ost.ExpertPool(4, 3)])


@pytest.mark.parametrize("every", [0, -3, 1.5, None, True])
def test_intervals_that_make_no_sense(every):
    with pytest.raises(ost.InputError):
        ost.TidePolicy(refresh_every=every)
