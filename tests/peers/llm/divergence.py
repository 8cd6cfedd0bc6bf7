"""Compare the error of packed weights with llama.cpp's: divergences (KL) from widened weights.

    LLAMA_CPP_LIB_PATH=FOLDER python -m tests.peers.llm.divergence [--count 20] [--json FILE]

``llama_cpp`` is the binding of llama-cpp-python; the folder has the library ``libllama``. Both
sides read the same tokens, 20 prompts and answers of SmolLM2 in Q4_1, and the reference for both is
the same model with its weights widened to float32, which transformers agrees with
(:mod:`tests.llm.test_smollm2`). Keys and values are float32, then of each side's default.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

import tests.llm.test_smollm2
from ostinato.llm.checkpoints import open_checkpoint
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.test_smollm2 import ANSWER, logits_of, step_of
from tests.llm.widened import widened
from tests.peers.llm.divergences import divergences

Array = np.ndarray[Any, Any]

#: Of ``ggml_type``: float32 and float16.
_GGML = {"float32": 0, "float16": 1}


class Ours:
    """A step of ostinato that reads a prompt and an answer at once."""

    def __init__(self, checkpoint: Any, rows: int, kv_dtype: str) -> None:
        self._step = step_of(checkpoint, rows, kv_dtype)

    def logits(self, prompt: Array, answer: Array) -> Array:
        """The logits that choose each token of an answer."""
        return logits_of(self._step, prompt, answer)


class Theirs:
    """A context of llama.cpp."""

    def __init__(self, path: Path, rows: int, kv_dtype: str) -> None:
        kind = _GGML[kv_dtype]
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=rows,
            n_batch=rows,
            n_ubatch=rows,
            n_threads=2,
            n_threads_batch=2,
            logits_all=True,
            type_k=kind,
            type_v=kind,
            verbose=False,
        )

    def logits(self, prompt: Array, answer: Array) -> Array:
        """The logits that choose each token of an answer."""
        text = [*prompt.tolist(), *answer.tolist()[:-1]]
        self._model.reset()
        self._model.eval(text)
        return np.array(self._model.scores[len(prompt) - 1 : len(text)], np.float32)


def measure(count: int) -> dict[str, Any]:
    """Means, over the answers, of each side's divergence and of the tokens that it agrees on."""
    path = model_file(SMOLLM2)
    file = open_checkpoint(path)
    stored = Path(tests.llm.test_smollm2.__file__).parent / "smollm2.npz"
    with np.load(stored) as arrays:
        prompts, tokens = arrays["prompts"][:count], arrays["tokens"][:count]
    rows = prompts.shape[1] + ANSWER
    exact = Ours(widened(file), rows, "float32")
    sides: dict[str, Ours | Theirs] = {
        "ostinato, float32 keys and values": Ours(file, rows, "float32"),
        "ostinato, float16 keys and values": Ours(file, rows, "float16"),
        "ostinato, bfloat16 keys and values": Ours(file, rows, "bfloat16"),
        "llama.cpp, float32 keys and values": Theirs(path, rows, "float32"),
        "llama.cpp, float16 keys and values": Theirs(path, rows, "float16"),
    }
    return divergences(exact, sides, zip(prompts, tokens, strict=True))


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "model": SMOLLM2,
        "texts": given.count,
        "predictions": given.count * ANSWER,
        "llama.cpp": llama_cpp.llama_print_system_info().decode(),
        "sides": measure(given.count),
    }
    for name, values in report["sides"].items():
        print(f"{name:<40}{values['mean_divergence']:.3e}  {values['same_first_token']:.4f}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
