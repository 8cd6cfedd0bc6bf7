"""Sessions in the order of a context: they see what was submitted before, and nothing later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import Array, buffer_of, entry, filled, ledger_graph, recorded, single, total

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

COMMITS = 20


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def ledger(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(ledger_graph())


@pytest.fixture(params=["the same context", "another context"])
def executor(
    request: pytest.FixtureRequest, session: ost.Session, device: str
) -> ost.GraphExecutor:
    same = request.param == "the same context"
    return (
        ost.GraphExecutor(session.context)
        if same
        else ost.GraphExecutor(open_session(device, threads=1).context)
    )


def finish(executor: ost.GraphExecutor, s: ost.GraphSession) -> None:
    s.finish()


def commit(executor: ost.GraphExecutor, s: ost.GraphSession) -> None:
    s.commit().wait()


def leave(executor: ost.GraphExecutor, s: ost.GraphSession) -> None:
    with s:
        pass


# -- what was submitted before ---------------------------------------------------------------------


@pytest.mark.parametrize("end", [finish, commit, leave])
def test_a_session_sees_every_run_queued_before_it(ledger, executor, end):
    state, seen = buffer_of(ledger, "total"), executor.empty((4,))
    for _ in range(COMMITS):
        ledger.commit_no_wait(entry(1, heavy=True))
    s = executor.begin()
    s.add(state, 0.0, out=seen)
    end(executor, s)
    assert single(seen.copyout()) == COMMITS
    ledger.sync_pending()


def test_a_replayed_session_sees_every_run_queued_before_it(ledger, executor):
    state, seen = buffer_of(ledger, "total"), executor.empty((4,))
    with executor.begin_recorded() as s:
        s.add(state, 0.0, out=seen)
    for _ in range(COMMITS):
        ledger.commit_no_wait(entry(1, heavy=True))
    s.graph.replay()
    assert single(seen.copyout()) == COMMITS


def test_a_session_sees_the_queued_runs_of_every_graph(session, executor):
    ledgers = [session.compile(ledger_graph()) for _ in range(3)]
    states = [buffer_of(ledger, "total") for ledger in ledgers]
    seen = executor.empty((4,))
    for _ in range(6):
        for ledger in ledgers:
            ledger.commit_no_wait(entry(1, heavy=True))
    with executor.begin() as s:
        s.add(s.add(states[0], states[1]), states[2], out=seen)
    assert single(seen.copyout()) == 18


def test_a_plan_executes_after_every_run_queued_before_it(ledger):
    for name, array in entry(100).items():
        buffer_of(ledger, name).copyin(array)
    for _ in range(COMMITS):
        ledger.commit_no_wait(entry(1, heavy=True))
    ledger.plan.execute_with_vars({"rows": 1})
    assert single(ledger.plan.output_buffer().copyout()) == COMMITS + 100


def test_a_run_sees_the_session_committed_before_it(session, ledger, executor):
    """A session writes the input buffer of a plan, which that executes on."""
    for name, array in entry(0).items():
        buffer_of(ledger, name).copyin(array)
    s = executor.begin()
    slow(executor, s)
    s.add(filled(6), 1.0, out=buffer_of(ledger, "x"))
    pending = s.commit()
    ledger.plan.execute_with_vars({"rows": 1})
    pending.wait()
    assert total(ledger) == 7


def test_a_buffer_is_read_and_written_in_order(executor):
    buffer, seen = executor.buffer(filled(1)), executor.empty((4,))
    s = executor.begin()
    slow(executor, s)
    s.add(buffer, 0.0, out=seen)
    pending = s.commit()
    buffer.copyin(filled(2))
    assert single(seen.copyout()) == 1
    pending.wait()
    assert single(buffer.copyout()) == 2


def test_sessions_of_two_contexts_that_share_a_buffer_alternate(device):
    left, right = (ost.GraphExecutor(open_session(device, threads=1).context) for _ in range(2))
    buffer = left.buffer(filled(0))
    for _ in range(10):
        for number, executor in enumerate((left, right)):
            s = executor.begin()
            if number == 0:
                slow(executor, s, depth=3)
            s.add(s.multiply(buffer, 1.0), 1.0, out=buffer)
            s.commit()
    assert single(buffer.copyout()) == 20


# -- what is submitted later -----------------------------------------------------------------------


def slow(executor: ost.GraphExecutor, s: ost.GraphSession, depth: int = 12) -> None:
    """Encode matmuls that take some tens of milliseconds."""
    value = executor.buffer(np.zeros((384, 384), np.float32))
    result = value
    for _ in range(depth):
        result = s.matmul(result, value)


Submission = Callable[[ost.Session, ost.CompiledGraph], Callable[[], object]]


def replayed(session: ost.Session, ledger: ost.CompiledGraph) -> Callable[[], object]:
    with recorded(session.context, 9):
        ledger.commit_no_wait(entry(100))
    return lambda: session.context.replay_graph(9)


def executed(session: ost.Session, ledger: ost.CompiledGraph) -> Callable[[], object]:
    for name, array in entry(100).items():
        buffer_of(ledger, name).copyin(array)
    return lambda: ledger.plan.execute_with_vars({"rows": 1})


def positional(ledger: ost.CompiledGraph) -> list[Array]:
    inputs = entry(100)
    return [inputs[name] for name in ledger.inputs]


LATER: dict[str, Submission] = {
    "run": lambda s, c: lambda: c.run(entry(100)),
    "run_raw": lambda s, c: lambda: c.run_raw(entry(100)),
    "run_slots": lambda s, c: lambda: c.run_slots(*positional(c)),
    "run_pipelined": lambda s, c: lambda: c.run_pipelined([entry(100)]),
    "commit_no_wait": lambda s, c: lambda: c.commit_no_wait(entry(100)),
    "a bound call": lambda s, c: c.bind(entry(100), [filled(0), filled(0)]),
    "a replay": replayed,
    "plan.execute": executed,
    "bind_handle": lambda s, c: lambda: c.bind_handle("total", filled(100)),
}


@pytest.mark.parametrize("later", LATER)
def test_nothing_overtakes_a_committed_session(session, ledger, executor, later):
    state, seen = buffer_of(ledger, "total"), executor.empty((4,))
    call = LATER[later](session, ledger)
    s = executor.begin()
    slow(executor, s)
    s.add(state, 0.0, out=seen)
    pending = s.commit()
    call()
    pending.wait()
    assert single(seen.copyout()) == 0
    assert total(ledger) == 100


WRITES: dict[str, Callable[[ost.CompiledGraph, Array], object]] = {
    "set_param": lambda c, array: c.set_param("w", array),
    "set_params": lambda c, array: c.set_params({"w": array}),
    "set_param_typed": lambda c, array: c.set_param_typed("w", array.tobytes(), "f32"),
    "copyin": lambda c, array: buffer_of(c, "w").copyin(array),
}


@pytest.mark.parametrize("clones", [0, 1])
@pytest.mark.parametrize("write", WRITES)
def test_no_write_of_a_weight_overtakes_a_committed_session(ledger, executor, write, clones):
    weight, seen = buffer_of(ledger, "w"), executor.empty((4,))
    twins = [ledger.clone() for _ in range(clones)]
    s = executor.begin()
    slow(executor, s)
    s.add(weight, 0.0, out=seen)
    pending = s.commit()
    WRITES[write](ledger, filled(5))
    pending.wait()
    assert single(seen.copyout()) == 1
    assert single(ledger.run(entry(1))[0]) == 5
    assert [single(twin.run(entry(1))[0]) for twin in twins] == [1] * clones


def test_a_clone_is_made_after_the_session_committed_before_it(ledger, executor):
    """A committed session writes nothing of a clone's, and a clone takes nothing from it."""
    ledger.run(entry(3))
    seen = executor.empty((4,))
    s = executor.begin()
    slow(executor, s)
    s.add(buffer_of(ledger, "total"), 0.0, out=seen)
    pending = s.commit()
    twin = ledger.clone()
    twin.run(entry(4))
    pending.wait()
    assert (single(seen.copyout()), total(ledger), total(twin)) == (3, 3, 7)


def test_a_released_buffer_was_read_by_the_session_committed_before(executor):
    buffer, seen = executor.buffer(filled(4)), executor.empty((4,))
    s = executor.begin()
    slow(executor, s)
    s.add(buffer, 0.0, out=seen)
    pending = s.commit()
    buffer.release()
    assert pending.wait().dispatches > 0
    assert single(seen.copyout()) == 4


# -- weights and queued runs -----------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_writes_of_a_weight_keep_their_place_among_queued_runs(ledger, write):
    for weight in (1, 5, 2):
        WRITES[write](ledger, filled(weight))
        for _ in range(5):
            ledger.commit_no_wait(entry(1, heavy=True))
    assert total(ledger) == 5 * (1 + 5 + 2)


@pytest.mark.parametrize("write", WRITES)
def test_a_clone_that_writes_its_weights_leaves_queued_runs_alone(ledger, write):
    twin = ledger.clone()
    for _ in range(5):
        ledger.commit_no_wait(entry(1, heavy=True))
        twin.commit_no_wait(entry(1, heavy=True))
    WRITES[write](twin, filled(7))
    ledger.commit_no_wait(entry(1))
    twin.commit_no_wait(entry(1))
    assert (total(ledger), total(twin)) == (6, 12)
