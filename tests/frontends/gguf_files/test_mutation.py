"""Mutated files are refused with an error of ours, or read: no crash, no hang, no waste of memory.

Ten thousand of them: ``pytest tests/frontends/gguf_files -m slow``.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


def hunt(first: int, last: int) -> tuple[int, int]:
    """The files that were read, and those that were refused, if there is nothing to report."""
    command = [sys.executable, "-m", "tests.frontends.gguf_files.mutation", str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""
    found = re.search(r"read (\d+), refused (\d+)", done.stderr)
    assert found is not None
    return int(found[1]), int(found[2])


def test_mutated_files() -> None:
    read, refused = hunt(0, 500)
    assert read >= 25
    assert refused >= 200


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 2500))
def test_ten_thousand_mutated_files(first: int) -> None:
    hunt(first, first + 2500)
