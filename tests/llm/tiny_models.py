"""Tiny language models with random weights: folders as Hugging Face has them, made of NumPy alone.

``tests/peers/llm/make_expected.py`` stores in ``expected/FAMILY.npz`` the ``config.json`` of each
model, the shapes of its tensors, and the tokens and logits that transformers computes with the very
weights that :func:`write_folder` writes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.moe.safetensors import write_safetensors

EXPECTED = Path(__file__).parent / "expected"

#: Lengths of prompts, and tokens that follow each.
LENGTHS = (1, 17, 300)
ANSWER = 64

SEEDS = range(5)

#: Tokens of an answer whose logits are stored.
STORED_LOGITS = (0, 1, 31, 63)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """Results of transformers for one family.

    Attributes:
        config: ``config.json``.
        shapes: of the tensors, by name.
        tokens: greedy, ``[seeds, lengths, 64]``.
        margins: between the best two logits, of the same shape.
        logits: those of :data:`STORED_LOGITS`, ``[seeds, lengths, 4, vocabulary]``.
    """

    config: dict[str, Any]
    shapes: dict[str, list[int]]
    tokens: Array
    margins: Array
    logits: Array


def stored_families() -> list[str]:
    """The families with stored results."""
    return sorted(path.stem for path in EXPECTED.glob("*.npz"))


def load_expected(family: str) -> Expected:
    """The stored results of a family."""
    with np.load(EXPECTED / f"{family}.npz") as stored:
        texts = {name: json.loads(str(stored[name])) for name in ("config", "shapes")}
        arrays = {name: stored[name] for name in ("tokens", "margins", "logits")}
    return Expected(**texts, **arrays)


def random_tensors(shapes: Mapping[str, list[int]], seed: int) -> dict[str, Array]:
    """Weights that depend on their names and the seed alone."""
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if name.endswith(("_blocks", "_scales")):
            low, high = (0, 256) if name.endswith("_blocks") else (120, 126)
            found[name] = rng.integers(low, high, shape, np.uint8)
            continue
        values = rng.standard_normal(shape, np.float32)
        if len(shape) > 1:
            values *= np.float32(1.2 / np.sqrt(shape[-1]))
        elif name.endswith("bias"):
            values *= np.float32(0.1)
        else:
            values = 1 + values * np.float32(0.2)
        found[name] = values
    return found


def write_folder(
    path: Path, config: Mapping[str, Any], shapes: Mapping[str, list[int]], seed: int
) -> None:
    """Write a model with random weights."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", random_tensors(shapes, seed))


def prompt(vocabulary: int, length: int, seed: int) -> list[int]:
    """A random prompt."""
    rng = np.random.default_rng([seed, length])
    return [int(token) for token in rng.integers(3, vocabulary, length)]
