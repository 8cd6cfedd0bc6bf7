"""State of one answer while it is generated."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ostinato.llm.engine.adjustments import Adjustments
from ostinato.llm.engine.randomness import uniforms
from ostinato.llm.generation import Delta, Generation, Timings, Usage

if TYPE_CHECKING:
    from ostinato.llm.engine.interfaces import TextPart
    from ostinato.llm.engine.prefix_tree import Node
    from ostinato.llm.engine.requests import PreparedRequest, Request
    from ostinato.llm.generation import Finish, TokenLogprobs, ToolCall

__all__ = ["Sequence"]

#: Random numbers that are drawn at a time: 64 take nearly as long.
_DRAWN = 256


class Sequence:
    """One answer: its tokens, the blocks of their keys and values, and the text so far.

    Attributes:
        tokens: int32, of the prompt and the answer, then of drafts.
        prompt: length of the prompt.
        length: number of tokens of prompt and answer.
        computed: number of first tokens whose keys and values are in ``blocks``.
        drafts: number of proposed tokens behind ``length``.
        slot: number of the sequence in the step; -1 while it waits.
        blocks: its blocks of each kind, by position.
        freed: of each kind, number of first blocks that were given back, since no token attends to
            them any more.
        node: the last of its blocks in the prefix tree, ``None`` before the first.
        committed: number of first blocks that are in the prefix tree.
        served: number of the last step with rows of it.
        waits_for: the first answer of the same request, whose prompt this one will reuse.
        branched: whether the prompt is computed, or never will be.
    """

    def __init__(
        self,
        request: Request,
        prepared: PreparedRequest,
        *,
        order: int,
        branch: int,
        seed: int,
        deadline: float,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.sampling = sampling
        self.order = order
        self.branch = branch
        self.seed = seed
        self.deadline = deadline
        self.prompt = self.length = len(prepared.tokens)
        self.end = self.prompt + sampling.max_tokens
        self.tokens = np.zeros(self.end, np.int32)
        self.tokens[: self.prompt] = prepared.tokens
        self.computed = 0
        self.drafts = 0
        self.slot = -1
        self.blocks: list[list[int]] = []
        self.freed: list[int] = []
        self.node: Node | None = None
        self.committed = 0
        self.served = -1
        self.scores = sampling.prompt_logprobs is not None
        self.score_from = max(request.score_from, 1)
        self.adjustments = Adjustments(sampling, self.tokens, self.prompt)
        self.end_tokens = prepared.end_tokens
        self.barred = tuple(t for t, bias in sampling.logit_bias.items() if math.isinf(bias))
        self.mask = prepared.mask() if prepared.mask is not None else None
        self.answer = prepared.answer()
        self.waits_for: Sequence | None = None
        self.branched = False

        self.finish: Finish | None = None
        self.stop_reason: str | int | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.cached = 0
        self.drafted = 0
        self.accepted = 0
        self._drawn = np.zeros(0, np.float32)
        self._drawn_from = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._reported = 0
        self._shown = (0, 0, 0)
        self.submitted = perf_counter()
        self.started = self.read = self.first = math.nan

    @property
    def pending(self) -> int:
        """Number of tokens whose keys and values are yet to be computed."""
        return self.length - self.computed

    @property
    def generated(self) -> int:
        """Number of tokens of the answer."""
        return self.length - self.prompt

    def uniform(self, index: int) -> np.float32 | float:
        """The random number of the answer's token ``index``; 0 where none is drawn."""
        if self.sampling.temperature == 0:
            return 0.0
        place = index - self._drawn_from
        if not 0 <= place < len(self._drawn):
            self._drawn = uniforms(self.seed, self.branch, index, _DRAWN)
            self._drawn_from, place = index, 0
        number: np.float32 = self._drawn[place]
        return number

    def append(self, token: int) -> None:
        """Add a token to the answer, and end it where a stop or its greatest length is met."""
        self.tokens[self.length] = token
        self.length += 1
        self.adjustments.move_to(self.length)
        if self.generated == 1 and math.isnan(self.first):
            self.first = perf_counter()
        if self.mask is not None:
            self.mask.accept(token)
        stops = self.generated > self.sampling.min_tokens
        if stops and token in self.end_tokens:
            self.end_with("stop", token)
            return
        self._add(self.answer.push(token, stops=stops))
        if self.answer.stopped is not None:
            self.end_with("stop", self.answer.stopped)
        elif self.length == self.end:
            self.end_with("length")

    def end_with(self, finish: Finish, reason: str | int | None = None) -> None:
        """End the answer, unless it has ended; text that was held back becomes final."""
        if self.finish is not None:
            return
        self._add(self.answer.finish())
        self.finish = "tool_calls" if finish == "stop" and self._calls else finish
        self.stop_reason = reason
        self.drafts = 0

    def delta(self) -> Delta | None:
        """The part of the answer since the last one; ``None`` where nothing was added."""
        text = "".join(self._text[self._shown[0] :])
        reasoning = "".join(self._reasoning[self._shown[1] :])
        calls = tuple(self._calls[self._shown[2] :])
        tokens = tuple(self.tokens[self.prompt + self._reported : self.length].tolist())
        logprobs = tuple(self.logprobs[self._reported :])
        self._shown = (len(self._text), len(self._reasoning), len(self._calls))
        self._reported = self.generated
        if not (text or reasoning or calls or tokens):
            return None
        return Delta(text, tokens, logprobs, self.branch, reasoning, calls)

    def generation(self) -> Generation:
        """The answer as it is."""
        assert self.finish is not None
        sampling, now = self.sampling, perf_counter()
        reached = [now if math.isnan(t) else t for t in (self.started, self.read, self.first)]
        return Generation(
            text="".join(self._text),
            tokens=tuple(self.tokens[self.prompt : self.length].tolist()),
            logprobs=tuple(self.logprobs) if sampling.logprobs is not None else None,
            finish=self.finish,
            stop_reason=self.stop_reason,
            usage=Usage(self.prompt, self.cached, self.generated, self.drafted, self.accepted),
            timings=Timings(*(time - self.submitted for time in (*reached, now))),
            seed=self.seed,
            tool_calls=tuple(self._calls),
            reasoning="".join(self._reasoning),
            prompt_logprobs=tuple(self.prompt_logprobs) if self.scores else None,
        )

    def _add(self, part: TextPart) -> None:
        if part.text:
            self._text.append(part.text)
        if part.reasoning:
            self._reasoning.append(part.reasoning)
        self._calls.extend(part.tool_calls)
