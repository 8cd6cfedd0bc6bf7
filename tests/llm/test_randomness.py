"""Random numbers of answers, compared with NumPy's generator."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.llm.engine.randomness import philox, uniforms


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**64 - 1])
@pytest.mark.parametrize("branch", [0, 3])
@pytest.mark.parametrize("index", [0, 1, 63, 2**40, 2**64 - 1])
def test_words_are_those_of_numpy(seed: int, branch: int, index: int) -> None:
    """NumPy increments the counter before the first word."""
    key = np.array([seed, branch], np.uint64)
    expected = np.random.Philox(counter=(index - 1) % 2**256, key=key).random_raw()
    found = philox(np.array([index], np.uint64), (seed, branch))
    assert int(found[0]) == int(expected)


def test_numbers_depend_on_seed_branch_and_index_alone() -> None:
    whole = uniforms(7, 0, 0, 300)
    parts = [uniforms(7, 0, start, 7) for start in range(0, 294, 7)]
    assert (np.concatenate(parts) == whole[:294]).all()
    assert (uniforms(8, 0, 0, 300) != whole).any()
    assert (uniforms(7, 1, 0, 300) != whole).any()


def test_numbers_are_uniform_and_below_one() -> None:
    numbers = uniforms(3, 0, 0, 100_000)
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, 64, (0, 1))[0]
    assert ((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum() < 110  # χ², 63 degrees, p = 2e-4


def test_none_is_drawn_for_no_tokens() -> None:
    assert uniforms(0, 0, 5, 0).shape == (0,)
