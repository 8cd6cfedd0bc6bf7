"""Language models: next to llama.cpp, and from a new process on.

    python -m bench.llm MODEL [--llama-bench PATH] [--threads 2] [--rounds 3] [--json FILE]
        [--skip-synthetic]

Takes some ten minutes, of a machine that does nothing else:

- llamas of 1.1 billion random weights in Q8_0, Q4_0, Q4_K and Q6_K, then ``MODEL``: prompts of 512
  tokens, answers of one and of eight sequences, in turns with ``llama-bench``, by ``ostinato bench
  --llm``; and a llama in bfloat16 alone. The files stay in ``build/llm``.
- new processes that load ``MODEL`` and generate: seconds to the first token, and memory. The first
  one fills the caches of kernels and packed weights if they are empty.
- the first token of a prompt of 2,000 tokens, alone and after the same prefix, and eight answers of
  the engine at once next to one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.synthetic_llama import write_llama

_FORMATS = ("q8_0", "q4_0", "q4_k", "q6_k")
_FOLDER = Path("build/llm")
_SIZES = ("-p", "512", "-n", "128", "-b", "1,8")

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
    # Installed packages have bytecode: without it, every process compiles all that it imports.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report, time.perf_counter() - begin


def steps(path: Path, threads: int, rounds: int, llama_bench: str | None) -> dict[str, Any]:
    """The report of ``ostinato bench --llm`` for a model, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "ostinato.tools.cli",
        "bench",
        str(path),
        "--llm",
        *_SIZES,
        "--json",
    ]
    command += ["--threads", str(threads), "--runs", str(rounds)]
    if llama_bench is not None:
        command += ["--vs", "llama.cpp", "--llama-bench", llama_bench]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def synthetic(form: str) -> Path:
    """The file of a llama in a format, written unless it is there."""
    path = _FOLDER / f"llama-1.1b-{form}.gguf"
    if not path.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        write_llama(path, form)
    return path


def comparison(given: argparse.Namespace) -> dict[str, Any]:
    """Reports of steps by model, with what they come to."""
    found: dict[str, Any] = {}
    plan = [] if given.skip_synthetic else [(form, given.llama_bench) for form in _FORMATS]
    plan += [] if given.skip_synthetic else [("bf16", None)]
    for form, peer in plan:
        found[form] = steps(synthetic(form), given.threads, given.rounds, peer)
        print(_line(form, found[form]), flush=True)
    name = Path(given.model).name
    found[name] = steps(Path(given.model), given.threads, given.rounds, given.llama_bench)
    print(_line(name, found[name]), flush=True)
    ratios = [found[f]["tests"]["tg128"].get("ratio") for f in _FORMATS if f in found]
    known = [ratio for ratio in ratios if ratio is not None]
    if known:
        mean = math.exp(statistics.fmean(map(math.log, known)))
        found["decode"] = {"geometric_mean": mean, "least": min(known)}
        print(f"decode next to llama.cpp: {mean:.2f} in the mean, {min(known):.2f} at least")
    return found


def _line(name: str, report: dict[str, Any]) -> str:
    tests = report["tests"]
    one, eight = (tests[key]["tokens_per_second"] for key in ("tg128", "tg128 b8"))
    parts = [f"{name}: batch of 8 over 1: {eight / one:.2f}"]
    parts.append(f"{tests['tg128']['share']:.0%} of {report['read_bandwidth'] / 1e9:.1f} GB/s")
    for key in ("pp512", "tg128"):
        test = tests[key]
        ratio = f" ({test['ratio']:.2f} of llama.cpp)" if "ratio" in test else ""
        parts.append(f"{key} {test['tokens_per_second']:.1f} tokens/s{ratio}")
    return ", ".join(parts)


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--llama-bench", metavar="PATH")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-synthetic", action="store_true")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=1)
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
    report: dict[str, Any] = {
        "machine": {"processor": _processor(), "cores": os.cpu_count()},
        "date": time.strftime("%Y-%m-%d"),
        "steps": comparison(given),
    }
    report["process"] = measure(given.model, given.context, given.sequences, given.rounds)
    for name, value in report["process"].items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name:<24}{shown:.3f}" if isinstance(value, float) else f"{name:<24}{shown}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


if __name__ == "__main__":
    main()
