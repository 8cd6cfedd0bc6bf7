"""The parts of a decode step on a GPU: their times, bytes and throughput.

    python -m bench.cuda_profile [bf16 batch int8 int4 moe] [--layers 4] [--position 512] [--whole]

The graphs are those of :mod:`bench.cuda_decode`, :mod:`bench.cuda_decode_batch` (8 sequences),
:mod:`bench.cuda_quantized_decode` and :mod:`bench.cuda_moe`. Of a few profiles, the fastest run is
shown. A row is the sum of the parts of one title, flops and bytes: microseconds from the end of
those before to their own, then those of a block, on average, that it works, waits for other blocks,
and waits for weights. ``--whole`` prints every part. Below is the median of runs without profiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ostinato as ost

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from bench import cuda_decode_batch, cuda_moe, cuda_quantized_decode
from bench.cuda_decode import LLAMA_1B, decoder, median_ms
from tiny_llama import Config

from ostinato.plan.profile import PartProfile


def random_weights(config: Config) -> dict[str, Any]:
    """Weights in bfloat16, of one array of noise."""
    noise = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
    width, hidden = config.width, config.hidden
    queries, keys = (n * config.head_dim for n in (config.heads, config.key_heads))

    def matrix(rows: int, columns: int) -> Any:
        scaled = (noise / rows**0.5).astype(ml_dtypes.bfloat16)
        return np.resize(scaled, (rows, columns))

    found = {"embedding": matrix(config.vocabulary, width), "norm": np.ones(width)}
    for i in range(config.layers):
        sizes = {"q": (width, queries), "k": (width, keys), "v": (width, keys)}
        sizes |= {"o": (queries, width), "gate": (width, hidden), "up": (width, hidden)}
        sizes["down"] = (hidden, width)
        found |= {f"{i}.{name}": matrix(*size) for name, size in sizes.items()}
        found |= {f"{i}.{name}": np.ones(width) for name in ("attention_norm", "mlp_norm")}
    pairs = np.arange(config.head_dim // 2) / (config.head_dim // 2)
    angles = np.arange(config.length)[:, None] * config.rope_base**-pairs
    found |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {name: np.asarray(value, ml_dtypes.bfloat16) for name, value in found.items()}


def step(kind: str, layers: int, position: int) -> tuple[ost.Graph, dict[str, Any], dict[str, int]]:
    """A graph, its inputs and its Variables."""
    config = Config(**LLAMA_1B, layers=layers)
    values = {"token": 7, "position": position, "kv_len": position + 1}
    if kind == "bf16":
        return decoder(config, random_weights(config), "bfloat16"), {}, values
    if kind == "batch":
        graph, _ = cuda_decode_batch.decoder(config, 8)
        del values["token"]
        return graph, {"tokens": np.arange(8)}, values
    if kind == "moe":
        graph = cuda_moe.layers(layers, 8, 2048, 7168)
        return graph, {"x": np.ones((1, 2048), ml_dtypes.bfloat16)}, {}
    graph, _ = cuda_quantized_decode.decoder(config, kind)
    return graph, {}, values


def merged(parts: Iterable[PartProfile]) -> list[str]:
    """The parts as lines, those of one title, flops and bytes together."""
    rows: dict[tuple[str, int, int], list[float]] = {}
    for part in parts:
        time = part.time
        row = rows.setdefault((part.name, part.flops, part.bytes), [0.0] * 5)
        spent = (1, part.elapsed, time.working, time.waiting, time.fetching)
        row[:] = [a + b for a, b in zip(row, spent, strict=True)]
    lines = [f"{'':40} {'count':>5} {'µs':>9} {'working':>9} {'waiting':>9} {'fetching':>9} GB/s"]
    for (name, _, nbytes), (count, *seconds) in rows.items():
        spent = " ".join(f"{1e6 * each:9.1f}" for each in seconds)
        rate = 1e-9 * nbytes * count / seconds[0] if seconds[0] else 0.0
        lines.append(f"{name:40.40} {count:5.0f} {spent} {rate:7,.0f}")
    return lines


def profile(kind: str, options: argparse.Namespace) -> None:
    """Print the profile of a kind of step."""
    graph, inputs, values = step(kind, options.layers, options.position)
    compiled = ost.Session(options.device).compile(graph)
    plan = compiled.plan
    for name, value in inputs.items():
        plan.inputs[name].copyin(value)
    run = compiled.run
    milliseconds = median_ms(lambda: run(inputs, variables=values), options.runs)
    profiles = [plan.execute_with_vars_profiled(values) for _ in range(5)]
    best = min(profiles, key=lambda found: found.elapsed)
    print(
        f"{kind}: {options.layers} layers, {milliseconds:.4f} ms, profiled {1e3 * best.elapsed:.4f}"
    )
    for record in best:
        head, *lines = str(record).split("\n")
        print("\n".join([head, *(lines if options.whole or not lines else merged(record.parts))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["bf16", "batch", "int8", "int4", "moe"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--whole", action="store_true", help="print every part")
    options = parser.parse_args()
    for kind in options.kinds:
        profile(kind, options)


if __name__ == "__main__":
    main()
