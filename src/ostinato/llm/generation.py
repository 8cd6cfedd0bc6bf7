"""Results of requests: answers, the parts that a stream delivers, and their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = [
    "Delta",
    "Finish",
    "Generation",
    "Stream",
    "Timings",
    "TokenLogprobs",
    "ToolCall",
    "Usage",
]

#: Reasons for the end of an answer.
Finish = Literal["stop", "length", "tool_calls", "cancelled", "error"]


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a token, before bias, penalties, grammar, temperature and filters.

    Attributes:
        token: the token's id.
        logprob: its log-probability.
        top: the most probable tokens with theirs, the greatest first, as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that an answer asks for.

    Attributes:
        id: identifies the call within the answer.
        name: of the tool.
        arguments: JSON text of an object.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens of a request.

    Attributes:
        prompt: tokens of the prompt.
        cached: those of them whose keys and values were in the prefix cache.
        completion: tokens of the answer.
        drafted: tokens that were proposed by speculation.
        accepted: those of them that were the answer's.
    """

    prompt: int
    cached: int
    completion: int
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds of a request, each from the time of its submission.

    Attributes:
        queued: until its first row was computed.
        prefill: until the whole prompt was computed.
        first_token: until the first token.
        total: until the end.
    """

    queued: float
    prefill: float
    first_token: float
    total: float


@dataclass(frozen=True)
class Delta:
    """A part of an answer.

    Attributes:
        text: text that became final; text that may be part of a stop string is held back.
        tokens: the tokens since the last part.
        logprobs: of ``tokens``, where they were asked for.
        index: number of the answer among those of the request.
        reasoning: reasoning that became final.
        tool_calls: calls of tools that became whole.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    index: int = 0
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Generation:
    """An answer.

    Attributes:
        text: without reasoning, calls of tools, stop strings and stop tokens.
        tokens: all tokens, a stop token at the end included.
        logprobs: of ``tokens``; ``None`` unless asked for.
        finish: reason for the end.
        stop_reason: the stop string or stop token that was met, or a message about an error.
        usage: numbers of tokens.
        timings: seconds.
        seed: of the randomness; the same request with this seed has the same tokens.
        tool_calls: calls of tools, in their order.
        reasoning: text of the model's reasoning.
        prompt_logprobs: of the prompt's tokens but the first; ``None`` unless asked for.
        alternatives: the other answers of a request with ``n`` above 1.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish: Finish
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    seed: int
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    alternatives: tuple[Generation, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        return self.text


class Stream(Iterator[Delta]):
    """Parts of an answer, as they are generated; leaving its ``with`` block early cancels it.

    Args:
        deltas: the parts.
        cancel: ends the request.
        result: waits for the answer.
    """

    def __init__(
        self, deltas: Iterator[Delta], cancel: Callable[[], Any], result: Callable[[], Generation]
    ) -> None:
        self._deltas = deltas
        self._cancel = cancel
        self._result = result

    def __next__(self) -> Delta:
        return next(self._deltas)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel()

    def cancel(self) -> None:
        """End the answer; its result has what was generated before."""
        self._cancel()

    def result(self) -> Generation:
        """Wait for the end of the answer, whose parts need not have been read.

        Raises:
            OstinatoError: a step failed; the message says why.
        """
        return self._result()
