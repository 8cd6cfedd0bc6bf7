"""Interfaces of the parts that the engine is given: the step, text decoding and grammars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ostinato.llm.families.builder import BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ostinato.llm.families.builder import BlockName
    from ostinato.llm.generation import ToolCall

__all__ = [
    "BLOCK_TOKENS",
    "AheadStep",
    "AnswerText",
    "Step",
    "StepArrays",
    "StepBounds",
    "StepMemory",
    "TextPart",
    "TokenMask",
]


class StepBounds(Protocol):
    """Bounds of a step's sizes; see :class:`ostinato.llm.step_sizes.StepLimits`."""

    @property
    def rows(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def picks(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def window_blocks(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def adjustments(self) -> int: ...


class StepArrays(Protocol):
    """Input arrays of a step, of the largest sizes; a run reads their first rows.

    ``tokens``, ``position`` and ``sequence`` are int32 ``[rows]``; ``table`` is int32 ``[sequences,
    blocks of a context]``, as is ``window_table``, that of layers with a window if they have blocks
    apart; ``pick``, the rows whose next tokens are wanted, is int32 ``[picks]``, as is ``top_k``;
    ``uniform``, ``temperature``, ``top_p`` and ``min_p`` are float32 ``[picks]``; ``allowed`` is
    uint32 ``[picks, words of a vocabulary]``, a bit for each token. An adjustment changes the logit
    of ``adjust_token`` for pick ``adjust_pick``, both int32 ``[adjustments]``: ``adjust_bias`` is
    added, then ``adjust_repetition`` divides what is positive and multiplies what is negative, then
    ``adjust_penalty`` is subtracted, all float32 ``[adjustments]``.
    """

    @property
    def tokens(self) -> NDArray[Any]: ...
    @property
    def position(self) -> NDArray[Any]: ...
    @property
    def sequence(self) -> NDArray[Any]: ...
    @property
    def table(self) -> NDArray[Any]: ...
    @property
    def window_table(self) -> NDArray[Any] | None: ...
    @property
    def pick(self) -> NDArray[Any]: ...
    @property
    def uniform(self) -> NDArray[Any]: ...
    @property
    def temperature(self) -> NDArray[Any]: ...
    @property
    def top_k(self) -> NDArray[Any]: ...
    @property
    def top_p(self) -> NDArray[Any]: ...
    @property
    def min_p(self) -> NDArray[Any]: ...
    @property
    def allowed(self) -> NDArray[Any]: ...
    @property
    def adjust_pick(self) -> NDArray[Any]: ...
    @property
    def adjust_token(self) -> NDArray[Any]: ...
    @property
    def adjust_bias(self) -> NDArray[Any]: ...
    @property
    def adjust_repetition(self) -> NDArray[Any]: ...
    @property
    def adjust_penalty(self) -> NDArray[Any]: ...


class StepResults(Protocol):
    """Output arrays of a step: ``token`` int32 ``[picks]``, ``logits`` float32 ``[picks, V]``."""

    @property
    def token(self) -> NDArray[Any]: ...
    @property
    def logits(self) -> NDArray[Any]: ...


class StepMemory(Protocol):
    """Memory that a step keeps between runs; see :class:`ostinato.llm.step_pools.StepPools`."""

    def copy_block(self, source: int, target: int, kind: BlockName = ...) -> None: ...
    def read_block(self, block: int, kind: BlockName = ...) -> Any: ...
    def write_block(self, block: int, data: Any, kind: BlockName = ...) -> None: ...
    def save_slot(self, sequence: int) -> Any: ...
    def load_slot(self, sequence: int, saved: Any) -> None: ...


class Step(Protocol):
    """A compiled step of a model; see :class:`ostinato.llm.step.StepGraph`."""

    @property
    def limits(self) -> StepBounds: ...
    @property
    def inputs(self) -> StepArrays: ...
    @property
    def outputs(self) -> StepResults: ...
    @property
    def pools(self) -> StepMemory: ...
    def run(self, rows: int, picks: int, adjustments: int) -> None: ...
    def close(self) -> None: ...


class AheadStep(Protocol):
    """The same step, on a device that computes while the host goes on."""

    def start(self, rows: int, picks: int, adjustments: int) -> None:
        """Begin a run; its inputs may be written again at once."""
        ...

    def finish(self) -> None:
        """Wait for the run that was started, if one was; its outputs are there then."""
        ...


class TextPart(Protocol):
    """Text of an answer that became final: content, reasoning, and finished tool calls."""

    @property
    def text(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def tool_calls(self) -> tuple[ToolCall, ...]: ...


class AnswerText(Protocol):
    """Text of one answer, decoded token by token."""

    def push(self, token: int, *, stops: bool) -> TextPart:
        """Text that ``token`` makes final; with ``stops``, stop strings are looked for."""
        ...

    def finish(self) -> TextPart:
        """Text that was held back."""
        ...

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""
        ...


class TokenMask(Protocol):
    """State of a grammar: the tokens that may come next, as bits."""

    def fill(self, bits: NDArray[Any]) -> None:
        """Write the allowed tokens into a row of uint32 words."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token; whether it was allowed."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        ...
