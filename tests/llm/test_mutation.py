"""Mutated tokenizers and templates are refused or work: no crash, no hang, no waste of memory.

Ten thousand of each kind: ``pytest tests/llm/test_mutation.py -m slow``.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

KINDS = ("json", "gguf", "template")


def hunt(kind: str, first: int, last: int) -> tuple[int, int]:
    """The cases that worked, and those that were refused, if there is nothing to report."""
    command = [sys.executable, "-m", "tests.llm.mutation", kind, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    found = re.fullmatch(r"read (\d+), refused (\d+)\n", done.stdout)
    assert found is not None, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files(kind: str) -> None:
    read, refused = hunt(kind, 0, 400)
    assert read >= 20
    assert refused >= 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, 10_000, 2500))
def test_ten_thousand_mutated_files(kind: str, first: int) -> None:
    hunt(kind, first, first + 2500)
