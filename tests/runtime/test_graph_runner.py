"""The runner's policy, on a context that is a list of what happened."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

import ostinato as ost
from ostinato.runtime.graph_runner import GraphRunner


class FakeContext:
    """Records callables, as a device records launches.

    Attributes:
        recordings: by key.
        log: the names of the calls made.
    """

    supports_capture = True
    label = "a context"

    def __init__(self) -> None:
        self.recordings: dict[int, list[Callable[[], None]]] = {}
        self.log: list[str] = []
        self.serials: dict[int, int] = {}
        self._recording: list[Callable[[], None]] | None = None

    @property
    def capturing(self) -> bool:
        return self._recording is not None

    @property
    def capturing_number(self) -> int:
        return int(self.capturing)

    @property
    def captured_calls(self) -> int:
        return len(self._recording or ())

    def submit(self, work: Callable[[], None]) -> None:
        if self._recording is None:
            work()
        else:
            self._recording.append(work)

    def begin_graph_capture(self, *, exclusive: bool = False) -> None:
        if self.capturing:
            raise ost.CaptureError("nested")
        self.log.append("begin")
        self._recording = []

    def end_graph_capture(self, key: int) -> None:
        if self._recording is None:
            raise ost.CaptureError("end without begin")
        self.log.append(f"end {key}")
        self.recordings[key], self._recording = self._recording, None
        self.serials[key] = self.log.count("begin")

    def cancel_graph_capture(self) -> None:
        self._recording = None

    def replay_graph(self, key: int) -> bool:
        self.log.append(f"replay {key}")
        for work in self.recordings.get(key, []):
            work()
        return key in self.recordings

    def recording_serial(self, key: int) -> int:
        return self.serials[key] if key in self.recordings else 0

    def reset_graph(self, key: int) -> None:
        self.log.append(f"reset {key}")
        self.recordings.pop(key, None)


class CountedStep:
    """A step that counts how often its work was done, and how often it was asked to submit it."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self.done = self.submitted = 0

    def __call__(self) -> str:
        self.submitted += 1
        self.context.submit(self.work)
        return "eager"

    def work(self) -> None:
        self.done += 1


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.fixture
def step(context: FakeContext) -> CountedStep:
    return CountedStep(context)


@pytest.fixture(autouse=True)
def no_other_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def counters(runner: GraphRunner) -> tuple[int, int, int, dict[str, int]]:
    return runner.eager, runner.captured, runner.replayed, dict(runner.skipped)


# -- warm-up, capture, replay ----------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_warm_up_then_capture_then_replay(
    context: FakeContext, step: CountedStep, warmup: int
) -> None:
    runner = GraphRunner(context, warmup=warmup)
    results = []
    for call in range(1, 11):
        results.append(runner.run(7, step))
        assert step.done == call, "every call has its effect exactly once"
    assert results == ["eager"] * warmup + [None] * (10 - warmup)
    assert step.submitted == warmup + 1
    assert counters(runner) == (warmup, 1, 10 - warmup, {})


def test_defaults(context: FakeContext, step: CountedStep) -> None:
    runner = ost.GraphRunner(context)
    assert (runner.warmup, runner.max_graphs) == (3, 16)
    assert [runner(0, step) for _ in range(4)] == ["eager"] * 3 + [None]
    assert "3 eager, 1 captured, 1 replayed" in repr(runner)


def test_keys_warm_up_on_their_own(context: FakeContext) -> None:
    runner, steps = GraphRunner(context), [CountedStep(context) for _ in range(5)]
    keys = [key for key in range(5) for _ in range(12)]
    random.Random(0).shuffle(keys)
    for key in keys:
        runner.run(key, steps[key])
    assert [s.done for s in steps] == [12] * 5
    assert [s.submitted for s in steps] == [4] * 5
    assert counters(runner) == (15, 5, 45, {})


def test_a_dropped_recording_is_made_anew(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=1)
    for _ in range(3):
        runner.run(0, step)
    context.recordings.clear()
    assert runner.run(0, step) is None
    assert step.done == 4
    assert counters(runner) == (1, 2, 3, {})


def test_runners_that_share_a_key_never_replay_each_other(context: FakeContext) -> None:
    steps = [CountedStep(context), CountedStep(context)]
    runners = [GraphRunner(context, warmup=0, max_graphs=1) for _ in steps]
    for turn in range(1, 4):
        for runner, step in zip(runners, steps, strict=True):
            runner.run(0, step)
            assert step.done == turn
    runners[0].run(1, steps[0])  # forgets key 0, whose recording is the other's by now
    assert 0 in context.recordings


def test_numpy_ints_and_negative_keys_are_keys(context: FakeContext, step: CountedStep) -> None:
    import numpy as np

    runner = GraphRunner(context, warmup=0)
    runner.run(-3, step)
    runner.run(np.int64(-3), step)
    assert counters(runner) == (0, 1, 2, {})
    assert -3 in runner


# -- least recently used out -----------------------------------------------------------------------


def test_the_key_used_longest_ago_makes_room(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=0, max_graphs=2)
    for key in (1, 2, 1, 3):
        runner.run(key, step)
    assert sorted(context.recordings) == [1, 3]
    assert (1 in runner, 2 in runner, 3 in runner, len(runner)) == (True, False, True, 2)
    runner.run(2, step)
    assert sorted(context.recordings) == [2, 3]
    assert step.done == 5


def test_many_keys_leave_little_behind(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=1, max_graphs=4)
    for key in range(1000):
        runner.run(key, step)
        runner.run(key, step)
    assert (len(runner), len(context.recordings), step.done) == (4, 4, 2000)


# -- failures --------------------------------------------------------------------------------------


def fail(*_: object) -> None:
    raise RuntimeError("no more streams")


def begun_and_failed(context: FakeContext) -> Callable[[], None]:
    begin = context.begin_graph_capture

    def replacement() -> None:
        begin()
        fail()

    return replacement


FAILURES = {
    "begin": lambda c: setattr(c, "begin_graph_capture", fail),
    "begin, half-way": lambda c: setattr(c, "begin_graph_capture", begun_and_failed(c)),
    "end": lambda c: setattr(c, "end_graph_capture", fail),
    "replay": lambda c: setattr(c, "replay_graph", fail),
    "replay, False": lambda c: setattr(c, "replay_graph", lambda key: False),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_falls_back_with_one_warning(
    context: FakeContext, step: CountedStep, failure: str
) -> None:
    runner = GraphRunner(context, warmup=2)
    reason = failure.partition(",")[0]
    runner.run(4, step)
    runner.run(4, step)
    FAILURES[failure](context)
    with pytest.warns(RuntimeWarning, match=f"graph 4 could not be captured .{reason}") as caught:
        assert runner.run(4, step) == "eager"
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert step.done == 3
    assert not context.capturing
    assert not context.recordings
    for done in range(4, 8):
        assert runner.run(4, step) == "eager"
        assert step.done == done
    assert counters(runner) == (7, 0, 0, {reason: 1})


def test_a_step_that_cannot_be_recorded(context: FakeContext, step: CountedStep) -> None:
    def reads_back() -> str:
        result = step()
        if context.capturing:
            raise ost.CaptureError("read-back while recording")
        return result

    runner = GraphRunner(context, warmup=0)
    with pytest.warns(RuntimeWarning, match="step: CaptureError: read-back while recording"):
        assert runner.run(0, reads_back) == "eager"
    assert runner.run(0, reads_back) == "eager"
    assert step.done == 2
    assert counters(runner) == (2, 0, 0, {"step": 1})


def test_one_key_that_fails_leaves_the_others(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=0)
    end = context.end_graph_capture
    context.end_graph_capture = lambda key: fail() if key == 1 else end(key)
    with pytest.warns(RuntimeWarning, match="graph 1 ") as caught:
        for key in (0, 1, 2) * 3:
            runner.run(key, step)
    assert len(caught) == 1
    assert step.done == 9
    assert counters(runner) == (3, 2, 6, {"end": 1})


def test_a_step_that_fails_by_itself_may_try_again(context: FakeContext, step: CountedStep) -> None:
    def broken() -> None:
        raise ost.VariableError("position 128 is out of bounds")

    runner = GraphRunner(context, warmup=0)
    with pytest.raises(ost.VariableError, match="128") as raised:
        runner.run(0, broken)
    assert raised.value.__context__ is None, "the user sees their error once"
    assert not context.capturing
    assert counters(runner) == (0, 0, 0, {})
    assert runner.run(0, step) is None
    assert counters(runner) == (0, 1, 1, {})


def test_a_fault_in_a_later_replay_is_raised(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=0)
    runner.run(0, step)
    replay, context.replay_graph = context.replay_graph, fail
    with pytest.raises(RuntimeError, match="no more streams"):
        runner.run(0, step)
    context.replay_graph = replay
    assert runner.run(0, step) is None
    assert counters(runner) == (0, 1, 2, {})


def test_an_interrupt_ends_the_recording(context: FakeContext, step: CountedStep) -> None:
    def interrupted() -> None:
        step()
        raise KeyboardInterrupt

    runner = GraphRunner(context, warmup=0)
    with pytest.raises(KeyboardInterrupt):
        runner.run(0, interrupted)
    assert not context.capturing
    assert step.done == 0
    assert runner.run(0, step) is None
    assert step.done == 1


def test_a_device_that_cannot_record(context: FakeContext, step: CountedStep) -> None:
    """That is no failure, and there is no warning."""
    context.supports_capture = False
    runner = GraphRunner(context, warmup=1)
    for _ in range(4):
        assert runner.run(0, step) == "eager"
    assert counters(runner) == (4, 0, 0, {"unsupported": 1})
    assert context.log == []


# -- in company ------------------------------------------------------------------------------------


def test_within_another_recording_the_step_becomes_a_part_of_it(
    context: FakeContext, step: CountedStep
) -> None:
    runner = GraphRunner(context, warmup=0)
    context.begin_graph_capture()
    assert runner.run(0, step) == "eager"
    assert context.capturing
    context.end_graph_capture(9)
    assert step.done == 0
    assert counters(runner) == (0, 0, 0, {})
    context.replay_graph(9)
    assert step.done == 1


def test_a_step_may_use_its_runner(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context, warmup=1)
    for _ in range(4):
        runner.run(0, lambda: runner.run(1, step))
    assert step.done == 4


def test_threads_take_turns(context: FakeContext, step: CountedStep) -> None:
    runner = GraphRunner(context)

    def work() -> None:
        for _ in range(50):
            runner.run(0, step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert step.done == 200
    assert counters(runner) == (3, 1, 197, {})


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"warmup": -1},
        {"warmup": 1.5},
        {"warmup": True},
        {"warmup": None},
        {"max_graphs": 0},
        {"max_graphs": "many"},
    ],
)
def test_numbers_that_make_no_sense(context: FakeContext, arguments: dict[str, object]) -> None:
    (name,) = arguments
    with pytest.raises(ost.InputError, match=name):
        GraphRunner(context, **arguments)


@pytest.mark.parametrize("key", ["decode", None, 1.0, (1, 2)])
def test_keys_are_ints(context: FakeContext, step: CountedStep, key: object) -> None:
    with pytest.raises(ost.InputError, match="key is an int"):
        GraphRunner(context).run(key, step)
    assert step.submitted == 0
