"""Encoders against transformers, with random weights in float32; the bits of texts in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ContextError, InputError
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.encoder import Encoder
from tests.devices.registered import open_session
from tests.llm.tiny_encoders import ONE_SEGMENT, load_encoder, segments_of, stored_encoders
from tests.llm.tiny_models import LENGTHS, SEEDS, load_expected, prompt, write_folder

#: Relative to the greatest element.
TOLERANCE = 2e-4


def encoder_of(family: str, seed: int, folder: Path, threads: int | None = None) -> Encoder:
    expected = load_encoder(family)
    write_folder(folder, expected.config, expected.shapes, seed)
    return Encoder(open_checkpoint(folder), session=ost.Session("cpu", threads=threads))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", stored_encoders())
def test_rows_are_those_of_transformers(family: str, seed: int, tmp_path: Path):
    encoder = encoder_of(family, seed, tmp_path)
    vocabulary = encoder.config.vocabulary
    texts = [prompt(vocabulary, length, seed) for length in LENGTHS]
    segments = None if family in ONE_SEGMENT else [segments_of(length) for length in LENGTHS]
    found = encoder.rows(texts, segments)
    for rows, wanted in zip(found, load_encoder(family).results[seed], strict=True):
        if encoder.config.labels:
            pooled = rows[0] if "modernbert" not in family else rows.mean(axis=0)
            ours = encoder.classes(pooled[np.newaxis])[0]
        else:
            ours = np.stack([rows[0], rows[-1], rows.mean(axis=0)])
        assert ours.shape == wanted.shape
        assert np.abs(ours - wanted).max() / max(1, np.abs(wanted).max()) < TOLERANCE


def test_devices_with_known_sizes_run_few_of_them(tmp_path: Path):
    """Rows, texts and lengths are those of the next power of two; what is behind is not read."""
    cpu = encoder_of("modernbert", 0, tmp_path)
    gpu = Encoder(open_checkpoint(tmp_path), session=open_session("cudahost"), context=64)
    texts = [prompt(cpu.config.vocabulary, length, 0) for length in (3, 17, 1)]
    for chosen in (texts, texts[:1], texts[2:]):
        for rows, wanted in zip(gpu.rows(chosen), cpu.rows(chosen), strict=True):
            assert rows.shape == wanted.shape
            assert np.abs(rows - wanted).max() < TOLERANCE * max(1, np.abs(wanted).max())
    executable: Any = gpu._compiled._execution.executable
    assert [found.sizes for found in executable.compiled_sizes] == [
        "rows = 32, texts = 4, length = 32",
        "rows = 16, texts = 1, length = 16",
    ]
    assert gpu.plan.kernels


@pytest.mark.parametrize("family", ["bert", "modernbert", "jina_bert_v2"])
def test_bits_of_a_text_depend_on_nothing_beside_it(family: str, tmp_path: Path):
    one, two = (encoder_of(family, 0, tmp_path / str(n), threads=n) for n in (1, 2))
    vocabulary = one.config.vocabulary
    texts = [prompt(vocabulary, length, length) for length in (1, 2, 7, 31, 64, 65, 130, 300, 17)]
    together = two.rows(texts)
    for text, rows in zip(texts, together, strict=True):
        assert np.array_equal(one.rows([text])[0], rows)
        assert np.array_equal(one.rows([texts[0], text, texts[7]])[1], rows)


def test_decoders_give_the_rows_of_their_last_layer(tmp_path: Path):
    expected = load_expected("llama")
    write_folder(tmp_path, expected.config, expected.shapes, 0)
    encoder = Encoder(open_checkpoint(tmp_path))
    text = prompt(encoder.config.vocabulary, 17, 0)
    (rows,) = encoder.rows([text])
    head = open_checkpoint(tmp_path).weights["head.weight"].source.read()
    logits = rows[-1] @ head.T
    wanted = expected.logits[0, LENGTHS.index(17), 0]
    assert np.abs(logits - wanted).max() / np.abs(wanted).max() < TOLERANCE
    assert np.array_equal(encoder.rows([text[:5]])[0], rows[:5])


def test_wrong_texts_are_refused(tmp_path: Path):
    encoder = encoder_of("bert", 0, tmp_path)
    with pytest.raises(InputError, match="text 1 is token ids, at least one"):
        encoder.rows([[3], []])
    with pytest.raises(InputError, match="text 0 has the token 131, the vocabulary 131"):
        encoder.rows([[131]])
    with pytest.raises(ContextError, match="513 tokens, the context 512"):
        encoder.rows([[3] * 513])
    with pytest.raises(InputError, match="no head"):
        encoder.classes(np.zeros((1, 64), np.float32))
    assert encoder.rows([]) == []


def test_models_with_states_are_no_encoders(tmp_path: Path):
    expected = load_expected("qwen3_next")
    write_folder(tmp_path, expected.config, expected.shapes, 0)
    with pytest.raises(InputError, match="it is no encoder"):
        Encoder(open_checkpoint(tmp_path))
