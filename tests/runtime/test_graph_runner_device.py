"""The runner on real contexts: whatever a step submits happens once a call, come what may."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("capture", "single_ops")


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture(autouse=True)
def no_other_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Total:
    """A compiled graph whose state grows by ``by`` with each run; ``read`` gives it."""

    def __init__(self, session: ost.Session, by: float = 1.0) -> None:
        g = ost.Graph("total")
        total = g.state("total", (3,))
        new = total + g.input("by", (3,))
        g.assign(total, new)
        g.set_outputs({"new": new * 1})
        self.compiled = session.compile(g)
        self.by, self.new = np.full(3, by, np.float32), np.zeros(3, np.float32)
        self.bound = self.compiled.bind({"by": self.by}, [self.new])

    def queue(self) -> None:
        self.compiled.commit_no_wait({"by": self.by})

    def run(self) -> None:
        self.compiled.run({"by": self.by}, out=[self.new])

    def read(self) -> float:
        return float(self.compiled.read_handle("total")[0])


class InPlace:
    """The same with a buffer, in sessions that end in different ways."""

    def __init__(self, session: ost.Session, by: float = 1.0) -> None:
        self.executor = ost.GraphExecutor(session.context)
        self.total = self.executor.empty((3,))
        self.by = self.executor.buffer(np.full(3, by, np.float32))

    def finished(self) -> None:
        with self.executor.begin() as s:
            s.add(self.total, self.by, out=self.total)

    def committed(self) -> ost.Pending:
        s = self.executor.begin()
        s.add(self.total, self.by, out=self.total)
        return s.commit()

    def waited(self) -> None:
        self.committed().wait()

    def read(self) -> float:
        return float(self.total.copyout()[0])


STEPS: dict[str, Callable[[ost.Session], tuple[Callable[[], Any], Callable[[], float]]]] = {
    "a bound call": lambda s: ((t := Total(s)).bound, t.read),
    "a queued run": lambda s: ((t := Total(s)).queue, t.read),
    "a session": lambda s: ((t := InPlace(s)).finished, t.read),
    "a committed session": lambda s: ((t := InPlace(s)).committed, t.read),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_call_has_its_effect_once(session: ost.Session, name: str) -> None:
    step, read = STEPS[name](session)
    runner = ost.GraphRunner(session.context)
    for call in range(1, 9):
        runner.run(0, step)
        assert read() == call
    assert (runner.eager, runner.captured, runner.replayed) == (3, 1, 5)


@pytest.mark.parametrize("name", STEPS)
def test_calls_without_a_look_in_between(session: ost.Session, name: str) -> None:
    """Replays are made behind what was queued eagerly."""
    step, read = STEPS[name](session)
    runner = ost.GraphRunner(session.context, warmup=20)
    for _ in range(50):
        runner.run(0, step)
    assert read() == 50


def test_several_kinds_of_work_in_one_step(session: ost.Session) -> None:
    first, second = Total(session), InPlace(session, by=2)

    def step() -> None:
        first.bound()
        second.finished()
        first.queue()

    runner = ost.GraphRunner(session.context, warmup=1)
    for call in range(1, 6):
        runner.run(0, step)
        assert (first.read(), second.read()) == (2 * call, 2 * call)
    assert runner.captured == 1


WAITING: dict[str, Callable[[ost.Session], tuple[Callable[[], Any], Callable[[], float]]]] = {
    "run": lambda s: ((t := Total(s)).run, t.read),
    "wait": lambda s: ((t := InPlace(s)).waited, t.read),
}


@pytest.mark.parametrize("name", WAITING)
def test_steps_that_wait_stay_eager(session: ost.Session, name: str) -> None:
    step, read = WAITING[name](session)
    runner = ost.GraphRunner(session.context, warmup=1)
    runner.run(0, step)
    with pytest.warns(RuntimeWarning, match="step: CaptureError") as caught:
        runner.run(0, step)
    assert len(caught) == 1
    for call in range(3, 6):
        runner.run(0, step)
        assert read() == call
    assert (runner.eager, runner.skipped) == (5, {"step": 1})


def test_an_allocation_in_the_step(session: ost.Session) -> None:
    work = InPlace(session)

    def step() -> None:
        work.executor.buffer(np.ones(3, np.float32))
        work.finished()

    runner = ost.GraphRunner(session.context, warmup=0)
    with pytest.warns(RuntimeWarning, match="allocates memory"):
        runner.run(0, step)
    runner.run(0, step)
    assert work.read() == 2


# -- recordings that are dropped -------------------------------------------------------------------


def test_memory_that_was_exchanged(session: ost.Session) -> None:
    """A handle bound again has another buffer; the recording that used the old one is gone."""
    g = ost.Graph("handle")
    g.set_outputs({"y": g.input("x", (3,)) * 2})
    compiled = session.compile(g)
    compiled.bind_handle("x", np.ones(3, np.float32))
    runner = ost.GraphRunner(session.context, warmup=1)
    for value in (1, 1, 1, 5, 5, 7):
        if compiled.read_handle("x")[0] != value:
            compiled.unbind_handle("x")
            compiled.bind_handle("x", np.full(3, value, np.float32))
        runner.run(0, compiled.commit_no_wait)
        assert compiled.read_output_row(0, 0) == 2 * value
    assert runner.eager == 1
    assert runner.replayed == 5


def test_memory_that_is_gone(session: ost.Session) -> None:
    """The step itself can no longer run: that is the error, and nothing is warned of."""
    total = Total(session)
    runner = ost.GraphRunner(session.context, warmup=0)
    runner.run(0, total.bound)
    total.compiled.plan.release_all_buffers()
    for _ in range(2):
        with pytest.raises(ost.PlanError):
            runner.run(0, total.bound)
    assert not session.context.capturing
    assert not runner.skipped


def test_a_forgotten_key_gives_up_its_arrays(session: ost.Session) -> None:
    totals = [Total(session) for _ in range(3)]
    runner = ost.GraphRunner(session.context, warmup=0, max_graphs=2)
    living = [weakref.ref(total.new) for total in totals]
    for key, total in enumerate(totals):
        runner.run(key, total.bound)
    del total
    totals.clear()
    gc.collect()
    assert [reference() is not None for reference in living] == [False, True, True]


# -- the variable block ----------------------------------------------------------------------------


def counting(session: ost.Session) -> tuple[Callable[[], None], np.ndarray[Any, Any]]:
    """``position``, at most 9, written by a bound call."""
    g = ost.Graph("position")
    g.set_outputs([g.dim_value(ost.Variable("position", 0, 9))])
    out = np.full((), -1, np.int64)
    return session.compile(g).bind({}, [out]), out


def test_values_out_of_bounds_are_nobodys_fault(session: ost.Session) -> None:
    """The eager call, the recording and the replay raise alike, and all go on."""
    context = session.context
    context.set_dev_state_mode(True)
    bound, out = counting(session)
    runner = ost.GraphRunner(context, warmup=1)
    for step in (3, 10, 4, 10, 5, 10, 6):
        context.set_decode_state(0, step)
        if step == 10:
            with pytest.raises(ost.VariableError, match="position"):
                runner.run(0, bound)
        else:
            runner.run(0, bound)
            assert out == step
    assert (runner.eager, runner.captured, runner.replayed) == (1, 1, 3)
    assert not runner.skipped


def test_out_of_bounds_where_it_is_recorded(session: ost.Session) -> None:
    context = session.context
    context.set_dev_state_mode(True)
    bound, out = counting(session)
    runner = ost.GraphRunner(context, warmup=0)
    context.set_decode_state(0, 10)
    with pytest.raises(ost.VariableError, match="position"):
        runner.run(0, bound)
    context.set_decode_state(0, 9)
    assert runner.run(0, bound) is None
    assert out == 9
    assert (runner.eager, runner.captured) == (0, 1)


# -- many keys, many runners -----------------------------------------------------------------------


@pytest.mark.parametrize("max_graphs", [2, 16])
def test_shuffled_keys(session: ost.Session, max_graphs: int) -> None:
    rng = random.Random(1)
    works = [STEPS[name](session) for name in list(STEPS) * 2]
    keys = rng.sample(range(1 << 40), len(works))
    runner = ost.GraphRunner(session.context, warmup=1, max_graphs=max_graphs)
    turns = [n for n in range(len(works)) for _ in range(10)]
    rng.shuffle(turns)
    for number in turns:
        runner.run(keys[number], works[number][0])
    assert [read() for _, read in works] == [10] * len(works)
    assert len(runner) == min(max_graphs, len(works))


def test_runners_that_share_a_key(session: ost.Session) -> None:
    works = [Total(session), Total(session, by=10)]
    runners = [ost.GraphRunner(session.context) for _ in works]
    for _ in range(8):
        for runner, work in zip(runners, works, strict=True):
            runner.run(0, work.bound)
    assert [work.read() for work in works] == [8, 80]
