"""The recovery of stolen cores: results stay, and so do the processors of every thread."""

from __future__ import annotations

import contextlib
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


CSRC = Path(__file__).parents[2] / "src/ostinato/backends/cpu/csrc"


@pytest.mark.parametrize("recovery", ["off", "together", "on", "failing"])
def test_only_workers_are_moved_and_all_get_their_processors_back(cc, tmp_path, recovery):
    program = tmp_path / "stolen_cores"
    sources = [CSRC / name for name in ("pool.c", "placement.c", "stolen_cores.c")]
    command = [cc, "-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    own = Path(__file__).with_name("stolen_cores.c")
    subprocess.run([*command, "-I", CSRC, own, *sources, "-o", program], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    subprocess.run([program, recovery], check=True, timeout=120, env=environment)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("cpu", "yes", "True or False, got 'yes'"), ("cuda", True, "for the CPU.*CUDA:0")],
)
def test_values_that_make_no_sense(name, value, message):
    with pytest.raises(ost.InputError, match=message):
        ost.Session(name, recover_stolen_cores=value)


@pytest.mark.parametrize("recover", [False, True])
def test_the_option_reaches_the_pool(recover):
    pool = ost.Session("cpu", recover_stolen_cores=recover)._backend._pool
    assert pool.recovers_stolen_cores is recover


def places() -> dict[int, set[int]]:
    """The processors of each thread; other tests' threads may end meanwhile."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            found[int(thread.name)] = os.sched_getaffinity(int(thread.name))
    return found


@pytest.mark.parametrize("recover", [False, True])
def test_runs_beside_a_busy_process_are_right_and_leave_every_thread_its_cores(recover):
    g = ost.Graph()
    x = g.input("x", (64, 256))
    rng = np.random.default_rng(0)
    for i in range(6):
        w = rng.standard_normal((256, 256)).astype(np.float32) / 16
        x = g.relu(g.matmul(x, g.param(f"w{i}", (256, 256), value=w)))
    g.set_outputs([x])
    compiled = ost.Session("cpu", threads=2, recover_stolen_cores=recover).compile(g)
    feed = {"x": rng.standard_normal((64, 256)).astype(np.float32)}
    expected = compiled.run(feed)[0].tobytes()
    time.sleep(0.05)  # a worker that wakes late may be on its way to another core
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
    end = time.monotonic() + 5
    while changed(before) and time.monotonic() < end:
        time.sleep(0.01)  # a worker that wakes late may be on its way to another core
    assert not changed(before)


def changed(before: dict[int, set[int]]) -> set[int]:
    """The threads that are allowed other processors than before."""
    after = places()
    return {t for t in before if t in after and after[t] != before[t]}
