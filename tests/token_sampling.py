"""The definition of the op ``sample`` in float64, one row and one token at a time.

Devices' draws are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ostinato as ost

__all__ = ["FILTERS", "check_draws", "distribution", "drawn_by", "sampled", "sampling_graph"]

Array = np.ndarray[Any, Any]

#: The filters of `check_draws`.
FILTERS = ("none", "top_k", "top_p", "min_p", "all")

_SETTINGS = ("uniform", "temperature", "top_k", "top_p", "min_p")


def sampling_graph(vocabulary: int, most_rows: int) -> ost.Graph:
    """The op ``sample`` on any number of rows."""
    rows, g = ost.Variable("rows", 1, most_rows), ost.Graph("draws")
    dtypes = {"top_k": "int32"}
    given = [g.input(name, (rows,), dtypes.get(name, "float32")) for name in _SETTINGS]
    g.set_outputs([g.sample(g.input("logits", (rows, vocabulary)), *given)])
    return g


def drawn_by(compiled: ost.CompiledGraph, logits: Array, *settings: Any) -> Array:
    """The tokens that a compiled `sampling_graph` draws; settings are of each row, or of all."""
    arrays = {"logits": logits.astype(np.float32)}
    for name, values in zip(_SETTINGS, settings, strict=True):
        dtype = np.int32 if name == "top_k" else np.float32
        arrays[name] = np.broadcast_to(np.asarray(values, dtype), len(logits)).copy()
    (tokens,) = compiled.run(arrays)
    return np.asarray(tokens)


def check_draws(drawn: Callable[..., Array], vocabulary: int, filters: str, rows: int) -> None:
    """Compare draws from rows of all kinds with the definition.

    Where a draw falls on an edge, sums in another order or precision may decide otherwise; flat
    rows have many weights that matter.
    """
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    logits[3] = np.round(logits[3])  # with many equal ones
    logits[4, rng.random(vocabulary) < 0.7] = -np.inf
    logits[5] *= 0.01
    logits[6] = 0
    off = {"top_k": np.zeros(rows), "top_p": np.ones(rows), "min_p": np.zeros(rows)}
    on = {
        "top_k": rng.integers(1, vocabulary + 2, rows),
        "top_p": rng.uniform(0, 1, rows),
        "min_p": rng.uniform(0, 0.5, rows),
    }
    chosen = {name: (on if filters in (name, "all") else off)[name] for name in on}
    values = [rng.random(rows), rng.uniform(0.2, 2, rows), *chosen.values()]
    values[1][:2] = 0
    exact = [np.asarray(x, np.int64 if i == 2 else np.float32) for i, x in enumerate(values)]
    found, wanted = drawn(logits, *exact), sampled(logits, *exact)
    assert np.sum(found != wanted) <= max(1, rows // 20)
    for row in np.flatnonzero(found != wanted):
        chances = distribution(logits[row], float(exact[1][row]), 0, 1.0, 0.0)
        assert chances[found[row]] > 0


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
