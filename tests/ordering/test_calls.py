"""Calls as wholes: all checks before the first effect, batches without gaps, clones apart."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

from .graphs import beside, entry, filled, ledger_graph, recorded, rows_graph, single, total

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def ledger(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(ledger_graph())


# -- pipelined batches -----------------------------------------------------------------------------

WRONG = {
    "shape": {**entry(1), "x": np.ones(5, np.float32)},
    "dtype": {**entry(1), "x": np.ones(4, np.float64)},
    "name": {**entry(1), "z": filled(1)},
    "missing": {"x": filled(1)},
    "no mapping": 7,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("fed", [False, True])
def test_a_batch_with_a_bad_set_changes_nothing(session, ledger, wrong, fed):
    ledger.run(entry(3))
    ledger.bind_handle("h", filled(100))
    if fed:
        ledger.set_handle_feed("h", 1)
    with recorded(session.context, 1):
        ledger.commit_no_wait(entry(1, None))
    row = ledger.read_output_row(0, 0)
    with pytest.raises(ost.InputError):
        ledger.run_pipelined([entry(1, None), entry(2, None), wrong, entry(4, None)])
    assert total(ledger) == 3
    assert single(ledger.read_handle("h")) == 100
    assert ledger.read_output_row(0, 0) == row
    assert session.context.replay_graph(1), "nothing was exchanged, so nothing was dropped"


def test_a_batch_that_needs_what_its_own_feed_brings(ledger):
    """The first run brings the handle that the others leave out."""
    ledger.set_handle_feed("h", 1)
    results = ledger.run_pipelined([entry(1, 10), entry(1, None), entry(1, None)])
    assert [single(following) for _, following in results] == [11, 12, 13]
    assert single(ledger.read_handle("h")) == 13


def test_a_batch_whose_first_run_lacks_what_it_would_feed(ledger):
    ledger.set_handle_feed("h", 1)
    with pytest.raises(ost.InputError, match="h"):
        ledger.run_pipelined([entry(1, None), entry(1, 10)])
    assert total(ledger) == 0
    assert ledger.has_handle("h") is False


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("commits", [0, 1])
def test_no_run_of_another_thread_gets_inside_a_batch(ledger, fed, commits):
    ledger.bind_handle("h", filled(0))
    if not fed:
        ledger.unbind_handle("h")
    else:
        ledger.set_handle_feed("h", 1)
    for _ in range(commits):
        ledger.commit_no_wait(entry(0, 0))
    ended = False

    def work() -> None:
        while not ended:
            ledger.run(entry(1000, 0))

    with beside(work):
        try:
            for _ in range(20):
                sets = [entry(1, 0)] * 25
                y = [single(out) for out, _ in ledger.run_pipelined(sets)]
                assert np.diff(y).tolist() == [1] * 24, "another run came in between"
        finally:
            ended = True


def alternating_weights(ledger: ost.CompiledGraph) -> Callable[[], object]:
    weights = itertools.cycle((1, 2))
    return lambda: ledger.set_param("w", filled(next(weights)))


def committing(ledger: ost.CompiledGraph) -> Callable[[], object]:
    return lambda: (ledger.commit_no_wait(entry(1000)), ledger.sync_pending())


INTRUDERS: dict[str, Callable[[ost.CompiledGraph], Callable[[], object]]] = {
    "commit_no_wait": committing,
    "a bound call": lambda c: c.bind(entry(1000), [filled(0), filled(0)]),
    "bind_handle": lambda c: lambda: c.bind_handle("total", filled(0)),
    "set_param": alternating_weights,
}


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_no_other_call_gets_inside_a_batch(ledger, intruder):
    ended, call = False, INTRUDERS[intruder](ledger)

    def work() -> None:
        while not ended:
            call()

    with beside(work):
        try:
            for _ in range(20):
                y = [single(out) for out, _ in ledger.run_pipelined([entry(1, 0)] * 25)]
                steps = set(np.diff(y))
                assert len(steps) == 1, f"something came in between: {steps}"
        finally:
            ended = True


# -- clones ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda c: c.clone()])
def test_copies_are_clones(session, ledger, twin_of: Callable):
    ledger.bind_handle("h", filled(7))
    ledger.run(entry(2))
    with recorded(session.context, 1):
        ledger.commit_no_wait(entry(1))
    twin = twin_of(ledger)
    assert isinstance(twin, ost.CompiledGraph)
    twin.run(entry(10))
    twin.commit_no_wait(entry(10, None))
    twin.bind_handle("h", filled(8))
    twin.set_param("w", filled(5))
    assert (total(ledger), total(twin)) == (2, 22)
    assert (single(ledger.read_handle("h")), single(twin.read_handle("h"))) == (7, 8)
    assert single(ledger.run(entry(1))[0]) == 3
    assert twin.arena_ptr() != ledger.arena_ptr()
    assert session.context.replay_graph(1)
    assert (total(ledger), total(twin)) == (4, 22)


def test_a_copy_waits_for_what_is_queued(ledger):
    for _ in range(8):
        ledger.commit_no_wait(entry(1, heavy=True))
    assert total(copy.copy(ledger)) == 8


def test_a_clone_on_a_context_of_its_own(session, ledger, device):
    ledger.run(entry(2))
    ledger.bind_handle("h", filled(4))
    elsewhere = open_session(device, threads=1)
    twin = ledger.clone(context=elsewhere.context)
    with recorded(session.context, 1):
        ledger.commit_no_wait(entry(1))
    with recorded(elsewhere.context, 1):
        twin.commit_no_wait(entry(10, None))
    assert (total(ledger), total(twin)) == (2, 2)
    assert elsewhere.context.replay_graph(1)
    assert (total(ledger), total(twin)) == (2, 12)
    assert session.context.replay_graph(1)
    assert (total(ledger), total(twin)) == (3, 12)
    twin.set_param("w", filled(3))
    assert (single(twin.run(entry(1))[0]), single(ledger.run(entry(1))[0])) == (15, 4)
    elsewhere.context.reset_all_graphs()
    assert session.context.replay_graph(1)


def test_a_clone_on_another_context_writes_its_own_weights(ledger, device):
    twin = ledger.clone(context=open_session(device, threads=1).context)
    for _ in range(5):
        ledger.commit_no_wait(entry(1, heavy=True))
        twin.commit_no_wait(entry(1, heavy=True))
    twin.set_param("w", filled(7))
    twin.commit_no_wait(entry(1))
    ledger.set_param("w", filled(2))
    ledger.commit_no_wait(entry(1))
    assert (total(ledger), total(twin)) == (7, 12)


def test_a_clone_on_the_context_of_its_own_graph(session, ledger):
    twin = ledger.clone(context=session.context)
    with recorded(session.context, 1):
        twin.commit_no_wait(entry(1))
    assert session.context.replay_graph(1)
    assert (total(ledger), total(twin)) == (0, 1)


@pytest.mark.parametrize("context", ["cpu", 1, object()])
def test_a_clone_on_no_context(ledger, context):
    with pytest.raises(ost.InputError, match="context"):
        ledger.clone(context=context)


# -- what one commit leaves ------------------------------------------------------------------------


def test_after_a_commit_runs_are_as_before(ledger):
    ledger.commit_no_wait(entry(1))
    ledger.sync_pending()
    out = [filled(0), filled(0)]
    assert ledger.run(entry(1), out=out)[0] is out[0]
    out[0][:] = 55
    row = ledger.read_output_row(0, 2)
    assert row == 55, "rows are read from the array that the run filled"
    with pytest.raises(ost.InputError):
        ledger.run({})
    assert total(ledger) == 2


def test_a_refused_commit_leaves_later_runs_alone(ledger):
    ledger.commit_no_wait({})
    assert single(ledger.run(entry(1))[0]) == 1
    with pytest.raises(ost.InputError):
        ledger.sync_pending()
    ledger.sync_pending()


# -- rows of outputs -------------------------------------------------------------------------------


@pytest.fixture
def rows(session: ost.Session) -> ost.CompiledGraph:
    compiled = session.compile(rows_graph(8, 6))
    compiled.run({"r": np.arange(48, dtype=np.float32).reshape(8, 6)})
    return compiled


@pytest.mark.parametrize("inner", [1, 2, 3, 4, 6, 8, 12, 16, 24, 48])
def test_rows_of_a_size_of_their_own(rows, inner):
    out = np.arange(48, dtype=np.float32).reshape(-1, inner) + 1
    for row in range(48 // inner):
        np.testing.assert_array_equal(rows.read_output_row(0, row, row_inner=inner), out[row])
    assert rows.read_output_row(0, 48 // inner, row_inner=inner) is None
    assert rows.read_output_row(0, -1, row_inner=inner) is None
    assert rows.read_output_row(2, 0, row_inner=inner) is None


@pytest.mark.parametrize("inner", [5, 7, 49, 96, 0, -1, 2.0, True, "2"])
def test_rows_that_an_output_has_not(rows, inner):
    with pytest.raises(ost.InputError):
        rows.read_output_row(0, 0, row_inner=inner)


def test_rows_of_nothing(session):
    compiled = session.compile(rows_graph())
    assert compiled.read_output_row(0, 0, row_inner=2) is None


def test_rows_of_an_output_without_axes(session):
    g = ost.Graph("scalar")
    g.set_outputs([g.sum(g.input("x", (4,)))])
    compiled = session.compile(g)
    compiled.run({"x": filled(2)})
    assert compiled.read_output_row(0, 0) is None
    assert compiled.read_output_row(0, 0, row_inner=1).tolist() == [8]


# -- experts ---------------------------------------------------------------------------------------


def moe_graph() -> ost.Graph:
    g, rng = ost.Graph("experts"), np.random.default_rng(0)

    def weight(name: str, *shape: int) -> ost.Value:
        return g.param(name, shape, value=rng.standard_normal(shape, dtype=np.float32))

    x = g.input("x", (3, 8))
    gate, up, down = weight("gate", 4, 8, 6), weight("up", 4, 8, 6), weight("down", 4, 6, 8)
    g.set_outputs([g.moe(x, weight("router", 8, 4), gate, up, down, k=2)])
    return g


@pytest.mark.needs("expert_residency")
def test_a_capture_of_experts_ends(session):
    compiled, x = session.compile(moe_graph()), {"x": np.ones((3, 8), np.float32)}
    assert compiled.enable_moe_topk_capture(4)
    compiled.run(x)
    assert [ids.shape for ids in compiled.take_moe_topk_capture()] == [(3, 2)]
    compiled.disable_moe_topk_capture()
    compiled.run(x)
    assert compiled.take_moe_topk_capture() is None
    assert compiled.take_moe_residency_stats() is not None
    compiled.disable_moe_topk_capture()
    assert compiled.enable_moe_topk_capture(4)
    compiled.run(x)
    assert compiled.take_moe_topk_capture() is not None


def test_a_capture_ends_behind_what_is_queued(session):
    """The last run is none whose experts were to be kept."""
    compiled, x = session.compile(moe_graph()), {"x": np.ones((3, 8), np.float32)}
    compiled.enable_moe_topk_capture(4)
    compiled.commit_no_wait(x)
    compiled.disable_moe_topk_capture()
    compiled.commit_no_wait(x)
    compiled.sync_pending()
    assert compiled.take_moe_topk_capture() is None
