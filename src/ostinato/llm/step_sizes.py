"""Sizes of a step: its limits, the shapes of its inputs and states, and the arrays of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.dtypes import FLOAT32, INT32, UINT32, DType
from ostinato.errors import InputError
from ostinato.llm.families.builder import BLOCK_TOKENS, State
from ostinato.records import dataclass, field_names, replace
from ostinato.variables import Variable

if TYPE_CHECKING:
    from ostinato.llm.config import ModelConfig
    from ostinato.variables import Dim

__all__ = ["StepInputs", "StepLimits", "StepOutputs", "StepSizes", "check_limits", "input_types"]

Array = np.ndarray[Any, Any]

#: Bounds of sizes that graphs of most limits have in common.
_LEAST_BOUNDS: Final = {
    "picks": 16,
    "adjustments": 1 << 14,
    "sequences": 1 << 5,
    "pages": 1 << 11,
    "blocks": 1 << 10,
    "window_blocks": 1 << 10,
}


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The most that a step takes.

    Attributes:
        rows: of a step.
        sequences: that have a table of blocks.
        picks: rows of a step whose next token is chosen.
        blocks: of 64 tokens, in each pool of keys or values.
        context: tokens of a sequence.
        adjustments: of logits, in a step.
        window_blocks: of 64 tokens, in each pool of a layer with a window, beside layers without;
            0: all layers share the blocks of a table.
    """

    rows: int
    sequences: int
    picks: int
    blocks: int
    context: int
    adjustments: int
    window_blocks: int = 0

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.context // BLOCK_TOKENS)


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """The sizes that shapes of a step are made of: numbers, or Variables of its graph.

    Attributes:
        rows, picks, adjustments, sequences, blocks, window_blocks: see :class:`StepLimits`.
        pages: blocks of the longest sequence.
    """

    rows: Dim
    picks: Dim
    adjustments: Dim
    sequences: Dim
    pages: Dim
    blocks: Dim
    window_blocks: Dim

    @staticmethod
    def most(limits: StepLimits) -> StepSizes:
        """The largest."""
        return StepSizes(
            rows=limits.rows,
            picks=limits.picks,
            adjustments=limits.adjustments,
            sequences=limits.sequences,
            pages=limits.table_width,
            blocks=limits.blocks,
            window_blocks=limits.window_blocks,
        )

    @staticmethod
    def of_graph(limits: StepLimits, *, shared: bool) -> StepSizes:
        """Those of a graph.

        Args:
            shared: whether all are Variables, with bounds that many limits have in common.
        """
        most = StepSizes.most(limits)
        rows = Variable("rows", 1, limits.rows)
        if not shared:
            picks = Variable("picks", 1, limits.picks)
            adjustments = Variable("adjustments", 1, limits.adjustments)
            return replace(most, rows=rows, picks=picks, adjustments=adjustments)
        bounds = {
            name: max(least, 1 << (getattr(most, name) - 1).bit_length())
            for name, least in _LEAST_BOUNDS.items()
        }
        found: dict[str, Dim] = {n: Variable(n, 1, bound) for n, bound in bounds.items()}
        if not limits.window_blocks:
            found["window_blocks"] = 0
        return StepSizes(rows=rows, **found)

    def of_state(self, state: State) -> tuple[Dim, ...]:
        """The shape of a state with so many blocks or sequences."""
        counts = {"block": self.blocks, "window": self.window_blocks, "slot": self.sequences}
        return (counts[state.kind], *state.shape[1:])


def input_types(sizes: StepSizes, config: ModelConfig) -> dict[str, tuple[tuple[Any, ...], DType]]:
    """The shapes and dtypes of the inputs of such sizes."""
    rows, picks, adjustments = sizes.rows, sizes.picks, sizes.adjustments
    mask = -(-config.vocabulary // 32)
    found: dict[str, tuple[tuple[Any, ...], DType]] = {
        "tokens": ((rows,), INT32),
        "position": ((rows,), INT32),
        "sequence": ((rows,), INT32),
        "table": ((sizes.sequences, sizes.pages), INT32),
        "pick": ((picks,), INT32),
        "uniform": ((picks,), FLOAT32),
        "temperature": ((picks,), FLOAT32),
        "top_k": ((picks,), INT32),
        "top_p": ((picks,), FLOAT32),
        "min_p": ((picks,), FLOAT32),
        "allowed": ((picks, mask), UINT32),
    }
    kinds = {"pick": INT32, "token": INT32}
    for name in ("pick", "token", "bias", "repetition", "penalty"):
        found[f"adjust_{name}"] = ((adjustments,), kinds.get(name, FLOAT32))
    if sizes.window_blocks != 0:
        found["window_table"] = found["table"]
    return found


def check_limits(limits: StepLimits, config: ModelConfig) -> None:
    for name in field_names(limits):
        value, may_be_none = getattr(limits, name), name == "window_blocks"
        if isinstance(value, bool) or not isinstance(value, int) or value < (not may_be_none):
            wanted = "zero or a positive number" if may_be_none else "a positive number"
            raise InputError(f"{name} of a step is {wanted}, got {value!r:.80}")
    if limits.window_blocks and not config.mixes_windows:
        raise InputError(
            f"window_blocks are for models with layers both with a window and without; "
            f"{config.architecture!r} has none"
        )
    if config.positions and limits.context > config.positions:
        raise InputError(
            f"the model has {config.positions} positions; a context of {limits.context} is beyond"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """The arrays that a step reads, of the largest size; a run reads their first rows.

    Attributes:
        tokens, position, sequence: of each row, int32 ``[rows]``.
        table: the blocks of each sequence, int32 ``[sequences, ceil(context / 64)]``.
        window_table: the same of layers with a window; ``None`` where these have no blocks apart.
        pick: the rows whose next token is chosen, int32 ``[picks]``.
        uniform: a number from 0 to 1 for each choice, float32 ``[picks]``.
        temperature, top_p, min_p: of each choice, float32 ``[picks]``; top_k, int32.
        allowed: a bit for each token that may be chosen, uint32 ``[picks, ceil(vocabulary / 32)]``.
        adjust_pick, adjust_token: a choice and a token whose logit changes, int32
            ``[adjustments]``. Each pair occurs once at most.
        adjust_bias, adjust_repetition, adjust_penalty: the change: ``l + bias``, then divided by
            ``repetition``, or if negative multiplied by it, then less ``penalty``; float32
            ``[adjustments]``. ``0, 0, 0, 1, 0`` changes nothing.
    """

    tokens: Array
    position: Array
    sequence: Array
    table: Array
    pick: Array
    uniform: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    allowed: Array
    adjust_pick: Array
    adjust_token: Array
    adjust_bias: Array
    adjust_repetition: Array
    adjust_penalty: Array
    window_table: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StepOutputs:
    """The arrays that a step writes; a run writes their first rows.

    Attributes:
        token: chosen, int32 ``[picks]``.
        logprob: of that token in the distribution of the unadjusted logits, float32 ``[picks]``.
        logits: unadjusted, float32 ``[picks, vocabulary]``.
    """

    token: Array
    logprob: Array
    logits: Array
