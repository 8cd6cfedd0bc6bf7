"""Measure what rounding activations to bfloat16 changes: divergences (KL) from float32.

    .venv-peers/bin/python -m tests.peers.llm.bfloat16_divergence [--count 20] [--json FILE]

The weights are those of SmolLM2, rounded to bfloat16; the reference computes with them in float32.
All sides read the same tokens, 20 prompts and answers. Where the processor has no fast dot products
of bfloat16, the first side is the reference itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import transformers

import ostinato as ost
import tests.llm.test_smollm2
from ostinato.dtypes import BFLOAT16
from ostinato.ir.stored import StoredTensor
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.weights import Weight
from ostinato.records import replace
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.test_smollm2 import ANSWER, logits_of, step_of
from tests.llm.widened import elements_of
from tests.peers.llm.divergences import divergences
from tests.peers.llm.make_smollm2 import write_model

Array = np.ndarray[Any, Any]


class _Rounded(StoredTensor):
    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self.shape, self.dtype = weight.shape, BFLOAT16

    def read(self) -> Array:
        return elements_of(self._weight).astype(ml_dtypes.bfloat16)


def rounded(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with bfloat16 weights."""
    weights = {
        name: replace(weight, source=_Rounded(weight), format=None)
        for name, weight in checkpoint.weights.items()
    }
    return replace(checkpoint, weights=weights)


class Ours:
    """A step of ostinato that reads a prompt and an answer at once."""

    def __init__(self, checkpoint: Checkpoint, rows: int, kv_dtype: str, dots: bool) -> None:
        options = ost.CompileOptions(bfloat16_dots=dots)
        self._step = step_of(checkpoint, rows, kv_dtype, options)

    def logits(self, prompt: Array, answer: Array) -> Array:
        """The logits that choose each token of an answer."""
        return logits_of(self._step, prompt, answer)


class Theirs:
    """A model of transformers."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_model(checkpoint, Path(folder))
            load = transformers.AutoModelForCausalLM.from_pretrained
            self._model = load(folder, dtype=dtype).eval()

    def logits(self, prompt: Array, answer: Array) -> Array:
        """The logits that choose each token of an answer."""
        text = [*prompt.tolist(), *answer.tolist()[:-1]]
        with torch.no_grad():
            found = self._model(torch.tensor([text])).logits[0, len(prompt) - 1 :]
        return found.float().numpy()


def measure(count: int) -> dict[str, Any]:
    """Means, over the answers, of each side's divergence and of the tokens that it agrees on."""
    model = rounded(open_checkpoint(model_file(SMOLLM2)))
    stored = Path(tests.llm.test_smollm2.__file__).parent / "smollm2.npz"
    with np.load(stored) as arrays:
        prompts, tokens = arrays["prompts"][:count], arrays["tokens"][:count]
    rows = prompts.shape[1] + ANSWER
    exact = Ours(model, rows, "float32", dots=False)
    sides: dict[str, Ours | Theirs] = {
        "ostinato, rounded rows": Ours(model, rows, "float32", dots=True),
        "ostinato, rounded rows, bfloat16 keys and values": Ours(model, rows, "bfloat16", True),
        "ostinato, bfloat16 keys and values": Ours(model, rows, "bfloat16", dots=False),
        "transformers, float32": Theirs(model, torch.float32),
        "transformers, bfloat16": Theirs(model, torch.bfloat16),
    }
    found = divergences(exact, sides, zip(prompts, tokens, strict=True))
    return {name: side.summary() for name, side in found.items()}


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "model": f"{SMOLLM2}, weights rounded to bfloat16",
        "texts": given.count,
        "predictions": given.count * ANSWER,
        "transformers": transformers.__version__,
        "sides": measure(given.count),
    }
    for name, values in report["sides"].items():
        print(f"{name:<52}{values['mean_divergence']:.3e}  {values['same_first_token']:.4f}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
