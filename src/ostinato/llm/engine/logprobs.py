"""Log-probabilities of tokens, on the host and in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.llm.generation import TokenLogprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["token_logprobs"]


def token_logprobs(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprobs:
    """The log-probability of ``token``, and the ``count`` most probable tokens.

    Args:
        logits: float32 ``[V]``, before any adjustment.
        token: a token's id.
        count: number of most probable tokens; of equal ones the lower id is first.
    """
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    top: list[tuple[int, float]] = []
    if count:
        count = min(count, len(row))
        least = np.partition(row, len(row) - count)[len(row) - count]
        candidates = np.flatnonzero(row >= least)
        best = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
        top = [(int(found), float(row[found])) for found in best]
    return TokenLogprobs(token, float(row[token]), tuple(top))
