"""Repetitions in sequences, against all that there are."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backends.cuda.render.repetition import Repetition, repetition


def longest(kinds: list[int]) -> int:
    """The most elements of three runs and more, by trying all."""
    count, most = len(kinds), 0
    for length in range(2, count // 3 + 1):
        for begin in range(count):
            end = begin + length
            while end < count and kinds[end] == kinds[end - length]:
                end += 1
            if end - begin >= 3 * length:
                most = max(most, end - begin)
    return most


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_one_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = rng.integers(0, 3, rng.integers(2, 6)).tolist()
    kinds = rng.integers(0, 4, rng.integers(0, 5)).tolist() + run * int(rng.integers(1, 5))
    kinds += run[: rng.integers(0, len(run))] + rng.integers(0, 4, rng.integers(0, 5)).tolist()
    found = repetition(kinds)
    assert (0 if found is None else found.end - found.begin) == longest(kinds)
    if found is not None:
        for number in found.first:
            assert len({kinds[other] for other in found.like(number)}) == 1
        covered = sorted(number for first in found.first for number in found.like(first))
        assert covered == list(range(found.begin, found.end))


def test_the_last_run_may_end_early() -> None:
    found = repetition("xabcabcabcaby")
    assert found == Repetition(1, 12, 3)
    assert (found.count, found.last_length) == (4, 2)
    assert list(found.like(3)) == [3, 6, 9]


@pytest.mark.parametrize("kinds", ["", "a", "abab", "abcdef", "aabb"])
def test_two_runs_are_none(kinds: str) -> None:
    assert repetition(kinds) is None
