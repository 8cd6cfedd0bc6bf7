"""Drawing tokens on the CPU: the core's kernel against the definition, and its distributions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.token_sampling import (
    FILTERS,
    check_draws,
    distribution,
    drawn_by,
    sampled,
    sampling_graph,
)

Array = np.ndarray[Any, Any]


@functools.cache
def compiled(vocabulary: int) -> ost.CompiledGraph:
    return ost.Session("cpu").compile(sampling_graph(vocabulary, 1 << 17))


def drawn(logits: Array, *settings: Any) -> Array:
    """The tokens that the CPU draws."""
    return drawn_by(compiled(logits.shape[1]), logits, *settings)


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 511, 512, 513, 5000])
@pytest.mark.parametrize("filters", FILTERS)
def test_tokens_are_those_of_the_definition(vocabulary: int, filters: str) -> None:
    check_draws(drawn, vocabulary, filters, rows=24)


FILTERED = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("name", FILTERED)
def test_draws_have_the_distribution_of_the_filters(name: str) -> None:
    """The chi-squared statistic of 100,000 draws, at p > 0.01."""
    count, vocabulary = 100_000, 60
    rng = np.random.default_rng(11)
    logits = rng.standard_normal(vocabulary).astype(np.float32) * 2
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | FILTERED[name]
    chances = distribution(logits, **settings)
    repeated = [np.full(count, value) for value in settings.values()]
    tokens = drawn(np.tile(logits, (count, 1)), rng.random(count), *repeated)
    counts = np.bincount(tokens, minlength=vocabulary)
    assert not counts[chances == 0].any()
    expected = chances[chances > 0] * count
    statistic = float(np.sum((counts[chances > 0] - expected) ** 2 / expected))
    assert statistic < chi_squared_limit(len(expected) - 1)


def chi_squared_limit(freedom: int) -> float:
    """The value that chi-squared exceeds with a probability of 0.01, by Wilson and Hilferty."""
    spread = 2 / (9 * max(freedom, 1))
    return max(freedom, 1) * (1 - spread + 2.3263 * spread**0.5) ** 3


def test_a_large_vocabulary_and_extreme_weights() -> None:
    rng, vocabulary = np.random.default_rng(2), 128_256
    logits = (rng.standard_normal((6, vocabulary)) * 4).astype(np.float32)
    logits[1] = 0  # all equal
    logits[2] = -np.inf
    logits[2, [5, 77_777]] = [1, 1]
    logits[3] = np.nan
    logits[4, 1000:] = -300  # weights that vanish
    uniform = np.array([0.3, 0.5, 0.6, 0.5, 0.999999, 1.0], np.float32)
    settings = [np.ones(6), np.full(6, 50), np.full(6, 0.95), np.full(6, 0.01)]
    tokens = drawn(logits, uniform, *settings)
    exact = [np.asarray(x, np.int64 if i == 1 else np.float32) for i, x in enumerate(settings)]
    np.testing.assert_array_equal(tokens, sampled(logits, uniform, *exact))
    assert tokens[2] == 77_777
    assert tokens[3] == 0


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((9, 700)).astype(np.float32)
    settings = [rng.random(9), np.ones(9), np.arange(9), np.linspace(0.1, 1, 9), np.zeros(9)]
    together = drawn(logits, *settings)
    alone = [drawn(logits[i : i + 1], *(x[i : i + 1] for x in settings))[0] for i in range(9)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 2.0])
def test_numbers_out_of_range_give_a_token(value: float) -> None:
    logits = np.random.default_rng(3).standard_normal((1, 33)).astype(np.float32)
    good = [0.5, 1.0, 5, 0.9, 0.1]
    for place in (0, 1, 3, 4):
        changed = [np.array([value if i == place else x]) for i, x in enumerate(good)]
        assert 0 <= drawn(logits, *changed)[0] < 33
    for ranks in (-(2**31), 2**31 - 1):
        settings = [np.array([ranks if i == 2 else x]) for i, x in enumerate(good)]
        assert 0 <= drawn(logits, *settings)[0] < 33


@pytest.mark.parametrize("top_p", [0.0, -1.0, -np.inf, 1e-30])
def test_the_least_top_p_keeps_the_first_token(top_p: float) -> None:
    logits = np.random.default_rng(3).standard_normal((4, 333)).astype(np.float32)
    settings = [np.full(4, 0.9), np.ones(4), np.zeros(4), np.full(4, top_p), np.zeros(4)]
    np.testing.assert_array_equal(drawn(logits, *settings), logits.argmax(axis=1))
