"""The slowdown of a run when another process takes one of its cores.

    python -m bench.stolen_core [--seconds 2] [--workload NAME …] [--json FILE]

A session with a thread for each core runs alone, and then next to a process that is busy on one of
the cores, alternately; there without and with ``recover_stolen_cores``. The scheduler gives that
process half of the core, so that of ``n`` cores ``n - 1/2`` are left: the fair slowdown is
``n / (n - 1/2)``.
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

from bench.compare.peers import load
from bench.compare.workloads import WORKLOADS

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
    calls = {recover: _prepared(name, recover) for recover in (False, True)}
    alone: list[float] = []
    beside: dict[bool, list[float]] = {recover: [] for recover in calls}
    for _ in range(ROUNDS):
        alone.append(_mean(calls[False], seconds))
        with _busy(cores[-1]):
            for recover, call in calls.items():
                beside[recover].append(_mean(call, seconds))
    slowdown = {
        recover: statistics.median(b / a for a, b in zip(alone, times, strict=True))
        for recover, times in beside.items()
    }
    print(
        f"{name}: {statistics.median(alone) * 1e3:.2f} ms alone; beside a busy process "
        f"{slowdown[False]:.2f}x, with recover_stolen_cores {slowdown[True]:.2f}x; "
        f"the stolen share is {fair:.2f}x",
        flush=True,
    )
    return {
        "workload": name,
        "threads": len(cores),
        "alone_ms": [t * 1e3 for t in alone],
        "beside_ms": [t * 1e3 for t in beside[False]],
        "beside_recovering_ms": [t * 1e3 for t in beside[True]],
        "slowdown": slowdown[False],
        "slowdown_recovering": slowdown[True],
        "stolen_share": fair,
    }


def _prepared(name: str, recover: bool) -> Callable[[], object]:
    threads = len(os.sched_getaffinity(0))
    prepare = load("ostinato").prepare
    call: Callable[[], object] = prepare(
        WORKLOADS[name], threads, recover_stolen_cores=recover
    ).call
    return call


def _mean(call: Callable[[], object], seconds: float) -> float:
    """The mean time of a call: stolen time comes in slices of milliseconds."""
    call()
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or count < 3:
        call()
        count += 1
    return elapsed / count


@contextmanager
def _busy(core: int) -> Iterator[None]:
    """Run another process that computes on ``core``."""
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
