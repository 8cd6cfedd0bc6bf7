"""Bias and penalties of one sequence, as adjustments of its logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ostinato.llm.engine.interfaces import StepArrays
    from ostinato.llm.sampling import Sampling

__all__ = ["Adjustments"]


class Adjustments:
    """The adjustments of the next token's logits, kept up to date as tokens are added.

    The repetition penalty concerns tokens of the prompt and of the answer, the other two those of
    the answer, each among the last ``penalty_tokens``. A token that fell out of that window keeps
    its entry, with neutral values.

    Args:
        sampling: bias and penalties.
        tokens: int32, of the prompt and behind it of the answer, which others write.
        prompt: length of the prompt.
    """

    def __init__(self, sampling: Sampling, tokens: NDArray[np.int32], prompt: int) -> None:
        self._sampling = sampling
        self._tokens = tokens
        self._prompt = prompt
        self._window = sampling.penalty_tokens or len(tokens) + 1
        self._counted = 0
        self._entries: dict[int, int] = {}
        biases = {t: b for t, b in sampling.logit_bias.items() if not math.isinf(b)}
        self.capacity = len(biases) + (len(tokens) if sampling.penalises else 0)
        self._token = np.zeros(self.capacity, np.int32)
        self._bias = np.zeros(self.capacity, np.float32)
        self._repetition = np.ones(self.capacity, np.float32)
        self._penalty = np.zeros(self.capacity, np.float32)
        self._seen = [0] * self.capacity
        self._answered = [0] * self.capacity
        for token, bias in biases.items():
            self._bias[self._entry(token)] = bias
        self.move_to(prompt)

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def move_to(self, length: int) -> None:
        """Count the first ``length`` tokens, which may be more or fewer than before."""
        if not self._sampling.penalises:
            return
        while self._counted < length:
            self._count(self._counted, 1)
            self._count(self._counted - self._window, -1)
            self._counted += 1
        while self._counted > length:
            self._counted -= 1
            self._count(self._counted, -1)
            self._count(self._counted - self._window, 1)
            self._drop_last()

    def write(self, inputs: StepArrays, at: int, pick: int) -> int:
        """Write the entries for a pick from position ``at`` on; the position behind them."""
        size = len(self._entries)
        if not size:
            return at
        end = at + size
        inputs.adjust_pick[at:end] = pick
        inputs.adjust_token[at:end] = self._token[:size]
        inputs.adjust_bias[at:end] = self._bias[:size]
        inputs.adjust_repetition[at:end] = self._repetition[:size]
        inputs.adjust_penalty[at:end] = self._penalty[:size]
        return end

    def _count(self, index: int, change: int) -> None:
        if index < 0:
            return
        entry = self._entry(int(self._tokens[index]))
        self._seen[entry] += change
        if index >= self._prompt:
            self._answered[entry] += change
        sampling, answered = self._sampling, self._answered[entry]
        self._repetition[entry] = sampling.repetition_penalty if self._seen[entry] else 1.0
        self._penalty[entry] = (
            sampling.presence_penalty + sampling.frequency_penalty * answered if answered else 0.0
        )

    def _drop_last(self) -> None:
        """Drop the newest entries while they are neutral: those of guesses that were wrong."""
        while self._entries:
            token, entry = next(reversed(self._entries.items()))
            if self._seen[entry] or self._bias[entry]:
                return
            del self._entries[token]

    def _entry(self, token: int) -> int:
        entry: Any = self._entries.get(token)
        if entry is None:
            entry = self._entries[token] = len(self._entries)
            self._token[entry] = token
        return int(entry)
