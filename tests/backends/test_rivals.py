"""Beside a process that takes one of the cores: results and the threads' own places stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def places() -> dict[int, set[int]]:
    return {
        int(t.name): os.sched_getaffinity(int(t.name)) for t in Path("/proc/self/task").iterdir()
    }


def test_runs_beside_a_busy_process_are_right_and_leave_every_thread_its_cores():
    g = ost.Graph()
    x = g.input("x", (64, 256))
    rng = np.random.default_rng(0)
    for i in range(6):
        w = rng.standard_normal((256, 256)).astype(np.float32) / 16
        x = g.relu(g.matmul(x, g.param(f"w{i}", (256, 256), value=w)))
    g.set_outputs([x])
    compiled = ost.Session("cpu", threads=2).compile(g)
    feed = {"x": rng.standard_normal((64, 256)).astype(np.float32)}
    expected = compiled.run(feed)[0].tobytes()
    before = places()
    code = (
        f"import os; os.sched_setaffinity(0, {{{CORES[-1]}}}); print(flush=True)\nwhile True: pass"
    )
    busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            assert compiled.run(feed)[0].tobytes() == expected
    finally:
        busy.kill()
        busy.wait()
    after = places()
    assert {t: after[t] for t in before if t in after} == {
        t: before[t] for t in before if t in after
    }
