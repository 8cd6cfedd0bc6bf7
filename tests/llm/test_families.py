"""Families of language models against transformers, with random weights in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.config import ModelConfig
from ostinato.llm.step import StepGraph
from ostinato.records import replace
from tests.llm.greedy import CONTEXT, LIMITS, forced, spread_blocks
from tests.llm.tiny_models import (
    ANSWER,
    LENGTHS,
    SEEDS,
    STORED_LOGITS,
    load_expected,
    prompt,
    stored_families,
    write_folder,
)
from tests.llm.widened import widened

#: Of logits, relative to the greatest.
TOLERANCE = 2e-4

#: Between the best two logits: choices that are nearer may differ.
NEAR_TIE = 1e-3


def context_of(config: ModelConfig, tokens: int) -> int:
    """The context of a step; ``longrope`` has other frequencies in short ones, and we never mix."""
    scalings = [layer.rope.scaling for layer in config.layers if layer.rope is not None]
    for scaling in scalings:
        if (
            scaling is not None
            and scaling.kind == "longrope"
            and tokens <= scaling.original_context
        ):
            return scaling.original_context
    return CONTEXT


def compare(checkpoint: Checkpoint, family: str, seed: int) -> int:
    """Compare answers to prompts of each length; return the number of near-ties that differ."""
    expected = load_expected(family)
    vocabulary = checkpoint.config.vocabulary
    steps: dict[int, StepGraph] = {}
    ties = 0
    for number, length in enumerate(LENGTHS):
        context = context_of(checkpoint.config, length + ANSWER)
        if context not in steps:
            limits = replace(LIMITS, context=context)
            steps[context] = StepGraph(checkpoint, limits, kv_dtype="float32")
            spread_blocks(steps[context])
        step = steps[context]
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


@pytest.mark.parametrize(
    "seed", [seed if seed < 1 else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS]
)
@pytest.mark.parametrize("family", stored_families())
def test_answers_are_those_of_transformers(family: str, seed: int, tmp_path: Path):
    expected = load_expected(family)
    write_folder(tmp_path, expected.config, expected.shapes, seed)
    checkpoint = open_checkpoint(tmp_path)
    if family.endswith("_mxfp4"):  # transformers computes with the elements, unrounded activations
        checkpoint = widened(checkpoint)
    ties = compare(checkpoint, family, seed)
    if ties:
        print(f"{family}, seed {seed}: {ties} near-ties went the other way")
