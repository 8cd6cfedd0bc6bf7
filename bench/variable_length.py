"""One compile with a symbolic length against one compile per length, and ONNX Runtime.

MiniLM on sequences of 1 to 128 tokens. Three ways to run each length: a graph compiled for that
length alone, a graph compiled once with ``seq = Variable("seq", 1, 128)``, and ONNX Runtime with
the model's dynamic axes. ``ratio`` is symbolic over fixed, of the medians of paired rounds.

The sides are timed in turn, round by round, so that a noisy neighbour hits all of them. A side is
given a pause and one untimed run before it is timed: ONNX Runtime's threads spin for a while after
a run, which would otherwise take processors away from whoever runs next.

    python examples/minilm_onnx.py minilm.onnx
    python bench/variable_length.py minilm.onnx --json variable_length.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128)
LONGEST = 128
PAUSE_SECONDS = 0.003


@dataclass(frozen=True)
class Row:
    """Milliseconds per run at one length: ``(least, median)`` of each side."""

    length: int
    fixed: tuple[float, float]
    symbolic: tuple[float, float]
    ratio: float
    ort: tuple[float, float] | None

    def __str__(self) -> str:
        sides = [self.fixed, self.symbolic, *([self.ort] if self.ort else [])]
        times = "".join(f"{least:>10.3f}{median:>10.3f}" for least, median in sides)
        return f"{self.length:>6}{times}{self.ratio:>8.3f}"


def tokens(length: int) -> dict[str, np.ndarray[Any, Any]]:
    """A sentence of ``length`` arbitrary tokens, none of them masked."""
    ids = np.random.default_rng(length).integers(1000, 20000, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones((1, length), np.int64)}


def onnx_runtime(path: Path, threads: int | None) -> Callable[[Mapping[str, Any]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of one run, after a pause and an untimed one."""
    time.sleep(PAUSE_SECONDS)
    run()
    started = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - started)


def compare(sides: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The times of each side, round by round; every other round in reverse order."""
    times: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    for _ in range(rounds):
        for side in order:
            times[side].append(timed(sides[side]))
        order.reverse()
    return times


def measure(
    path: Path, lengths: list[int], rounds: int, threads: int | None, ort: bool
) -> list[Row]:
    session = ost.Session("cpu", threads=threads)
    seq = ost.Variable("seq", 1, LONGEST)
    symbolic = session.compile(ost.load_onnx(path, dims={"batch": 1, "seq": seq}))
    reference = onnx_runtime(path, threads) if ort else None
    rows = []
    for length in lengths:
        feeds = tokens(length)
        fixed = session.compile(ost.load_onnx(path, dims={"batch": 1, "seq": length}))
        if reference is not None:
            np.testing.assert_allclose(
                symbolic.run(feeds)[0], reference(feeds)[0], rtol=1e-4, atol=1e-5
            )
        sides: list[Callable[[], object]] = [
            lambda run=fixed.run, feeds=feeds: run(feeds),
            lambda run=symbolic.run, feeds=feeds: run(feeds),
        ]
        if reference is not None:
            sides.append(lambda run=reference, feeds=feeds: run(feeds))
        times = compare(sides, rounds)
        ratio = statistics.median(s / f for f, s in zip(times[0], times[1], strict=True))
        summary = [(min(t), statistics.median(t)) for t in times]
        rows.append(Row(length, summary[0], summary[1], ratio, summary[2] if ort else None))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="written by examples/minilm_onnx.py")
    parser.add_argument("--lengths", help="comma-separated; default: a selection of 1..128")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="of each side; default: each its own")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")] if options.lengths else list(LENGTHS)

    sides = ["fixed ms", "symbolic ms", *([] if options.no_ort else ["ORT ms"])]
    print(" " * 6 + "".join(f"{side:>20}" for side in sides))
    print("length" + f"{'min':>10}{'median':>10}" * len(sides) + f"{'ratio':>8}")
    rows = measure(options.model, lengths, options.rounds, options.threads, not options.no_ort)
    print(f"worst ratio {max(row.ratio for row in rows):.3f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
