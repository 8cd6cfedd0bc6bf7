"""SmolLM2 in Q4_1: its widened weights against transformers, and its packed weights against both.

``tests/peers/llm/make_smollm2.py`` stores the tokens of transformers.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ostinato.backends.options import CompileOptions
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.families.builder import BLOCK_TOKENS
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from tests.llm.greedy import feed, spread_blocks
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.widened import widened

ANSWER = 256

#: Tokens of an answer whose logits are stored, and how many there are for each stored one.
STORED = MappingProxyType({0: 64, 255: 64})

#: Of logits, relative to the greatest.
TOLERANCE = 1e-3

NEAR_TIE = 1e-3

#: Of predictions of packed weights from those of widened ones, on average.
DIVERGENCE = 5e-3

Array = np.ndarray[Any, Any]


def step_of(
    checkpoint: Checkpoint,
    rows: int,
    kv_dtype: str = "float32",
    options: CompileOptions | None = None,
) -> StepGraph:
    """A step that reads a prompt and an answer at once."""
    blocks = -(-rows // BLOCK_TOKENS)
    limits = StepLimits(
        rows=rows, sequences=1, picks=rows, blocks=blocks, context=rows, adjustments=1
    )
    step = StepGraph(checkpoint, limits, kv_dtype=kv_dtype, options=options)
    spread_blocks(step)
    return step


def logits_of(step: StepGraph, prompt: Array, answer: Array) -> Array:
    """The logits that should choose each token of an answer."""
    text = [*prompt.tolist(), *answer.tolist()[:-1]]
    feed(step, text, 0)
    step.inputs.pick[: len(answer)] = np.arange(len(prompt) - 1, len(text))
    step.run(len(text), len(answer), 1)
    return step.outputs.logits[: len(answer)]


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def compare(count: int) -> tuple[int, float]:
    """Compare answers to so many prompts: near-ties that differ, and the mean divergence."""
    file = open_checkpoint(model_file(SMOLLM2))
    with np.load(Path(__file__).parent / "smollm2.npz") as stored:
        prompts, tokens, margins, some = (
            stored[name] for name in ("prompts", "tokens", "margins", "logits")
        )
    rows = prompts.shape[1] + ANSWER
    exact, packed = step_of(widened(file), rows), step_of(file, rows)
    ties, divergences = 0, []
    for number, (prompt, answer) in enumerate(zip(prompts[:count], tokens[:count], strict=True)):
        logits = logits_of(exact, prompt, answer)
        for place, (when, every) in enumerate(STORED.items()):
            wanted = some[place, number]
            assert np.abs(logits[when, ::every] - wanted).max() < TOLERANCE * np.abs(wanted).max()
        differ = np.flatnonzero(logits.argmax(1) != answer)
        assert (margins[number, differ] < NEAR_TIE).all(), (number, differ)
        ties += len(differ)
        theirs = log_softmax(logits)
        ours = log_softmax(logits_of(packed, prompt, answer))
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(1).mean())
    return ties, float(np.mean(divergences))


def test_answers_are_those_of_transformers():
    ties, divergence = compare(1)
    assert divergence < DIVERGENCE
    print(f"{ties} near-ties differ; mean divergence {divergence:.1e}")


@pytest.mark.slow
def test_twenty_answers_are_those_of_transformers():
    ties, divergence = compare(20)
    assert divergence < DIVERGENCE
    print(f"{ties} near-ties differ; mean divergence {divergence:.1e}")
