"""The gain of tuning over the heuristic tile sizes.

    python -m bench.tuning [--threads N] [--seconds 3] [--only NAME …] [--json FILE]

Each workload is compiled with and without ``CompileOptions(tune=True)``; the two alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
from bench.compare.peers.ours import build
from bench.compare.workloads import WORKLOADS

import ostinato as ost

NAMES = ("mlp_b64", "minilm_32", "bert_1x128", "bert_8x128")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each workload")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    session = ost.Session("cpu", threads=given.threads)
    threads = {"threads": given.threads}
    found = [_compared(session, name, given.seconds) | threads for name in given.only]
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def _compared(session: ost.Session, name: str, seconds: float) -> dict[str, object]:
    workload = WORKLOADS[name]
    g = ost.Graph(name)
    inputs = {n: g.input(n, a.shape) for n, a in workload.inputs.items()}
    weights = {n: g.param(n, a.shape, value=a) for n, a in workload.weights.items()}
    g.set_outputs([build(workload, g, weights.__getitem__, **inputs)])
    outputs = [np.empty(shape, np.float32) for shape in workload.output_shapes]
    begin = time.perf_counter()
    plain = session.compile(g).bind(workload.inputs, outputs)
    middle = time.perf_counter()
    tuned = session.compile(g, options=ost.CompileOptions(tune=True)).bind(workload.inputs, outputs)
    tuning = time.perf_counter() - middle
    times: dict[str, list[float]] = {"plain": [], "tuned": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["plain"]) < 5:
        for side, call in (("plain", plain), ("tuned", tuned)):
            start = time.perf_counter()
            call()
            times[side].append((time.perf_counter() - start) * 1e3)
    ratio = statistics.median(p / t for p, t in zip(*times.values(), strict=True))
    best = {side: min(all_) for side, all_ in times.items()}
    print(
        f"{name}: {best['plain']:.3f} ms, tuned {best['tuned']:.3f} ms, median ratio {ratio:.3f}; "
        f"compiled in {middle - begin:.1f} s, with tuning in {tuning:.1f} s",
        flush=True,
    )
    return {"workload": name, "plain_ms": best["plain"], "tuned_ms": best["tuned"], "ratio": ratio}


if __name__ == "__main__":
    main()
