"""Greedy answers by steps, fed with the tokens of another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.llm.families.builder import BLOCK_TOKENS
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from tests.llm.tiny_models import ANSWER, LENGTHS

Array = np.ndarray[Any, Any]

CONTEXT = max(LENGTHS) + ANSWER

#: Room for one sequence.
LIMITS = StepLimits(
    rows=max(LENGTHS),
    sequences=2,
    picks=2,
    blocks=2 * -(-CONTEXT // BLOCK_TOKENS),
    context=CONTEXT,
    adjustments=2,
)


def feed(
    step: StepGraph, tokens: Sequence[int], start: int, *, sequence: int = 0, at: int = 0
) -> None:
    """Write rows of a sequence into the inputs of a step, from row ``at`` on."""
    stop = at + len(tokens)
    step.inputs.tokens[at:stop] = tokens
    step.inputs.position[at:stop] = np.arange(start, start + len(tokens))
    step.inputs.sequence[at:stop] = sequence


def spread_blocks(step: StepGraph) -> None:
    """Give each sequence blocks of its own, in no order."""
    width = step.limits.table_width
    blocks = np.random.default_rng(0).permutation(step.limits.blocks)
    table = step.inputs.table
    table[:] = blocks[: table.size].reshape(-1, width)


def forced(
    step: StepGraph, prompt: Sequence[int], answer: Sequence[int], chunk: int | None = None
) -> tuple[list[int], Array]:
    """The tokens and logits of an answer whose own tokens are given.

    Args:
        step: compiled.
        prompt: the tokens before.
        answer: the tokens that follow, each fed after the step that should choose it.
        chunk: rows of a step of the prompt; ``None``: all.
    """
    size = chunk or len(prompt)
    for start in range(0, len(prompt), size):
        part = prompt[start : start + size]
        feed(step, part, start)
        step.inputs.pick[0] = len(part) - 1
        step.run(len(part), 1, 1)
    chosen, logits = [int(step.outputs.token[0])], [step.outputs.logits[0].copy()]
    for number, token in enumerate(answer[:-1]):
        feed(step, [token], len(prompt) + number)
        step.inputs.pick[0] = 0
        step.run(1, 1, 1)
        chosen.append(int(step.outputs.token[0]))
        logits.append(step.outputs.logits[0].copy())
    return chosen, np.array(logits)
