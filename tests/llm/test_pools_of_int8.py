"""Keys and values as 8-bit integers: near those of float32, and the same bits in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.memory import block_bytes
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from tests.llm.greedy import feed, spread_blocks
from tests.llm.tiny_llm import write_llm
from tests.llm.tiny_models import load_expected, prompt, write_folder

LIMITS = StepLimits(rows=64, sequences=4, picks=16, blocks=12, context=192, adjustments=1)

Array = np.ndarray[Any, Any]


def opened(folder: Path, family: str) -> Checkpoint:
    expected = load_expected(family)
    write_folder(folder, expected.config, expected.shapes, 0)
    return open_checkpoint(folder)


def logits_of(step: StepGraph, tokens: list[int], chunk: int) -> Array:
    found = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        feed(step, part, start)
        step.inputs.pick[: len(part)] = np.arange(len(part))
        step.run(len(part), len(part), 1)
        found.append(step.outputs.logits[: len(part)].copy())
    return np.concatenate(found)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_logits_are_near_those_of_wide_pools(tmp_path: Path, family: str):
    checkpoint, tokens = opened(tmp_path, family), prompt(131, 16, 0)
    results = {}
    for dtype in ("float32", "int8"):
        step = StepGraph(checkpoint, LIMITS, kv_dtype=dtype)
        spread_blocks(step)
        results[dtype] = logits_of(step, tokens, 16)
        if dtype == "int8":
            for chunk in (1, 7):
                assert np.array_equal(logits_of(step, tokens, chunk), results[dtype])
            assert block_bytes(checkpoint, dtype) == (step.pools.block_bytes["block"], 0)
            step.pools.copy_block(int(step.inputs.table[0, 0]), 11)
            step.inputs.table[0, 0] = 11
            feed(step, tokens[8:], 8)
            step.inputs.pick[0] = 7
            step.run(8, 1, 1)
            assert np.array_equal(step.outputs.logits[0], results[dtype][15])
    distance = np.abs(results["int8"] - results["float32"]).max(axis=1)
    # Of single rows, other experts may be chosen.
    assert 0 < np.median(distance) < 0.05 * np.abs(results["float32"]).max()


def test_a_model_generates_with_them(tmp_path: Path):
    with ost.llm.load(write_llm(tmp_path), kv_dtype="int8", context=128, sequences=2) as model:
        found = model.generate([5, 6, 7], max_tokens=8, temperature=0)
        assert len(found.tokens) == 8
        assert model.generate([5, 6, 7], max_tokens=8, temperature=0).tokens == found.tokens
