"""The time that horizontally fused matmuls save over a kernel for each matmul.

    python -m bench.product_fusion [--threads N] [--seconds 5] [--only NAME …] [--json FILE]

Each model is compiled with ``CompileOptions(product_fusion=True)`` and without; the two alternate
in one process, and the first one changes from round to round. Models are those of
``bench.compare``, a layer of its ``decode`` model over many rows (``prefill``), and steps of
``bench.decoder_step`` at several widths.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bench.compare.peers.ours import build
from bench.compare.workloads import RMS_NORM_EPS, WORKLOADS, Decode, Weight
from bench.decoder_step import Config, decoder_graph, random_weights

import ostinato as ost

Array = np.ndarray[Any, Any]
Call = Callable[[], None]

COMPARED = ("minilm_32", "bert_1x128", "bert_8x128", "decode")
PREFILL_ROWS = {"prefill_32": 32, "prefill_128": 128, "prefill_512": 512}
LLAMA_WIDTHS = {"llama_128": 128, "llama_256": 256, "llama_512": 512}
NAMES = (*COMPARED, *PREFILL_ROWS, *LLAMA_WIDTHS)

#: Runs of one side before the other's take about as long.
_TURN = 5e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each model")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = [_compared(name, given.threads, given.seconds) for name in given.only]
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def _compared(name: str, threads: int, seconds: float) -> dict[str, object]:
    sides = {on: _prepared(name, threads, on=on) for on in (False, True)}
    times: dict[bool, list[float]] = {False: [], True: []}
    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ratios) < 9:
        order = (False, True) if len(ratios) % 2 else (True, False)
        turns = {on: _turn(sides[on][0]) for on in order}
        for on, turn in turns.items():
            times[on] += turn
        ratios.append(statistics.median(turns[False]) / statistics.median(turns[True]))
    result: dict[str, object] = {"model": name, "threads": threads}
    for on, side in ((False, "apart"), (True, "together")):
        result[f"{side}_kernels"] = sides[on][1]
        result[f"{side}_least_ms"] = min(times[on]) * 1e3
        result[f"{side}_median_ms"] = statistics.median(times[on]) * 1e3
    result |= {"ratio": statistics.median(ratios), "rounds": len(ratios)}
    shown = {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in result.items()}
    print(", ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
    return result


def _turn(call: Call) -> list[float]:
    """Seconds of each of a few runs, after one that is not counted."""
    call()
    times: list[float] = []
    while not times or sum(times) < _TURN:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _prepared(name: str, threads: int, *, on: bool) -> tuple[Call, int]:
    """A compiled model, bound, and its number of kernels."""
    options = ost.CompileOptions(product_fusion=on)
    session = ost.Session("cpu", threads=threads, options=options)
    if name in COMPARED:
        workload = WORKLOADS[name]
        g, feed = ost.Graph(name), workload.inputs
        inputs = {n: g.input(n, a.shape) for n, a in feed.items()}
        weights = {n: g.param(n, a.shape, value=a) for n, a in workload.weights.items()}
        g.set_outputs([build(workload, g, weights.__getitem__, **inputs)])
    elif name in PREFILL_ROWS:
        g, feed = _prefill(PREFILL_ROWS[name])
    else:
        g, feed = _llama(LLAMA_WIDTHS[name]), {}
        session.context.set_dev_state_mode(True)
        session.context.set_decode_state(3, 100)
    compiled = session.compile(g)
    outputs = [np.empty([int(dim) for dim in y.shape], y.dtype.numpy) for y in g.outputs.values()]
    return compiled.bind(feed, outputs), len(compiled.plan.kernels)


def _prefill(rows: int, layers: int = 4) -> tuple[ost.Graph, Mapping[str, Array]]:
    """Layers of the ``decode`` model, without rotation, over the rows of a prompt."""
    m, specs = Decode(), Decode().weight_specs()
    g = ost.Graph("prefill")
    x = g.input("x", (rows, m.hidden))
    feed = {"x": np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)}

    def w(name: str) -> ost.Value:
        spec: Weight = specs[name]
        return g.param(name, spec.shape, value=spec.draw(name))

    for i in range(layers):
        normed = g.rms_norm(x, w(f"{i}.norm1.g"), RMS_NORM_EPS)
        q, k, v = (
            g.permute_dims(
                g.reshape(g.matmul(normed, w(f"{i}.{n}.w")), (1, rows, heads, m.head_dim)),
                (0, 2, 1, 3),
            )
            for n, heads in (("q", m.heads), ("k", m.kv_heads), ("v", m.kv_heads))
        )
        found = g.permute_dims(g.attention(q, k, v, causal=True), (0, 2, 1, 3))
        x = x + g.matmul(g.reshape(found, (rows, m.hidden)), w(f"{i}.o.w"))
        normed = g.rms_norm(x, w(f"{i}.norm2.g"), RMS_NORM_EPS)
        inner = g.silu(g.matmul(normed, w(f"{i}.gate.w"))) * g.matmul(normed, w(f"{i}.up.w"))
        x = x + g.matmul(inner, w(f"{i}.down.w"))
    g.set_outputs([x])
    return g, feed


def _llama(width: int) -> ost.Graph:
    heads = width // 32
    config = Config(
        width=width, layers=4, heads=heads, key_heads=heads // 2, hidden=width * 11 // 4
    )
    return decoder_graph(config, random_weights(config))


if __name__ == "__main__":
    main()
