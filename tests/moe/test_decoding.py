"""Decoding with a mixture of experts against NumPy, for any set of resident experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.moe import mixtral

Array = np.ndarray[Any, Any]
PROMPT = [3, 1, 4, 1, 5, 9]
COUNT = 40


# -- the model in NumPy ----------------------------------------------------------------------------


def numpy_tokens(weights: dict[str, Array], c: Any, prompt: list[int], count: int) -> list[int]:
    """Generate tokens in float64, without a cache: every step reads all tokens again."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(numpy_logits(w, c, tokens).argmax()))
    return tokens[len(prompt) :]


def numpy_logits(w: dict[str, Array], c: Any, tokens: list[int]) -> Array:
    h = w["embedding"][tokens]
    for i in range(c.layers):
        h = h + numpy_attention(w, c, i, rms(h, w[f"{i}.attention_norm"], c.eps))
        n = rms(h, w[f"{i}.mlp_norm"], c.eps)
        h = h + np.stack([numpy_experts(w, c, i, row) for row in n])
    return rms(h[-1], w["norm"], c.eps) @ w["head"]


def numpy_experts(w: dict[str, Array], c: Any, layer: int, x: Array) -> Array:
    """One token through its experts, whose weights are a softmax over their logits alone."""
    logits = x @ w[f"{layer}.router"]
    chosen = sorted(range(c.experts), key=lambda e: (-logits[e], e))[: c.chosen]
    chances = np.exp(logits[chosen] - logits[chosen].max())
    total = np.zeros_like(x)
    for expert, chance in zip(chosen, chances / chances.sum(), strict=True):
        gate, up, down = (w[f"{layer}.{name}"][expert] for name in ("gate", "up", "down"))
        a = x @ gate
        total += chance * (a / (1 + np.exp(-a)) * (x @ up)) @ down
    return total


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def numpy_attention(w: dict[str, Array], c: Any, layer: int, x: Array) -> Array:
    """Causal attention of all positions at once; query heads share key heads in order."""
    count, depth = len(x), c.head_dim
    q, k, v = (x @ w[f"{layer}.{name}"] for name in "qkv")
    speeds = c.rope_base ** -(np.arange(depth // 2) * 2 / depth)
    turn = np.exp(1j * np.outer(np.arange(count), speeds))
    mixed = []
    for head in range(c.heads):
        shared = head * c.key_heads // c.heads
        query = turned(q[:, head * depth : (head + 1) * depth], turn)
        key = turned(k[:, shared * depth : (shared + 1) * depth], turn)
        scores = np.where(np.tri(count, dtype=bool), query @ key.T / np.sqrt(depth), -np.inf)
        chances = np.exp(scores - scores.max(1, keepdims=True))
        value = v[:, shared * depth : (shared + 1) * depth]
        mixed.append(chances / chances.sum(1, keepdims=True) @ value)
    return np.concatenate(mixed, 1) @ w[f"{layer}.o"]


def turned(x: Array, turn: Array) -> Array:
    """Rope: pairs of features as complex numbers, rotated by multiplication."""
    pairs = turn.shape[1]
    product = (x[:, :pairs] + 1j * x[:, pairs:]) * turn
    return np.concatenate([product.real, product.imag], 1)


# -- models ------------------------------------------------------------------------------------


class Case:
    """A model, and what it generates according to NumPy."""

    def __init__(self, seed: int, **sizes: Any) -> None:
        self.config = mixtral.Config(length=64, **sizes)
        self.weights = mixtral.random_weights(self.config, seed)
        self.tokens = numpy_tokens(self.weights, self.config, PROMPT, COUNT)


SIZES: dict[str, dict[str, Any]] = {
    "as it is": {"seed": 0},
    "four of many experts": {"seed": 1, "experts": 24, "chosen": 4, "hidden": 100},
    "one key head": {"seed": 2, "heads": 3, "key_heads": 1, "head_dim": 16, "width": 96},
}


@pytest.fixture(scope="module", params=SIZES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(**SIZES[request.param])


def test_in_memory(case: Case) -> None:
    graph = mixtral.decoder_graph(case.config, case.weights)
    compiled = ost.Session("cpu", threads=1).compile(graph, params=case.weights)
    assert len(set(case.tokens)) > 8  # else it would mean little that they are equal
    assert mixtral.generate(compiled.run, PROMPT, COUNT) == case.tokens


@pytest.mark.parametrize(("share", "every"), [(0.3, 3), (0.6, 1), (2.0, 4)])
def test_with_resident_experts(case: Case, tmp_path: Path, share: float, every: int) -> None:
    session = ost.Session("cpu", threads=2)
    budget = int(share * case.config.expert_bytes)
    path = tmp_path / "experts"
    loop = mixtral.with_resident_experts(session, case.config, case.weights, path, budget, every)
    assert mixtral.generate(loop.step, PROMPT, COUNT) == case.tokens
    counters = loop.counters
    assert counters.steps == COUNT
    places = sum(layer.slots for layer in loop.compiled.moe_layers)
    if share > 1:
        assert places == case.config.layers * case.config.experts
        assert (counters.refreshes, counters.hit_rate, counters.bytes_staged) == (0, 1, 0)
    else:
        assert counters.refreshes == -(-COUNT // every)
        assert counters.hit_rate > places / (case.config.layers * case.config.experts)
        assert counters.promotions > 0


def test_skew_shows_in_the_residents(tmp_path: Path) -> None:
    """The experts that are called most are resident."""
    case = Case(0)
    budget = int(0.4 * case.config.expert_bytes)
    session = ost.Session("cpu", threads=1)
    loop = mixtral.with_resident_experts(
        session, case.config, case.weights, tmp_path / "e", budget, 2
    )
    mixtral.generate(loop.step, PROMPT, COUNT)
    assert loop.counters.hit_rate > 0.7
