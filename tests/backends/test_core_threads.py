"""The native core on many threads: one run at a time or several together, and across fork."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ostinato.backends.cpu import _core

CSRC = Path(__file__).parents[2] / "src/ostinato/backends/cpu/csrc"
MANY = 400


def counting_program(pool, kernels, cases):
    """Counts, for each (extent, grain), the runs of every row and the pieces they came in."""
    rows = [np.zeros(max(extent, 1), np.int64) for extent, _ in cases]
    pieces = np.zeros(len(cases), np.int64)
    steps = [
        (kernels.count, ((i, 0), (len(cases), 8 * i)), extent, 0, grain, 0)
        for i, (extent, grain) in enumerate(cases)
    ]
    return _core.Program(pool, [*rows, pieces], steps, 0), rows, pieces


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_row_runs_exactly_once(kernels, threads):
    choose = random.Random(threads)
    cases = [
        (choose.choice([0, 1, 2, 7, choose.randrange(5000)]), choose.choice([1, 2, 3, 64, 1000]))
        for _ in range(MANY)
    ]
    program, rows, pieces = counting_program(_core.ThreadPool(threads), kernels, cases)
    for repeat in (1, 2, 3):
        program.run()
        for (extent, _), counts in zip(cases, rows, strict=True):
            assert (counts[:extent] == repeat).all()
            assert (counts[extent:] == 0).all()
    whole = [extent <= grain or threads == 1 for extent, grain in cases]
    expected = [3 * (extent > 0) for extent, _ in cases]
    for is_whole, count, exactly in zip(whole, pieces, expected, strict=True):
        assert count == exactly if is_whole else count > exactly


def test_threads_start_when_there_is_something_to_share(kernels):
    pool = _core.ThreadPool(4)
    assert (pool.threads, pool.workers) == (4, 0)
    small = [(100, 100)]
    counting_program(pool, kernels, small)[0].run()
    assert pool.workers == 0
    alone = (kernels.count, ((0, 0), (1, 0)), 100, 0, 1, 0, False)
    pieces = np.zeros(1, np.int64)
    _core.Program(pool, [np.zeros(100, np.int64), pieces], [alone], 0).run()
    assert (pool.workers, pieces[0]) == (0, 1)
    counting_program(pool, kernels, [(101, 100)])[0].run()
    assert pool.workers == 3


@pytest.mark.parametrize("threads", [0, -1, 1025, 1 << 40])
def test_thread_count_is_checked(threads):
    with pytest.raises(ValueError, match=r"threads is .* must lie in 1\.\.1024"):
        _core.ThreadPool(threads)


@pytest.mark.parametrize("threads", [1, 4])
def test_scratch_is_private_and_aligned(kernels, threads):
    addresses, clashes = np.zeros(64, np.int64), np.zeros(64, np.int64)
    step = (kernels.report_scratch, ((0, 0), (1, 0)), 64, 0, 1, 1000)
    program = _core.Program(_core.ThreadPool(threads), [addresses, clashes], [step], 0)
    for _ in range(20):
        program.run()
    assert not clashes.any()
    assert not (addresses % 64).any()
    distinct = sorted(set(addresses.tolist()))
    assert len(distinct) <= threads
    assert all(b - a >= 1000 for a, b in itertools.pairwise(distinct))


def in_threads(count, work):
    """Runs work(i) on that many threads at once; raises what they raise."""
    together = threading.Barrier(count)

    def start(index):
        together.wait()
        return work(index)

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(start, range(count)))


def test_runs_of_one_program_take_turns(kernels):
    state = np.zeros(1, np.uint64)
    pool = _core.ThreadPool(2)
    step = (kernels.step_state, ((0, 0),), 5, 0, 1, 0, False)
    program = _core.Program(pool, [state], [step], 0)
    bound = program.bind()
    in_threads(6, lambda i: [bound() if i % 2 else program.run() for _ in range(200)])
    assert int(state[0]) == (3 ** (6 * 200 * 5) - 1) // 2 % 2**64


def test_programs_take_turns_where_they_are_told_to(kernels):
    state = np.zeros(1, np.uint64)
    pool = _core.ThreadPool(2)

    def program(other):
        step = (kernels.step_state, ((0, 0),), 5, 0, 1, 0, False)
        return _core.Program(pool, [state], [step], 0, exclusive_with=other)

    first = program(None)
    second = program(first)
    third = program(second)
    runs = [first.run, second.bind(), third.run]
    del first, second, third  # the lock lives on
    in_threads(3, lambda i: [runs[i]() for _ in range(300)])
    assert int(state[0]) == (3 ** (3 * 300 * 5) - 1) // 2 % 2**64


def test_concurrent_runs_use_their_own_arrays_and_variables(kernels):
    slots = [(800, True), (800, False), (800, False)]
    step = (kernels.add, ((0, 0), (1, 0), (2, 0)), 100, 0, 8, 0)
    program = _core.Program(_core.ThreadPool(2), slots, [step, step], 1)

    def work(index):
        out, a = np.zeros(100, np.int64), np.full(100, index)
        bound = program.bind([out, a, a], [10 * index])
        for repeat in range(300):
            program.run([out, a, a], [repeat])
            assert (out == 2 * index + repeat).all()
            bound()
            assert (out == 12 * index).all()

    in_threads(5, work)


def test_programs_sharing_a_pool_do_not_wait_for_each_other(kernels):
    pool = _core.ThreadPool(2)
    long = _core.Program(pool, [], [(kernels.dawdle, (), 4000, 0, 1, 0)], 0)
    program, rows, _ = counting_program(pool, kernels, [(1000, 10)])
    busy = threading.Thread(target=long.run)
    busy.start()
    runs = 0
    while busy.is_alive():
        program.run()
        runs += 1
    busy.join()
    assert runs > 1
    assert (rows[0] == runs).all()


def test_the_gil_is_free_while_running(kernels):
    long = _core.Program(_core.ThreadPool(1), [], [(kernels.dawdle, (), 2000, 0, 1, 0)], 0)
    started = time.perf_counter()
    long.run()
    alone = time.perf_counter() - started
    busy = threading.Thread(target=long.run)
    busy.start()
    ticks = 0
    while busy.is_alive():
        time.sleep(alone / 100)
        ticks += 1
    assert ticks > 5


def test_pools_die_idle_and_young(kernels):
    for life in range(100):
        program, rows, _ = counting_program(_core.ThreadPool(1 + life % 4), kernels, [(50, 1)])
        program.run()
        assert (rows[0] == 1).all()
        if life % 10 == 0:
            time.sleep(0.001)  # long enough for the workers to fall asleep
        del program
    gc.collect()


# ---- fork and exit ---------------------------------------------------------------------------

FORK = """
import ctypes, os, sys, threading
import numpy as np
from ostinato.backends.cpu import _core

kernels = ctypes.CDLL(sys.argv[1])
address = lambda name: ctypes.cast(getattr(kernels, name), ctypes.c_void_p).value
pool = _core.ThreadPool(4)
rows, pieces = np.zeros(1000, np.int64), np.zeros(1, np.int64)
count = (address("count"), ((0, 0), (1, 0)), 1000, 0, 1, 0)
program = _core.Program(pool, [rows, pieces], [count], 0)
bound = program.bind()
long = _core.Program(pool, [], [(address("dawdle"), (), 2000, 0, 1, 0)], 0)
waiting = _core.Program(pool, [rows, pieces], [count], 0, exclusive_with=long)
bound()

# Fork while another thread is inside a run: the child inherits its locks, and none of its threads.
busy = threading.Thread(target=lambda: [long.run() for _ in range(3)])
busy.start()
for generation in range(3):
    child = os.fork()
    if child == 0:
        rows[:] = 0
        assert pool.workers == 0
        bound()
        program.run()
        long.run()
        assert pool.workers == 3, pool.workers
        fresh = _core.Program(pool, [rows, pieces], [count], 0)
        fresh.run()
        waiting.run()
        assert (rows == 4).all()
        grandchild = os.fork()
        if grandchild == 0:
            bound()
            waiting.run()
            assert (rows == 6).all()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
        del program, bound, fresh, waiting, long, pool  # and joins only its own workers
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
busy.join()
bound()
assert (rows == 2).all()
print("done")
"""

EXIT_WHILE_RUNNING = """
import ctypes, sys, threading, time
from ostinato.backends.cpu import _core

kernels = ctypes.CDLL(sys.argv[1])
dawdle = ctypes.cast(kernels.dawdle, ctypes.c_void_p).value
program = _core.Program(_core.ThreadPool(3), [], [(dawdle, (), 3000, 0, 1, 0)], 0)

def forever():
    while True:
        program.run()

for _ in range(2):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("script", [FORK, EXIT_WHILE_RUNNING], ids=["fork", "exit"])
def test_in_a_process_of_its_own(kernels, script):
    done = subprocess.run(
        [sys.executable, "-c", script, str(kernels.path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# ---- the pool alone, in C ----------------------------------------------------------------------


@pytest.mark.parametrize("sanitizer", [None, "thread", "address,undefined"])
def test_pool_stress(cc, tmp_path, sanitizer):
    flags = [] if sanitizer is None else [f"-fsanitize={sanitizer}"]
    program = tmp_path / "pool_stress"
    parts = ("pool.c", "placement.c", "stolen_cores.c")
    sources = [Path(__file__).with_name("pool_stress.c"), *(CSRC / part for part in parts)]
    command = [cc, "-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    built = subprocess.run(
        [*command, "-I", CSRC, *sources, "-o", program], check=False, capture_output=True, text=True
    )
    if built.returncode != 0 and sanitizer is not None:
        pytest.skip(f"{cc} has no -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(
        [program, "2"], check=False, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
