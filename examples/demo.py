"""Real models, compiled by Ostinato and checked against ONNX Runtime on the same files.

    python examples/demo.py

First all-MiniLM-L6-v2 turns sentences into embeddings, whose products tell how similar the
sentences are; then a ResNet-50 classifies an image of noise. Ends with exit code 1 if a result
differs from ONNX Runtime's by more than it may.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from minilm_onnx import model_folder, write_model
from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

import ostinato as ost
from ostinato.tools.bench import Engine, largest_difference, onnxruntime_engine
from ostinato.tools.timing import interleave

OUTPUT = Path(__file__).resolve().parents[1] / "demo-output"
LIGHT_MODELS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

SENTENCES = (
    "A cat sleeps in the sun.",
    "The kitten takes a nap.",
    "It will rain tonight.",
    "Storms are forecast.",
    "He tuned his cello.",
    "An ostinato repeats.",
)

console = Console()


def main() -> int:
    """Run both parts; returns the exit code."""
    passed = [embed_sentences(), classify_noise()]
    return 0 if all(passed) else 1


def embed_sentences() -> bool:
    console.rule("[bold]Sentence embeddings: all-MiniLM-L6-v2")
    path = OUTPUT / "minilm.onnx"
    if not path.exists():
        write_model(path)
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(128)
    tokens = tokenizer.encode_batch(list(SENTENCES))
    feeds = {
        "input_ids": np.array([t.ids for t in tokens]),
        "attention_mask": np.array([t.attention_mask for t in tokens]),
    }
    batch, length = feeds["input_ids"].shape
    console.print(f"{batch} sentences, padded to {length} tokens each")
    embeddings, difference = compare(path, feeds, {"batch": batch, "seq": length})
    show_similarities(embeddings @ embeddings.T)
    return check("embeddings", difference, 1e-5)


def show_similarities(similarity: np.ndarray) -> None:
    numbers = [str(i + 1) for i in range(len(SENTENCES))]
    table = Table("", *numbers, title="How similar they are", box=box.SIMPLE_HEAD)
    for number, sentence, row in zip(numbers, SENTENCES, similarity, strict=True):
        shown = (f"[bold]{s:.2f}[/]" if s > 0.4 else f"{s:.2f}" for s in row)
        table.add_row(f"{number}. {sentence}", *shown)
    console.print(table)


def classify_noise() -> bool:
    console.rule("[bold]An image through ResNet-50: the onnx package's light_resnet50")
    console.print("[dim]Its weights are fills: the answer means nothing, the work is real.")
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    scores, difference = compare(LIGHT_MODELS / "light_resnet50.onnx", {"gpu_0/data_0": image}, {})
    return check("scores", difference / np.abs(scores).max(), 1e-3)


def compare(
    path: Path, feeds: dict[str, np.ndarray], dims: dict[str, int]
) -> tuple[np.ndarray, float]:
    """Run a file with both runtimes, and print their times side by side.

    Returns:
        Ostinato's first output, and how far it and ONNX Runtime's lie apart at most.
    """
    columns = ("threads", "runtime", "loaded and compiled", "best run", "median run")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    differences = []
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        engines = [ostinato_engine(path, threads, dims), onnxruntime_engine(path, threads)]
        calls = {engine.name: lambda run=engine.run: run(feeds)[0] for engine in engines}
        ours, theirs = (call() for call in calls.values())
        differences.append(largest_difference([ours], [theirs]))
        timings = interleave(calls, seconds=1.5)
        for engine in engines:
            timing = timings[engine.name]
            times = f"{1e3 * timing.min:.1f} ms", f"{1e3 * timing.median:.1f} ms"
            table.add_row(str(threads), engine.name, f"{engine.ready_seconds:.2f} s", *times)
    console.print(table)
    return ours, max(differences)


def ostinato_engine(path: Path, threads: int, dims: dict[str, int]) -> Engine:
    start = time.perf_counter()
    graph = ost.load_onnx(path, dims=dims)
    compiled = ost.Session("cpu", threads=threads).compile(graph)
    ready = time.perf_counter() - start
    console.print(f"[dim]{compiled.explain().splitlines()[-1]}", soft_wrap=True)
    return Engine("ostinato", compiled.run, ready)


def check(what: str, difference: float, allowed: float) -> bool:
    passed = difference <= allowed
    verdict = "[bold green]OK[/]" if passed else "[bold red]FAILED[/]"
    console.print(
        f"{verdict}  {what} and ONNX Runtime's differ by at most {difference:.2g} "
        f"(allowed: {allowed:g})\n"
    )
    return passed


if __name__ == "__main__":
    sys.exit(main())
