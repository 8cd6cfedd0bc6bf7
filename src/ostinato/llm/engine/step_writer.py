"""Writing of a step's inputs: rows, picks, random numbers, masks and adjustments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ostinato.llm.engine.interfaces import StepArrays, StepBounds, TokenMask
    from ostinato.llm.engine.sequence import Sequence

__all__ = ["Part", "StepWriter"]

_ALL = np.uint32(0xFFFFFFFF)


class Part:
    """The rows of one sequence in a step.

    Args:
        sequence: the sequence.
        rows, drafts: see :meth:`resize`.

    Attributes:
        sequence: see above.
        rows: number of rows, those of drafts included.
        drafts: number of drafts among them.
        samples: number of tokens that are sampled.
        scored: number of rows before the last of the prompt whose logits are wanted.
        pick: number of its first pick.
        masked: number of drafts by which the grammar is ahead while inputs are written.
    """

    __slots__ = ("drafts", "masked", "pick", "rows", "samples", "scored", "sequence")

    def __init__(self, sequence: Sequence, rows: int, drafts: int = 0) -> None:
        self.sequence = sequence
        self.scored = self.pick = self.masked = 0
        self.resize(rows, drafts)

    def resize(self, rows: int, drafts: int = 0) -> None:
        """Have so many rows, and so many drafts among them."""
        sequence = self.sequence
        self.rows, self.drafts = rows, drafts
        reaches = rows - drafts == sequence.pending
        self.samples = 1 + drafts if reaches and sequence.length < sequence.end else 0

    @property
    def picks(self) -> int:
        """Number of rows whose logits are wanted."""
        return self.scored + self.samples

    @property
    def adjustments(self) -> int:
        """Most adjustments of its picks."""
        size = self.sequence.adjustments.size
        # Each draft that counts can add an entry for the picks behind it.
        return self.samples * size + (self.drafts * (self.drafts + 1)) // 2 if size else 0


class StepWriter:
    """Writes the inputs of a step into its arrays.

    Args:
        inputs: the arrays.
        limits: their bounds.
    """

    def __init__(self, inputs: StepArrays, limits: StepBounds) -> None:
        self._inputs = inputs
        self._owners: list[Sequence | None] = [None] * limits.picks
        self._open = [False] * limits.picks
        self._counting = np.arange(limits.context + 1, dtype=np.int32)

    def write(self, parts: list[Part]) -> tuple[int, int, int]:
        """Write the rows of ``parts``; the numbers of rows, picks and adjustments, each above 0."""
        inputs = self._inputs
        row = pick = adjustment = 0
        for part in parts:
            sequence = part.sequence
            first, end = sequence.computed, sequence.computed + part.rows
            if part.rows == 1:
                inputs.tokens[row] = sequence.tokens[first]
                inputs.position[row] = first
                inputs.sequence[row] = sequence.slot
            else:
                rows = slice(row, row + part.rows)
                inputs.tokens[rows] = sequence.tokens[first:end]
                inputs.position[rows] = self._counting[first:end]
                inputs.sequence[rows] = sequence.slot
            row += part.rows
            part.pick = pick
            if part.scored:
                pick = self._write_scored(part, row, pick)
            for draft in range(part.samples):
                inputs.pick[pick] = row - part.samples + draft
                adjustment = self._write_sample(part, draft, pick, adjustment)
                pick += 1
            if part.drafts:
                self._take_back(part)
        if not pick:
            self._write_neutral(0, 0)
            pick = 1
        if not adjustment:
            inputs.adjust_pick[0] = inputs.adjust_token[0] = 0
            inputs.adjust_bias[0] = inputs.adjust_penalty[0] = 0
            inputs.adjust_repetition[0] = 1
            adjustment = 1
        return row, pick, adjustment

    def follow(self, parts: list[Part], tokens: NDArray[np.int32]) -> list[Part]:
        """Write the rows behind those of ``parts``, whose answers go on with these tokens.

        The parts were written last, each with one row that is picked; inputs of picks but the
        random numbers stay as they are.

        Args:
            parts: the answers, which do not have the tokens yet.
            tokens: one for each.

        Returns:
            The parts of the rows.
        """
        inputs, following = self._inputs, []
        inputs.tokens[: len(parts)] = tokens
        for pick, part in enumerate(parts):
            sequence = part.sequence
            inputs.position[pick] = sequence.length
            inputs.sequence[pick] = sequence.slot
            if sequence.sampling.temperature != 0:
                inputs.uniform[pick] = sequence.uniform(sequence.generated + 1)
            following.append(Part(sequence, 1))
            following[-1].pick = pick
        return following

    @staticmethod
    def may_follow(part: Part) -> bool:
        """Whether :meth:`follow` can write the row behind that of a part.

        Not if masks or adjustments of its logits change from token to token.
        """
        sequence = part.sequence
        plain = part.rows == part.samples == 1 and not part.scored
        plain = plain and sequence.mask is None and not sequence.barred
        bounded = sequence.generated < sequence.sampling.min_tokens
        return plain and not bounded and not sequence.adjustments.capacity

    def _write_scored(self, part: Part, end: int, pick: int) -> int:
        """Picks of prompt rows whose logits alone are wanted; the next pick."""
        sequence = part.sequence
        wanted = sequence.score_from + len(sequence.prompt_logprobs) - 1
        first = end - part.rows + (wanted - sequence.computed)
        for row in range(first, first + part.scored):
            self._write_neutral(pick, row)
            pick += 1
        return pick

    def _write_neutral(self, pick: int, row: int) -> None:
        inputs = self._inputs
        inputs.pick[pick] = row
        inputs.uniform[pick] = inputs.temperature[pick] = inputs.min_p[pick] = 0
        inputs.top_k[pick] = 0
        inputs.top_p[pick] = 1
        self._owners[pick] = None
        self._allow_all(pick)

    def _write_sample(self, part: Part, draft: int, pick: int, adjustment: int) -> int:
        """Parameters of a pick behind ``draft`` drafts; the next adjustment."""
        inputs, sequence = self._inputs, part.sequence
        sampling = sequence.sampling
        if self._owners[pick] is not sequence:
            self._owners[pick] = sequence
            inputs.temperature[pick] = sampling.temperature
            inputs.top_k[pick] = sampling.top_k
            inputs.top_p[pick] = sampling.top_p
            inputs.min_p[pick] = sampling.min_p
        index = sequence.generated + draft
        inputs.uniform[pick] = sequence.uniform(index)
        mask = sequence.mask
        if draft:
            length = sequence.length + draft
            sequence.adjustments.move_to(length)
            if mask is not None and part.masked == draft - 1:
                token = int(sequence.tokens[length - 1])
                if inputs.allowed[pick - 1, token >> 5] >> (token & 31) & 1:
                    mask.accept(token)
                    part.masked = draft
        # A draft that the grammar bars is not sampled, and nothing behind it matters.
        self._write_mask(sequence, index, pick, mask if part.masked == draft else None)
        return sequence.adjustments.write(inputs, adjustment, pick)

    def _write_mask(
        self, sequence: Sequence, index: int, pick: int, mask: TokenMask | None
    ) -> None:
        bits = self._inputs.allowed[pick]
        barred = sequence.barred
        if index < sequence.sampling.min_tokens:
            barred = (*barred, *sequence.end_tokens)
        if mask is None and not barred:
            self._allow_all(pick)
            return
        self._open[pick] = False
        if mask is not None:
            mask.fill(bits)
        else:
            bits[:] = _ALL
        _clear(bits, barred)

    def _allow_all(self, pick: int) -> None:
        if not self._open[pick]:
            self._inputs.allowed[pick] = _ALL
            self._open[pick] = True

    @staticmethod
    def _take_back(part: Part) -> None:
        """Return penalties and grammar to the state before the drafts."""
        sequence = part.sequence
        sequence.adjustments.move_to(sequence.length)
        if sequence.mask is not None and part.masked:
            sequence.mask.rollback(part.masked)


def _clear(bits: NDArray[np.uint32], tokens: tuple[int, ...]) -> None:
    """Bar tokens, unless none would be left."""
    before = bits.copy() if tokens else bits
    for token in tokens:
        bits[token >> 5] &= ~np.uint32(1 << (token & 31))
    if tokens and not bits.any():
        bits[:] = before
