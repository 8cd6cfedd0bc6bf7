"""Two races, in every schedule that preempts one of the threads once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import ostinato as ost

from .explorer import Preemption, preemptions
from .graphs import entry, filled, ledger_graph, single, total

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

# -- a recording that begins while another thread submits ------------------------------------------

#: A submission that adds one, and a function that reads the sum.
Prepared = tuple[Callable[[], object], Callable[[], float]]


def of_session(session: ost.Session, *, commit: bool) -> Prepared:
    executor = ost.GraphExecutor(session.context)
    buffer = executor.buffer(filled(0))
    s = executor.begin()
    s.add(buffer, 1.0, out=buffer)
    submit = (lambda: s.commit().wait()) if commit else s.finish
    return submit, lambda: single(buffer.copyout())


def of_graph(session: ost.Session, kind: str) -> Prepared:
    ledger = session.compile(ledger_graph())
    bound = ledger.bind(entry(1), [filled(0), filled(0)])
    submit = {
        "run": lambda: ledger.run(entry(1)),
        "bound call": bound,
        "commit_no_wait": lambda: ledger.commit_no_wait(entry(1)),
    }[kind]
    return submit, lambda: total(ledger)


SUBMISSIONS: dict[str, Callable[[ost.Session], Prepared]] = {
    "finish": partial(of_session, commit=False),
    "commit": partial(of_session, commit=True),
    "run": partial(of_graph, kind="run"),
    "bound call": partial(of_graph, kind="bound call"),
    "commit_no_wait": partial(of_graph, kind="commit_no_wait"),
}


@pytest.mark.parametrize(
    "kind",
    # `finish` commits and waits, too.
    [pytest.param(k, marks=[pytest.mark.slow] if k == "commit" else []) for k in SUBMISSIONS],
)
def test_a_submission_is_not_recorded_by_a_thread_that_begins_meanwhile(kind: str) -> None:
    """The other thread begins at any point, between the check and the launch included."""
    for schedule in preemptions():
        with schedule.installed():
            begin_while_submitting(kind, schedule)


def begin_while_submitting(kind: str, schedule: Preemption) -> None:
    session, elsewhere = (ost.Session("cpu", threads=1) for _ in range(2))
    context = session.context
    submit, sum_of = SUBMISSIONS[kind](session)

    def record_then_submit() -> None:
        elsewhere.context.begin_graph_capture()  # it is a thread that has recorded before
        elsewhere.context.cancel_graph_capture()
        submit()

    schedule.run([record_then_submit, context.begin_graph_capture])
    assert context.captured_calls == 0, "the other thread's recording has it"
    context.cancel_graph_capture()
    assert sum_of() == 1, "it was reported as run"


# -- params that are set while a run is queued -----------------------------------------------------


def test_a_run_after_set_params_waits_for_what_was_queued_meanwhile() -> None:
    """Another thread's ``commit_no_wait`` interrupts ``set_params`` at any point."""
    for schedule in preemptions():
        with schedule.installed():
            commit_while_setting(schedule)


def commit_while_setting(schedule: Preemption) -> None:
    ledger = ost.Session("cpu", threads=1).compile(ledger_graph())
    ledger.run(entry(1))  # shapes that were seen before: the next run is on the fast path
    queued: list[bool] = []

    def set_then_run() -> None:
        ledger.set_params({"w": filled(1)})
        earlier = bool(queued)
        result = single(ledger.run(entry(1))[0])
        assert result == 3 or not earlier, "the run overtook the queued one"

    def commit() -> None:
        ledger.commit_no_wait(entry(1))
        queued.append(True)

    schedule.run([set_then_run, commit])
    assert total(ledger) == 3


def test_runs_are_on_the_fast_path_again_after_queued_ones() -> None:
    """Neither a queued run nor ``set_params`` in the middle of it costs the fast path for good."""
    for schedule in preemptions():
        with schedule.installed():
            run_after_queued(schedule)


def run_after_queued(schedule: Preemption) -> None:
    ledger = ost.Session("cpu", threads=1).compile(ledger_graph())
    ledger.run(entry(1))

    def commit() -> None:
        ledger.commit_no_wait(entry(1))
        ledger.sync_pending()

    schedule.run([lambda: ledger.set_params({"w": filled(1)}), commit])
    quick = ledger._execution.run_quick(entry(1), None)
    assert quick is not None, "the run is on the long path"
    assert single(quick[0]) == 3
