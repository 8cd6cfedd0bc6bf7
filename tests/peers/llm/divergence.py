"""Compare the error of packed weights with llama.cpp's: divergences (KL) from widened weights.

    LLAMA_CPP_LIB_PATH=FOLDER python -m tests.peers.llm.divergence [--count 20] [--text FILE]
        [--only NAME …] [--json FILE]

``llama_cpp`` is the binding of llama-cpp-python; the folder has the library ``libllama``. Both
sides read the same tokens, 20 prompts and answers of SmolLM2 in Q4_1, and the reference for both is
the same model with its weights widened to float32, which transformers agrees with
(:mod:`tests.llm.test_smollm2`). Keys and values are float32, then of each side's default. With
``--text``, parts of a file take the place of prompts and answers, spread evenly over it. Each side
is compared with llama.cpp's default, too: the mean difference, text by text.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

import tests.llm.test_smollm2
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.tokenizers import tokenizer_from_gguf
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.test_smollm2 import ANSWER, logits_of, step_of
from tests.llm.widened import widened
from tests.peers.llm.divergences import divergences

Array = np.ndarray[Any, Any]

#: Of ``ggml_type``: float32 and float16.
_GGML = {"float32": 0, "float16": 1}

_THEIR_DEFAULT = "llama.cpp, float16 keys and values"


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


def parts(path: Path, count: int, prompt: int) -> list[tuple[Array, Array]]:
    """So many prompts and answers out of a file."""
    tokenizer = tokenizer_from_gguf(GGUFFile(model_file(SMOLLM2)).metadata)
    tokens = np.array(tokenizer.encode(path.read_text("utf-8")), np.int64)
    starts = np.linspace(0, len(tokens) - prompt - ANSWER, count).astype(int)
    return [
        (tokens[start : start + prompt], tokens[start + prompt : start + prompt + ANSWER])
        for start in starts
    ]


def measure(count: int, text: Path | None, only: list[str] | None) -> dict[str, Any]:
    """Means, over the answers, of each side's divergence and of the tokens that it agrees on."""
    path = model_file(SMOLLM2)
    file = open_checkpoint(path)
    stored = Path(tests.llm.test_smollm2.__file__).parent / "smollm2.npz"
    with np.load(stored) as arrays:
        prompts, tokens = arrays["prompts"][:count], arrays["tokens"][:count]
    rows = prompts.shape[1] + ANSWER
    texts = [*zip(prompts, tokens, strict=True)]
    if text is not None:
        texts = parts(text, count, prompts.shape[1])
    exact = Ours(widened(file), rows, "float32")
    makers: dict[str, Callable[[], Ours | Theirs]] = {
        "ostinato, float32 keys and values": lambda: Ours(file, rows, "float32"),
        "ostinato, float16 keys and values": lambda: Ours(file, rows, "float16"),
        "ostinato, bfloat16 keys and values": lambda: Ours(file, rows, "bfloat16"),
        "llama.cpp, float32 keys and values": lambda: Theirs(path, rows, "float32"),
        _THEIR_DEFAULT: lambda: Theirs(path, rows, "float16"),
    }
    chosen = {_THEIR_DEFAULT, *(makers if only is None else only)}
    sides = {name: make() for name, make in makers.items() if name in chosen}
    found = divergences(exact, sides, texts)
    theirs = found[_THEIR_DEFAULT]
    return {
        name: {**side.summary(), "less_llama_cpp": side.less(theirs)}
        for name, side in found.items()
    }


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--text", type=Path, help="a file to take texts from")
    parser.add_argument("--only", nargs="+", help="names of sides, besides llama.cpp's default")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "model": SMOLLM2,
        "texts": given.count,
        "predictions": given.count * ANSWER,
        "llama.cpp": llama_cpp.llama_print_system_info().decode(),
        "sides": measure(given.count, given.text, given.only),
    }
    for name, values in report["sides"].items():
        mean, error = values["mean_divergence"], values["standard_error"]
        less = values["less_llama_cpp"]
        print(
            f"{name:<40}{mean:.3e} ± {error:.1e}  {values['same_first_token']:.4f}  "
            f"less llama.cpp's {less['mean']:+.1e} ± {less['standard_error']:.1e}"
        )
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
