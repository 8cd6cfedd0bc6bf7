"""Timing of several ways to do the same thing, alternately, on one machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Timing", "interleave"]

#: Longer than idle threads of the runtimes spin for work, so that no runtime is timed against
#: another one's spinning threads.
_PAUSE = 0.005
_RUNS_PER_TURN = 5
_SECONDS_PER_TURN = 0.02
_MOST_RUNS = 10_000


@dataclass(frozen=True)
class Timing:
    """Seconds per call.

    Attributes:
        runs: how many calls were timed.
        min, median, p90, p99: of the calls' durations.
    """

    runs: int
    min: float
    median: float
    p90: float
    p99: float

    @staticmethod
    def of(durations: list[float]) -> Timing:
        """Summarises at least one duration."""
        median, p90, p99 = (float(q) for q in np.percentile(durations, [50, 90, 99]))
        return Timing(len(durations), min(durations), median, p90, p99)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    runs: int | None = None,
    seconds: float = 2.0,
) -> dict[str, Timing]:
    """Time ``calls`` in turns of a few calls, so that a busy moment of the machine hits them all.

    Every turn starts with a short pause and a call that is not timed: it wakes the threads and
    warms the caches that another turn has cooled.

    Args:
        calls: by name, what to time.
        runs: how many calls of each to time; by default as many as fit in ``seconds``.
        seconds: how long each may take in all.
    """
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    while any(_wants_more(d, runs, seconds) for d in durations.values()):
        for name, call in calls.items():
            if _wants_more(durations[name], runs, seconds):
                most = _MOST_RUNS if runs is None else runs
                durations[name] += _turn(call, most - len(durations[name]))
    return {name: Timing.of(measured) for name, measured in durations.items()}


def _wants_more(durations: list[float], runs: int | None, seconds: float) -> bool:
    if runs is not None:
        return len(durations) < runs
    return not durations or (sum(durations) < seconds and len(durations) < _MOST_RUNS)


def _turn(call: Callable[[], object], most: int) -> list[float]:
    """A few calls, or as many quick ones as fit in a moment; never more than ``most``."""
    time.sleep(_PAUSE)
    call()
    durations: list[float] = []
    while len(durations) < most:
        if len(durations) >= _RUNS_PER_TURN and sum(durations) >= _SECONDS_PER_TURN:
            break
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return durations
