"""Bits of families with experts, latent and linear attention: chunks, neighbours, threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.step import StepGraph
from tests.llm.greedy import LIMITS, feed, forced, spread_blocks
from tests.llm.tiny_models import load_expected, prompt, write_folder

Array = np.ndarray[Any, Any]

FAMILIES = ("mixtral", "gpt_oss", "deepseek_v3", "qwen3_next")


def step_of(family: str, folder: Path, threads: int = 1) -> StepGraph:
    expected = load_expected(family)
    write_folder(folder, expected.config, expected.shapes, 0)
    session = ost.Session("cpu", threads=threads)
    step = StepGraph(open_checkpoint(folder), LIMITS, session=session)
    spread_blocks(step)
    return step


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_threads_do_not_change_bits(family: str, tmp_path: Path):
    one, two = step_of(family, tmp_path), step_of(family, tmp_path, threads=2)
    ids = prompt(one.config.vocabulary, 130, 3)
    answer = load_expected(family).tokens[0, 1].tolist()[:8]
    _, wanted = forced(one, ids, answer)
    for step, chunk in ((one, 1), (one, 7), (two, 64), (two, 130)):
        _, found = forced(step, ids, answer, chunk)
        assert np.array_equal(found, wanted), chunk


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_beside_does_not_change_bits(family: str, tmp_path: Path):
    step = step_of(family, tmp_path)
    vocabulary = step.config.vocabulary
    ids, others = prompt(vocabulary, 40, 1), prompt(vocabulary, 61, 2)
    feed(step, ids, 0)
    step.inputs.pick[:2] = (39, 20)
    step.run(40, 2, 1)
    wanted = step.outputs.logits.copy()
    feed(step, others, 0, sequence=1)
    feed(step, ids, 0, at=61)
    step.inputs.pick[:2] = (100, 81)
    step.run(101, 2, 1)
    assert np.array_equal(step.outputs.logits, wanted)
    # One row of each, after a different history in between.
    feed(step, others[:1], 61, sequence=1)
    feed(step, ids[:1], 40, at=1)
    step.inputs.pick[:2] = (1, 1)
    step.run(2, 1, 1)
    together = step.outputs.logits[0].copy()
    feed(step, ids, 0)
    step.run(40, 1, 1)
    feed(step, ids[:1], 40)
    step.inputs.pick[0] = 0
    step.run(1, 1, 1)
    assert np.array_equal(step.outputs.logits[0], together)


def test_states_of_a_sequence_are_saved_and_loaded(tmp_path: Path):
    step = step_of("qwen3_next", tmp_path)
    ids = prompt(step.config.vocabulary, 21, 0)
    feed(step, ids[:20], 0)
    step.inputs.pick[0] = 19
    step.run(20, 1, 1)
    saved = step.pools.save_slot(0)
    assert len(saved) == step.pools.slot_bytes > 0
    feed(step, ids[20:], 20)
    step.inputs.pick[0] = 0
    step.run(1, 1, 1)
    wanted = step.outputs.logits[0].copy()
    step.run(1, 1, 1)  # a second time, on states that have moved on
    assert not np.array_equal(step.outputs.logits[0], wanted)
    step.pools.load_slot(0, saved)
    step.run(1, 1, 1)
    assert np.array_equal(step.outputs.logits[0], wanted)
