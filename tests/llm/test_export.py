"""Hugging Face folders as GGUF files, next to files that the ``gguf`` package writes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.export.vocabulary import vocabulary_metadata
from ostinato.llm.loading import open_tokenizer
from ostinato.llm.quantize import quantize_file
from ostinato.llm.tokenizers import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from ostinato.llm.tokenizers.tokenizer_json import special_pieces
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.gguf_models import ARCHITECTURES, expressible, write_gguf
from tests.llm.test_gguf_models import differences
from tests.llm.text_models import (
    SIZE,
    TOKENIZERS,
    byte_level_bpe,
    unigram,
    wordpiece,
    write_text_files,
    write_text_model,
)
from tests.llm.tiny_encoders import load_encoder, stored_encoders
from tests.llm.tiny_models import load_expected, random_tensors, write_folder

#: Fields of folders that files have no use for: rows before the first position, and the pooling,
#: which is in files of its own.
_TABLES = ("positions", "pooling")


def expressible_folder(path: Path, model: str) -> Path:
    """A folder of a tiny model that GGUF files can have."""
    changes = expressible(model, load_expected(model).config)
    return write_text_model(path, model, byte_level_bpe(), changes)


@pytest.mark.parametrize("model", [*ARCHITECTURES, "gpt_oss_mxfp4"])
def test_a_folder_is_the_same_model_as_a_file(model: str, tmp_path: Path):
    folder = expressible_folder(tmp_path / "folder", model)
    found = quantize_file(folder, tmp_path / "model.gguf", "q8_0")
    before, after = open_checkpoint(folder), open_checkpoint(found.path)
    assert not differences(after.config, before.config)
    assert after.weights.keys() == before.weights.keys()
    packed = open_checkpoint(folder, weights="int8").weights
    for name, weight in after.weights.items():
        ours = weight.source.read()
        if weight.format is not None and weight.format == packed[name].format:
            assert np.array_equal(ours, packed[name].source.read()), name
        elif weight.format is None and weight.source.dtype == before.weights[name].source.dtype:
            wanted = before.weights[name].source.read()
            np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6, err_msg=name)
        else:  # experts, which are stacks, and matrices that files have the other way round
            assert len(weight.shape) == 3, name


@pytest.mark.parametrize("model", ["llama", "phi3_long", "gemma3", "qwen3_next", "deepseek_v3"])
def test_tensors_are_those_of_converters(model: str, tmp_path: Path):
    folder = expressible_folder(tmp_path / "folder", model)
    config = json.loads((folder / "config.json").read_text())
    old = load_expected(model).config["vocab_size"]
    shapes = {
        name: [SIZE, *shape[1:]] if shape[0] == old else shape
        for name, shape in load_expected(model).shapes.items()
    }
    write_gguf(tmp_path / "theirs.gguf", model, config, random_tensors(shapes, 0))
    quantize_file(folder, tmp_path / "ours.gguf", "bfloat16", skip=["*"])
    ours, theirs = (GGUFFile(tmp_path / f"{name}.gguf") for name in ("ours", "theirs"))
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in ours.tensors.items():
        wanted = theirs.tensors[name]
        assert tensor.sizes == wanted.sizes, name
        found, expected = tensor.widened().read(), wanted.widened().read()
        np.testing.assert_allclose(found, expected, rtol=2e-6, err_msg=name)


def test_answers_of_the_file_are_those_of_the_folder(tmp_path: Path):
    folder = write_text_model(tmp_path / "folder", "llama", byte_level_bpe(), {})
    path = quantize_file(folder, tmp_path / "model.gguf", "q8_0").path
    messages: Any = [{"role": "user", "content": "The sea is"}]
    answers = []
    for source, weights in ((folder, "int8"), (path, "keep")):
        with ost.llm.load(source, weights=weights, context=64, sequences=1) as model:
            answers.append(model.chat(messages, max_tokens=12, temperature=0, logprobs=0))
    first, second = answers
    assert first.tokens == second.tokens
    assert first.usage == second.usage
    assert [p.logprob for p in first.logprobs] == [p.logprob for p in second.logprobs]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_vocabularies_are_read_back(kind: str, tmp_path: Path):
    write_text_files(tmp_path, TOKENIZERS[kind]())
    metadata, tokenizer = metadata_of(tmp_path)
    assert metadata["tokenizer.ggml.model"] == kind
    again = tokenizer_from_gguf(metadata)
    assert again.end_tokens >= tokenizer.end_tokens
    for text in fuzzed_texts(300, seed=3):
        if kind == "t5" and text.lstrip(" ").startswith("\u2581"):
            continue  # folders take it for the space before the text, files put another one there
        for options in ({}, {"add_bos": True}, {"special": True}):
            ids = tokenizer.encode(text, **options)
            assert again.encode(text, **options) == ids, text
            assert again.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "smollm", "gpt-4o", "deepseek-v3"])
def test_pre_tokenizers_are_named(pre: str, tmp_path: Path):
    write_text_files(tmp_path, byte_level_bpe(pre))
    metadata, _ = metadata_of(tmp_path)
    assert metadata["tokenizer.ggml.pre"] == pre


def metadata_of(folder: Path) -> tuple[dict[str, Any], Tokenizer]:
    """The metadata of a folder's tokenizer, and the tokenizer."""
    tokenizer = tokenizer_from_folder(folder)
    stored = json.loads((folder / "tokenizer.json").read_text())
    named = special_pieces(json.loads((folder / "tokenizer_config.json").read_text()))
    metadata = vocabulary_metadata(
        tokenizer,
        stored,
        size=SIZE,
        named=named,
        ends=(),
        begin=tokenizer.bos,
        pairs=tokenizer.id_of("[CLS]") is not None,
    )
    return metadata, tokenizer


def test_templates_and_sampling_parameters_are_kept(tmp_path: Path):
    folder = write_text_model(tmp_path / "folder", "llama", byte_level_bpe(), {})
    proposed = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": [2, 3]}
    (folder / "generation_config.json").write_text(json.dumps(proposed))
    path = quantize_file(folder, tmp_path / "model.gguf", "q4_0").path
    before, after = open_checkpoint(folder), open_checkpoint(path)
    assert after.template == before.template
    assert after.end_tokens == before.end_tokens == (2, 3)
    assert after.defaults == pytest.approx(before.defaults)
    (tokenizer, template), (again, same) = open_tokenizer(folder), open_tokenizer(path)
    assert template is not None
    assert same is not None
    messages: Any = [{"role": "user", "content": "a <|im_end|> b"}]
    assert template.encode(tokenizer, messages) == same.encode(again, messages)


def test_what_files_can_not_express_is_refused(tmp_path: Path):
    target = tmp_path / "model.gguf"
    folder = write_text_model(tmp_path / "window", "qwen2", byte_level_bpe(), {})
    with pytest.raises(ost.InputError, match=r"no way to express layers\.window of 'window'"):
        quantize_file(folder, target, "q8_0")
    folder = write_text_model(tmp_path / "words", "llama", wordpiece(), {})
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["model"] = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    stored |= {"added_tokens": [], "post_processor": None, "decoder": None}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ost.ModelFormatError, match="no vocabulary of the kind 'WordLevel'"):
        quantize_file(folder, target, "q8_0")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ost.ModelFormatError, match=r"no tokenizer\.json"):
        quantize_file(folder, target, "q8_0")
    assert not target.exists()


def encoder_folder(path: Path, family: str) -> Path:
    """A tiny encoder or reranker, and a tokenizer of its kind."""
    expected = load_encoder(family)
    old = expected.config["vocab_size"]
    shapes = {
        name: [SIZE, *shape[1:]] if shape[0] == old else shape
        for name, shape in expected.shapes.items()
    }
    write_folder(path, {**expected.config, "vocab_size": SIZE}, shapes, 0)
    kinds = {
        "bert": wordpiece,
        "nomic": wordpiece,
        "jina": wordpiece,
        "xlm": unigram,
        "mod": byte_level_bpe,
    }
    build = next(build for start, build in kinds.items() if family.startswith(start))
    write_text_files(path, build())
    return path


@pytest.mark.parametrize("family", stored_encoders())
def test_encoders_have_the_vectors_of_their_folder(family: str, tmp_path: Path):
    folder = encoder_folder(tmp_path / "folder", family)
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"path": "2", "type": "sentence_transformers.models.Normalize"},
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    path = quantize_file(folder, tmp_path / "model.gguf", "q8_0", skip=["*"]).path
    given = ["the sea is blue", "boats", "the sea and the boats " * 9]
    with ost.llm.load(folder) as before, ost.llm.load(path) as after:
        assert not [d for d in differences(after.config, before.config) if d not in _TABLES]
        if before.config.labels:
            assert np.array_equal(before.rerank("the sea", given), after.rerank("the sea", given))
        else:
            assert np.array_equal(before.embed(given), after.embed(given))
