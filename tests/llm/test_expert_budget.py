"""Models whose experts stay in their files: the same bits, with less memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import InputError
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.step import StepGraph
from tests.llm.gguf_models import write_gguf
from tests.llm.greedy import LIMITS, forced, spread_blocks
from tests.llm.test_embedding import write_tokenizer
from tests.llm.tiny_models import load_expected, prompt, random_tensors, write_folder


def model_of(family: str, path: Path, *, gguf: bool = False) -> Path:
    expected = load_expected(family)
    if not gguf:
        write_folder(path, expected.config, expected.shapes, 0)
        return path
    file = path / "model.gguf"
    write_gguf(file, family, expected.config, random_tensors(expected.shapes, 0))
    return file


@pytest.mark.parametrize("gguf", [False, True])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_budget_changes_no_bits(family: str, gguf: bool, tmp_path: Path):
    checkpoint = open_checkpoint(model_of(family, tmp_path, gguf=gguf))
    experts = checkpoint.config.experts
    assert experts is not None
    layers = sum(layer.feed_forward == "experts" for layer in checkpoint.config.layers)
    matrix = 4 * 3 * checkpoint.config.width * max(experts.hidden, 64)
    whole = StepGraph(checkpoint, LIMITS)
    part = StepGraph(checkpoint, LIMITS, expert_budget=3 * layers * matrix)
    for step in (whole, part):
        spread_blocks(step)
    ids = prompt(checkpoint.config.vocabulary, 70, 0)
    answer = load_expected(family).tokens[0, 1].tolist()[:6]
    _, wanted = forced(whole, ids, answer)
    _, found = forced(part, ids, answer, 13)
    assert np.array_equal(found, wanted)


def test_models_without_experts_take_no_budget(tmp_path: Path):
    checkpoint = open_checkpoint(model_of("llama", tmp_path))
    with pytest.raises(InputError, match="has no experts"):
        StepGraph(checkpoint, LIMITS, expert_budget=1 << 20)


def test_experts_side_by_side_can_not_stay(tmp_path: Path):
    checkpoint = open_checkpoint(model_of("gpt_oss", tmp_path))
    with pytest.raises(InputError, match=r"'0.experts.gate.weight' can not stay in their file"):
        StepGraph(checkpoint, LIMITS, expert_budget=1 << 24)


def test_a_loaded_model_takes_a_budget(tmp_path: Path):
    folder = model_of("mixtral", tmp_path)
    write_tokenizer(folder)
    answers = []
    for budget in (None, "400KiB"):
        with contextlib.closing(
            ost.llm.load(folder, sequences=1, context=128, expert_budget=budget)
        ) as model:
            found = model.generate([5, 6, 7], max_tokens=8, temperature=0.0, ignore_eos=True)
            answers.append(list(found.tokens))
    assert len(answers[0]) == 8
    assert answers[0] == answers[1]
