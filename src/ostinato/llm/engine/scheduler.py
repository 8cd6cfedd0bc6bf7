"""Choice of the rows of each step, and what becomes of its tokens."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ostinato.errors import OstinatoError
from ostinato.llm.engine.kv_cache import SAVED_TOKENS, KVCache
from ostinato.llm.engine.logprobs import token_logprobs
from ostinato.llm.engine.step_writer import Part, StepWriter
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ostinato.llm.engine.interfaces import AheadStep, Step
    from ostinato.llm.engine.sequence import Sequence

__all__ = ["Counters", "Proposer", "Scheduler"]

#: Admissions of others before a waiting request is taken although its cached prefix is short.
_MOST_PASSES = 64


class Proposer(Protocol):
    """Speculation: guesses of the next tokens of sequences."""

    def propose(self, sequences: list[Sequence]) -> None:
        """Write guesses behind the tokens of each, and their number into ``drafts``.

        No more than ``end - length - 1``, since the step adds one more token.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has ended or lost its slot."""
        ...


@dataclass
class Counters:
    """Counts since the engine's start; see :class:`ostinato.llm.engine.settings.EngineStats`."""

    steps: int = 0
    rows: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0


class Scheduler:
    """The sequences that wait and run, step by step; used by one thread.

    Args:
        step: the model's step.
        cache: its keys and values.
        ended: called with each sequence whose answer has ended, and its error if it has one.
        step_rows: most rows of a step.
        prefill_rows: most rows of prompts in a step.
        policy: ``"fcfs"`` starts sequences in their order, ``"prefix"`` those that reuse most.
        proposer: speculation.
        ahead: the step, if the device computes while the host goes on: the next step of answers
            that grow by a token each is started before the host takes in the last one's tokens.
    """

    def __init__(
        self,
        step: Step,
        cache: KVCache,
        ended: Callable[[Sequence, OstinatoError | None], None],
        *,
        step_rows: int,
        prefill_rows: int,
        policy: Literal["fcfs", "prefix"] = "fcfs",
        proposer: Proposer | None = None,
        ahead: AheadStep | None = None,
    ) -> None:
        self._step = step
        self.cache = cache
        self._ended = ended
        self._step_rows = step_rows
        self._prefill_rows = prefill_rows
        self._policy = policy
        self._proposer = proposer
        self._ahead = ahead
        self._started: list[Part] = []
        self._writer = StepWriter(step.inputs, step.limits)
        self._slots = list(range(step.limits.sequences - 1, -1, -1))
        self._passes = 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counters = Counters()

    @property
    def idle(self) -> bool:
        """Whether no sequence waits or runs, and no step."""
        return not self.waiting and not self.running and not self._started

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences."""
        self.waiting.extend(sequences)

    def cancel(self, sequences: Iterable[Sequence], reason: str | None = None) -> None:
        """End sequences with what they have."""
        for sequence in sequences:
            if sequence.finish is None:
                sequence.end_with("cancelled", reason)
                self._end(sequence)

    def fail(self, sequences: Iterable[Sequence], error: OstinatoError) -> None:
        """End sequences with an error; what their last step computed is not reused."""
        for sequence in sequences:
            if sequence.finish is None:
                sequence.end_with("error", str(error))
                self._end(sequence, error)

    def advance(self) -> list[Sequence]:
        """Run one step, or end one that was started; the sequences that it concerned."""
        self._expire()
        parts = self._started
        if not parts:
            self._admit()
            parts = self._compose()
        if not parts:
            return []
        try:
            tokens = self._run(parts)
        except Exception as error:
            failure = OstinatoError(f"a step failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.fail([part.sequence for part in parts], failure)
            return []
        counters = self.counters
        counters.steps += 1
        counters.rows += sum(part.rows for part in parts)
        served = [part for part in parts if part.sequence.finish is None]  # others ended meanwhile
        for part in served:
            part.sequence.served = counters.steps
            self._collect(part, tokens)
        return [part.sequence for part in served]

    def settle(self) -> None:
        """Wait for a step that was started; what it computes is not needed."""
        with suppress(OstinatoError):  # no answer depends on it
            self._finish()

    def _run(self, parts: list[Part]) -> list[int]:
        """Run the step of these parts, or wait for it if it was started; the tokens of its picks.

        If it can be, the step behind it is started.
        """
        if self._finish():
            picks = len(parts)
        else:
            rows, picks, adjustments = self._writer.write(parts)
            self._step.run(rows, picks, adjustments)
        tokens: list[int] = self._step.outputs.token[:picks].tolist()
        if self._ahead is not None and self._may_follow(parts, tokens) and self._grow(parts):
            following = self._writer.follow(parts, np.array(tokens, np.int32))
            self._ahead.start(picks, picks, 1)
            self._started = following
        return tokens

    def _grow(self, parts: list[Part]) -> bool:
        """Find blocks for one more row of each part, without preempting others; whether it did."""
        return all(self.cache.grow(part.sequence, part.sequence.length + 1) for part in parts)

    def _finish(self) -> bool:
        """Wait for the step that was started, if one was; whether one was."""
        if self._ahead is None or not self._started:
            return False
        self._started = []
        self._ahead.finish()
        return True

    def _may_follow(self, parts: list[Part], tokens: list[int]) -> bool:
        """Whether the next step has a row for each of these parts, and no others."""
        if len(parts) < len(self.running) or (self.waiting and self._slots):
            return False
        if self._proposer is not None or self.cache.recurrent:
            return False
        for part in parts:
            sequence = part.sequence
            if sequence.finish is not None or sequence.length + 1 >= sequence.end:
                return False
            if sequence.sampling.logprobs is not None or not self._writer.may_follow(part):
                return False
        pairs = zip(tokens, parts, strict=True)
        return not all(token in part.sequence.end_tokens for token, part in pairs)

    # -- sequences that start and stop -----------------------------------------------------------

    def _expire(self) -> None:
        now = perf_counter()
        late = [s for s in (*self.running, *self.waiting) if s.deadline <= now]
        self.cancel(late, "deadline")

    def _admit(self) -> None:
        """Start waiting sequences while there are slots and blocks."""
        while self.waiting and self._slots:
            sequence = self._next()
            if sequence is None:
                return
            if not self.cache.start(sequence, self._slots[-1], len(self.running)):
                return
            self._slots.pop()
            self.waiting.remove(sequence)
            self.running.append(sequence)
            if sequence.started != sequence.started:  # NaN before the first start
                sequence.started = perf_counter()
                sequence.cached = sequence.computed
                self.counters.cached += sequence.cached
                self.counters.prompt += sequence.prompt

    def _next(self) -> Sequence | None:
        """The sequence to start, by the policy."""
        ready = [s for s in self.waiting if s.waits_for is None or s.waits_for.branched]
        if not ready:
            return None
        if self._policy == "fcfs" or self._passes >= _MOST_PASSES or ready[0].started > 0:
            self._passes = 0
            return ready[0]
        best = max(ready, key=lambda s: (self.cache.cached_tokens(s), -s.order))
        self._passes = 0 if best is ready[0] else self._passes + 1
        return best

    def _preempt(self) -> Sequence:
        """Take the youngest running sequence out; it continues later with the same tokens."""
        victim = max(self.running, key=lambda s: s.order)
        self._stop(victim)
        # In the order of arrival, before those that have not run.
        place = sum(1 for s in self.waiting if s.order < victim.order)
        self.waiting.insert(place, victim)
        self.counters.preempted += 1
        return victim

    def _stop(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take slot and blocks from a running sequence."""
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
        if self._proposer is not None:
            self._proposer.forget(sequence)
        self.cache.release(sequence, keep=keep)

    def _end(self, sequence: Sequence, error: OstinatoError | None = None) -> None:
        if sequence.slot >= 0:
            self._stop(sequence, keep=error is None)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.branched = True
        if error is not None:
            self.counters.failed += 1
        elif sequence.finish == "cancelled":
            self.counters.cancelled += 1
        else:
            self.counters.finished += 1
        self._ended(sequence, error)

    # -- a step ----------------------------------------------------------------------------------

    def _compose(self) -> list[Part]:
        """The rows of the next step: those of decoding sequences, then chunks of prompts."""
        # The longest not served first, for where not all fit into a step.
        decoding = [s for s in self.running if s.pending == 1]
        decoding.sort(key=lambda s: (s.served, s.order))
        prompts = sorted((s for s in self.running if s.pending > 1), key=lambda s: s.order)
        if self._proposer is not None and decoding:
            self._proposer.propose(decoding)
        limits = self._step.limits
        parts: list[Part] = []
        rows, picks, adjustments = self._step_rows, limits.picks, limits.adjustments
        prefill = self._prefill_rows
        for sequence in (*decoding, *prompts):
            most = min(rows, prefill) if sequence.pending > 1 else rows
            part = self._part(sequence, most, picks, adjustments)
            if part is None or not self._make_room(part):
                continue
            rows -= part.rows
            prefill -= part.rows if sequence.pending > 1 else 0
            picks -= part.picks
            adjustments -= part.adjustments
            parts.append(part)
        return [part for part in parts if part.sequence.slot >= 0]  # others were preempted

    def _part(self, sequence: Sequence, rows: int, picks: int, adjustments: int) -> Part | None:
        """The rows of a sequence within what is left of the step; ``None`` if none fit."""
        if sequence.slot < 0 or rows < 1:
            return None
        drafts = min(sequence.drafts, rows - 1) if sequence.pending == 1 else 0
        part = Part(sequence, min(sequence.pending, rows) + drafts, drafts)
        if self.cache.recurrent and part.rows > 1:
            most = SAVED_TOKENS - sequence.computed % SAVED_TOKENS
            part.resize(min(part.rows, most), part.drafts)
        if sequence.scores:
            self._score(part, picks)
        while part.picks > picks or part.adjustments > adjustments:
            if part.drafts:
                part.resize(part.rows - 1, part.drafts - 1)
            elif part.rows > 1:  # the last row, which samples, waits for the next step
                part.resize(part.rows - 1)
                if sequence.scores:
                    self._score(part, picks)
            else:
                return None
        return part

    @staticmethod
    def _score(part: Part, picks: int) -> None:
        """Choose rows of a prompt whose logits are wanted, and shorten the part to ``picks``."""
        sequence = part.sequence
        wanted = sequence.score_from + len(sequence.prompt_logprobs) - 1
        last = min(sequence.computed + part.rows, sequence.prompt - 1)
        part.scored = max(last - wanted, 0)
        if part.scored > picks:
            part.resize(wanted + picks - sequence.computed)
            part.scored = picks

    def _make_room(self, part: Part) -> bool:
        """Find blocks for the rows of a part, from drafts or from younger sequences if need be."""
        sequence = part.sequence
        while not self.cache.grow(sequence, sequence.computed + part.rows):
            if part.drafts:
                part.resize(part.rows - part.drafts)
            elif self._preempt() is sequence:
                return False
        return True

    def _collect(self, part: Part, tokens: list[int]) -> None:
        """Take in what a step computed for a sequence; ``tokens`` are those of its picks."""
        sequence, outputs = part.sequence, self._step.outputs
        pick = part.pick
        for _ in range(part.scored):
            token = int(sequence.tokens[sequence.score_from + len(sequence.prompt_logprobs)])
            count = sequence.sampling.prompt_logprobs or 0
            sequence.prompt_logprobs.append(token_logprobs(outputs.logits[pick], token, count))
            pick += 1
        samples = part.samples
        sequence.computed += part.rows - part.drafts
        if samples or sequence.computed == sequence.length:
            self._read(sequence)
        for draft in range(samples):
            token = tokens[pick + draft]
            expected = int(sequence.tokens[sequence.length]) if draft < part.drafts else -1
            if sequence.sampling.logprobs is not None:
                row = outputs.logits[pick + draft]
                sequence.logprobs.append(token_logprobs(row, token, sequence.sampling.logprobs))
            sequence.append(token)
            self.counters.completion += 1
            if token != expected or sequence.finish is not None:
                break
            sequence.computed += 1
            sequence.accepted += 1
        sequence.drafted += part.drafts
        sequence.drafts = 0
        self.counters.drafted += part.drafts
        if sequence.computed == sequence.length == sequence.end:  # nothing is to be generated
            sequence.end_with("length")
        self.cache.commit(sequence)
        if sequence.finish is not None:
            self.counters.accepted += sequence.accepted
            self._end(sequence)

    def _read(self, sequence: Sequence) -> None:
        """Note that a prompt is read, which the other answers of its request may wait for."""
        if sequence.read != sequence.read:  # NaN before
            sequence.read = perf_counter()
        if not sequence.branched:
            sequence.branched = True
            if sequence.request.sampling.n > 1:
                self.cache.commit(sequence)
                self.cache.commit_part(sequence)
