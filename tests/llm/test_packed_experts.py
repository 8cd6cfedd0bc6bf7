"""Models whose experts stay packed: their bytes, their answers, and the bits of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ostinato.dtypes import UINT8
from ostinato.ir.stored import StoredTensor
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.checkpoints.mxfp4 import joined_blocks
from ostinato.llm.quantize import quantize_file
from ostinato.llm.step import StepGraph
from ostinato.llm.weights import FileTensor
from ostinato.ops.packed.decoding import decode
from tests.llm.gguf_models import write_gguf
from tests.llm.greedy import LIMITS, forced, spread_blocks
from tests.llm.tiny_models import load_expected, prompt, random_tensors, write_folder
from tests.llm.widened import elements_of, widened

Array = np.ndarray[Any, Any]

PARTS = ("gate", "up", "down")


def packed_model(kind: str, path: Path) -> Checkpoint:
    """A checkpoint with packed experts."""
    family = kind.removesuffix("_gguf")
    expected = load_expected(family)
    if kind == family:
        write_folder(path, expected.config, expected.shapes, 0)
        return open_checkpoint(path)
    file, packed = path / "model.gguf", path / "packed.gguf"
    write_gguf(file, family, expected.config, random_tensors(expected.shapes, 0))
    quantize_file(file, packed, "q8_0")
    return open_checkpoint(packed)


KINDS = ("mixtral_gguf", "gpt_oss_gguf", "gpt_oss_mxfp4")


class Held(StoredTensor):
    """A tensor of bytes in memory."""

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, UINT8

    def read(self) -> Array:
        return self.array


def step_of(checkpoint: Checkpoint) -> StepGraph:
    step = StepGraph(checkpoint, LIMITS)
    spread_blocks(step)
    return step


def error_of(logits: Array, exact: Array) -> float:
    """The root of the mean squared error, relative to that of the logits."""
    return float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_packed_experts(kind: str, tmp_path: Path) -> None:
    """Logits near those of the same weights widened; rows have the same bits in any chunk."""
    checkpoint = packed_model(kind, tmp_path)
    experts, width = checkpoint.config.experts, checkpoint.config.width
    assert experts is not None
    form = "gguf:mxfp4" if kind.endswith("mxfp4") else "gguf:q8_0"
    for part in PARTS:
        weight = checkpoint.weights[f"0.experts.{part}.weight"]
        inner = (experts.hidden, width) if part == "down" else (width, experts.hidden)
        assert (weight.format, weight.source.dtype) == (form, UINT8)
        assert weight.shape == elements_of(weight).shape == (experts.count, *inner)
        assert weight.source.read().shape == weight.source.shape
    ids = prompt(checkpoint.config.vocabulary, 17, 0)
    answer = load_expected(kind.removesuffix("_gguf")).tokens[0, 1].tolist()[:3]
    _, exact = forced(step_of(widened(checkpoint)), ids, answer)
    step = step_of(checkpoint)
    _, logits = forced(step, ids, answer)
    assert error_of(logits, exact) < 0.08
    for chunk in (1, 5):
        _, parts = forced(step_of(checkpoint), ids, answer, chunk)
        np.testing.assert_array_equal(parts, logits)


def test_elements_of_blocks_of_safetensors() -> None:
    """By the definition of E2M1 with an exponent."""
    rng = np.random.default_rng(0)
    arrays = {
        "w_blocks": rng.integers(0, 256, (3, 5, 2, 16), np.uint8),
        "w_scales": rng.integers(1, 250, (3, 5, 2), np.uint8),
    }
    tensors = {n: FileTensor(name=n, source=Held(a), shape=a.shape) for n, a in arrays.items()}
    joined = joined_blocks(tensors, "file")["w"]
    assert joined.shape == (3, 64, 5)
    assert joined.format is not None
    elements = decode(joined.source.read(), joined.format).swapaxes(1, 2)
    blocks, scales = arrays["w_blocks"], arrays["w_scales"]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(3, 5, 2, 32)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7]
    shifts = scales.astype(np.int32)[..., None] - 127
    expected = np.ldexp(np.where(codes & 8, -numbers, numbers), shifts).reshape(3, 5, 64)
    np.testing.assert_array_equal(elements, expected.swapaxes(1, 2))
    np.testing.assert_array_equal(joined.plain().source.read().astype(np.float32), elements)
    assert elements.any()


def test_parts_of_several_formats(tmp_path: Path) -> None:
    """Down matrices in other blocks than the others, and gates that are floats."""
    expected = load_expected("mixtral")
    file = tmp_path / "mixed.gguf"
    formats = {
        "ffn_down_exps": gguf.GGMLQuantizationType.Q4_0,
        "ffn_up_exps": gguf.GGMLQuantizationType.Q8_0,
    }
    write_gguf(file, "mixtral", expected.config, random_tensors(expected.shapes, 0), formats)
    checkpoint = open_checkpoint(file)
    found = [checkpoint.weights[f"0.experts.{part}.weight"].format for part in PARTS]
    assert found == [None, "gguf:q8_0", "gguf:q4_0"]
    ids = prompt(checkpoint.config.vocabulary, 17, 0)
    answer = expected.tokens[0, 1].tolist()[:2]
    _, exact = forced(step_of(widened(checkpoint)), ids, answer)
    _, logits = forced(step_of(checkpoint), ids, answer)
    assert error_of(logits, exact) < 0.08


def test_matrices_of_latent_attention_stay_packed(tmp_path: Path) -> None:
    """Those of each head, in formats of their own; a file that has neither in blocks has floats."""
    expected = load_expected("deepseek_v3")
    config = {**expected.config, "qk_nope_head_dim": 32, "kv_lora_rank": 64}
    heads, width, turned = config["num_attention_heads"], config["hidden_size"], 8
    shapes = {}
    for name, shape in expected.shapes.items():
        sizes = {
            "q_b_proj.weight": [heads * (32 + turned), config["q_lora_rank"]],
            "kv_a_proj_with_mqa.weight": [64 + turned, width],
            "kv_a_layernorm.weight": [64],
            "kv_b_proj.weight": [heads * (32 + config["v_head_dim"]), 64],
        }
        shapes[name] = next((s for end, s in sizes.items() if name.endswith(end)), shape)
    tensors = random_tensors(shapes, 0)
    kinds = gguf.GGMLQuantizationType
    formats = {"attn_k_b": kinds.Q8_0, "attn_v_b": kinds.Q5_1}
    for file, packed in (("exact.gguf", None), ("packed.gguf", formats)):
        write_gguf(tmp_path / file, "deepseek_v3", config, tensors, packed)
    checkpoint = open_checkpoint(tmp_path / "packed.gguf")
    into, out = (checkpoint.weights[f"1.{part}.weight"] for part in ("k_up", "v_up"))
    assert (into.format, out.format) == ("gguf:q8_0", "gguf:q5_1")
    assert into.shape == elements_of(into).shape == (heads, 32, 64)
    assert out.shape == elements_of(out).shape == (heads, config["v_head_dim"], 64)
    exact = open_checkpoint(tmp_path / "exact.gguf")
    assert exact.weights["1.k_up.weight"].format is None
    for part in ("k_up", "v_up"):
        name = f"1.{part}.weight"
        near = elements_of(checkpoint.weights[name]) - exact.weights[name].source.read()
        assert np.abs(near).max() < 0.05
    ids = prompt(checkpoint.config.vocabulary, 17, 0)
    step = step_of(checkpoint)
    _, wanted = forced(step_of(widened(checkpoint)), ids, [5, 6])
    _, logits = forced(step, ids, [5, 6])
    assert error_of(logits, wanted) < 0.03
    for chunk in (1, 5):
        _, parts = forced(step_of(checkpoint), ids, [5, 6], chunk)
        np.testing.assert_array_equal(parts, logits)


def test_packed_biases_are_widened(tmp_path: Path) -> None:
    """Some writers pack all that has two dimensions."""
    expected = load_expected("gpt_oss")
    files = tmp_path / "exact.gguf", tmp_path / "packed.gguf"
    for file, packed in zip(files, (None, gguf.GGMLQuantizationType.Q8_0), strict=True):
        formats = None if packed is None else {"exps.bias": packed}
        write_gguf(file, "gpt_oss", expected.config, random_tensors(expected.shapes, 0), formats)
    exact, found = (open_checkpoint(file).weights["0.experts.up.bias"] for file in files)
    assert found.format is None
    np.testing.assert_allclose(found.source.read(), exact.source.read(), atol=0.01)
