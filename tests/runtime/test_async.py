"""Queued runs: in order, on copies of their inputs, with errors kept until they are asked for."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost

from .graphs import FED, W, X, sized_inputs, tiny


def counter_graph(size: int = 4) -> ost.Graph:
    """A state that adds up inputs."""
    g = ost.Graph("counter")
    x = g.input("x", (size,))
    total = g.state("total", (size,))
    new = total + x
    g.assign(total, new)
    g.set_outputs([new * 1.0])
    return g


def slow_graph() -> ost.Graph:
    """A run of some tens of milliseconds."""
    g = ost.Graph("slow")
    x = g.input("x", (256, 256))
    value = x
    for _ in range(60):
        value = g.matmul(value, x)
    g.set_outputs([value])
    return g


EYE = {"x": np.eye(256, dtype=np.float32)}
ONES = {"x": np.ones(4, np.float32)}
WRONG = {"x": np.ones(5, np.float32)}


@pytest.fixture
def counter(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(counter_graph())


@pytest.fixture(scope="module")
def slow(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(slow_graph())


def total(compiled: ost.CompiledGraph) -> float:
    state = compiled.read_handle("total")
    assert (state == state[0]).all()
    return float(state[0])


# ---- order ---------------------------------------------------------------------------------------


def test_queued_runs_are_made_in_order(counter):
    for _ in range(50):
        counter.commit_no_wait(ONES)
    assert counter.sync_pending() is None
    assert total(counter) == 50


def test_a_commit_does_not_wait(slow):
    """Of several attempts: on a busy machine, all runs may be over before this thread goes on."""

    def returns_early() -> bool:
        start = time.perf_counter()
        for _ in range(10):
            slow.commit_no_wait(EYE)
        queued = time.perf_counter() - start
        slow.sync_pending()
        return queued < (time.perf_counter() - start) / 2

    assert any(returns_early() for _ in range(20))
    assert (slow.read_output_row(0, 3) == EYE["x"][3]).all()


def test_every_other_call_comes_after_what_is_queued(session):
    calls: dict[str, Any] = {
        "run": lambda c: c.run(ONES)[0][0] - 1,
        "run_raw": lambda c: c.run_raw(ONES)[0][0] - 1,
        "run_read_outputs": lambda c: c.run_read_outputs(ONES, [0])[0][0] - 1,
        "run_slots": lambda c: c.run_slots(ONES["x"]) and total(c) - 1,
        "run_typed": lambda c: (
            np.frombuffer(c.run_typed([("x", ONES["x"].tobytes(), "f32")])[0][0], np.float32)[0] - 1
        ),
        "run_pipelined": lambda c: c.run_pipelined([ONES])[0][0][0] - 1,
        "read_handle": total,
        "clone": lambda c: total(c.clone()),
    }
    for name, call in calls.items():
        compiled = session.compile(counter_graph(1 << 14))
        ONES["x"] = np.ones(1 << 14, np.float32)
        for _ in range(30):
            compiled.commit_no_wait(ONES)
        assert call(compiled) == 30, name
        compiled.sync_pending()
    ONES["x"] = np.ones(4, np.float32)


def test_writes_come_after_what_is_queued(own, counter):
    for _ in range(20):
        own.commit_no_wait(FED)
    own.set_param("w", W * 2)
    np.testing.assert_allclose(own.read_output_row(0, 0), tiny()[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(own.run(FED)[0], tiny(w=W * 2), rtol=1e-5, atol=1e-6)
    for _ in range(20):
        counter.commit_no_wait(ONES)
    counter.bind_handle("total", np.zeros(4, np.float32))
    assert total(counter) == 0
    for _ in range(20):
        counter.commit_no_wait(ONES)
    counter.unbind_handle("total")
    assert total(counter) == 0


def test_the_last_results_can_be_read(sized):
    for n in (3, 9, 5):
        sized.commit_no_wait(sized_inputs(n))
    expected = sized.clone().run(sized_inputs(5))[0]
    assert (sized.read_output_row(0, 4) == expected[4]).all()
    assert sized.read_output_row(0, 5) is None
    sized.sync_pending()


def test_results_already_returned_never_change(counter):
    kept = counter.run(ONES)[0]
    for _ in range(20):
        counter.commit_no_wait(ONES)
    counter.sync_pending()
    assert kept.tolist() == [1] * 4


# ---- inputs --------------------------------------------------------------------------------------


def test_inputs_may_be_changed_after_a_commit(counter):
    """One array, reused for every commit: each run must see what was there when it was queued."""
    x = np.ones(4, np.float32)
    for i in range(100):
        x[:] = i
        counter.commit_no_wait({"x": x})
    x[:] = -1e9
    counter.sync_pending()
    assert total(counter) == sum(range(100))


def test_inputs_may_be_freed_after_a_commit(slow):
    for _ in range(3):
        slow.commit_no_wait({"x": np.eye(256, dtype=np.float32)})
    gc.collect()
    rubbish = [np.full((256, 256), np.nan, np.float32) for _ in range(20)]
    slow.sync_pending()
    del rubbish
    assert (slow.read_output_row(0, 7) == EYE["x"][7]).all()


def test_the_mapping_may_be_changed_after_a_commit(counter):
    feed = dict(ONES)
    counter.commit_no_wait(feed)
    feed.clear()
    counter.sync_pending()
    assert total(counter) == 1


def test_handles_and_feeds_follow_the_queue(session):
    g = ost.Graph("fib")
    a, b = g.input("a", (2,)), g.input("b", (2,))
    g.set_outputs([g.reshape(b, (2,)), a + b])
    compiled = session.compile(g)
    compiled.bind_handle("a", np.zeros(2, np.float32))
    compiled.bind_handle("b", np.ones(2, np.float32))
    compiled.set_handle_feed("a", 0)
    compiled.set_handle_feed("b", 1)
    for _ in range(30):
        compiled.commit_no_wait()
    assert compiled.read_handle("a").tolist() == [832040] * 2
    compiled.sync_pending()


# ---- errors --------------------------------------------------------------------------------------


def test_the_first_error_comes_with_the_sync_and_once(counter):
    counter.commit_no_wait(ONES)
    counter.commit_no_wait(WRONG)
    counter.commit_no_wait({"y": ONES["x"]})
    counter.commit_no_wait(ONES)
    with pytest.raises(ost.InputError, match=r"'x' has shape \(4,\), got \(5,\)"):
        counter.sync_pending()
    counter.sync_pending()
    assert total(counter) == 2, "the good ones have run, the wrong ones changed nothing"


@pytest.mark.parametrize("inputs", [None, 7, [1.0], {"x": "text"}, {"x": None}, {0: 1}, {}, "x"])
def test_foreign_inputs(counter, inputs):
    counter.commit_no_wait(inputs)
    with pytest.raises(ost.InputError):
        counter.sync_pending()
    assert total(counter) == 0


def test_errors_wait_while_other_calls_work(counter):
    counter.commit_no_wait(WRONG)
    assert counter.run(ONES)[0].tolist() == [1] * 4
    assert total(counter) == 1
    with pytest.raises(ost.InputError):
        counter.sync_pending()


def test_sync_with_nothing_queued(counter):
    assert counter.sync_pending() is None
    counter.clone().sync_pending()


def test_a_clone_has_a_queue_of_its_own(counter):
    counter.commit_no_wait(WRONG)
    clone = counter.clone()
    clone.commit_no_wait(ONES)
    clone.sync_pending()
    assert total(clone) == 1
    with pytest.raises(ost.InputError):
        counter.sync_pending()


# ---- many runs -----------------------------------------------------------------------------------


def test_pipelined_runs_equal_single_ones_bit_for_bit(sized):
    sets = [sized_inputs(n) for n in (3, 1, 16, 3, 7)]
    got = sized.run_pipelined(sets)
    assert len(got) == 5
    for outputs, feed in zip(got, sets, strict=True):
        expected = sized.run(feed)
        assert [a.shape for a in outputs] == [a.shape for a in expected]
        assert [a.tobytes() for a in outputs] == [a.tobytes() for a in expected]


def test_every_run_keeps_its_outputs(counter):
    got = counter.run_pipelined([ONES] * 10)
    before = [outputs[0].tobytes() for outputs in got]
    counter.run_pipelined([ONES] * 10)
    assert [outputs[0][0] for outputs in got] == list(range(1, 11))
    assert [outputs[0].tobytes() for outputs in got] == before
    got[0][0][:] = 0
    assert got[1][0][0] == 2
    assert total(counter) == 20


def test_sets_of_all_kinds(counter):
    assert counter.run_pipelined([]) == []
    assert [o[0][0] for o in counter.run_pipelined(ONES for _ in range(3))] == [1, 2, 3]
    assert counter.run_pipelined((ONES,))[0][0][0] == 4


def test_nothing_runs_when_one_set_is_wrong(counter):
    with pytest.raises(ost.InputError):
        counter.run_pipelined([ONES, ONES, WRONG])
    assert total(counter) == 0
    for sets in (None, 7, ONES, [None, 7], "ab"):
        with pytest.raises(ost.InputError):
            counter.run_pipelined(sets)
    assert total(counter) == 0


def test_pipelined_runs_with_feeds(session):
    g = ost.Graph("acc")
    acc, x = g.input("acc", (2,)), g.input("x", (2,))
    g.set_outputs([acc + x])
    compiled = session.compile(g)
    compiled.set_handle_feed("acc", 0)
    one = np.ones(2, np.float32)
    got = compiled.run_pipelined([{"acc": one, "x": one}, {"x": one}, {"x": 5 * one}])
    assert [outputs[0].tolist() for outputs in got] == [[2, 2], [3, 3], [8, 8]]
    assert compiled.read_handle("acc").tolist() == [8, 8]


def test_no_run_comes_between_pipelined_ones(counter):
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            counter.commit_no_wait({"x": np.full(4, 1000, np.float32)})
            counter.sync_pending()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(20):
            got = [outputs[0][0] for outputs in counter.run_pipelined([ONES] * 5)]
            assert [value - got[0] for value in got] == [0, 1, 2, 3, 4]
    finally:
        stop.set()
        thread.join()


# ---- threads and processes -----------------------------------------------------------------------


@pytest.mark.needs("host_threads")  # a GPU is done before the other thread has begun
def test_other_threads_run_meanwhile(slow):
    """The GIL is free while a queued run computes."""
    slow.run(EYE)
    slow.commit_no_wait(EYE)
    ticks = 0
    done = threading.Event()

    def wait() -> None:
        slow.sync_pending()
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not done.is_set():
        ticks += 1
    thread.join()
    assert ticks > 100


def test_commits_from_many_threads(counter):
    def work() -> None:
        for _ in range(50):
            counter.commit_no_wait(ONES)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counter.sync_pending()
    assert total(counter) == 200


def test_the_thread_ends_with_the_graph(session):
    compiled = session.compile(counter_graph())
    compiled.commit_no_wait(ONES)
    compiled.sync_pending()
    mine = [t for t in threading.enumerate() if t.name.startswith("ostinato-queue")]
    gone = weakref.ref(compiled)
    count = len(mine)
    del compiled
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 10
    while sum(t.is_alive() for t in mine) >= count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(t.is_alive() for t in mine) < count


def test_a_graph_lives_until_its_queue_is_done(session):
    compiled = session.compile(slow_graph())
    for _ in range(3):
        compiled.commit_no_wait(EYE)
    gone = weakref.ref(compiled)
    del compiled
    deadline = time.monotonic() + 30
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert gone() is None


def _in_child(compiled: ost.CompiledGraph, send: Any) -> None:
    compiled.commit_no_wait(ONES)
    compiled.sync_pending()
    send.send(total(compiled) + compiled.run(ONES)[0][0])


@pytest.mark.needs("fork")  # CUDA does not work in a forked child
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_an_empty_queue_and_free_locks(session):
    """Forked while runs are queued and one holds the lock: the child must not wait for them."""
    counter = session.compile(counter_graph())
    counter.commit_no_wait(ONES)
    counter.sync_pending()
    slow = session.compile(slow_graph())
    for _ in range(3):
        slow.commit_no_wait(EYE)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(counter, send))
    slow_child = context.Process(target=slow.run_raw, args=(EYE,))
    for process in (child, slow_child):
        process.start()
    assert receive.poll(60), "the child hangs"
    assert receive.recv() == 2 + 3
    for process in (child, slow_child):
        process.join(60)
        assert process.exitcode == 0
    slow.sync_pending()
    assert total(counter) == 1


@pytest.mark.needs("quick")
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "raise SystemExit", "del compiled"])
def test_the_interpreter_ends_with_runs_in_the_queue(ending, device):
    script = textwrap.dedent(
        f"""
        import sys
        import numpy as np
        import ostinato as ost
        from tests.devices.registered import open_session
        g = ost.Graph("g")
        x = g.input("x", (128, 128))
        value = x
        for _ in range(20):
            value = g.matmul(value, x)
        g.set_outputs([value])
        compiled = open_session({device!r}, threads=2).compile(g)
        for _ in range(20):
            compiled.commit_no_wait({{"x": np.eye(128, dtype=np.float32)}})
        print("queued", flush=True)
        {ending}
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "queued\n"
    assert done.stderr == ""


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, in workers of pytest-xdist, too, which ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupting_a_sync_leaves_the_queue_usable(slow, interrupts):
    """Ctrl-C while waiting: the runs go on, and a later sync finds them done."""
    for _ in range(5):
        slow.commit_no_wait(EYE)
    timer = threading.Timer(0.02, signal.raise_signal, (signal.SIGINT,))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        slow.sync_pending()
        time.sleep(10)  # it comes at some time
    timer.join()
    slow.sync_pending()
    assert (slow.run(EYE)[0] == EYE["x"]).all()


def test_nothing_of_this_changes_plain_runs(compiled):
    before = compiled.run(FED)[0].tobytes()
    compiled.commit_no_wait({"x": X * 2})
    compiled.sync_pending()
    assert compiled.run(FED)[0].tobytes() == before
