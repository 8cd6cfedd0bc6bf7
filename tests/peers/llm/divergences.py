"""Divergences of next-token distributions from those of a reference, over some texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from tests.llm.test_smollm2 import log_softmax

Array = np.ndarray[Any, Any]


class Side(Protocol):
    """A way of running the model."""

    def logits(self, prompt: Any, answer: Any) -> Array:
        """The logits in front of each token of an answer."""


def divergences(
    exact: Side, sides: Mapping[str, Side], texts: Iterable[tuple[Any, Any]]
) -> dict[str, dict[str, float]]:
    """By name of a side, its mean and greatest KL from ``exact`` over prompts and answers."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for prompt, answer in texts:
        wanted = log_softmax(exact.logits(prompt, answer).astype(np.float64))
        for name, side in sides.items():
            got = log_softmax(side.logits(prompt, answer).astype(np.float64))
            divergence = (np.exp(wanted) * (wanted - got)).sum(1).mean()
            same = (wanted.argmax(1) == got.argmax(1)).mean()
            found[name].append((float(divergence), float(same)))
    return {
        name: {
            "mean_divergence": float(np.mean([d for d, _ in values])),
            "greatest_of_a_text": max(d for d, _ in values),
            "same_first_token": float(np.mean([s for _, s in values])),
        }
        for name, values in found.items()
    }
