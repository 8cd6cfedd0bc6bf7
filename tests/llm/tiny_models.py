"""Tiny models of each family with random weights, and the results that are expected of them.

``expected/FAMILY.json`` has the model's ``config.json``, the shapes of its tensors, and for each
case a seed, a prompt, and the tokens that follow; ``FAMILY.npz`` has logits or embeddings of the
cases. ``tests/peers/llm/make_expected.py`` writes them. Weights follow from the seed alone.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.moe.safetensors import write_safetensors

__all__ = ["EXPECTED", "SEEDS", "Case", "Expected", "expected", "random_tensors", "write_folder"]

Array = np.ndarray[Any, Any]

EXPECTED = Path(__file__).parent / "expected"
SEEDS = range(5)

#: Parts of names of norms whose weights are stored less one.
_LESS_ONE = ("gemma", "qwen3_next")


@dataclass(frozen=True)
class Case:
    """A prompt, and what follows it.

    Attributes:
        seed: of the weights.
        prompt: token ids.
        tokens: the greedy continuation; empty of encoders.
        margins: by how much the logit of each was the greatest.
        results: logits of the first and of the last of them, ``[2, vocabulary]``; of encoders, the
            first and the last row after the last layer, and the mean of all, ``[3, width]``.
    """

    seed: int
    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    results: Array


@dataclass(frozen=True)
class Expected:
    """The model of a family, and its cases.

    Attributes:
        family: the name.
        config: of ``config.json``.
        shapes: of the tensors in its file.
        dtypes: of those that are not float32.
        cases: of all seeds.
    """

    family: str
    config: dict[str, Any]
    shapes: dict[str, list[int]]
    dtypes: dict[str, str]
    cases: list[Case]


@cache
def expected(family: str) -> Expected:
    """The stored results of a family."""
    stored = json.loads((EXPECTED / f"{family}.json").read_text("utf-8"))
    with np.load(EXPECTED / f"{family}.npz") as file:
        results = [file[str(number)] for number in range(len(stored["cases"]))]
    cases = [Case(**case, results=r) for case, r in zip(stored["cases"], results, strict=True)]
    return Expected(family, stored["config"], stored["shapes"], stored["dtypes"], cases)


def random_tensors(
    family: str, shapes: dict[str, list[int]], dtypes: dict[str, str], seed: int
) -> dict[str, Array]:
    """The weights of a model, each from the seed and its name."""
    return {name: _tensor(family, name, shape, dtypes.get(name), seed) for name, shape in shapes.items()}


def _tensor(family: str, name: str, shape: list[int], dtype: str | None, seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if dtype == "uint8":
        low, high = (118, 124) if name.endswith("_scales") else (0, 256)
        return rng.integers(low, high, shape, np.uint8)
    values = rng.standard_normal(shape)
    last = name.rpartition(".")[2]
    if last == "A_log":
        values = np.log(rng.uniform(0.5, 4, shape))
    elif len(shape) > 1 and not name.endswith("bias"):
        values *= 1.2 / math.sqrt(_inputs(family, name, shape))
        if "embed" in name or name.rpartition(".")[0].endswith(("wte", "wpe")):
            values *= math.sqrt(shape[-1])
    elif "norm" in name.lower() or ".ln_" in name or last == "dt_bias":
        centre = 0.0 if family.startswith(_LESS_ONE) and "linear_attn" not in name else 1.0
        values = (0.0 if last == "bias" else centre) + 0.1 * values
    elif last != "sinks":
        values *= 0.1
    return values.astype(dtype or "float32")


def _inputs(family: str, name: str, shape: list[int]) -> int:
    """The elements that an output of a matmul sums over."""
    transposed = family.startswith("gpt2") or (family == "gpt_oss" and "experts" in name)
    return shape[-2] if transposed else math.prod(shape[1:]) if "conv" in name else shape[-1]


def write_folder(model: Expected, seed: int, folder: Path) -> Path:
    """Write ``config.json`` and ``model.safetensors`` of a seed; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config), "utf-8")
    tensors = random_tensors(model.family, model.shapes, model.dtypes, seed)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
