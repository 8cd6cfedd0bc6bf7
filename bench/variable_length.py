"""One compile with a symbolic length against one compile per length, and ONNX Runtime.

MiniLM on sequences of 1 to 128 tokens. Three ways to run each length: a graph compiled for that
length alone, a graph compiled once with ``seq = Variable("seq", 1, 128)``, and ONNX Runtime with
the model's dynamic axes. ``ratio`` is symbolic over fixed: of the least times, and of the medians.

The sides alternate, with a pause and an untimed run before each: ONNX Runtime's threads spin
for a while after a run, which would otherwise take processors away from the next side.

    python -m bench.variable_length [MODEL] [--threads 1] [--json rows.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench.compile_time import minilm

import ostinato as ost
from ostinato.tools.timing import Timing, interleave

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128)
LONGEST = 128


@dataclass(frozen=True)
class Row:
    """The times of runs of one length."""

    length: int
    sides: Mapping[str, Timing]

    @property
    def ratios(self) -> tuple[float, float]:
        fixed, symbolic = self.sides["fixed"], self.sides["symbolic"]
        return symbolic.min / fixed.min, symbolic.median / fixed.median

    def __str__(self) -> str:
        times = [t for side in self.sides.values() for t in (side.min, side.median)]
        shown = "".join(f"{1e3 * t:>10.3f}" for t in times)
        return f"{self.length:>6}{shown}" + "".join(f"{ratio:>10.3f}" for ratio in self.ratios)


def header(sides: list[str]) -> str:
    titles = "".join(f"{side:>20}" for side in [*sides, "ratio"])
    return f"{'':6}{titles}\nlength" + f"{'min':>10}{'median':>10}" * (len(sides) + 1)


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


def measure(
    path: Path, lengths: list[int], runs: int, threads: int | None, *, ort: bool
) -> Iterator[Row]:
    """Times each length; the results are compared too."""
    session = ost.Session("cpu", threads=threads)

    def compiled(seq: Any) -> Callable[[Mapping[str, Any]], Any]:
        return session.compile(ost.load_onnx(path, dims={"batch": 1, "seq": seq})).run

    symbolic = compiled(ost.Variable("seq", 1, LONGEST))
    peers = {"symbolic": symbolic} | ({"ORT": onnx_runtime(path, threads)} if ort else {})
    for length in lengths:
        feeds = tokens(length)
        sides = {"fixed": compiled(length)} | peers
        (want,) = symbolic(feeds)
        for run in sides.values():
            np.testing.assert_allclose(run(feeds)[0], want, rtol=1e-4, atol=1e-5)
        calls = {name: partial(run, feeds) for name, run in sides.items()}
        yield Row(length, interleave(calls, runs=runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="by default, MiniLM is written first")
    parser.add_argument("--lengths", help="comma-separated; default: a selection of 1..128")
    parser.add_argument("--runs", type=int, default=60, help="of each side and length")
    parser.add_argument("--threads", type=int, help="of each side; default: each its own")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    lengths = [int(n) for n in options.lengths.split(",")] if options.lengths else list(LENGTHS)
    ort = not options.no_ort

    print(header(["fixed ms", "symbolic ms", *(["ORT ms"] if ort else [])]))
    rows = []
    for row in measure(options.model or minilm(), lengths, options.runs, options.threads, ort=ort):
        rows.append(row)
        print(row, flush=True)
    least, median = (max(ratios) for ratios in zip(*(row.ratios for row in rows), strict=True))
    print(f"worst ratio: {least:.3f} of the least times, {median:.3f} of the medians")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
