"""Random ONNX graphs compute what ONNX Runtime computes, at every size, however compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ostinato as ost

pytest.importorskip("onnxruntime")

from tests.frontends.differential.check import check

ROOT = Path(__file__).parents[2]

#: Graphs of one slow test, which is one process.
CHUNK = 250


def test_random_graphs() -> None:
    session = ost.Session("cpu", threads=2)
    refused = [reason for number in range(20) if (reason := check(number, [session]))]
    assert len(refused) < 7, "\n".join(refused)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_hunt(first: int) -> None:
    module = "tests.frontends.differential.check"
    command = [sys.executable, "-m", module, str(first), str(first + CHUNK)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = run.stdout.splitlines()
    assert lines and lines[-1].startswith("done"), (
        f"crashed ({run.returncode}) at {lines[-1] if lines else 'the start'}\n{run.stderr[-4000:]}"
    )
    assert run.returncode == 0, run.stdout[run.stdout.find("FAILED") :][:8000]
