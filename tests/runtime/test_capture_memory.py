"""Recordings and memory: what they keep alive, and what drops them."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.prepared import Copy
from tests.allocations import blocks_gathered
from tests.devices.registered import open_session

from .capture import ONES, SENTINEL, chain_graph, recorded, scaled_graph, sentinels, total

pytestmark = pytest.mark.needs("capture")

FED = {"x": ONES}
VECTOR = TensorType(FLOAT32, (4,))
NO_ASAN = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="asan delays every free"
)


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(scaled_graph())


# -- what lives ------------------------------------------------------------------------------------


def test_a_recording_keeps_what_it_touches(session):
    x, y = ONES.copy(), sentinels()
    compiled = session.compile(scaled_graph())
    bound = compiled.bind({"x": x}, [y])
    with recorded(session.context, 1):
        bound()
    gone = weakref.ref(x)
    del x, bound, compiled
    gc.collect()
    assert gone() is not None
    assert session.context.replay_graph(1)
    assert (y == 2).all()
    session.context.reset_graph(1)
    gc.collect()
    assert gone() is None


def test_recorded_commits_keep_their_inputs(session, compiled):
    x = ONES.copy()
    gone = weakref.ref(x)
    with recorded(session.context, 1):
        compiled.commit_no_wait({"x": x})
    del x
    gc.collect()
    assert gone() is not None
    assert session.context.replay_graph(1)
    assert total(compiled) == 1
    session.context.reset_all_graphs()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("way", ["reset", "replaced", "cancelled", "dropped"])
def test_recordings_that_are_gone_keep_nothing(session, compiled, way):
    context, y = session.context, sentinels()
    gone = weakref.ref(y)
    context.begin_graph_capture()
    compiled.bind(FED, [y])()
    if way == "cancelled":
        context.cancel_graph_capture()
    else:
        context.end_graph_capture(1)
    if way == "reset":
        context.reset_graph(1)
    elif way == "replaced":
        with recorded(context, 1):
            pass
    elif way == "dropped":
        compiled.plan.release_intermediate_buffers()
    del y
    gc.collect()
    assert gone() is None


def test_a_session_goes_with_its_recordings(device):
    session = open_session(device, threads=1)
    compiled = session.compile(scaled_graph())
    with recorded(session.context, 1):
        compiled.commit_no_wait(FED)  # the context has the graph, which has the context
    session.context.begin_graph_capture()
    compiled.commit_no_wait(FED)
    gone = [weakref.ref(session.context), weakref.ref(compiled)]
    del session, compiled
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@NO_ASAN
def test_recording_again_and_again_gathers_nothing(session, compiled):
    context = session.context
    bound = compiled.bind(FED, [sentinels()])

    def record() -> None:
        with recorded(context, 1):
            bound()
            compiled.commit_no_wait(FED)
        context.replay_graph(1)

    for _ in range(100):
        record()
    assert blocks_gathered(record, 500) < 50


@NO_ASAN
def test_replaying_allocates_nothing(session, compiled):
    with recorded(session.context, 1):
        compiled.bind(FED, [sentinels()])()
    replay = session.context.replay_graph
    for _ in range(100):
        replay(1)
    assert blocks_gathered(lambda: replay(1), 1000) < 20


# -- what drops recordings -------------------------------------------------------------------------


def both_recorded(
    session: ost.Session, compiled: ost.CompiledGraph
) -> tuple[ost.CompiledGraph, np.ndarray]:
    """Under 1 a run of ``compiled``, under 2 one of another graph, under 3 both; that graph."""
    other, y = session.compile(scaled_graph(3)), sentinels()
    first, second = compiled.bind(FED, [sentinels()]), other.bind(FED, [y])
    for key, calls in ((1, [first]), (2, [second]), (3, [first, second])):
        with recorded(session.context, key):
            for call in calls:
                call()
    return other, y


@pytest.mark.parametrize("release", ["release_intermediate_buffers", "release_all_buffers"])
def test_released_plans_drop_the_recordings_that_use_them(session, compiled, release):
    _, y = both_recorded(session, compiled)
    getattr(compiled.plan, release)()
    context = session.context
    assert [context.replay_graph(key) for key in (1, 3)] == [False, False]
    assert (y == SENTINEL).all()
    assert context.replay_graph(2)
    assert (y == 3).all()


def test_released_clones_leave_recordings_of_the_original(session, compiled):
    with recorded(session.context, 1):
        compiled.commit_no_wait(FED)
    twin = compiled.clone()
    twin.plan.release_all_buffers()
    assert session.context.replay_graph(1)
    assert total(compiled) == 1


def test_released_plans_are_not_recorded(session, compiled):
    bound = compiled.bind(FED, [sentinels()])
    compiled.plan.release_all_buffers()
    session.context.begin_graph_capture()
    for call in (bound, lambda: compiled.commit_no_wait(FED)):
        with pytest.raises(ost.PlanError, match="released"):
            call()
    session.context.end_graph_capture(1)
    assert session.context.replay_graph(1)


def test_intermediates_are_taken_again_and_recorded_again(session, compiled):
    context, y = session.context, sentinels()
    bound = compiled.bind(FED, [y])
    with recorded(context, 1):
        bound()
    compiled.plan.release_intermediate_buffers()
    assert not context.replay_graph(1)
    with recorded(context, 1):
        bound()
    assert context.replay_graph(1)
    assert (y == 2).all()


@pytest.mark.parametrize("change", ["bind", "unbind", "fed run", "run_feed_handle"])
def test_exchanged_handles_drop_the_recordings_that_use_them(session, change):
    context = session.context
    chain, other = (session.compile(chain_graph()) for _ in range(2))
    for graph in (chain, other):
        graph.bind_handle("x", ONES)
    with recorded(context, 1):
        chain.commit_no_wait()
    with recorded(context, 2):
        other.commit_no_wait()
    with recorded(context, 3):
        chain.commit_no_wait({"x": ONES})  # not on the handle's buffer
    if change == "bind":
        chain.bind_handle("x", ONES)
    elif change == "unbind":
        chain.unbind_handle("x")
    elif change == "fed run":
        chain.set_handle_feed("x", 0)
        chain.run()
    else:
        chain.run_feed_handle({}, "x", 0)
    assert [context.replay_graph(key) for key in (1, 2, 3)] == [False, True, True]


def test_fed_handles_that_recordings_write_drop_them_when_they_are_exchanged(session):
    context, chain = session.context, session.compile(chain_graph())
    chain.bind_handle("x", ONES)
    chain.set_handle_feed("x", 0)
    with recorded(context, 1):
        chain.commit_no_wait({"x": ONES})  # the handle's buffer is only written
    assert context.replay_graph(1)
    assert (chain.read_handle("x") == 2).all()
    chain.commit_no_wait()  # exchanges the buffer
    chain.sync_pending()
    assert not context.replay_graph(1)
    assert (chain.read_handle("x") == 3).all()


def test_an_unrelated_run_drops_nothing(session, compiled):
    both_recorded(session, compiled)
    compiled.run(FED)
    compiled.run_raw(FED)
    compiled.bind_handle("x", ONES)
    compiled.unbind_handle("x")
    compiled.clone().run(FED)
    assert all(session.context.replay_graph(key) for key in (1, 2, 3))


# -- buffers ---------------------------------------------------------------------------------------


def copying(context, source, target):
    encoded = context.encode([Copy(id=1, source=source, target=target)])
    return lambda: encoded


def test_released_buffers_drop_recordings_and_what_was_encoded(session):
    context = session.context
    a, b, c = context.upload(ONES), context.empty(VECTOR), context.empty(VECTOR)
    first, second = copying(context, a, b), copying(context, a, c)
    for key, encoded in ((1, first), (2, second)):
        with recorded(context, key):
            assert context.submit(encoded).result(0) == 0
    b.release()
    assert context.replay_graph(1) is False
    with pytest.raises(ost.PlanError, match="released"):
        context.run(first)
    with pytest.raises(ost.PlanError, match="released"):
        context.submit(first).result()
    for call in (b.copyout, lambda: b.copyin(ONES), lambda: copying(context, a, b)):
        with pytest.raises(ost.PlanError, match="released"):
            call()
    b.release()
    assert context.replay_graph(2) is True
    np.testing.assert_array_equal(c.copyout(), ONES)


def test_views_are_released_with_their_storage(session):
    context = session.context
    a, b = context.upload(ONES), context.empty(VECTOR)
    with recorded(context, 1):
        context.run(copying(context, a.view(0, 8), b.view(8, 8)))
    b.view(0, 4).release()
    assert not context.replay_graph(1)
    with pytest.raises(ost.PlanError):
        b.copyout()


def test_plans_memory_is_not_released_buffer_by_buffer(session, compiled):
    compiled.plan.allocate()
    inside = [b for b in compiled.plan.buffers if b not in {*compiled.plan.inputs.values()}]
    with pytest.raises(ost.PlanError, match="release_all_buffers"):
        inside[0].release()
    compiled.plan.execute()


def test_ops_on_memory_of_a_plan_end_with_it(session, compiled):
    context = session.context
    compiled.bind_handle("total", 5 * ONES)
    (state,) = [b for b in compiled.plan.buffers if (b.copyout() == 5).all()]
    target = context.upload(ONES)
    encoded = copying(context, state, target)
    with recorded(context, 1):
        context.run(encoded)
    compiled.plan.release_all_buffers()
    assert context.replay_graph(1) is False
    with pytest.raises(ost.PlanError):
        context.run(encoded)
    np.testing.assert_array_equal(target.copyout(), ONES)


def test_plans_by_hand_drop_recordings_when_they_are_released(session):
    context = session.context
    a, b = context.upload(ONES), context.empty(VECTOR)
    made = []

    def runner(ops):
        made.append(context.encode(ops))
        return made[0]

    ops = [Copy(id=1, source=a, target=b)]
    plan = ExecutionPlan(
        ops, device=context.device, runner=runner, inputs={"a": a}, outputs={"b": b}, queue=context
    )
    plan.execute()
    with recorded(context, 1):
        context.run(lambda: made[0])
    plan.release_all_buffers()
    assert context.replay_graph(1) is False


def test_released_memory_is_given_back(session):
    context = session.context
    buffer = context.empty(VECTOR)
    memory = weakref.ref(buffer.storage.memory)
    encoded = copying(context, context.upload(ONES), buffer)
    with recorded(context, 1):
        context.run(encoded)
    buffer.release()
    gc.collect()
    assert memory() is None
