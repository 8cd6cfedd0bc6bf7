"""Many cases in processes of their own: ``python -m tests.frontends.mutation.hunt FIRST LAST``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.frontends.mutation.judge import FINDINGS

__all__ = ["Hunt", "hunt"]

ROOT = Path(__file__).parents[3]

#: Cases of one process.
_CHUNK = 500

_LINE = "case {case}: {outcome}: {model}\n    {detail}"


@dataclass
class Hunt:
    """The result of many cases.

    Attributes:
        outcomes: how many cases had which.
        findings: a line for each defect: the case's number reproduces it.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        total = self.outcomes.total()
        listed = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        return "\n".join([f"{total} cases: {listed}", *self.findings])


def hunt(first: int, last: int, *, nodes: bool, processes: int = 1) -> Hunt:
    """Examine the cases ``first..last - 1``.

    Args:
        first, last: seeds of the cases.
        nodes: whether node tests of the ``onnx`` package are mutated, too.
        processes: at a time.
    """
    result = Hunt()
    chunks = [(start, min(start + _CHUNK, last)) for start in range(first, last, _CHUNK)]
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-hunt-") as cache,
        ThreadPoolExecutor(processes) as pool,
    ):
        for verdicts in pool.map(lambda chunk: _examine(*chunk, nodes, cache), chunks):
            for verdict in verdicts:
                result.outcomes[verdict["outcome"]] += 1
                if verdict["outcome"] in FINDINGS:
                    result.findings.append(_LINE.format(**verdict))
    return result


def _examine(first: int, last: int, nodes: bool, cache: str) -> list[dict[str, Any]]:
    """The verdicts of a range of cases, over as many processes as it takes."""
    verdicts: list[dict[str, Any]] = []
    while first < last:
        command = [sys.executable, "-m", "tests.frontends.mutation.worker", str(first), str(last)]
        run = subprocess.run(
            command + ["nodes"] * nodes,
            cwd=ROOT,
            env=os.environ | {"OSTINATO_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
        entries = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        verdicts += [entry for entry in entries if "outcome" in entry]
        done = {entry["case"] for entry in entries if "outcome" in entry}
        first = next((number for number in range(first, last) if number not in done), last)
        if first < last:
            verdicts.append(_ended(first, entries, run))
            first += 1
    return verdicts


def _ended(case: int, entries: list[dict[str, Any]], run: Any) -> dict[str, Any]:
    """The verdict on the case that ended its process."""
    last = entries[-1] if entries else {}
    detail = f"exit status {run.returncode}\n{run.stderr[-3000:]}"
    if last.get("case") == case and last.get("phase") == "judging":
        return {"case": case, "outcome": "unjudged", "model": "", "detail": detail}
    hang = run.returncode == -signal.SIGPROF or "Timeout (" in run.stderr
    return {"case": case, "outcome": "hang" if hang else "crash", "model": "", "detail": detail}


if __name__ == "__main__":
    found = hunt(int(sys.argv[1]), int(sys.argv[2]), nodes=True, processes=2)
    print(found)
    sys.exit(1 if found.findings else 0)
