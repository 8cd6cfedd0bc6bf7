"""Refusal of requests that could never be served."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ostinato.errors import ContextError, InputError
from ostinato.llm.engine.interfaces import BLOCK_TOKENS

if TYPE_CHECKING:
    from ostinato.llm.engine.interfaces import StepBounds
    from ostinato.llm.engine.kv_cache import KVCache
    from ostinato.llm.engine.requests import PreparedRequest, Request

__all__ = ["check_request"]


def check_request(
    request: Request,
    prepared: PreparedRequest,
    limits: StepBounds,
    vocabulary: int,
    cache: KVCache,
) -> None:
    """Refuse a request that a step and its cache can never serve.

    Args:
        request: as it was submitted.
        prepared: its tokens.
        limits: of the step.
        vocabulary: number of tokens that there are.
        cache: blocks of keys and values.

    Raises:
        InputError: a parameter or a token is out of range.
        ContextError: prompt and answer exceed the context or the memory for keys and values.
    """
    tokens, sampling = prepared.tokens, request.sampling
    if not len(tokens):
        raise InputError("the prompt has no tokens")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise InputError(f"token {wrong} of the prompt is not in the vocabulary of {vocabulary}")
    for name in ("logit_bias", "stop_tokens"):
        for token in getattr(sampling, name):
            if token >= vocabulary:
                raise InputError(
                    f"token {token} of {name} is not in the vocabulary of {vocabulary}"
                )
    total = len(tokens) + sampling.max_tokens
    asked = f"a prompt of {len(tokens)} tokens and max_tokens={sampling.max_tokens}"
    if total > limits.context:
        raise ContextError(
            f"{asked} exceed the context of {limits.context}; load the model with a larger "
            f"context or ask for fewer tokens"
        )
    if (kind := cache.lacks(total)) is not None:
        raise ContextError(
            f"{asked} exceed the memory for keys and values of "
            f"{kind.pool.count * BLOCK_TOKENS} tokens; load the model with more kv_memory"
        )
    finite = sum(1 for bias in sampling.logit_bias.values() if bias > -inf)
    entries = finite + (total if sampling.penalises else 0)
    if entries > limits.adjustments:
        raise InputError(
            f"logit_bias and penalties may concern {entries} tokens, more than the "
            f"{limits.adjustments} of a step; set penalty_tokens or fewer biases"
        )
