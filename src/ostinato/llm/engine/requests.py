"""Requests to an engine, and the tickets for their answers."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from ostinato.llm.sampling import Sampling
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ostinato.errors import OstinatoError
    from ostinato.llm.engine.interfaces import AnswerText, TokenMask
    from ostinato.llm.generation import Delta, Generation

__all__ = ["Listener", "PreparedRequest", "Request", "Ticket"]

#: Receives the parts of an answer, on the engine's thread, and ``None`` behind the last one.
Listener: TypeAlias = "Callable[[Delta | None], object]"


@dataclass(frozen=True)
class Request:
    """A prompt with its sampling parameters.

    Attributes:
        prompt: text, or token ids.
        sampling: the parameters.
        salt: prefixes are shared only among requests with one salt.
        seconds: time after which the answer ends as it is; ``None`` for the engine's own limit.
        answer: the format of the answer, which makes text, reasoning and calls of tools of its
            tokens; ``None`` for plain text.
        score_from: index of the first prompt token whose log-probability is wanted, with
            ``prompt_logprobs``; those before it may come from the prefix cache.
    """

    prompt: str | Sequence[int]
    sampling: Sampling = Sampling()
    salt: str = ""
    seconds: float | None = None
    answer: Callable[[], AnswerText] | None = None
    score_from: int = 1


@dataclass(frozen=True)
class PreparedRequest:
    """A request as the engine takes it.

    Attributes:
        tokens: int32, the prompt's.
        end_tokens: tokens that end the answer.
        answer: makes the text of an answer.
        mask: makes the state of a grammar; ``None`` without one.
    """

    tokens: NDArray[np.int32]
    end_tokens: frozenset[int]
    answer: Callable[[], AnswerText]
    mask: Callable[[], TokenMask] | None = None


class Ticket:
    """A submitted request.

    Attributes:
        id: the request's number in its engine.
    """

    def __init__(self, number: int, cancel: Callable[[int], bool]) -> None:
        self.id = number
        self._cancel = cancel
        self._done = Event()
        self._generation: Generation | None = None
        self._error: OstinatoError | None = None

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._done.is_set()

    def cancel(self) -> bool:
        """End the request within a step; whether it was under way."""
        return self._cancel(self.id)

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the answer; one that was cancelled has what was generated before.

        Raises:
            TimeoutError: it takes longer than ``timeout`` seconds.
            Cancelled: the engine was closed.
            OstinatoError: a step failed; the message says why.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"request {self.id} has no answer after {timeout:g} seconds")
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error
        assert self._generation is not None
        return self._generation

    def complete(self, generation: Generation, error: OstinatoError | None) -> None:
        """Set the answer, or the error in its place."""
        self._generation = generation
        self._error = error
        self._done.set()
