"""Real models next to ONNX Runtime, on one thread and on all.

    python -m bench [--seconds 2]

Times are of whole runs through each runtime's ordinary call, in turns (see
:mod:`ostinato.tools.timing`). A quiet machine matters more than long measurements.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from bench.compile_time import minilm
from rich import box
from rich.console import Console
from rich.table import Table

from ostinato.tools.arguments import InputArgument
from ostinato.tools.bench import bench_model
from ostinato.tools.models import ModelOptions

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TOKENS = (
    InputArgument("input_ids", "random", (0, 30521)),
    InputArgument("attention_mask", "fill", 1),
)

Case = tuple[str, Path, dict[str, int], tuple[InputArgument, ...]]


def cases() -> Iterator[Case]:
    for batch, length in ((1, 16), (8, 128)):
        dims = {"batch": batch, "seq": length}
        yield f"MiniLM {batch}x{length}", minilm(), dims, TOKENS
    for name in ("squeezenet", "shufflenet", "resnet50", "densenet121", "vgg19"):
        yield name, LIGHT / f"light_{name}.onnx", {}, ()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model and runtime")
    seconds = parser.parse_args(arguments).seconds
    columns = ("model", "threads", "Ostinato, median ms", "ONNX Runtime", "ratio", "difference")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for name, path, dims, inputs in cases():
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            options = ModelOptions(path, dims=dims, threads=threads)
            found = bench_model(
                options, inputs, seed=0, versus="onnxruntime", runs=None, seconds=seconds
            )
            medians = [f"{engine['median_ms']:.2f}" for engine in found["engines"].values()]
            ratio, difference = found["ratio"], float(found["difference"]["largest"])
            table.add_row(name, str(threads), *medians, f"{ratio:.2f}", f"{difference:.1g}")
    Console().print(table)
