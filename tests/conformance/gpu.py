"""The whole conformance of the device ``cuda``, on a machine with a GPU, in a table and a file.

``python -m tests.conformance.gpu [--stages NAMES] [--graphs N] [--workers N] [--json PATH]`` runs
the suites with the cases and the oracle of the CPU: ops, control flow, the contract of the runtime,
random graphs, the model of the ordering rule, faults, and some ops under each tool of
compute-sanitizer.
Where there is no CUDA driver it says so, and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from ostinato.backends.registry import open_backend
from ostinato.errors import OstinatoError

ROOT = Path(__file__).parents[2]

#: The ops that run under compute-sanitizer: each way in which kernels use threads, and few more.
SANITIZED = "add or sum or softmax or matmul or cumsum or scatter or topk or conv or take"

_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass
class Stage:
    """The outcome of a stage.

    Attributes:
        name: of the stage.
        passed, failed, skipped: tests.
        failures: the names of those that failed.
        seconds: it took.
        problem: why it did not end as it should; empty if it did.
    """

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return not (self.failed or self.problem)


class Suites:
    """The stages, each of which runs processes of its own: a GPU that faults ends but one.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def ops(self) -> Stage:
        """Every op on every dtype, odd shapes, symbolic and data-dependent sizes, big graphs."""
        return self._pytest("ops", ["tests/conformance"])

    def control(self) -> Stage:
        """Control flow."""
        return self._pytest("control", ["tests/control"])

    def contract(self) -> Stage:
        """The runtime, plans and sessions."""
        return self._pytest("contract", ["tests/runtime", "tests/plan", "tests/eager"])

    def faults(self) -> Stage:
        """Several contexts and processes, too little memory, kernels that fail."""
        return self._pytest("faults", ["tests/backends/cuda/runtime/test_cuda_faults.py"])

    def ordering(self) -> Stage:
        """The ordering rule: random calls against its model, and the suites about each call."""
        return self._pytest("ordering", ["tests/ordering"])

    def fuzz(self) -> Stage:
        """Random graphs, by several processes."""
        stage, start = Stage("fuzz"), time.monotonic()
        workers, graphs = self.options.workers, self.options.graphs
        bounds = [graphs * i // workers for i in range(workers + 1)]
        command = [sys.executable, "-m", "tests.conformance.fuzz"]
        hunts = [
            subprocess.Popen(
                [*command, str(first), str(last), "cuda"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for first, last in pairwise(bounds)
        ]
        for hunt in hunts:
            left = max(self.options.seconds - (time.monotonic() - start), 1)
            try:
                text, _ = hunt.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                hunt.kill()
                text, _ = hunt.communicate()
                stage.problem = f"stopped after {self.options.seconds:.0f} s"
            lines = text.splitlines()
            failed = [line for line in lines if line.startswith("FAILED")]
            stage.failures += failed
            stage.failed += len(failed)
            stage.passed += sum(line.startswith("seed ") for line in lines) - len(failed)
            if not stage.problem and not any(line.startswith("done") for line in lines[-1:]):
                stage.problem = f"a process crashed at {lines[-1] if lines else 'its start'}"
            self._log("fuzz", text)
        stage.seconds = time.monotonic() - start
        return stage

    def sanitizer(self, tool: str) -> Stage:
        """Some ops under a tool of compute-sanitizer, in one process."""
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None:
            return Stage(tool, problem="compute-sanitizer is not installed")
        around = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
        tests = ["tests/conformance/test_ops.py"]
        return self._pytest(tool, tests, keyword=f"({SANITIZED}) and float32", around=around)

    def _pytest(
        self,
        name: str,
        tests: Sequence[str],
        keyword: str = "",
        around: Sequence[str] = (),
    ) -> Stage:
        stage, start = Stage(name), time.monotonic()
        chosen = "cuda and not cudaemu and not cudahost" + (f" and ({keyword})" if keyword else "")
        workers = [] if around or self.options.workers < 2 else ["-n", str(self.options.workers)]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            command = [*around, sys.executable, "-m", "pytest", "-q", "--tb=short", *tests]
            command += ["-k", chosen, "-p", "tests.conformance.gpu_report", *workers]
            environment = {**os.environ, "PYTEST_ADDOPTS": f"--outcomes={report}"}
            try:
                ran = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=self.options.seconds,
                    check=False,
                )
                text, code = ran.stdout, ran.returncode
            except subprocess.TimeoutExpired as late:
                text, code = _text(late.stdout), 0
                stage.problem = f"stopped after {self.options.seconds:.0f} s"
            outcomes = _outcomes(report)
        count = Counter(outcomes.values())
        stage.passed, stage.skipped, stage.failed = (
            count[outcome] for outcome in ("passed", "skipped", "failed")
        )
        stage.failures = sorted(test for test, outcome in outcomes.items() if outcome == "failed")
        if code not in (0, 1):
            stage.problem = f"exit status {code}: {' '.join(text.split()[-12:])}"
        self._log(name, text)
        stage.seconds = time.monotonic() - start
        return stage

    def _log(self, name: str, text: str) -> None:
        if self.options.logs is not None:
            self.options.logs.mkdir(parents=True, exist_ok=True)
            with (self.options.logs / f"{name}.log").open("a") as log:
                log.write(text)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _outcomes(report: Path) -> dict[str, str]:
    """The outcome of each test; of several, the worst."""
    found: dict[str, str] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        test, outcome = json.loads(line)
        if found.get(test) != "failed":
            found[test] = outcome
    return found


def _missing() -> str | None:
    """The reason why there is no GPU to run on, if there is none."""
    try:
        open_backend("cuda")
    except OstinatoError as error:
        return str(error)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.gpu", description=__doc__)
    parser.add_argument("--stages", help="some of them, with commas between; all by default")
    parser.add_argument("--graphs", type=int, default=500, help="random graphs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seconds", type=float, default=3600, help="the limit of a stage")
    parser.add_argument("--json", type=Path, help="the file that gets the outcome")
    parser.add_argument("--logs", type=Path, help="the folder that gets the output of the stages")
    options = parser.parse_args(arguments)
    if (reason := _missing()) is not None:
        print(f"skipped: no CUDA driver ({reason})")
        return 0
    suites = Suites(options)
    stages: dict[str, Callable[[], Stage]] = {
        "ops": suites.ops,
        "control": suites.control,
        "contract": suites.contract,
        "fuzz": suites.fuzz,
        "ordering": suites.ordering,
        "faults": suites.faults,
        **{tool: lambda tool=tool: suites.sanitizer(tool) for tool in _TOOLS},  # type: ignore[misc]
    }
    wanted = options.stages.split(",") if options.stages else list(stages)
    for name in wanted:
        if name not in stages:
            parser.error(f"--stages: {name!r} is none of {', '.join(stages)}")
    done = []
    for name in wanted:
        done.append(stages[name]())
        if options.json is not None:  # what there is so far, should a later stage take the machine
            options.json.write_text(json.dumps([asdict(stage) for stage in done], indent=2))
    print(f"{'stage':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for stage in done:
        numbers = f"{stage.passed:>7} {stage.failed:>7} {stage.skipped:>8} {stage.seconds:>8.1f}"
        print(f"{stage.name:<10} {numbers}  {stage.problem}")
        for failure in stage.failures[:20]:
            print(f"    {failure}")
    return 0 if all(stage.good for stage in done) else 1


if __name__ == "__main__":
    sys.exit(main())
