"""The process that holds one runtime with one workload, and times it on request.

    python -m bench.compare.worker SIDE WORKLOAD CORES FOLDER [CLOCK [ahead]]

``CORES`` is a comma-separated list: the process stays on them and uses as many threads. ``CLOCK``
is ``wall`` or ``cpu``, see :func:`clock_named`; for ``ahead`` see :func:`go_ahead`. The process
speaks in lines of JSON: first ``{}`` when its outputs are in ``FOLDER`` as ``SIDE.npz``; then, for
every line ``{"seconds": s}`` that it reads, ``{"times_ms": […]}``, the times of single runs in a
turn of about ``s`` seconds. Between lines it waits for input, asleep.

The side called ``floors`` has no outputs and answers ``{"floors": {…}}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from bench.compare.workloads import Workload

Answer = Callable[[float], dict[str, Any]]
Clock = Callable[[], float]

#: A clock reading costs some 50 ns: quick calls are timed in bunches of about this long.
BUNCH_SECONDS = 2e-4
#: Seconds of a call above which caches that the others have cooled matter little.
COLD_ENOUGH = 0.2


def main() -> None:
    side, name, cores, folder, *how = sys.argv[1:]
    answers = _keep_stdout()
    pinned = {int(core) for core in cores.split(",")}
    os.sched_setaffinity(0, pinned)

    from bench.compare.workloads import WORKLOADS

    serve = _floors if side == "floors" else _runs
    clock = clock_named((*how, "wall")[0], len(pinned))
    answer = serve(side, WORKLOADS[name], len(pinned), Path(folder), clock)
    if "ahead" in how:
        go_ahead()
    _say(answers, {})
    for line in sys.stdin:
        _say(answers, answer(json.loads(line)["seconds"]))


def clock_named(name: str, threads: int) -> Clock:
    """A clock of wall seconds, or (``cpu``) of the process's seconds on each of its cores.

    The latter leaves out what other processes take on a busy machine, and adds what threads of a
    pool spend spinning.
    """
    if name == "wall":
        return time.perf_counter
    return lambda: time.process_time() / threads


def go_ahead() -> None:
    """Give all threads of this process priority over ordinary processes.

    Raises:
        PermissionError: that takes a right (``CAP_SYS_NICE``).
    """
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(5))


def _runs(side: str, workload: Workload, threads: int, folder: Path, clock: Clock) -> Answer:
    import numpy as np
    from bench.compare.peers import load

    prepared = load(side).prepare(workload, threads)
    workload.forget()
    prepared.call()
    np.savez(folder / side, *prepared.outputs())
    bunch = max(1, round(BUNCH_SECONDS / _least(prepared.call)))
    return lambda seconds: {"times_ms": turn(prepared.call, seconds, bunch, clock)}


def _floors(side: str, workload: Workload, threads: int, folder: Path, clock: Clock) -> Answer:
    from bench.compare.floors import Probe

    probe = Probe(workload, threads, clock)
    return lambda seconds: {"floors": asdict(probe.measure())}


def turn(
    call: Callable[[], object], seconds: float, bunch: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Milliseconds per call, each over ``bunch`` calls in a row."""
    if _timed(call, bunch, clock) > COLD_ENOUGH:
        seconds = 0.0
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        times.append(_timed(call, bunch, clock) / bunch * 1e3)
    return times


def _timed(call: Callable[[], object], count: int, clock: Clock) -> float:
    calls = range(count)
    start = clock()
    for _ in calls:
        call()
    return clock() - start


def _least(call: Callable[[], object]) -> float:
    """A first estimate of the time of a warm call."""
    end, least = time.perf_counter() + 0.3, float("inf")
    while time.perf_counter() < end:
        least = min(least, _timed(call, 1, time.perf_counter))
    return least


def _keep_stdout() -> TextIO:
    """Keep standard output for answers: redirect other output of runtimes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, answer: dict[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
