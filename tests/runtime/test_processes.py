"""Compiled graphs across forks, in new processes, and at the end of the interpreter."""

from __future__ import annotations

import os

import pytest

from .processes import run_script

FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")

PRELUDE = """
import gc, multiprocessing, os, threading, time
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import ostinato as ost
from block import compiled_block

def result(compiled, feed):
    return [array.tobytes() for array in compiled.run(feed)]
"""

FORKED = """
compiled, feed, out = compiled_block(threads=2)
expected = result(compiled, feed)
call = compiled.bind(feed, out)
call()

def child():
    assert result(compiled, feed) == expected
    out[0].fill(0)
    call()
    assert [a.tobytes() for a in out] == expected
    params = {"up.b": np.ones(64, np.float32)}
    compiled.set_params(params)
    assert result(compiled, feed) != expected
    fresh, *_ = compiled_block(threads=2, length=7)
    other = ost.Session("cpu", threads=2)
    gc.collect()

context = multiprocessing.get_context("fork")
for generation in range(3):
    children = [context.Process(target=child) for _ in range(2)]
    for process in children:
        process.start()
    assert result(compiled, feed) == expected
    for process in children:
        process.join(60)
        assert process.exitcode == 0, process.exitcode
assert result(compiled, feed) == expected, "a child's write of a param reached its parent"
print("done")
"""

FORKED_WHILE_BUSY = """
compiled, feed, out = compiled_block(threads=2)
expected = result(compiled, feed)
stop = threading.Event()

def keep_busy(write):
    while not stop.is_set():
        if write:
            compiled.set_param("q.b", params["q.b"])
        else:
            compiled.run(feed)

from block import block_graph, block_params
params = block_params(block_graph(12))
threads = [threading.Thread(target=keep_busy, args=(write,)) for write in (True, False, False)]
for thread in threads:
    thread.start()
for generation in range(20):
    pid = os.fork()
    if pid == 0:
        ok = result(compiled, feed) == expected
        compiled.set_param("q.b", params["q.b"])
        os._exit(0 if ok and result(compiled, feed) == expected else 3)
    deadline = time.monotonic() + 30
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            raise SystemExit("a child hangs")
        time.sleep(0.001)
    assert os.waitstatus_to_exitcode(status) == 0, status
stop.set()
for thread in threads:
    thread.join()
assert result(compiled, feed) == expected
print("done")
"""

WORKERS = """
def work(seed):
    compiled, feed, _ = compiled_block(threads=2)
    return result(compiled, feed)

if __name__ == "__main__":
    expected = work(0)
    context = multiprocessing.get_context("METHOD")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert all(r == expected for r in executor.map(work, range(4)))
    print("done")
"""

EXIT_WITH_LIVE_POOLS = """
kept = [compiled_block(threads=2) for _ in range(3)]
for compiled, feed, out in kept:
    compiled.run(feed)
    compiled.bind(feed, out)()
cycle = {"kept": kept}
cycle["cycle"] = cycle
print("done")
"""

EXIT_WHILE_RUNNING = """
compiled, feed, out = compiled_block(threads=2)

def forever(call):
    while True:
        call()

for call in (lambda: compiled.run(feed), compiled.bind(feed, out), lambda: compiled.run_raw(feed)):
    threading.Thread(target=forever, args=(call,), daemon=True).start()
time.sleep(0.1)
print("done")
"""

EXIT_IN_FINALIZERS = """
import atexit, sys, weakref
compiled, feed, out = compiled_block(threads=2)
call = compiled.bind(feed, out)

class Late:
    def __del__(self):
        call()

late = Late()
sys.modules["late"] = late
atexit.register(lambda: compiled.run(feed))
weakref.finalize(late, lambda: None)
print("done")
"""

EXIT_BY_SYSTEM_EXIT = """
compiled, feed, out = compiled_block(threads=2)
compiled.run(feed)
threading.Thread(target=lambda: [compiled.run(feed) for _ in range(200)]).start()
print("done", flush=True)
raise SystemExit(0)
"""

INTERRUPTED = """
import signal
compiled, feed, out = compiled_block(threads=2)
expected = result(compiled, feed)
signal.signal(signal.SIGALRM, signal.default_int_handler)
caught = 0
for i in range(30):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + i / 20_000)
        while True:
            compiled.run(feed)
            compiled.set_param("q.b", np.zeros(16, np.float32))
            compiled.run_raw(feed)
    except KeyboardInterrupt:
        caught += 1
assert caught == 30
fresh, _, _ = compiled_block(threads=2)
fresh.set_param("q.b", np.zeros(16, np.float32))
assert result(compiled, feed) == result(fresh, feed) != expected
print("done")
"""


@FORK
@pytest.mark.parametrize("script", [FORKED, FORKED_WHILE_BUSY], ids=["idle", "busy"])
def test_a_fork_goes_on(script):
    assert run_script(PRELUDE + script) == "done\n"


@FORK
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method(method):
    assert run_script(PRELUDE + WORKERS.replace("METHOD", method)) == "done\n"


@pytest.mark.parametrize(
    "script",
    [EXIT_WITH_LIVE_POOLS, EXIT_WHILE_RUNNING, EXIT_IN_FINALIZERS, EXIT_BY_SYSTEM_EXIT],
    ids=["idle", "running", "finalizers", "system exit"],
)
def test_the_interpreter_ends(script):
    assert run_script(PRELUDE + script) == "done\n"


@FORK
def test_an_interrupt_breaks_nothing():
    assert run_script(PRELUDE + INTERRUPTED) == "done\n"
