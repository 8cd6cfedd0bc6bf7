"""Sampling parameters of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ostinato.errors import InputError
from ostinato.records import dataclass, field, field_names, replace

if TYPE_CHECKING:
    from ostinato.llm.grammar import Grammar

__all__ = ["Sampling", "sampling_with"]

#: Most sequences of one request, and most alternatives reported for a token.
MOST_BRANCHES, MOST_ALTERNATIVES = 128, 1024


@dataclass(frozen=True)
class Sampling:
    """Parameters of a request: lengths, the distribution, stops, and what is reported.

    Logits are changed in a fixed order: ``logit_bias``, penalties, ``grammar``, ``temperature``,
    ``top_k``, ``top_p``, ``min_p``. Randomness depends on the seed and the position in the answer
    alone, so a request gives the same tokens alone and in any batch.

    Attributes:
        max_tokens: most tokens of the answer; 0 only reads the prompt.
        min_tokens: tokens before which neither stop tokens nor stop strings end the answer.
        temperature: divisor of the logits; 0 takes the most probable token, ties to the lower id.
        top_k: number of most probable tokens to choose from; 0 for all.
        top_p: the smallest set of most probable tokens whose sum reaches this; 1 for all.
        min_p: least probability, as a fraction of the most probable token's; 0 for all.
        repetition_penalty: divisor of positive and factor of negative logits of tokens that occur
            in the prompt or in the answer; 1 for none.
        presence_penalty: subtracted from the logits of tokens that occur in the answer.
        frequency_penalty: subtracted once for each time that a token occurs in the answer.
        penalty_tokens: number of last tokens that penalties count; 0 for all.
        logit_bias: added to the logits of tokens, by id; ``-inf`` bars a token.
        seed: of the randomness, 0 to 2**64 - 1; ``None`` draws one, which the result reports.
        stop: texts that end the answer and are not part of it.
        stop_tokens: tokens that end the answer, besides those of the model.
        ignore_eos: whether the model's own end tokens do not end the answer.
        logprobs: report log-probabilities of the answer's tokens, with this many alternatives each.
        prompt_logprobs: the same for the prompt's tokens.
        n: number of answers.
        grammar: constraint of the answer's text.

    Raises:
        InputError: a field is out of range; the message names it.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"min_tokens is at most max_tokens, which is {self.max_tokens}, "
                f"got {self.min_tokens}"
            )
        _number("temperature", self.temperature, 0.0, 1e6)
        _whole("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise InputError("top_p is above 0, got 0; temperature=0 takes the most probable token")
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _number("presence_penalty", self.presence_penalty, -1e3, 1e3)
        _number("frequency_penalty", self.frequency_penalty, -1e3, 1e3)
        _whole("penalty_tokens", self.penalty_tokens, 0, 2**31 - 1)
        _set(self, "logit_bias", _biases(self.logit_bias))
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        _set(self, "stop", _stops(self.stop))
        _set(self, "stop_tokens", _tokens("stop_tokens", self.stop_tokens))
        _flag("ignore_eos", self.ignore_eos)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, MOST_ALTERNATIVES)
        _whole("n", self.n, 1, MOST_BRANCHES)
        if self.grammar is not None and not hasattr(self.grammar, "source"):
            raise InputError(f"grammar is an ost.llm.Grammar, got {type(self.grammar).__name__}")

    @property
    def penalises(self) -> bool:
        """Whether any penalty changes logits."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


def sampling_with(
    defaults: Sampling, sampling: Sampling | None, overrides: Mapping[str, Any]
) -> Sampling:
    """``sampling``, or else ``defaults``, with the fields of ``overrides`` changed.

    Raises:
        InputError: an override is no field of :class:`Sampling`, or out of range.
    """
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InputError(f"sampling is an ost.llm.Sampling, got {type(sampling).__name__}")
    known = field_names(Sampling)
    for name in overrides:
        if name not in known:
            raise InputError(f"unknown sampling parameter {name!r}; known are {', '.join(known)}")
    chosen = sampling or defaults
    return replace(chosen, **overrides) if overrides else chosen


def _set(record: Sampling, name: str, value: object) -> None:
    object.__setattr__(record, name, value)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name} is a whole number, got {value!r:.80}")
    if not low <= int(value) <= high:
        raise InputError(f"{name} is {low} to {high}, got {value!r:.80}")


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InputError(f"{name} is a number, got {value!r:.80}")
    if not low <= float(value) <= high:  # not for NaN either
        raise InputError(f"{name} is {low:g} to {high:g}, got {value!r:.80}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is True or False, got {value!r:.80}")


def _tokens(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InputError(f"{name} is a sequence of token ids, got {value!r:.80}")
    for token in value:
        _whole(f"a token of {name}", token, 0, 2**31 - 1)
    return tuple(int(token) for token in value)


def _stops(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"stop is a text or a sequence of texts, got {value!r:.80}")
    if not all(texts):
        raise InputError("a text of stop is empty")
    return tuple(texts)


def _biases(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InputError(f"logit_bias maps token ids to numbers, got {value!r:.80}")
    for token, bias in value.items():
        _whole("a token of logit_bias", token, 0, 2**31 - 1)
        if isinstance(bias, bool) or not hasattr(bias, "__float__"):
            raise InputError(f"the logit_bias of token {token} is a number, got {bias!r:.80}")
        if math.isnan(bias) or bias == math.inf:
            raise InputError(f"the logit_bias of token {token} is finite or -inf, got {bias}")
    return {int(token): float(bias) for token, bias in value.items()}
