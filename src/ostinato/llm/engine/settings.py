"""Limits of an engine, and its counts."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from ostinato.errors import InputError
from ostinato.records import dataclass

__all__ = ["EngineLimits", "EngineSettings", "EngineStats"]


class EngineLimits(TypedDict, total=False):
    """Limits of an engine; see :class:`EngineSettings`."""

    queue: int
    step_rows: int
    prefill_rows: int
    policy: Literal["fcfs", "prefix"]
    request_seconds: float | None


@dataclass(frozen=True)
class EngineSettings:
    """Limits of an engine.

    Attributes:
        queue: most answers that wait; more requests are refused.
        step_rows: most rows of a step: tokens that are decoded, drafts, and parts of prompts.
        prefill_rows: most rows of prompts in a step.
        policy: ``"fcfs"`` starts requests in their order, ``"prefix"`` those first whose prompt has
            the longest prefix in the cache.
        request_seconds: time after which an answer ends as it is; ``None`` for no limit.

    Raises:
        InputError: a field is out of range.
    """

    queue: int = 256
    step_rows: int = 512
    prefill_rows: int = 256
    policy: Literal["fcfs", "prefix"] = "fcfs"
    request_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("queue", "step_rows", "prefill_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is a positive number, got {value!r:.80}")
        if self.policy not in ("fcfs", "prefix"):
            raise InputError(f"policy is 'fcfs' or 'prefix', got {self.policy!r:.80}")
        seconds: Any = self.request_seconds
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise InputError(f"request_seconds is a positive number, got {seconds!r:.80}")


@dataclass(frozen=True)
class EngineStats:
    """State and counts of an engine.

    Attributes:
        running: answers with rows in steps.
        waiting: answers that wait.
        finished: answers that ended by themselves.
        cancelled: answers that were cancelled or came to their deadline.
        failed: answers that ended with an error.
        preempted: times that an answer lost its blocks to an older one and was computed again.
        steps: runs of the step.
        rows: rows of all steps.
        prompt_tokens: tokens of prompts.
        cached_tokens: those of them that were in the prefix cache.
        completion_tokens: tokens of answers.
        drafted_tokens: tokens that speculation proposed.
        accepted_tokens: those of them that were the answer's.
        blocks: blocks of keys and values, those of layers with a window included.
        blocks_used: blocks with a reference.
        blocks_cached: blocks of the prefix cache, some of which are in use.
    """

    running: int
    waiting: int
    finished: int
    cancelled: int
    failed: int
    preempted: int
    steps: int
    rows: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    blocks: int
    blocks_used: int
    blocks_cached: int
