"""Damaged and hostile folders and files of language models: an error, or a model, and no more."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.llm.checkpoints import open_checkpoint
from tests.llm.gguf_models import ARCHITECTURES, write_gguf
from tests.llm.tiny_models import load_expected, random_tensors, write_folder

#: Bytes that opening a small model may take at most.
WASTE = 64 << 20

WILD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    2**63,
    10**400,
    -1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 1000,
    [],
    [1],
    {},
    {"rope_type": "yarn"},
    [[[]]],
)


def opened(path: Path) -> Exception | None:
    """Open a model; return the error, if it is one that a user may catch."""
    try:
        open_checkpoint(path)
    except ost.ModelFormatError as error:
        assert str(error)
        return error
    return None


def folder(path: Path, model: str = "llama", changes: Mapping[str, Any] | None = None) -> Path:
    """A tiny model with some fields changed."""
    expected = load_expected(model)
    write_folder(path, {**expected.config, **(changes or {})}, expected.shapes, 0)
    return path


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, "'FooForCausalLM', which is not known; known are"),
        ({"architectures": None, "model_type": None}, "names no architecture"),
        ({"hidden_act": "tanhshrink"}, "hidden_act is one of silu"),
        ({"hidden_size": "64"}, "hidden_size is a whole number from 1"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads is a whole number from 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is a divisor of the 4 heads, got 3"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is a whole number from 1 to 4096"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is a finite number above 0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config'"),
        ({"attention_sinks": 4}, "not known here and may change results: 'attention_sinks'"),
        ({"rope_parameters": {"rope_type": "warp"}}, "rope_type is 'warp', and only default"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks factor"),
        ({"rope_parameters": {"rope_type": "default", "power": 2}}, "'power'"),
        ({"rope_parameters": 3}, "rope_parameters is an object"),
        ({"vocab_size": 132}, r"'model.embed_tokens.weight' .* \(131, 64\), expected \(132, 64\)"),
        ({"attention_bias": True}, "lacks the tensor 'model.layers.0.self_attn.q_proj.bias'"),
        ({"num_hidden_layers": 3}, "9 tensors that the model has no use for, such as 'model.lay"),
        ({"num_hidden_layers": 5}, "lacks the tensor 'model.layers.4.input_layernorm.weight'"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    with pytest.raises(ost.ModelFormatError, match=message):
        open_checkpoint(folder(tmp_path / "model", changes=changes))


def test_fields_that_say_nothing_may_be_there(tmp_path: Path):
    changes = {"some_option": False, "another": None, "list": [], "_name_or_path": "x"}
    assert opened(folder(tmp_path / "model", changes=changes)) is None


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "../other.safetensors"}, "no file of the folder"),
        ({"x": "/etc/passwd"}, "no file of the folder"),
        ({"x": 3}, "no file of the folder"),
        ({"x": ".."}, "no file of the folder"),
        ({"x": "missing.safetensors"}, "lacks the file 'missing.safetensors'"),
        ({"x": "part.safetensors"}, "lacks the tensor 'x'"),
        (["x"], "no object 'weight_map'"),
    ],
)
def test_an_index_names_files_of_the_folder_alone(tmp_path: Path, weight_map: Any, message: str):
    path = folder(tmp_path / "model")
    (path / "model.safetensors").rename(path / "part.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ost.ModelFormatError, match=message):
        open_checkpoint(path)


def test_shards_are_one_model(tmp_path: Path):
    expected = load_expected("llama")
    names = list(expected.shapes)
    path = folder(tmp_path / "model")
    tensors = random_tensors(expected.shapes, 0)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, own in halves.items():
        ost.moe.write_safetensors(path / shard, {name: tensors[name] for name in own})
    index = {name: shard for shard, own in halves.items() for name in own}
    whole = open_checkpoint(path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (path / "model.safetensors").unlink()
    parts = open_checkpoint(path)
    for name, weight in whole.weights.items():
        assert (weight.source.read() == parts.weights[name].source.read()).all()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    path = folder(tmp_path / "model")
    (path / name).unlink()
    with pytest.raises(ost.ModelFormatError, match=name):
        open_checkpoint(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": NaN'])
def test_settings_are_an_object(tmp_path: Path, text: str):
    path = folder(tmp_path / "model")
    (path / "config.json").write_text(text)
    with pytest.raises(ost.ModelFormatError, match=r"config\.json' is no"):
        open_checkpoint(path)


def test_settings_are_no_larger_than_they_need_be(tmp_path: Path):
    path = folder(tmp_path / "model")
    (path / "config.json").write_text("[" + "[]," * 500_000 + "[]]")
    with pytest.raises(ost.ModelFormatError, match="larger than 1,048,576 bytes"):
        open_checkpoint(path)


def test_there_is_a_model(tmp_path: Path):
    with pytest.raises(ost.InputError, match="there is no folder or file"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(ost.InputError, match="weights is one of keep, bfloat16, int8, int4"):
        open_checkpoint(folder(tmp_path / "model"), weights="int2")  # type: ignore[arg-type]


# -- mutations -------------------------------------------------------------------------------------


def changed_bytes(rng: random.Random, data: bytes, near: int) -> bytes:
    """Bytes with a few of them changed, removed, repeated or cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(min(near, len(found)) or 1)
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at : at + rng.choice((1, 4, 100))]
            case 2:
                found[at:at] = found[at : at + rng.choice((1, 8, 64))]
            case 3:
                found[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x7f"))
            case 4:
                del found[max(at, 1) :]
    return bytes(found)


def mutate_config(rng: random.Random, path: Path, config: dict[str, Any]) -> None:
    """Write a configuration with a few fields changed, or with bytes of its text changed."""
    text = json.dumps(config)
    if rng.random() < 0.3:
        (path / "config.json").write_bytes(changed_bytes(rng, text.encode(), len(text)))
        return
    wild = dict(config)
    for name in rng.sample(sorted(config), rng.choice((1, 1, 2, 3))):
        inner = wild[name]
        if isinstance(inner, dict) and inner and rng.random() < 0.7:
            wild[name] = {**inner, rng.choice(sorted(inner)): rng.choice(WILD)}
        else:
            wild[name] = rng.choice(WILD)
    (path / "config.json").write_text(json.dumps(wild))


def mutate_many(tmp_path: Path, count: int) -> None:
    """Open models with something changed, each within bounds of memory."""
    rng = random.Random(0)
    models = sorted(ARCHITECTURES)
    for model in models:
        path, file = folder(tmp_path / model, model), tmp_path / f"{model}.gguf"
        expected = load_expected(model)
        write_gguf(file, model, expected.config, random_tensors(expected.shapes, 0))
        kept = (path / "model.safetensors").read_bytes()
        stored = file.read_bytes()
        header = int.from_bytes(kept[:8], "little") + 8
        outcomes = set()
        tracemalloc.start()
        for _ in range(count // len(models)):
            match rng.randrange(4):
                case 0 | 1:
                    mutate_config(rng, path, expected.config)
                    outcomes.add(type(opened(path)))
                    (path / "config.json").write_text(json.dumps(expected.config))
                case 2:
                    broken = changed_bytes(rng, kept, header)
                    (path / "model.safetensors").write_bytes(broken)
                    outcomes.add(type(opened(path)))
                    (path / "model.safetensors").write_bytes(kept)
                case 3:
                    file.write_bytes(changed_bytes(rng, stored, 3000))
                    outcomes.add(type(opened(file)))
            assert tracemalloc.get_traced_memory()[1] < WASTE
            tracemalloc.reset_peak()
        tracemalloc.stop()
        assert outcomes == {type(None), ost.ModelFormatError}
        shutil.rmtree(path)


def test_mutated_models_are_errors_or_models(tmp_path: Path):
    mutate_many(tmp_path, 420)


@pytest.mark.slow
def test_many_mutated_models_are_errors_or_models(tmp_path: Path):
    mutate_many(tmp_path, 10_000)
