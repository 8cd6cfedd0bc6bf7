"""Opened checkpoints: widths of weights, prefixes of names, files beside the weights, families."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.ir.stored import StoredTensor
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.config import Rope, RopeScaling
from ostinato.llm.families import registry
from ostinato.llm.families.family import Family
from ostinato.llm.families.registry import families, family_of
from ostinato.llm.families.rope import frequencies
from ostinato.llm.step import StepGraph
from ostinato.llm.weights import FileTensor, Stored, located
from ostinato.records import replace
from tests.llm.greedy import LIMITS, feed, spread_blocks
from tests.llm.tiny_models import load_expected, prompt, random_tensors, write_folder
from tests.llm.widened import elements_of

Array = np.ndarray[Any, Any]


def folder(path: Path, model: str = "llama") -> Path:
    """A tiny model."""
    expected = load_expected(model)
    write_folder(path, expected.config, expected.shapes, 0)
    return path


def logits_of(path: Path, weights: Any) -> Array:
    """The logits after a prompt."""
    limits = replace(LIMITS, rows=20, context=64, blocks=2)
    step = StepGraph(open_checkpoint(path, weights=weights), limits)
    spread_blocks(step)
    feed(step, prompt(131, 20, 0), 0)
    step.inputs.pick[0] = 19
    step.run(20, 1, 1)
    return step.outputs.logits[0].copy()


@pytest.mark.parametrize(
    ("weights", "format", "bound"),
    [("bfloat16", None, 0.03), ("int8", "gguf:q8_0", 0.05), ("int4", "gguf:q4_0", 0.6)],
)
def test_matrices_may_be_narrower(tmp_path: Path, weights: Any, format: str | None, bound: float):
    path = folder(tmp_path / "model")
    narrow, exact = open_checkpoint(path, weights=weights), open_checkpoint(path)
    for name, weight in narrow.weights.items():
        assert weight.shape == exact.weights[name].shape
        assert weight.source.read().shape == weight.source.shape
        if len(weight.shape) == 2:
            assert weight.format == format
            assert format or weight.source.dtype.name == "bfloat16"
        else:
            assert weight.source.dtype.name == "float32"
        near, whole = elements_of(weight), elements_of(exact.weights[name])
        assert np.abs(near - whole).max() <= np.abs(whole).max() * (0.13 if bound > 0.1 else 0.01)
    wanted = logits_of(path, "keep")
    assert np.abs(logits_of(path, weights) - wanted).max() < bound * np.abs(wanted).max()


def test_tables_of_positions_stay_exact(tmp_path: Path):
    narrow = open_checkpoint(folder(tmp_path / "model", "gpt2"), weights="int4")
    assert narrow.weights["positions.weight"].source.dtype.name == "float32"


def test_rows_that_are_no_blocks_become_bfloat16(tmp_path: Path):
    expected = load_expected("llama")
    sizes = {"hidden_size": 40, "intermediate_size": 64, "head_dim": 16}
    shapes = {
        name: [{64: 40, 96: 64}.get(n, n) if "norm" in name or n != 64 else n for n in shape]
        for name, shape in expected.shapes.items()
    }
    for name, shape in shapes.items():
        wide = "proj" in name and not name.endswith(("o_proj.weight", "down_proj.weight"))
        if wide or "embed" in name or "lm_head" in name:
            shape[1] = 40
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            shape[0] = 40
    write_folder(tmp_path / "model", {**expected.config, **sizes}, shapes, 0)
    narrow = open_checkpoint(tmp_path / "model", weights="int8").weights
    assert narrow["0.q.weight"].format is None
    assert narrow["0.q.weight"].source.dtype.name == "bfloat16"
    assert narrow["0.down.weight"].format == "gguf:q8_0"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_weights_stay_narrow(tmp_path: Path, dtype: Any):
    expected = load_expected("gemma2")
    path = folder(tmp_path / "model", "gemma2")
    tensors = random_tensors(expected.shapes, 0)
    narrow = {name: array.astype(dtype) for name, array in tensors.items()}
    ost.moe.write_safetensors(path / "model.safetensors", narrow)
    found = open_checkpoint(path).weights
    assert found["0.q.weight"].source.dtype.numpy == dtype
    norm = found["0.mixer_norm.weight"].source.read()
    assert norm.dtype == np.float32
    stored = narrow["model.layers.0.input_layernorm.weight"].astype(np.float32)
    assert np.array_equal(norm, stored + 1)


@pytest.mark.parametrize(
    ("model", "own", "other"),
    [
        ("llama", "model.", ""),
        ("llama", "model.", "language_model.model."),
        ("gpt2", "transformer.", ""),
    ],
)
def test_names_may_have_another_prefix(tmp_path: Path, model: str, own: str, other: str):
    expected = load_expected(model)
    path = folder(tmp_path / "model", model)
    wanted = open_checkpoint(path).weights
    outer = other.partition(".")[0] + "." if other else ""
    renamed = {
        other + n.removeprefix(own) if n.startswith(own) else outer + n: array
        for n, array in random_tensors(expected.shapes, 0).items()
    }
    again = folder(tmp_path / "again", model)
    ost.moe.write_safetensors(again / "model.safetensors", renamed)
    for name, weight in open_checkpoint(again).weights.items():
        assert np.array_equal(weight.source.read(), wanted[name].source.read())


def test_a_head_that_is_the_embedding_may_be_in_the_file(tmp_path: Path):
    expected = load_expected("gpt2")
    path = folder(tmp_path / "model", "gpt2")
    tensors = random_tensors(expected.shapes, 0)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    ost.moe.write_safetensors(path / "model.safetensors", tensors)
    assert "head.weight" not in open_checkpoint(path).weights


def test_the_files_of_a_chat_are_found(tmp_path: Path):
    path = folder(tmp_path / "model")
    bare = open_checkpoint(path)
    assert bare.template is None and bare.defaults == {} and bare.tokenizer_files == {}
    assert (bare.begin_token, bare.end_tokens) == (1, (2,))
    (path / "tokenizer.json").write_text("{}")
    config = {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    generation = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "eos_token_id": [5, 2, 9999]}
    (path / "generation_config.json").write_text(json.dumps({**generation, "do_sample": True}))
    found = open_checkpoint(path)
    assert found.template == "{{ messages }}"
    assert found.defaults == {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    assert found.end_tokens == (5, 2)
    assert found.tokenizer_files.keys() == {"tokenizer.json", "tokenizer_config.json"}
    (path / "chat_template.jinja").write_text("own")
    (path / "generation_config.json").write_text(json.dumps({"do_sample": False}))
    again = open_checkpoint(path)
    assert again.template == "own" and again.defaults == {"temperature": 0.0}
    (path / "generation_config.json").write_text(json.dumps({"top_p": "high"}))
    with pytest.raises(ost.ModelFormatError, match="top_p is a number"):
        open_checkpoint(path)


def test_other_packages_add_families(monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("other", f"{__name__}:OTHER", registry.GROUP)
    wrong = EntryPoint("wrong", f"{__name__}:folder", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))
    assert family_of("OtherForCausalLM", "x") == OTHER
    assert len(families()) > 12
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([wrong]))
    with pytest.raises(ost.InputError, match="is no Family"):
        families()


OTHER: Family = replace(families()["llama"], name="other", architectures=("OtherForCausalLM",))


def test_dynamic_frequencies_follow_the_context():
    plain = Rope(base=10000.0, features=32)
    scaling = RopeScaling(kind="dynamic", factor=2.0, original_context=64)
    dynamic = replace(plain, scaling=scaling)
    assert np.array_equal(frequencies(dynamic, 64), frequencies(plain, 64))
    longer = replace(plain, base=10000.0 * (2.0 * 128 / 64 - 1) ** (32 / 30))
    assert np.array_equal(frequencies(dynamic, 128), frequencies(longer, 128))


def test_linear_frequencies_are_divided():
    plain = Rope(base=10000.0, features=32)
    scaled = replace(plain, scaling=RopeScaling(kind="linear", factor=4.0))
    assert np.allclose(frequencies(scaled, 64) * 4, frequencies(plain, 64))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_model_of_images_and_text_is_read_for_its_text(tmp_path: Path, prefix: str):
    expected = load_expected("gemma3")
    plain = open_checkpoint(folder(tmp_path / "plain", "gemma3"))
    whole = folder(tmp_path / "whole", "gemma3")
    tensors = {
        prefix + name.removeprefix("model."): array
        for name, array in random_tensors(expected.shapes, 0).items()
    }
    tower = "vision_tower.patch.weight" if prefix[0] == "l" else "model.vision_tower.patch.weight"
    ost.moe.write_safetensors(
        whole / "model.safetensors", {**tensors, tower: np.ones(3, np.float32)}
    )
    settings = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": expected.config,
        "vision_config": {"hidden_size": 3},
        "eos_token_id": [1, 106],
    }
    (whole / "config.json").write_text(json.dumps(settings))
    found = open_checkpoint(whole)
    assert replace(found.config, architecture=plain.config.architecture) == plain.config
    assert found.end_tokens == (1, 106)
    for name, weight in found.weights.items():
        assert np.array_equal(weight.source.read(), plain.weights[name].source.read())


class _Known(StoredTensor):
    """A matrix with a key of its contents."""

    shape, dtype, content_key = (4, 6), DType.parse("float32"), "known"

    def read(self) -> Array:
        return np.arange(24, dtype=np.float32).reshape(4, 6)


def test_parts_of_a_tensor_have_keys_of_their_own():
    tensors = {"t": FileTensor(name="t", source=_Known(), shape=(4, 6))}
    places = {
        "first": Stored(names=("t",), columns=slice(0, 3), total=6),
        "last": Stored(names=("t",), columns=slice(3, 6), total=6),
        "top": Stored(names=("t",), rows=slice(0, 4), total=4),
        "turned": Stored(names=("t",), transposed=True),
        "moved": Stored(names=("t",), offset=1.0),
    }
    shapes = {"first": (4, 3), "last": (4, 3), "top": (4, 6), "turned": (6, 4), "moved": (4, 6)}
    found = located(tensors, places, shapes, "x", lambda name: False)
    keys = {weight.source.content_key for weight in found.values()}
    assert len(keys) == len(places) and None not in keys
    whole = _Known().read()
    assert np.array_equal(found["last"].source.read(), whole[:, 3:])
    assert np.array_equal(found["turned"].source.read(), whole.T)


def test_a_folder_of_gguf_files_says_what_to_load(tmp_path: Path):
    (tmp_path / "model-q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(ost.InputError, match=r"load one of its GGUF files .*: 'model-q8_0\.gguf'"):
        open_checkpoint(tmp_path)
    with pytest.raises(ost.InputError, match="there is no folder or file ''"):
        open_checkpoint("")
