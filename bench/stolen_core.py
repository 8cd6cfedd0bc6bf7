"""What a run loses when another process takes one of its cores.

    python -m bench.stolen_core [--seconds 2] [--workload NAME …] [--json FILE]

A session with a thread for each core runs alone, and then next to a process that is busy on one of
the cores, in turns. The scheduler gives that process half of the core, so that of ``n`` cores
``n - 1/2`` are left: the fair slowdown is ``n / (n - 1/2)``. Ours may be a fifth above it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.compare.workloads import WORKLOADS

ALLOWED = 1.2
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--workload", nargs="+", default=["minilm_32", "bert_1x128", "rowwise"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = [_measured(name, given.seconds) for name in given.workload]
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def _measured(name: str, seconds: float) -> dict[str, object]:
    cores = sorted(os.sched_getaffinity(0))
    fair = len(cores) / (len(cores) - 0.5)
    call = _prepared(name)
    alone, beside = [], []
    for _ in range(ROUNDS):
        alone.append(_mean(call, seconds))
        with _busy(cores[-1]):
            beside.append(_mean(call, seconds))
    slowdowns = [b / a for a, b in zip(alone, beside, strict=True)]
    slowdown = statistics.median(slowdowns)
    verdict = "fair" if slowdown <= fair * ALLOWED else "too slow"
    print(
        f"{name}: {statistics.median(alone) * 1e3:.2f} ms alone, "
        f"{statistics.median(beside) * 1e3:.2f} ms beside a busy process: {slowdown:.2f}x, "
        f"the stolen share is {fair:.2f}x: {verdict}",
        flush=True,
    )
    return {
        "workload": name,
        "threads": len(cores),
        "alone_ms": [t * 1e3 for t in alone],
        "beside_ms": [t * 1e3 for t in beside],
        "slowdown": slowdown,
        "stolen_share": fair,
        "limit": fair * ALLOWED,
    }


def _prepared(name: str) -> Callable[[], object]:
    from bench.compare.peers import load

    return load("ostinato").prepare(WORKLOADS[name], len(os.sched_getaffinity(0))).call


def _mean(call: Callable[[], object], seconds: float) -> float:
    """The mean time of a call: what is stolen comes in slices of milliseconds."""
    call()
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or count < 3:
        call()
        count += 1
    return elapsed / count


@contextmanager
def _busy(core: int) -> Iterator[None]:
    """Another process computes on ``core``."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
