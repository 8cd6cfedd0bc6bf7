"""MiniLM through its ONNX file against the same weights in plain PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ostinato as ost

torch = pytest.importorskip("torch")


class Encoder:
    """The encoder as its paper and its configuration describe it, written for PyTorch alone."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            kept = torch.from_numpy(mask)
            x = self.embedded(torch.from_numpy(ids))
            for i in range(self.config["num_hidden_layers"]):
                x = self.layer(x, kept.bool(), f"encoder.layer.{i}")
            weight = kept[:, :, None].to(x.dtype)
            mean = (x * weight).sum(1) / weight.sum(1)
            result: np.ndarray = torch.nn.functional.normalize(mean, dim=1).numpy()
            return result

    def embedded(self, ids: Any) -> Any:
        table = {
            kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        places = table["position"][: ids.shape[1]]
        x = table["word"][ids] + places + table["token_type"][0]
        return self.norm(x, "embeddings.LayerNorm")

    def layer(self, x: Any, kept: Any, name: str) -> Any:
        attended = self.dense(self.attended(x, kept, name), f"{name}.attention.output.dense")
        x = self.norm(attended + x, f"{name}.attention.output.LayerNorm")
        hidden = torch.nn.functional.gelu(self.dense(x, f"{name}.intermediate.dense"))
        return self.norm(self.dense(hidden, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def attended(self, x: Any, kept: Any, name: str) -> Any:
        batch, length, width = x.shape
        q, k, v = (
            self.dense(x, f"{name}.attention.self.{part}")
            .view(batch, length, self.config["num_attention_heads"], -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mask = kept[:, None, None, :]
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return context.transpose(1, 2).reshape(batch, length, width)

    def dense(self, x: Any, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return torch.nn.functional.linear(x, weight, bias)

    def norm(self, x: Any, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
        eps = self.config["layer_norm_eps"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


@pytest.fixture(scope="module")
def encoder(minilm_writer: ModuleType) -> Encoder:
    return Encoder(minilm_writer.model_folder())


def padded(seed: int, batch: int, length: int) -> dict[str, np.ndarray]:
    """Random tokens; the rows but the first end in padding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, batch)
    lengths[0] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1, 30522, (batch, length)) * mask, "attention_mask": mask}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("batch", "length"), [(1, 1), (1, 12), (2, 7), (4, 64), (5, 33), (8, 128), (1, 256)]
)
def test_embeddings(minilm: Path, encoder: Encoder, batch: int, length: int, threads: int) -> None:
    feeds = padded(length, batch, length)
    graph = ost.load_onnx(minilm, dims={"batch": batch, "seq": length})
    (result,) = ost.Session("cpu", threads=threads).compile(graph).run(feeds)
    wanted = encoder(feeds["input_ids"], feeds["attention_mask"])
    assert np.abs(result - wanted).max() < 1e-5


def test_sizes_that_vary(minilm: Path, encoder: Encoder) -> None:
    graph = ost.load_onnx(minilm, dims={"batch": (1, 6), "seq": (1, 96)})
    compiled = ost.Session("cpu").compile(graph)
    for batch, length in [(6, 96), (1, 5), (3, 41)]:
        feeds = padded(length, batch, length)
        (result,) = compiled.run(feeds)
        wanted = encoder(feeds["input_ids"], feeds["attention_mask"])
        assert np.abs(result - wanted).max() < 1e-5


def test_real_sentences(minilm: Path, encoder: Encoder, minilm_writer: ModuleType) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = minilm_writer.model_folder() / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.enable_padding()
    sentences = ["A cat sleeps in the sun.", "The kitten is taking a nap.", "Storms are forecast."]
    encoded = tokenizer.encode_batch(sentences)
    ids = np.array([e.ids for e in encoded])
    mask = np.array([e.attention_mask for e in encoded])
    graph = ost.load_onnx(minilm, dims={"batch": ids.shape[0], "seq": ids.shape[1]})
    (result,) = ost.Session("cpu").compile(graph).run({"input_ids": ids, "attention_mask": mask})
    assert np.abs(result - encoder(ids, mask)).max() < 1e-5
    assert result[0] @ result[1] > 0.5 > result[0] @ result[2]
