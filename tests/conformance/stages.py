"""The stages of a device's conformance: each runs suites in processes of its own, and counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ROOT", "TESTS", "Settings", "Stage", "Suites"]

ROOT = Path(__file__).parents[2]

_HERE = "tests/conformance"

#: The tests of each stage that pytest runs.
TESTS = {
    "ops": [f"{_HERE}/test_ops.py"],
    "shapes": [f"{_HERE}/test_odd_shapes.py"],
    "values": [f"{_HERE}/test_special_values.py"],
    "sizes": [f"{_HERE}/test_symbolic.py", f"{_HERE}/test_data_sizes.py"],
    "graphs": [
        f"{_HERE}/test_{name}.py"
        for name in ("arrays", "big_graphs", "composition_recipes", "compositions", "fuzz")
    ],
    "models": [f"{_HERE}/test_models.py", "tests/test_decode_loop.py"],
    "control": ["tests/control"],
    "contract": ["tests/runtime", "tests/plan", "tests/devices/test_capabilities.py"],
    "sessions": ["tests/eager", f"{_HERE}/test_sessions.py", f"{_HERE}/test_session_fusion.py"],
    "experts": ["tests/moe"],
    "ordering": ["tests/ordering"],
}


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the stages.

    Attributes:
        device: the name of the device.
        graphs: random graphs of the stage ``fuzz``.
        first: the seed of the first of them.
        workers: processes.
        sample: one test of so many runs.
        seconds: the limit of a stage.
        keyword: chooses among the tests, as pytest's ``-k`` does.
        logs: the folder that gets the output of the stages, if there is one.
    """

    device: str
    graphs: int = 500
    first: int = 0
    workers: int = 1
    sample: int = 1
    seconds: float = 3600
    keyword: str = ""
    logs: Path | None = None


@dataclass
class Stage:
    """The outcome of a stage.

    Attributes:
        name: of the stage.
        passed, failed, refused, skipped: tests; those are refused that need what the device's
            capabilities exclude, and skipped that need an ability that it lacks.
        failures: the names of those that failed.
        reasons: by reason, how many were skipped.
        seconds: it took.
        problem: why it did not end as it should; empty if it did.
    """

    name: str
    passed: int = 0
    failed: int = 0
    refused: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return not (self.failed or self.problem)


class Suites:
    """The stages, each of which runs processes of its own: a device that faults ends but one.

    Args:
        settings: of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def stages(self) -> dict[str, Callable[[], Stage]]:
        """Every stage by name."""
        return {
            **{name: lambda name=name: self.pytest(name, TESTS[name]) for name in TESTS},  # type: ignore[misc]
            "fuzz": self.fuzz,
        }

    def fuzz(self) -> Stage:
        """Random graphs, by processes of a few seeds each: what crashes takes few along."""
        stage, start, settings = Stage("fuzz"), time.monotonic(), self.settings
        end = settings.first + settings.graphs
        hunts = [(at, min(at + _HUNT, end)) for at in range(settings.first, end, _HUNT)]
        with ThreadPoolExecutor(settings.workers) as pool:
            texts = list(pool.map(lambda seeds: self._hunt(*seeds, start), hunts))
        for (first, last), (text, ended) in zip(hunts, texts, strict=True):
            lines = text.splitlines()
            failed = [line for line in lines if line.startswith("FAILED")]
            refused = sum(line.startswith("refused ") for line in lines)
            seeds = sum(line.startswith("seed ") for line in lines)
            if not any(line.startswith("done") for line in lines[-1:]):
                seeds -= bool(seeds)  # the last one has no outcome
                reached = lines[-1] if lines else "its start"
                problem = f"a process of the seeds {first} to {last - 1} crashed at {reached}"
                late = f"stopped after {settings.seconds:.0f} s"
                stage.problem = stage.problem or (problem if ended else late)
            stage.failures += failed
            stage.failed += len(failed)
            stage.refused += refused
            stage.passed += seeds - len(failed) - refused
            self._log("fuzz", text)
        stage.seconds = time.monotonic() - start
        return stage

    def _hunt(self, first: int, last: int, start: float) -> tuple[str, bool]:
        """The output of a process that runs random graphs, and whether it ended by itself.

        Args:
            first, last: the seeds, without the last one.
            start: of the stage, on the monotonic clock.
        """
        left = self.settings.seconds - (time.monotonic() - start)
        if left <= 0:
            return "", False
        command = [sys.executable, "-m", "tests.conformance.fuzz", str(first), str(last)]
        try:
            ran = subprocess.run(
                [*command, self.settings.device],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return _text(late.stdout), False
        return ran.stdout, True

    def pytest(
        self,
        name: str,
        tests: Sequence[str],
        keyword: str = "",
        around: Sequence[str] = (),
        chosen: bool = True,
    ) -> Stage:
        """The tests of some files and folders, slow ones included.

        Args:
            name: of the stage.
            tests: files and folders.
            keyword: chooses among the tests, besides that of the settings.
            around: a command that runs the process, such as a checker of memory.
            chosen: whether to run those that take a device, on this one; else, all there are.
        """
        stage, start, settings = Stage(name), time.monotonic(), self.settings
        keywords = " and ".join(f"({each})" for each in (keyword, settings.keyword) if each)
        # In processes of xdist, a test that crashes takes no other with it.
        workers = [] if around else ["-n", str(settings.workers)]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            command = [*around, sys.executable, "-m", "pytest", "-q", "--tb=short", *tests]
            command += ["-c", "pyproject.toml", "-m", "", "-k", keywords, *workers]
            command += ["-p", "tests.devices.selection", "-p", "tests.conformance.outcomes"]
            if chosen:
                command += ["--devices", settings.device, "--sample", str(settings.sample)]
            inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
            environment = {**inherited, "PYTEST_ADDOPTS": f"--outcomes={report}"}
            try:
                ran = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=settings.seconds,
                    check=False,
                )
                text, code = ran.stdout, ran.returncode
            except subprocess.TimeoutExpired as late:
                text, code = _text(late.stdout), 0
                stage.problem = f"stopped after {settings.seconds:.0f} s"
            outcomes = _outcomes(report)
        count = Counter(outcome for outcome, _ in outcomes.values())
        stage.passed, stage.skipped = count["passed"], count["skipped"]
        stage.failed, stage.refused = count["failed"], count["refused"]
        stage.failures = sorted(t for t, (outcome, _) in outcomes.items() if outcome == "failed")
        stage.reasons = dict(Counter(r for outcome, r in outcomes.values() if outcome == "skipped"))
        if code not in (0, 1, _NOTHING_COLLECTED):
            stage.problem = f"exit status {code}: {' '.join(text.split()[-12:])}"
        self._log(name, text)
        stage.seconds = time.monotonic() - start
        return stage

    def _log(self, name: str, text: str) -> None:
        if self.settings.logs is not None:
            self.settings.logs.mkdir(parents=True, exist_ok=True)
            with (self.settings.logs / f"{name}.log").open("a") as log:
                log.write(text)


#: Random graphs of a process.
_HUNT = 25

#: The exit status of pytest where a sample or a keyword has left no test.
_NOTHING_COLLECTED = 5


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """The outcome of each test and the reason of a skip; of several outcomes, the worst."""
    found: dict[str, tuple[str, str]] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        test, outcome, reason = json.loads(line)
        if test not in found or found[test][0] != "failed":
            found[test] = outcome, reason
    return found
