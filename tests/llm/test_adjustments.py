"""Bias and penalties of a sequence, against their definition."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from ostinato.llm.engine.adjustments import Adjustments
from ostinato.llm.sampling import Sampling

PROMPT = 5


def entries(adjustments: Adjustments) -> dict[int, tuple[float, float, float]]:
    """Bias, repetition and penalty by token, of those that change anything."""
    names = ("pick", "token", "bias", "repetition", "penalty")
    arrays = SimpleNamespace(**{f"adjust_{name}": np.zeros(500, np.float32) for name in names})
    end = adjustments.write(arrays, 0, 3)
    assert end == adjustments.size <= adjustments.capacity
    assert (arrays.adjust_pick[:end] == 3).all()
    tokens = arrays.adjust_token[:end].astype(int).tolist()
    assert len(set(tokens)) == end
    columns = (arrays.adjust_bias, arrays.adjust_repetition, arrays.adjust_penalty)
    found = dict(zip(tokens, zip(*(c[:end].tolist() for c in columns), strict=True), strict=True))
    return {token: values for token, values in found.items() if values != (0, 1, 0)}


@pytest.mark.parametrize("window", [0, 1, 4, 30])
def test_entries_are_those_of_the_definition(window: int) -> None:
    """Also after guesses were taken back, of which there are more than tokens."""
    rng = np.random.default_rng(window)
    sampling = Sampling(
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        penalty_tokens=window,
        logit_bias={3: 2.0, 4: float("-inf")},
    )
    tokens = rng.integers(0, 12, 20).astype(np.int32)
    adjustments = Adjustments(sampling, tokens, PROMPT)
    for length in range(PROMPT, 19):
        kept = tokens.copy()
        for _ in range(6):
            guesses = int(rng.integers(1, 20 - length))
            tokens[length : length + guesses] = rng.integers(100, 10_000, guesses)
            adjustments.move_to(length + guesses)
            adjustments.move_to(length)
        tokens[:] = kept
        seen = range(max(length - (window or length), 0), length)
        answered = Counter(int(tokens[n]) for n in seen if n >= PROMPT)
        expected = {
            token: (0.0, 1.5, 0.5 + 0.25 * answered[token] if answered[token] else 0.0)
            for token in {int(tokens[n]) for n in seen}
        }
        expected[3] = (2.0, *expected.get(3, (0.0, 1.0, 0.0))[1:])
        assert entries(adjustments) == expected
        adjustments.move_to(length + 1)
