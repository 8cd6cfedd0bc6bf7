"""The command: ``python -m bench compare``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.compare import report
from bench.compare.measure import BEFORE, measure
from bench.compare.peers import OURS, PEERS, version
from bench.compare.workloads import WORKLOADS


def main(arguments: Sequence[str]) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    options = _parser(len(allowed)).parse_args(arguments)
    sides = [OURS, *([BEFORE] if options.before else []), *_installed(options.peers)]
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    print(report.machine(), flush=True)
    how = [options.clock, *(["ahead"] if options.ahead else [])]
    rows = []
    for name in options.only:
        for threads in options.threads:
            start = time.perf_counter()
            # The last cores: the first one has the machine's other work to do.
            cores = allowed[-threads:]
            row = measure(name, cores, sides, options.runs, how, options.before)
            rows.append(row)
            if options.json:
                report.write_json(rows, options.json)
            _say(row, time.perf_counter() - start)
    print("\n" + report.table(rows))
    if options.json:
        command = shlex.join(["python", "-m", "bench", "compare", *arguments])
        report.write_page(rows, options.clock, command, options.json.with_suffix(".md"))
        if not report.plot(rows, options.json.with_suffix(".svg")):
            print("no plot: matplotlib is not installed", file=sys.stderr)


def _parser(cores: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench compare",
        description="Every workload next to other runtimes, alternately, on the same cores.",
    )
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME"
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        choices=range(1, cores + 1),
        default=sorted({1, cores}),
        help="by default 1, then all cores",
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout of this project, with its environment in .venv, as a further side",
    )
    parser.add_argument("--runs", type=_count, default=20, metavar="N", help="rounds of turns")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time per thread, for busy machines; says little about many threads",
    )
    parser.add_argument(
        "--ahead",
        action="store_true",
        help="run ahead of all ordinary processes; needs the right to do so",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="a page with the table and a plot go next to it"
    )
    return parser


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return int(text)


def _installed(peers: Sequence[str]) -> list[str]:
    missing = [peer for peer in peers if version(peer) is None]
    for peer in missing:
        print(f"{peer} is not installed here and left out", file=sys.stderr)
    return [peer for peer in peers if peer not in missing]


def _say(row: report.Row, seconds: float) -> None:
    for what in row.left_out.values():
        print(f"{row.workload}, {row.threads}: {what}", file=sys.stderr)
    times = ", ".join(f"{name} {times.median:.4g}" for name, times in row.sides.items())
    print(
        f"{row.workload} on {row.threads}: {times}; floor {row.floors.floor_ms:.4g} ms "
        f"({seconds:.0f} s)",
        flush=True,
    )
