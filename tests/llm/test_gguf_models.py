"""GGUF files against Hugging Face folders of the same models: configurations and weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.config import ModelConfig, Rope
from ostinato.llm.families.rope import frequencies, magnitude
from ostinato.llm.step import StepGraph
from ostinato.records import field_names
from tests.llm.gguf_models import ARCHITECTURES, expressible, write_gguf
from tests.llm.greedy import LIMITS, forced, spread_blocks
from tests.llm.tiny_models import load_expected, prompt, random_tensors, write_folder

#: Fields that differ between kinds of files.
_NAMES = ("family", "architecture", "layers")


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are equal, but for the rounding of numbers to float32."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    if hasattr(type(ours), "__record__"):
        names = field_names(ours)
        return all(same(getattr(ours, name), getattr(theirs, name)) for name in names)
    return bool(ours == theirs)


def same_rope(ours: Rope | None, theirs: Rope | None) -> bool:
    """Whether two rotary embeddings turn by the same angles, however they are described."""
    if ours is None or theirs is None:
        return ours is theirs
    angles = all(
        np.allclose(frequencies(ours, context), frequencies(theirs, context), rtol=1e-6)
        for context in (64, 512)
    )
    return angles and same(magnitude(ours), magnitude(theirs))


def differences(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """The fields in which configurations of one model differ."""
    found = [
        name
        for name in field_names(ours)
        if name not in _NAMES and not same(getattr(ours, name), getattr(theirs, name))
    ]
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        if one.window != other.window or not same_rope(one.rope, other.rope):
            found.append(f"{one} is not {other}")
    return found


def both(model: str, path: Path) -> tuple[Path, Path]:
    """A folder and a GGUF file of a model."""
    expected = load_expected(model)
    config = {**expected.config, **expressible(model, expected.config)}
    write_folder(path / "folder", config, expected.shapes, 0)
    file = path / "model.gguf"
    write_gguf(file, model, config, random_tensors(expected.shapes, 0))
    return path / "folder", file


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_files_of_both_kinds_are_the_same_model(model: str, tmp_path: Path):
    folder, file = (open_checkpoint(path) for path in both(model, tmp_path))
    assert not differences(file.config, folder.config)
    shapes = folder.family.shapes(folder.config)
    assert folder.weights.keys() == file.weights.keys() == shapes.keys()
    for name, weight in folder.weights.items():
        ours, theirs = weight.source.read(), file.weights[name].source.read()
        assert ours.shape == weight.shape == shapes[name], name
        if name.endswith(".rate"):  # by way of an exponential
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
            continue
        assert np.array_equal(ours, theirs), name


@pytest.mark.parametrize("model", ["llama", "gpt2", "gpt_oss"])
def test_a_gguf_file_has_the_tokens_of_transformers(model: str, tmp_path: Path):
    _, file = both(model, tmp_path)
    step = StepGraph(open_checkpoint(file), LIMITS, kv_dtype="float32")
    spread_blocks(step)
    expected = load_expected(model)
    answer = expected.tokens[0, 1].tolist()
    chosen, _ = forced(step, prompt(step.config.vocabulary, 17, 0), answer)
    assert chosen == answer


@pytest.mark.parametrize("model", ["llama", "phi3", "gpt_neox", "qwen2"])
def test_packed_matrices_have_the_rows_of_their_model(model: str, tmp_path: Path):
    folder, _ = both(model, tmp_path)
    expected = load_expected(model)
    config = json.loads((folder / "config.json").read_text())
    formats = {"ffn_down": gguf.GGMLQuantizationType.Q4_0, "": gguf.GGMLQuantizationType.Q8_0}
    file = tmp_path / "packed.gguf"
    write_gguf(file, model, config, random_tensors(expected.shapes, 0), formats)
    found = open_checkpoint(file).weights
    eight, four = (open_checkpoint(folder, weights=w).weights for w in ("int8", "int4"))
    for name, weight in found.items():
        wanted = (four if name.endswith("down.weight") else eight)[name]
        assert (weight.format, weight.shape) == (wanted.format, wanted.shape), name
        assert np.array_equal(weight.source.read(), wanted.source.read()), name
