"""Logits, vectors and ids of GGUF files next to llama.cpp, all in float32.

    LLAMA_CPP_LIB_PATH=FOLDER python -m pytest tests/peers/llm/test_llama_cpp.py

``llama_cpp`` is the binding of llama-cpp-python; the folder has the library ``libllama``. Files are
written from the tiny models of ``tests/llm/expected``, with sizes that llama.cpp takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.quantize import quantize_file
from ostinato.llm.tokenizers import tokenizer_from_gguf
from ostinato.records import replace
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.gguf_models import ARCHITECTURES, expressible
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.test_export import encoder_folder
from tests.llm.test_smollm2 import logits_of, step_of
from tests.llm.text_models import SIZE, byte_level_bpe, write_text_files
from tests.llm.tiny_encoders import stored_encoders
from tests.llm.tiny_models import load_expected, write_folder

llama_cpp = pytest.importorskip("llama_cpp")

Array = np.ndarray[Any, Any]
Shapes = dict[str, list[int]]

#: llama.cpp rounds contexts up to this size, by which ``longrope`` chooses its frequencies.
CONTEXT = 256

#: Of logits, relative to the greatest; of vectors of length 1, absolute.
TOLERANCE = 2e-4

#: The same of models whose GELU llama.cpp looks up by float16 (``ggml_table_gelu_f16``).
GELU_TOLERANCE = 3e-3


def taken(model: str) -> tuple[dict[str, Any], Shapes]:
    """The configuration and the shapes of a tiny model, changed so that llama.cpp takes it."""
    expected = load_expected(model)
    config = {**expected.config, **expressible(model, expected.config), "vocab_size": SIZE}
    old = expected.config["vocab_size"]
    shapes = {
        name: [SIZE, *shape[1:]] if shape[0] == old else list(shape)
        for name, shape in expected.shapes.items()
    }
    if model == "mistral":  # windows of the architecture ``llama`` are not read there
        config["sliding_window"] = None
    if model == "qwen3_moe":  # experts in each layer
        config["mlp_only_layers"] = []
        shapes = {name: shape for name, shape in shapes.items() if ".layers.1.mlp." not in name}
        first = [name for name in shapes if ".layers.0.mlp." in name]
        shapes |= {name.replace(".0.", ".1.", 1): shapes[name] for name in first}
    if model == "qwen3_next":  # values of linear attention as wide as keys
        heads, old = config["linear_num_value_heads"], config["linear_value_head_dim"]
        width = config["linear_value_head_dim"] = config["linear_key_head_dim"]
        less = heads * (old - width)
        for name, shape in shapes.items():
            if name.endswith("in_proj_qkvz.weight"):
                shape[0] -= 2 * less
            elif name.endswith("linear_attn.conv1d.weight"):
                shape[0] -= less
            elif name.endswith("linear_attn.out_proj.weight"):
                shape[1] -= less
            elif name.endswith("linear_attn.norm.weight"):
                shape[0] = width
    return config, shapes


def truncated(checkpoint: Checkpoint) -> Checkpoint:
    """The model with YaRN's ramp between whole pairs, as llama.cpp has it in every model.

    ``ggml_rope_yarn_corr_dims`` (ggml/src/ggml.c) rounds the ends of the ramp, which GPT-OSS does
    not (``"truncate": false`` in its ``config.json``).
    """
    layers = []
    for layer in checkpoint.config.layers:
        rope = layer.rope
        if rope is not None and rope.scaling is not None and rope.scaling.kind == "yarn":
            rope = replace(rope, scaling=replace(rope.scaling, truncate=True))
        layers.append(replace(layer, rope=rope))
    return replace(checkpoint, config=replace(checkpoint.config, layers=tuple(layers)))


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_logits_are_those_of_llama_cpp(model: str, tmp_path: Path) -> None:
    config, shapes = taken(model)
    write_folder(tmp_path / "folder", config, shapes, 0)
    write_text_files(tmp_path / "folder", byte_level_bpe())
    path = quantize_file(tmp_path / "folder", tmp_path / "m.gguf", "q8_0", skip=["*"]).path
    tokens = np.random.default_rng(1).integers(4, SIZE - 10, 100)
    step = step_of(truncated(open_checkpoint(path)), CONTEXT)
    ours = logits_of(step, tokens[:1], tokens[1:])
    theirs = llama_cpp.Llama(
        str(path),
        n_ctx=CONTEXT,
        n_batch=CONTEXT,
        n_ubatch=CONTEXT,
        logits_all=True,
        type_k=0,
        type_v=0,
        verbose=False,
        n_threads=1,
    )
    theirs.eval(tokens[:-1].tolist())
    wanted = np.array(theirs.scores[: len(tokens) - 1])
    tolerance = GELU_TOLERANCE if step.config.activation.startswith("gelu") else TOLERANCE
    assert np.abs(ours - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("model", [m for m in stored_encoders() if "reranker" not in m])
def test_vectors_are_those_of_llama_cpp(model: str, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "folder", model)
    path = quantize_file(folder, tmp_path / "m.gguf", "q8_0", skip=["*"]).path
    texts = ["the sea is blue", "the boats", "the sea and the boats " * 9]
    with ost.llm.load(path) as encoder:
        ours = encoder.embed(texts)
    theirs = llama_cpp.Llama(str(path), n_ctx=CONTEXT, embedding=True, verbose=False, n_threads=1)
    wanted = np.array([theirs.embed(text) for text in texts])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    tolerance = GELU_TOLERANCE if model == "jina_bert_v2" else TOLERANCE
    assert np.abs(ours - wanted).max() < tolerance


def test_ids_are_those_of_llama_cpp() -> None:
    path = model_file(SMOLLM2)
    ours = tokenizer_from_gguf(GGUFFile(path).metadata)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in fuzzed_texts(10_000, 29, ["<|im_start|>", "<|im_end|>"]):
        for special in (False, True):
            wanted = theirs.tokenize(text.encode(), add_bos=False, special=special)
            assert ours.encode(text, special=special) == wanted, text
