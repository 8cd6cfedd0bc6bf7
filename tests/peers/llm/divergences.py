"""Divergences of next-token distributions from those of a reference, over some texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tests.llm.test_smollm2 import log_softmax

Array = np.ndarray[Any, Any]


class Side(Protocol):
    """A way of running the model."""

    def logits(self, prompt: Any, answer: Any) -> Array:
        """The logits in front of each token of an answer."""


@dataclass(frozen=True)
class Divergence:
    """The divergence of a side from the reference.

    Attributes:
        of_texts: float64 ``[texts]``: the mean KL of a text's predictions.
        same: float64 ``[texts]``: the share of them whose most probable token is the reference's.
    """

    of_texts: Array
    same: Array

    def summary(self) -> dict[str, float]:
        """Means over texts, with the standard error of that of divergences."""
        return {
            "mean_divergence": float(self.of_texts.mean()),
            "standard_error": standard_error(self.of_texts),
            "greatest_of_a_text": float(self.of_texts.max()),
            "same_first_token": float(self.same.mean()),
        }

    def less(self, other: Divergence) -> dict[str, float]:
        """The mean over texts of the difference from another side, with its standard error."""
        difference = self.of_texts - other.of_texts
        return {"mean": float(difference.mean()), "standard_error": standard_error(difference)}


def standard_error(values: Array) -> float:
    """Of the mean of independent values; 0 of a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def divergences(
    exact: Side, sides: Mapping[str, Side], texts: Iterable[tuple[Any, Any]]
) -> dict[str, Divergence]:
    """By name of a side, its divergence from ``exact`` over prompts and answers."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for prompt, answer in texts:
        wanted = log_softmax(exact.logits(prompt, answer).astype(np.float64))
        for name, side in sides.items():
            got = log_softmax(side.logits(prompt, answer).astype(np.float64))
            divergence = (np.exp(wanted) * (wanted - got)).sum(1).mean()
            same = (wanted.argmax(1) == got.argmax(1)).mean()
            found[name].append((float(divergence), float(same)))
    return {name: Divergence(*np.array(values).T) for name, values in found.items()}
