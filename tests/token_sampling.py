"""The definition of the op ``sample`` in float64, one row and one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["distribution", "sampled"]

Array = np.ndarray[Any, Any]


def distribution(
    logits: Array, temperature: float, top_k: int, top_p: float, min_p: float
) -> Array:
    """The probabilities of one row's tokens; zeros if no token is possible."""
    logits = np.where(np.isnan(logits), -np.inf, np.asarray(logits, np.float64))
    result = np.zeros(len(logits))
    possible = np.flatnonzero(logits > -np.inf)
    if not len(possible):
        return result
    first = int(np.argmax(logits))
    if not temperature > 0:
        result[first] = 1
        return result
    weights = np.zeros(len(logits))
    for token in possible:
        below = 0.0 if logits[token] == logits[first] else logits[token] - logits[first]
        weights[token] = np.exp(below / min(temperature, 3e38))
    ranked = sorted(possible, key=lambda token: (-weights[token], token))
    first = ranked[0]
    if top_k > 0:
        ranked = ranked[:top_k]
    if top_p < 1:
        wanted, reached, count = top_p * sum(weights[ranked]), 0.0, 0
        while count == 0 or (count < len(ranked) and reached < wanted):
            reached += weights[ranked[count]]
            count += 1
        ranked = ranked[:count]
    ranked = [token for token in ranked if token == first or not weights[token] < min_p]
    result[ranked] = weights[ranked]
    return result / result.sum()


def sampled(
    logits: Array, uniform: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
) -> Array:
    """The token of each row."""
    tokens = []
    for row, u, *settings in zip(logits, uniform, temperature, top_k, top_p, min_p, strict=True):
        chances, chosen, reached = distribution(row, *settings), 0, 0.0
        for token in np.flatnonzero(chances):
            chosen, reached = int(token), reached + chances[token]
            if not u > 0 or reached > u:
                break
        tokens.append(chosen)
    return np.array(tokens, np.int32)
