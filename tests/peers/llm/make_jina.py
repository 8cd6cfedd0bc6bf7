"""Store vectors of tiny random encoders of Jina BERT v2, computed in float64 by its definition.

    python -m tests.peers.llm.make_jina

transformers has no code of its own for it; ``test_llama_cpp.py`` compares with llama.cpp's.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from tests.llm.tiny_encoders import EXPECTED_ENCODERS
from tests.llm.tiny_models import LENGTHS, SEEDS, prompt, random_tensors

Array = np.ndarray[Any, Any]

_CONFIG: dict[str, Any] = {
    "architectures": ["JinaBertForMaskedLM"],
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "feed_forward_type": "geglu",
    "position_embedding_type": "alibi",
    "pad_token_id": 0,
}


def shapes() -> dict[str, list[int]]:
    """The shapes of all tensors."""
    width, hidden = _CONFIG["hidden_size"], _CONFIG["intermediate_size"]
    found = {
        "embeddings.word_embeddings.weight": [_CONFIG["vocab_size"], width],
        "embeddings.token_type_embeddings.weight": [2, width],
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(_CONFIG["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found[f"{prefix}attention.{name}.weight"] = [width, width]
            found[f"{prefix}attention.{name}.bias"] = [width]
        found[f"{prefix}mlp.gated_layers.weight"] = [2 * hidden, width]
        found[f"{prefix}mlp.wo.weight"] = [width, hidden]
        found[f"{prefix}mlp.wo.bias"] = [width]
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}mlp.layernorm"]
    for name in norms:
        found |= {f"{name}.weight": [width], f"{name}.bias": [width]}
    return found


def encoded(weights: dict[str, Array], ids: list[int]) -> Array:
    """The rows of a text after the last layer."""
    count, heads = len(ids), _CONFIG["num_attention_heads"]

    def linear(x: Array, name: str) -> Array:
        bias = weights.get(f"{name}.bias")
        found: Array = x @ weights[f"{name}.weight"].T
        return found if bias is None else found + bias

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + _CONFIG["layer_norm_eps"])
        found: Array = scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return found

    def gelu(x: Array) -> Array:
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    # Six heads: those of four, and every other one of eight.
    slopes = np.array([2.0**-power for power in (2, 4, 6, 8, 1, 3)])
    distance = np.abs(np.arange(count)[:, None] - np.arange(count))
    for layer in range(_CONFIG["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{prefix}attention.self.{name}").reshape(count, heads, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - slopes[:, None, None] * distance)
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        mixed = linear(mixed.swapaxes(0, 1).reshape(count, -1), f"{prefix}attention.output.dense")
        x = norm(x + mixed, f"{prefix}attention.output.LayerNorm")
        gate, up = np.split(linear(x, f"{prefix}mlp.gated_layers"), 2, axis=1)
        x = norm(x + linear(gelu(gate) * up, f"{prefix}mlp.wo"), f"{prefix}mlp.layernorm")
    return x


def results(seed: int) -> list[Array]:
    """Of a text of each length the first row, the last, and the mean."""
    weights = {n: w.astype(np.float64) for n, w in random_tensors(shapes(), seed).items()}
    found = []
    for length in LENGTHS:
        rows = encoded(weights, prompt(_CONFIG["vocab_size"], length, seed))
        found.append(np.stack([rows[0], rows[-1], rows.mean(axis=0)]))
    return found


if __name__ == "__main__":
    np.savez_compressed(
        EXPECTED_ENCODERS / "jina_bert_v2.npz",
        config=np.array(json.dumps(_CONFIG)),
        shapes=np.array(json.dumps(shapes())),
        results=np.array([results(seed) for seed in SEEDS], np.float32),
    )
