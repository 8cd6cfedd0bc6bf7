"""Allocations of runs: none after the first; and what is given back when a graph is dropped."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost

from .block import block_graph, block_params, compiled_block
from .processes import run_script

COUNTER = Path(__file__).parents[1] / "backends" / "malloc_counter.c"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, needs glibc")
NO_ASAN = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="asan replaces malloc, and delays every free"
)


@pytest.fixture(scope="module", params=[1, 2])
def block(request):
    return compiled_block(request.param)


def test_the_block_is_worth_measuring(block):
    compiled, feed, _ = block
    assert len(compiled.plan.kernels) >= 5
    g = block_graph(12)
    expected = ost.reference.evaluate(g, feed, block_params(g))
    y, best = compiled.run(feed)
    np.testing.assert_allclose(y, expected[0], rtol=1e-3, atol=1e-4)
    assert (best == expected[1]).all()


def blocks_kept(call: Callable[[], object], times: int) -> int:
    """The growth of Python's memory blocks over many calls."""
    for _ in range(200):
        call()
    gc.collect()
    gc.disable()  # what only a collection would free counts as kept
    try:
        before = sys.getallocatedblocks()
        for _ in itertools.repeat(None, times):
            call()
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["bound", "out", "out by name", "fresh", "raw", "refused"])
def test_no_python_object_is_left_of_a_run(block, way):
    compiled, feed, out = block
    named = dict(zip(compiled.outputs, out, strict=True))

    def refused() -> None:
        try:
            compiled.run({**feed, "x": feed["x"][1:]})
        except ost.InputError:
            pass
        else:
            raise AssertionError

    call = {
        "bound": compiled.bind(feed, out),
        "out": lambda: compiled.run(feed, out=out),
        "out by name": lambda: compiled.run(feed, out=named),
        "fresh": lambda: compiled.run(feed),
        "raw": lambda: compiled.run_raw(feed),
        "refused": refused,
    }[way]
    assert blocks_kept(call, 10_000) < 200


def traced_growth(call: Callable[[], object], times: int) -> tuple[int, int]:
    """The bytes of Python objects that many calls leave, and the most above the start meanwhile."""
    tracemalloc.start()
    try:
        for _ in range(10):
            call()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in itertools.repeat(None, times):
            call()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - before


def test_a_bound_call_makes_no_python_object(block):
    """Of several series: other threads of the process, as the test runner has, are traced too."""
    compiled, feed, out = block
    call = compiled.bind(feed, out)
    call()
    series = [traced_growth(call, 10_000) for _ in range(5)]
    assert min(growth for growth, _ in series) < 300  # what the loop itself holds
    assert min(peak for _, peak in series) < 1000


COUNT = """
import ctypes, itertools
from block import compiled_block

allocations = ctypes.CDLL(None).allocations
compiled, feed, out = compiled_block(threads=2)
call = compiled.bind(feed, out)

def count(call, *args):
    for _ in range(20):
        call(*args)
    before = allocations()
    for _ in itertools.repeat(None, 10_000):
        call(*args)
    return allocations() - before

print(count(callable, None), count(call))
"""


@LINUX
@NO_ASAN
def test_a_bound_call_calls_no_malloc(tmp_path):
    """Counts every malloc of the process, Python's own included (``PYTHONMALLOC``)."""
    cc = shutil.which(os.environ.get("CC", "cc"))
    if cc is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "counter.so"
    subprocess.run([cc, "-O2", "-shared", "-fPIC", "-o", library, COUNTER], check=True)
    printed = run_script(COUNT, LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
    baseline, bound = map(int, printed.split())
    assert bound < baseline + 10  # of 10,000 calls: the counting itself takes a few


RESIDENT = """
import gc
from pathlib import Path

import numpy as np
import ostinato as ost
from block import compiled_block

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
"""

DROP = """
session = ost.Session("cpu", threads=2)

def cycle(i):
    compiled, feed, out = compiled_block(threads=2, length=8 + i % 4)
    g = ost.Graph()
    g.set_outputs([g.matmul(g.input("x", (1, 1000)), g.param("w", (1000, 1000)))])
    weight = np.full((1000, 1000), i, np.float32)  # four megabytes as it is, and four packed
    large = session.compile(g, {"w": weight})
    assert large.run({"x": np.ones((1, 1000), np.float32)})[0][0, 0] == 1000 * i
    compiled.run(feed)
    compiled.run_raw(feed)
    compiled.bind(feed, out)()

for i in range(12):
    cycle(i)
gc.collect()
before = resident_mib()
for i in range(100):
    cycle(i)
gc.collect()
print(resident_mib() - before)
"""

RUN = """
compiled, feed, out = compiled_block(threads=2)
call = compiled.bind(feed, out)

def cycle():
    call()
    compiled.run(feed)
    compiled.run(feed, out=out)
    compiled.run_raw(feed)
    compiled.bind(feed, out)
    compiled.set_param("q.b", np.zeros(16, np.float32))
    try:
        compiled.run({"x": 3})
    except ost.InputError:
        pass

for _ in range(500):
    cycle()
before = resident_mib()
for _ in range(5_000):
    cycle()
print(resident_mib() - before)
"""


@LINUX
@NO_ASAN
@pytest.mark.parametrize("script", [DROP, RUN], ids=["compile and drop", "run"])
def test_memory_does_not_grow(script):
    assert float(run_script(RESIDENT + script)) < 8
