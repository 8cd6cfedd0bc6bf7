"""Vectors of texts and scores of documents, by folders with small tokenizers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.config import Pooling
from ostinato.llm.embedding import Embedder, embedding_settings
from ostinato.llm.tokenizers import tokenizer_from_folder
from ostinato.moe.safetensors import SafetensorsFile, write_safetensors
from tests.llm.model_files import LLAMA2_TOKENIZER, WORDLLAMA, model_file
from tests.llm.tiny_encoders import load_encoder
from tests.llm.tiny_llm import write_llm
from tests.llm.tiny_models import write_folder

pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(120))]

TEXTS = ["w1 w2 w3", "w4", " ".join(f"w{number}" for number in range(100)), "w9 w8"]


def write_tokenizer(folder: Path) -> None:
    """A vocabulary of words, with BERT's frame around texts."""
    special = [
        {
            "id": number,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, word in enumerate(WORDS[:4])
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
            ],
            "pair": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
            ],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
            },
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)},
            "unk_token": "[UNK]",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def folder_of(family: str, folder: Path) -> Path:
    expected = load_encoder(family)
    write_folder(folder, expected.config, expected.shapes, 0)
    write_tokenizer(folder)
    return folder


def write_modules(folder: Path, pooling: dict[str, object], *, normalize: bool = True) -> None:
    """Files as Sentence Transformers write them."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Normalize", "2_Normalize")] if normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def embedder_of(folder: Path) -> Embedder:
    return Embedder(open_checkpoint(folder), tokenizer_from_folder(folder))


def test_vectors_are_pooled_rows(tmp_path: Path):
    folder = folder_of("bert", tmp_path)
    write_modules(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    embedder = embedder_of(folder)
    found = embedder.embed(TEXTS)
    assert found.shape == (4, 64)
    assert found.dtype == np.float32
    ids = [1, 5, 6, 7, 2]
    (rows,) = embedder.encoder.rows([ids])
    np.testing.assert_allclose(found[0], rows[0] / np.linalg.norm(rows[0]), rtol=1e-6)
    plain = embedder.embed(TEXTS, normalize=False)
    assert np.array_equal(plain[0], rows[0])
    write_modules(folder, {"pooling_mode_mean_tokens": True})
    mean = embedder_of(folder).embed(TEXTS, normalize=False)
    np.testing.assert_allclose(mean[0], rows.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_a_vector_has_the_same_bits_alone(tmp_path: Path):
    embedder = embedder_of(folder_of("modernbert", tmp_path))
    together = embedder.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(embedder.embed([text])[0], vector)
    assert embedder.embed([]).shape == (0, 64)


def test_first_dimensions_are_normalised_again(tmp_path: Path):
    embedder = embedder_of(folder_of("bert", tmp_path))
    whole, part = embedder.embed(TEXTS, normalize=False), embedder.embed(TEXTS, dimensions=10)
    wanted = whole[:, :10] / np.linalg.norm(whole[:, :10], axis=1, keepdims=True)
    np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-7)
    for wrong in (0, 65, True, 1.5):
        with pytest.raises(InputError, match="dimensions is from 1 to 64"):
            embedder.embed(TEXTS, dimensions=wrong)  # type: ignore[arg-type]


def test_prompts_go_before_queries_and_passages(tmp_path: Path):
    folder = folder_of("bert", tmp_path)
    prompts = {"prompts": {"query": "w10 ", "document": "w11 "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    embedder = embedder_of(folder)
    assert np.array_equal(embedder.embed(["w1"], kind="query"), embedder.embed(["w10 w1"]))
    assert np.array_equal(embedder.embed(["w1"], kind="passage"), embedder.embed(["w11 w1"]))
    with pytest.raises(InputError, match="kind is query, passage or None"):
        embedder.embed(["w1"], kind="answer")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="put it into a list"):
        embedder.embed("w1")


def test_long_texts_are_cut(tmp_path: Path):
    folder = folder_of("bert", tmp_path)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    embedder = embedder_of(folder)
    assert np.array_equal(embedder.embed(["w1 w2 w3 w4 w5 w6"]), embedder.embed(["w1 w2 w3 w4"]))


def test_a_text_without_tokens_is_refused_by_its_number(tmp_path: Path):
    with ost.llm.load(write_llm(tmp_path), context=64) as model:
        with pytest.raises(InputError, match="text 1 has no tokens"):
            model.embed(["a", ""])
        assert model.embed([]).shape[0] == 0


def test_loaded_models_embed_and_rerank(tmp_path: Path):
    folder = folder_of("bert_reranker", tmp_path)
    with contextlib.closing(ost.llm.load(folder)) as model:
        embedder = embedder_of(folder)
        assert np.array_equal(model.embed(TEXTS), embedder.embed(TEXTS))
        documents = ["w3", "w4 w5"]
        assert np.array_equal(model.rerank("w1", documents), embedder.rerank("w1", documents))
        assert any("attention" in kernel.name for kernel in model.plan.kernels)


@pytest.mark.parametrize("family", ["bert_reranker", "xlm_roberta_reranker", "modernbert_reranker"])
def test_documents_are_scored_in_pairs(family: str, tmp_path: Path):
    embedder = embedder_of(folder_of(family, tmp_path))
    scores = embedder.rerank("w1 w2", ["w3", "w4 w5", "w1 w2"])
    assert scores.shape == (3,)
    assert scores.dtype == np.float32
    assert np.array_equal(embedder.rerank("w1 w2", ["w4 w5"]), scores[1:2])
    (rows,) = embedder.encoder.rows([[1, 5, 6, 2, 7, 2]], [[0, 0, 0, 0, 1, 1]])
    pooled = rows.mean(axis=0) if family.startswith("modern") else rows[0]
    wanted = embedder.encoder.classes(pooled[np.newaxis].astype(np.float32))[0, -1]
    np.testing.assert_allclose(scores[0], wanted, rtol=1e-4, atol=1e-5)


def test_models_without_a_head_score_nothing(tmp_path: Path):
    embedder = embedder_of(folder_of("bert", tmp_path))
    with pytest.raises(InputError, match="no head that scores"):
        embedder.rerank("w1", ["w2"])


def test_static_vectors_are_means(tmp_path: Path):
    table = np.random.default_rng(0).standard_normal((len(WORDS), 16)).astype(np.float16)
    write_tokenizer(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"embeddings": table})
    with ost.llm.load(tmp_path) as model:
        found = model.embed(["w1 w2", "w3", ""], normalize=False)
        wanted = np.stack([table[[5, 6]].astype(float).mean(axis=0), table[7], np.zeros(16)])
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert np.array_equal(model.embed(["w3 w3"]), model.embed(["w3"]))
        for wrong in (lambda: model.generate("w3"), lambda: model.plan):
            with pytest.raises(InputError, match="reads whole texts"):
                wrong()
        with pytest.raises(ost.UnsupportedOpError, match="no head that scores"):
            model.rerank("w3", ["w4"])


def test_static_vectors_of_model2vec_have_rows_and_factors(tmp_path: Path):
    rng = np.random.default_rng(1)
    table = rng.standard_normal((10, 8)).astype(np.float32)
    rows = rng.integers(0, 10, len(WORDS))
    factors = rng.random(len(WORDS))
    tensors = {"embeddings": table, "mapping": rows, "weights": factors}
    write_tokenizer(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "seq_length": 3}
    (tmp_path / "config.json").write_text(json.dumps(config | {"normalize": True}))
    with ost.llm.load(tmp_path) as model:
        # The unknown word is left out, and a text is cut behind its third token.
        found = model.embed(["w1 never w2", "w1 w2 w3 w4"], normalize=False)
        first, second = ([5, 6], [5, 6, 8])
        wanted = [(table[rows[ids]] * factors[ids, np.newaxis]).mean(0) for ids in (first, second)]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    write_safetensors(tmp_path / "model.safetensors", tensors | {"mapping": rows + 9})
    with pytest.raises(ModelFormatError, match="'mapping' has rows beyond the 10"):
        ost.llm.load(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", tensors | {"weights": factors[1:]})
    with pytest.raises(ModelFormatError, match="'weights' is a list of 124 floats"):
        ost.llm.load(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"other": table})
    with pytest.raises(ModelFormatError, match="no matrix of floats 'embeddings'"):
        ost.llm.load(tmp_path)


def test_static_vectors_of_a_real_model_tell_texts_apart(tmp_path: Path):
    for part, name in (("weights", WORDLLAMA), ("tokenizers", LLAMA2_TOKENIZER)):
        (tmp_path / part).mkdir()
        (tmp_path / part / name).symlink_to(model_file(name))
    texts = ["A man is eating food.", "A sailor eats a meal.", "The stock market fell today."]
    with ost.llm.load(tmp_path) as model:
        found, tokenizer = model.embed(texts), model.tokenizer
    assert found.shape == (3, 256)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.1
    table = SafetensorsFile(model_file(WORDLLAMA)).tensors["embedding.weight"]
    with model_file(WORDLLAMA).open("rb") as file:
        file.seek(table.offset)
        whole = np.fromfile(file, np.float16, 32000 * 256).reshape(32000, 256)
    mean = whole[tokenizer.encode(texts[0])].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), rtol=1e-6)


def test_settings_that_are_not_computed_are_refused(tmp_path: Path):
    folder = folder_of("bert", tmp_path)
    assert embedding_settings(folder, None).pooling == Pooling()
    write_modules(folder, {"pooling_mode_max_tokens": True})
    with pytest.raises(ModelFormatError, match="pooling_mode_max_tokens"):
        embedding_settings(folder, None)
    write_modules(folder, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
    with pytest.raises(ModelFormatError, match="2 poolings"):
        embedding_settings(folder, None)
    (folder / "modules.json").write_text('[{"type": "models.Dense", "path": "2_Dense"}]')
    with pytest.raises(ModelFormatError, match="asks for 'Dense'"):
        embedding_settings(folder, None)
    (folder / "modules.json").write_text('[{"type": "models.Pooling", "path": "../else"}]')
    with pytest.raises(ModelFormatError, match="the name of a folder"):
        embedding_settings(folder, None)
