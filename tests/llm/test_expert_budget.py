"""Models whose experts stay in their files: the same bits, with less memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import InputError
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.quantize import quantize_file
from ostinato.llm.step import StepGraph
from ostinato.moe.safetensors import write_safetensors
from tests.llm.gguf_models import write_gguf
from tests.llm.greedy import LIMITS, forced, spread_blocks
from tests.llm.test_embedding import write_tokenizer
from tests.llm.tiny_llm import write_llm
from tests.llm.tiny_models import load_expected, prompt, random_tensors, write_folder


def model_of(family: str, path: Path, *, gguf: bool = False) -> Path:
    expected = load_expected(family)
    if not gguf:
        write_folder(path, expected.config, expected.shapes, 0)
        return path
    file = path / "model.gguf"
    write_gguf(file, family, expected.config, random_tensors(expected.shapes, 0))
    return file


#: Models: of a folder, of a GGUF file of floats, or of one whose matrices are packed.
KINDS = (
    "mixtral",
    "mixtral gguf",
    "mixtral packed",
    "qwen3_moe",
    "qwen3_moe packed",
    "gpt_oss",
    "gpt_oss packed",
    "gpt_oss_mxfp4",
    "deepseek_v3",
    "deepseek_v3 packed",
    "qwen3_next",
)


def checkpoint_of(kind: str, path: Path) -> Checkpoint:
    family, _, form = kind.partition(" ")
    model = model_of(family, path, gguf=bool(form))
    if form == "packed":
        packed = path / "packed.gguf"
        quantize_file(model, packed, "q8_0")
        return open_checkpoint(packed)
    return open_checkpoint(model)


def slots_of(step: StepGraph) -> list[int]:
    return [layer.slots for layer in step.expert_layers]


#: Kinds that ``make test-slow`` adds: of each family, another form is tried by ``make test``.
SLOW = {
    *("mixtral", "mixtral packed", "qwen3_moe packed"),
    *("gpt_oss", "gpt_oss packed", "deepseek_v3"),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS]
)
def test_budgets_change_no_bits(kind: str, tmp_path: Path):
    """From one slot for each layer, or none, to slots for all."""
    checkpoint = checkpoint_of(kind, tmp_path)
    experts = checkpoint.config.experts
    assert experts is not None
    whole = StepGraph(checkpoint, LIMITS)
    spread_blocks(whole)
    ids = prompt(checkpoint.config.vocabulary, 70, 0)
    answer = load_expected(kind.partition(" ")[0]).tokens[0, 1].tolist()[:4]
    _, wanted = forced(whole, ids, answer)
    found = set()
    for budget in (50_000, 250_000, 100_000_000):
        try:
            part = StepGraph(checkpoint, LIMITS, expert_budget=budget)
        except InputError as error:
            assert "one expert takes" in str(error)  # of some models, floats
            continue
        spread_blocks(part)
        found.update(slots_of(part))
        _, logits = forced(part, ids, answer, 13)
        np.testing.assert_array_equal(logits, wanted)
    assert max(found) == experts.count > min(found)


def test_every_number_of_slots(tmp_path: Path):
    checkpoint = checkpoint_of("gpt_oss_mxfp4", tmp_path)
    experts = checkpoint.config.experts
    assert experts is not None
    whole = StepGraph(checkpoint, LIMITS)
    spread_blocks(whole)
    ids = prompt(checkpoint.config.vocabulary, 9, 0)
    _, wanted = forced(whole, ids, [5])
    seen = {}
    for budget in range(6_000, 200_000, 18_000):
        with contextlib.suppress(InputError):
            part = StepGraph(checkpoint, LIMITS, expert_budget=budget)
            (slots,) = set(slots_of(part))
            if seen.setdefault(slots, part) is part:
                spread_blocks(part)
                np.testing.assert_array_equal(forced(part, ids, [5])[1], wanted)
        if experts.count in seen:
            break
    assert sorted(seen) == [*range(experts.count + 1)]


def test_experts_in_several_files(tmp_path: Path):
    """Shards that experts of a layer, or blocks and their scales, are spread over."""
    for family in ("mixtral", "gpt_oss_mxfp4"):
        folder = tmp_path / family
        folder.mkdir()
        checkpoint = open_checkpoint(model_of(family, folder))
        step = StepGraph(checkpoint, LIMITS)
        spread_blocks(step)
        ids = prompt(checkpoint.config.vocabulary, 9, 0)
        _, wanted = forced(step, ids, [5])
        expected = load_expected(family)
        tensors = random_tensors(expected.shapes, 0)
        names = list(tensors)
        index = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
        for shard in set(index.values()):
            own = {name: tensors[name] for name in names if index[name] == shard}
            write_safetensors(folder / shard, own)
        (folder / "model.safetensors").unlink()
        text = json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
        part = StepGraph(
            open_checkpoint(folder), LIMITS, expert_budget=60_000 if "mxfp4" in family else 400_000
        )
        assert min(slots_of(part)) < 5
        spread_blocks(part)
        np.testing.assert_array_equal(forced(part, ids, [5])[1], wanted)


@pytest.mark.parametrize("kind", ["mixtral packed", "gpt_oss_mxfp4"])
def test_experts_that_are_called_become_resident(kind: str, tmp_path: Path):
    """By the policy, counted; without one, the first stay resident. A clone starts anew."""
    checkpoint = checkpoint_of(kind, tmp_path)
    ids = prompt(checkpoint.config.vocabulary, 9, 0)
    answer = load_expected(kind.partition(" ")[0]).tokens[0, 1].tolist()[:20]
    budget = 60_000 if "mxfp4" in kind else 200_000
    whole = StepGraph(checkpoint, LIMITS)
    spread_blocks(whole)
    _, wanted = forced(whole, ids, answer)
    policy = ost.TidePolicy(refresh_every=2)
    moved = StepGraph(checkpoint, LIMITS, expert_budget=budget, expert_policy=policy)
    fixed = StepGraph(checkpoint, LIMITS, expert_budget=budget, expert_policy=None)
    for step in (moved, fixed, moved.clone()):
        spread_blocks(step)
        np.testing.assert_array_equal(forced(step, ids, answer)[1], wanted)
    assert whole.expert_counters is fixed.expert_counters is None
    counters = moved.expert_counters
    assert counters is not None
    assert counters.promotions == counters.demotions > 0
    assert counters.steps == len(answer)
    assert counters.bytes_moved > 0 < counters.bytes_staged
    assert 0 < counters.hit_rate < 1


def test_models_without_experts_take_no_budget(tmp_path: Path):
    checkpoint = open_checkpoint(model_of("llama", tmp_path))
    with pytest.raises(InputError, match="has no experts"):
        StepGraph(checkpoint, LIMITS, expert_budget=1 << 20)


def test_narrowed_experts_can_not_stay(tmp_path: Path):
    checkpoint = open_checkpoint(model_of("mixtral", tmp_path), weights="bfloat16")
    with pytest.raises(InputError, match=r"'0.experts.gate.weight' can not stay in their files"):
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
            assert (model.expert_counters is None) == (budget is None)
    assert len(answers[0]) == 8
    assert answers[0] == answers[1]


def test_the_example_runs(tmp_path: Path) -> None:
    folder = write_llm(tmp_path / "model", "mixtral")
    script = Path(__file__).parents[2] / "examples" / "expert_budget.py"
    command = [sys.executable, str(script), str(folder), "--budget", "400000", "--check"]
    found = subprocess.run([*command, "--tokens", "8"], capture_output=True, check=True, text=True)
    assert "of calls were of experts in memory" in found.stdout
    assert "the same tokens as with all experts in memory: True" in found.stdout
