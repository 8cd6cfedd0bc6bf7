"""Random graphs compute what the oracle computes, however they are compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ostinato as ost
from tests.devices.registered import open_session
from tests.devices.selection import is_refusal

from .fuzz import RECIPES, check
from .motifs import MOTIFS
from .recipes import DATA_SIZED

ROOT = Path(__file__).parents[2]

#: Graphs of one hunt, which is one process: what crashes takes no other graph with it.
CHUNK = 125


@pytest.fixture(scope="session")
def sessions(device: str) -> dict[int, ost.Session]:
    return {threads: open_session(device, threads=threads) for threads in (1, 2)}


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    ops=st.lists(
        st.one_of(st.sampled_from(sorted(RECIPES)), st.sampled_from(sorted(MOTIFS))),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_graph(
    sessions: dict[int, ost.Session], device: str, ops: list[str], seed: int
) -> None:
    assume(not DATA_SIZED & {*ops})  # operands are drawn for sizes that are numbers
    try:
        check(seed, ops, sessions)
    except ost.UnsupportedOpError as error:
        if not is_refusal(device, error):
            raise
        assume(False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_hunt(first: int) -> None:
    command = [sys.executable, "-m", "tests.conformance.fuzz", str(first), str(first + CHUNK)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = run.stdout.splitlines()
    assert lines and lines[-1].startswith("done"), (
        f"crashed ({run.returncode}) at {lines[-1] if lines else 'the start'}\n{run.stderr[-4000:]}"
    )
    failures = run.stdout[run.stdout.find("FAILED") :]
    assert run.returncode == 0, failures[:8000]
