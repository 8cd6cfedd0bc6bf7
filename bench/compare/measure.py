"""Alternates between the processes that hold the runtimes.

One process is busy at any moment: a turn begins when the one before has answered and its threads
have gone to sleep. Rounds start with another side each time. Times of one round are compared with
each other, so what slows the machine down for a while slows all of them. Two comparisons on one
machine take turns as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench.compare.floors import Floors
from bench.compare.peers import OURS
from bench.compare.workloads import WORKLOADS, Array

TURN_SECONDS = 0.05
#: The name of the side that measures floors.
FLOORS = "floors"
#: The name of the side that is another checkout of this project.
BEFORE = "before"
#: A process counts as asleep when it used less than a tenth of this long a while.
_WATCH_SECONDS = 0.002
_MOST_WATCHES = 500


class SideError(Exception):
    """A side that cannot be measured, and why."""


class Side:
    """A process that holds one runtime with one workload.

    Args:
        name: the runtime.
        workload: see :data:`WORKLOADS`.
        cores: the processors that it stays on.
        how: the last arguments of :mod:`~bench.compare.worker`.
        folder: for its outputs and its log.
        checkout: of this project, with an environment in ``.venv``; by default, this one.
    """

    def __init__(
        self,
        name: str,
        workload: str,
        cores: Sequence[int],
        how: Sequence[str],
        folder: Path,
        checkout: Path | None = None,
    ) -> None:
        self.name = name
        self._folder = folder / name
        self._folder.mkdir()
        self._outputs = name if checkout is None else OURS
        threads = str(len(cores))
        python = sys.executable if checkout is None else str(checkout / ".venv/bin/python")
        command = [python, "-m", "bench.compare.worker", self._outputs, workload]
        self._log = (folder / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            [*command, ",".join(map(str, cores)), str(self._folder), *how],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )

    def wait_until_ready(self) -> None:
        """Wait until the runtime is prepared and its threads sleep."""
        self._answer()
        self.wait_until_asleep()

    def outputs(self) -> list[Array]:
        """The outputs of a run, once ready."""
        with np.load(self._folder / f"{self._outputs}.npz") as arrays:
            return [arrays[key] for key in arrays.files]

    def turn(self, seconds: float) -> Any:
        """Have the process measure for about that long; returns its answer."""
        assert self._process.stdin is not None
        with _no_other_turn():
            self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
            self.wait_until_asleep()
        return answer

    def wait_until_asleep(self) -> None:
        """Wait until idle threads of thread pools stop spinning and sleep."""
        clock = (~self._process.pid << 3) | 2  # Linux: the CPU clock of another process
        for _ in range(_MOST_WATCHES):
            before = time.clock_gettime(clock)
            time.sleep(_WATCH_SECONDS)
            if time.clock_gettime(clock) - before < 0.1 * _WATCH_SECONDS:
                return
        raise SideError(f"{self.name} does not sleep between its turns")

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["nothing"]
            raise SideError(f"{self.name} stopped, saying: {said[-1]}")
        return json.loads(line)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def _no_other_turn() -> Iterator[None]:
    """Holds off other comparisons of the same user on this machine."""
    path = Path(tempfile.gettempdir(), f"ostinato-bench-{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass
class Times:
    """Milliseconds per run of one side: the median of each round, and the least of all runs."""

    medians: list[float] = field(default_factory=list)
    least: float = float("inf")

    def add(self, times: Sequence[float]) -> None:
        self.medians.append(statistics.median(times))
        self.least = min(self.least, *times)

    @property
    def median(self) -> float:
        return statistics.median(self.medians)


@dataclass(frozen=True)
class Row:
    """The times of one workload on some number of threads.

    Attributes:
        sides: the times of each side, round for round.
        floor_rounds: the floors, measured once in each round.
        left_out: sides that could not be measured, and why.
    """

    workload: str
    threads: int
    sides: dict[str, Times]
    floor_rounds: Sequence[Floors]
    left_out: dict[str, str]

    @property
    def floors(self) -> Floors:
        """The best of all rounds."""
        return Floors.best(self.floor_rounds)

    @property
    def ours(self) -> Times | None:
        return self.sides.get(OURS)

    @property
    def peers(self) -> dict[str, Times]:
        return {name: times for name, times in self.sides.items() if name != OURS}

    @property
    def best_peer(self) -> str | None:
        """The peer with the least median."""
        return min(self.peers, key=lambda name: self.peers[name].median, default=None)

    @property
    def ratio(self) -> float | None:
        """The speed relative to the best peer: the median of the rounds' ratios."""
        if self.ours is None or self.best_peer is None:
            return None
        rounds = zip(self.peers[self.best_peer].medians, self.ours.medians, strict=True)
        return statistics.median(theirs / ours for theirs, ours in rounds)

    @property
    def reached(self) -> float | None:
        """The share of the best floor that the median reaches."""
        return self.floors.floor_ms / self.ours.median if self.ours else None

    @property
    def reached_in_rounds(self) -> float | None:
        """The share of the usual floor of a round that its median reaches; the median of rounds."""
        if self.ours is None:
            return None
        rounds = zip(self.floor_rounds, self.ours.medians, strict=True)
        return statistics.median(floors.usual_ms / ours for floors, ours in rounds)

    @property
    def ratio_of_least(self) -> float | None:
        """The ratio of least times, for machines that are busy with other work."""
        if self.ours is None or not self.peers:
            return None
        return min(times.least for times in self.peers.values()) / self.ours.least


def measure(
    workload: str,
    cores: Sequence[int],
    names: Sequence[str],
    rounds: int,
    how: Sequence[str] = ("wall",),
    before: Path | None = None,
) -> Row:
    """Prepare ``workload`` in a process for each of ``names``, compare results, and time them.

    ``how`` are the last arguments of :mod:`~bench.compare.worker`, ``before`` is the checkout of
    the side of that name.
    """
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def start(name: str) -> Side:
            checkout = before if name == BEFORE else None
            side = Side(name, workload, cores, how, Path(folder), checkout)
            stack.callback(side.close)
            side.wait_until_ready()
            return side

        sides: dict[str, Side] = {}
        for name in names:
            with _leaving_out(name, left_out):
                sides[name] = start(name)
        outputs = {name: side.outputs() for name, side in sides.items()}
        left_out |= differing(outputs, WORKLOADS[workload].tolerance)
        sides = {name: side for name, side in sides.items() if name not in left_out}
        times, floors = _rounds(sides, start(FLOORS), rounds, left_out)
    return Row(workload, len(cores), times, floors, left_out)


def _rounds(
    sides: dict[str, Side], probe: Side, rounds: int, left_out: dict[str, str]
) -> tuple[dict[str, Times], list[Floors]]:
    """The times of rounds, and the floors of each, which are measured after our turn."""
    times = {name: Times() for name in sides}
    floors, order = [], list(sides)
    for _ in range(rounds):
        for name in order:
            with _leaving_out(name, left_out):
                times[name].add(sides[name].turn(TURN_SECONDS)["times_ms"])
            if name == OURS:
                floors.append(Floors(**probe.turn(TURN_SECONDS)["floors"]))
        if OURS not in order:
            floors.append(Floors(**probe.turn(TURN_SECONDS)["floors"]))
        order = [name for name in (*order[1:], *order[:1]) if name not in left_out]
    return {name: times[name] for name in sides if name not in left_out}, floors


@contextlib.contextmanager
def _leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Leave out a side that fails, with its reason; the others go on."""
    try:
        yield
    except SideError as error:
        left_out[name] = str(error)


def differing(outputs: Mapping[str, Sequence[Array]], tolerance: float) -> dict[str, str]:
    """The sides whose outputs are not those of the majority, and what is wrong with them."""
    found: dict[str, str] = {}
    for parts in zip(*outputs.values(), strict=True):
        shape = statistics.mode(part.shape for part in parts)
        alike = np.stack([part for part in parts if part.shape == shape])
        agreed = np.median(np.where(np.isnan(alike), np.inf, alike), axis=0)
        scale = float(np.abs(agreed).max())
        for name, part in zip(outputs, parts, strict=True):
            if part.shape != shape:
                found[name] = f"{name} gives a result of shape {part.shape}, not {shape}"
                continue
            off = float(np.abs(part - agreed).max())
            if not off <= tolerance * scale:  # NaN is off, too
                found[name] = f"{name} gives another result: {off:.1e} off at most {scale:.1e}"
    return found
