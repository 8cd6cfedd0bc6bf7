"""A language model from a new process on: time to the first token, memory, prefixes, batches.

    python -m bench.llm MODEL [--context 1024] [--sequences 1] [--rounds 3] [--json FILE]

Each round starts a process that loads the model and generates some tokens. The first round fills
the caches of kernels and of packed weights if they are empty. Another process measures how long the
first token of a prompt of 2,000 tokens takes, alone and after the same prefix, and eight answers at
once next to one. ``ostinato bench MODEL --llm`` compares steps with llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PREFIX = 2000
_ANSWERS = 8

#: Beyond weights and caches: the interpreter, libraries, the compiled program.
_OVERHEAD = 120 << 20
_MOST_OF_WEIGHTS = 1.10


def resident() -> dict[str, int]:
    """Bytes of this process in memory: of all kinds, anonymous, of files."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssFile"):
            found[name] = int(value.split()[0]) << 10
    return found


def start(path: str, context: int, sequences: int) -> dict[str, Any]:
    """Load a model and generate, in this process."""
    from ostinato.llm import load

    begin = time.perf_counter()
    model = load(path, context=context, sequences=sequences)
    loaded = time.perf_counter()
    with model.stream("The capital of France is", max_tokens=8, temperature=0.0) as stream:
        next(iter(stream))
        first = time.perf_counter()
        stream.result()
    return {
        "load_seconds": loaded - begin,
        "first_token_seconds": first - loaded,
        "weight_bytes": model.limits.weight_bytes,
        "kv_bytes": model.limits.kv_bytes,
        **resident(),
    }


def reuse(path: str) -> dict[str, Any]:
    """A long prefix read once, then found; and eight answers at once next to one."""
    import numpy as np

    from ostinato.llm import load

    model = load(path, context=_PREFIX + 64, sequences=_ANSWERS)
    draw = np.random.default_rng(0)
    vocabulary = model.config.vocabulary

    def tokens(count: int) -> list[int]:
        return [int(token) for token in draw.integers(0, vocabulary, count)]

    def first_token(prompt: list[int]) -> float:
        begin = time.perf_counter()
        model.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
        return time.perf_counter() - begin

    def answers(count: int) -> float:
        prompts = [tokens(4) for _ in range(count)]
        from ostinato.llm import Sampling

        sampling = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)
        begin = time.perf_counter()
        model.generate_many(prompts, sampling)
        return 32 * count / (time.perf_counter() - begin)

    first_token(tokens(8))
    alone, again = [], []
    for _ in range(3):
        prompt = tokens(_PREFIX)
        alone.append(first_token(prompt))
        again.append(first_token([*prompt, *tokens(4)]))
    answers(1)
    return {
        "prompt_seconds": min(alone),
        "prefix_seconds": min(again),
        "one_per_second": max(answers(1) for _ in range(3)),
        "eight_per_second": max(answers(_ANSWERS) for _ in range(3)),
    }


def _child(*arguments: str) -> tuple[dict[str, Any], float]:
    """The report of a process, and the seconds from its start to its end."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "bench.llm", *arguments, "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report, time.perf_counter() - begin


def measure(path: str, context: int, sequences: int, rounds: int) -> dict[str, Any]:
    """The report of all processes."""
    sizes = ("--context", str(context), "--sequences", str(sequences))
    first, _ = _child(path, *sizes)
    warm = [_child(path, *sizes) for _ in range(rounds)]
    memory = {key: warm[-1][0][key] for key in ("VmRSS", "RssAnon", "RssFile")}
    weights, cache = warm[-1][0]["weight_bytes"], warm[-1][0]["kv_bytes"]
    found, _ = _child(path, "--reuse")
    return {
        "model": path,
        "first_process_seconds": first["load_seconds"] + first["first_token_seconds"],
        "load_seconds": statistics.median(report["load_seconds"] for report, _ in warm),
        "first_token_seconds": statistics.median(r["first_token_seconds"] for r, _ in warm),
        "process_seconds": statistics.median(seconds for _, seconds in warm),
        "weight_bytes": weights,
        "kv_bytes": cache,
        **memory,
        "memory_bound": int(_MOST_OF_WEIGHTS * weights) + cache + _OVERHEAD,
        "first_process_memory": first["VmRSS"],
        **found,
        "prefix_share": found["prefix_seconds"] / found["prompt_seconds"],
        "batch_gain": found["eight_per_second"] / found["one_per_second"],
    }


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--reuse", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reuse:
        print(json.dumps(reuse(given.model)))
        return
    if given.child:
        print(json.dumps(start(given.model, given.context, given.sequences)))
        return
    report = measure(given.model, given.context, given.sequences, given.rounds)
    for name, value in report.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name:<24}{shown:,}" if isinstance(value, int) else f"{name:<24}{shown}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
