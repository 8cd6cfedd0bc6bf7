"""Families of language models against transformers, with random weights in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.step import StepGraph
from tests.llm.greedy import LIMITS, forced, spread_blocks
from tests.llm.tiny_models import (
    LENGTHS,
    SEEDS,
    STORED_LOGITS,
    load_expected,
    prompt,
    stored_families,
    write_folder,
)

#: Of logits, relative to the greatest.
TOLERANCE = 2e-4

#: Between the best two logits: choices that are nearer may differ.
NEAR_TIE = 1e-3


def compare(step: StepGraph, family: str, seed: int) -> int:
    """Compare answers to prompts of each length; return the number of near-ties that differ."""
    expected = load_expected(family)
    vocabulary = step.config.vocabulary
    ties = 0
    for number, length in enumerate(LENGTHS):
        answer = expected.tokens[seed, number].tolist()
        chosen, logits = forced(step, prompt(vocabulary, length, seed), answer)
        wanted = expected.logits[seed, number]
        error = np.abs(logits[list(STORED_LOGITS)] - wanted).max() / np.abs(wanted).max()
        assert error < TOLERANCE, (family, seed, length, error)
        margins = expected.margins[seed, number]
        for place, (ours, theirs) in enumerate(zip(chosen, answer, strict=True)):
            if ours != theirs:
                assert margins[place] < NEAR_TIE, (family, seed, length, place)
                ties += 1
    return ties


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", stored_families())
def test_answers_are_those_of_transformers(family: str, seed: int, tmp_path: Path):
    expected = load_expected(family)
    write_folder(tmp_path, expected.config, expected.shapes, seed)
    step = StepGraph(open_checkpoint(tmp_path), LIMITS, kv_dtype="float32")
    spread_blocks(step)
    ties = compare(step, family, seed)
    if ties:
        print(f"{family}, seed {seed}: {ties} near-ties went the other way")
