"""Speculation: guesses of the next tokens, which the model checks in one step.

A guess counts if it is the token that the model's own sampler chooses, with the random number of
its position. So tokens and log-probabilities are those of decoding without guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import InputError
from ostinato.llm.engine.blocks import most_blocks
from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ostinato.llm.engine.interfaces import Step
    from ostinato.llm.engine.sequence import Sequence

__all__ = ["DRAFTS", "ModelProposer", "NGramProposer", "NGrams"]

#: Most guesses of a model in a step.
DRAFTS: Final = 4

#: Steps without guesses after the first ones that were all wrong; doubled each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 2, 64


@dataclass(frozen=True)
class NGrams:
    """Guesses from the text itself: the tokens that followed its last n-gram before.

    Attributes:
        longest: tokens of the longest n-gram that is looked for.
        shortest: tokens of the shortest one.
        draft: most guesses of a step.

    Raises:
        InputError: a number is not positive, or ``shortest`` is above ``longest``.
    """

    longest: int = 4
    shortest: int = 2
    draft: int = 8

    def __post_init__(self) -> None:
        for name in ("longest", "shortest", "draft"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
                raise InputError(f"{name} is 1 to 64, got {value!r:.80}")
        if self.shortest > self.longest:
            raise InputError(
                f"shortest is at most longest, which is {self.longest}, got {self.shortest}"
            )


class _Pace:
    """The number of guesses for a sequence, by the success of its last ones.

    Guesses cost rows. Their number doubles while all are right, and falls to those that were right;
    after steps in which all were wrong there is a pause.
    """

    __slots__ = ("_accepted", "_count", "_drafted", "_pause", "_wait")

    def __init__(self) -> None:
        self._count = 4
        self._pause = _FIRST_PAUSE
        self._wait = 0
        self._drafted = self._accepted = 0

    def next(self, sequence: Sequence, most: int) -> int:
        """The number of guesses for the next step."""
        drafted, accepted = sequence.drafted - self._drafted, sequence.accepted - self._accepted
        self._drafted, self._accepted = sequence.drafted, sequence.accepted
        if drafted:
            if accepted == drafted:
                self._count = min(self._count * 2, most)
            else:
                self._count = max(accepted, 1)
            if accepted:
                self._pause = _FIRST_PAUSE
            else:
                self._wait = self._pause
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if self._wait:
            self._wait -= 1
            return 0
        return max(min(self._count, most, sequence.end - sequence.length - 1), 0)


class _Proposer:
    """Guesses for sequences, each at its own pace."""

    def __init__(self, draft: int) -> None:
        self._draft = draft
        self._paces: dict[Sequence, _Pace] = {}

    def _count(self, sequence: Sequence) -> int:
        return self._paces.setdefault(sequence, _Pace()).next(sequence, self._draft)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has lost its slot."""
        self._paces.pop(sequence, None)


class NGramProposer(_Proposer):
    """Guesses by n-grams.

    Args:
        settings: lengths.
    """

    def __init__(self, settings: NGrams) -> None:
        super().__init__(settings.draft)
        self._settings = settings

    def propose(self, sequences: list[Sequence]) -> None:
        """Write guesses behind the tokens of each sequence, and their number into ``drafts``."""
        for sequence in sequences:
            count = self._count(sequence)
            sequence.drafts = 0
            if count:
                found = self._continuation(sequence.tokens[: sequence.length], count)
                _write(sequence, found)

    def _continuation(self, tokens: NDArray[np.int32], count: int) -> NDArray[np.int32]:
        """The tokens behind the last earlier occurrence of the longest n-gram at the end."""
        settings = self._settings
        for size in range(min(settings.longest, len(tokens) - 1), settings.shortest - 1, -1):
            starts = len(tokens) - size  # of earlier n-grams: 0 to this, exclusive
            same = tokens[:starts] == tokens[-size]
            for place in range(1, size):
                same &= tokens[place : place + starts] == tokens[place - size]
            found = np.flatnonzero(same)
            if len(found):
                start = int(found[-1]) + size
                return tokens[start : start + count]
        return tokens[:0]


class ModelProposer(_Proposer):
    """Guesses of a second model, sampled with the parameters and random numbers of the first.

    Each slot has its own part of the second model's blocks, so nothing is shared or evicted there.

    Args:
        step: of the second model, which this alone runs.
        sequences: slots of the first model.
        window: how many tokens, its own included, a token attends to in layers of the second model
            that have blocks apart.
        draft: most guesses of a step.

    Raises:
        InputError: the second model has fewer slots or picks.
    """

    def __init__(
        self, step: Step, sequences: int, window: int | None = None, draft: int = DRAFTS
    ) -> None:
        super().__init__(draft)
        limits = step.limits
        if min(limits.sequences, limits.picks) < sequences:
            raise InputError(
                f"the draft model is loaded for {limits.sequences} sequences; load it with "
                f"sequences={sequences}, as the model that it drafts for"
            )
        self._step = step
        own = limits.blocks // sequences
        self._room = min(own * BLOCK_TOKENS, limits.context)
        _share(step.inputs.table, own, sequences)
        if (table := step.inputs.window_table) is not None:
            own = limits.window_blocks // sequences
            _share(table, own, sequences)
            # Blocks that have left the window are written again, if there are enough for that.
            if own < most_blocks(limits.context, window, limits.rows):
                self._room = min(self._room, own * BLOCK_TOKENS)
        self._read: dict[Sequence, NDArray[np.int32]] = {}
        self._open_picks()

    def propose(self, sequences: list[Sequence]) -> None:
        """Write guesses behind the tokens of each sequence, and their number into ``drafts``."""
        counts = {}
        for sequence in sequences:
            sequence.drafts = 0
            count = self._count(sequence)
            count = min(count, self._room - sequence.length)
            if count > 0:
                counts[sequence] = count
        if not counts:
            return
        waiting = {s: _common(self._read.get(s), s.tokens[: s.length]) for s in counts}
        while waiting:
            waiting = self._catch_up(waiting)
        going = [s for s in counts if s.drafts < counts[s] and not self._ended(s)]
        while going:
            for row, sequence in enumerate(going):
                place = sequence.length + sequence.drafts - 1
                self._write_row(row, sequence, place)
                self._write_pick(row, row, sequence)
            self._run(len(going), going)
            going = [s for s in going if s.drafts < counts[s] and not self._ended(s)]
        for sequence in counts:
            # The last guess has no row yet.
            end = sequence.length + max(sequence.drafts - 1, 0)
            self._read[sequence] = sequence.tokens[:end].copy()
            _write(sequence, sequence.tokens[sequence.length :][: sequence.drafts])

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that has lost its slot."""
        super().forget(sequence)
        self._read.pop(sequence, None)

    def _catch_up(self, waiting: dict[Sequence, int]) -> dict[Sequence, int]:
        """Read tokens up to the last one, which gives the first guess; those left over."""
        room = self._step.limits.rows
        row = 0
        picked = list[Any]()
        left = {}
        for sequence, start in waiting.items():
            end = min(sequence.length, start + room - row)
            for place in range(start, end):
                self._write_row(row, sequence, place)
                row += 1
            if end == sequence.length:
                self._write_pick(len(picked), row - 1, sequence)
                picked.append(sequence)
            else:
                left[sequence] = end
        self._run(row, picked)
        return left

    def _run(self, rows: int, picked: list[Sequence]) -> None:
        if not picked:
            self._step.inputs.pick[0] = 0
            self._step.inputs.temperature[0] = 0
        self._step.run(rows, max(len(picked), 1), 1)
        for pick, sequence in enumerate(picked):
            token = int(self._step.outputs.token[pick])
            sequence.tokens[sequence.length + sequence.drafts] = token
            sequence.drafts += 1

    def _write_row(self, row: int, sequence: Sequence, place: int) -> None:
        inputs = self._step.inputs
        inputs.tokens[row] = sequence.tokens[place]
        inputs.position[row] = place
        inputs.sequence[row] = sequence.slot

    def _write_pick(self, pick: int, row: int, sequence: Sequence) -> None:
        inputs, sampling = self._step.inputs, sequence.sampling
        inputs.pick[pick] = row
        inputs.uniform[pick] = sequence.uniform(sequence.generated + sequence.drafts)
        inputs.temperature[pick] = sampling.temperature
        inputs.top_k[pick] = sampling.top_k
        inputs.top_p[pick] = sampling.top_p
        inputs.min_p[pick] = sampling.min_p

    def _open_picks(self) -> None:
        inputs = self._step.inputs
        inputs.allowed[:] = 0xFFFFFFFF
        inputs.adjust_pick[0] = inputs.adjust_token[0] = 0
        inputs.adjust_bias[0] = inputs.adjust_penalty[0] = 0
        inputs.adjust_repetition[0] = 1

    @staticmethod
    def _ended(sequence: Sequence) -> bool:
        last = sequence.tokens[sequence.length + sequence.drafts - 1]
        return int(last) in sequence.end_tokens


def _share(table: NDArray[Any], own: int, sequences: int) -> None:
    """Let the table name blocks of each slot's own, in turn where positions need more."""
    if own:
        places = np.arange(table.shape[1]) % own
        for slot in range(sequences):
            table[slot] = slot * own + places


def _common(read: NDArray[np.int32] | None, tokens: NDArray[np.int32]) -> int:
    """Number of first tokens that are read already; the last one is always read again."""
    if read is None:
        return 0
    size = min(len(read), len(tokens) - 1)
    differ = np.flatnonzero(read[:size] != tokens[:size])
    return int(differ[0]) if len(differ) else size


def _write(sequence: Sequence, guesses: NDArray[np.int32]) -> None:
    """Put guesses behind the tokens of a sequence, up to a token that would end it."""
    count = 0
    for guess in guesses.tolist():
        if guess in sequence.end_tokens:
            break
        sequence.tokens[sequence.length + count] = guess
        count += 1
    sequence.drafts = count
