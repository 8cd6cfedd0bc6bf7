"""Errors of calls that a recording can not hold, which change neither recording nor context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ostinato as ost
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from tests.devices.registered import open_session

from .capture import ONES, SENTINEL, chain_graph, recorded, scaled_graph, sentinels, total

pytestmark = pytest.mark.needs("capture")

FED = {"x": ONES}


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def compiled(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(scaled_graph())


# -- begin and end ---------------------------------------------------------------------------------


def test_recordings_do_not_nest(session, compiled):
    context, y = session.context, sentinels()
    bound = compiled.bind(FED, [y])
    context.begin_graph_capture()
    bound()
    with pytest.raises(ost.CaptureError, match="do not nest"):
        context.begin_graph_capture()
    bound()
    context.end_graph_capture(1)
    context.replay_graph(1)
    assert total(compiled) == 2


def test_an_end_needs_a_begin(session, compiled):
    context = session.context
    with pytest.raises(ost.CaptureError, match="without a begin"):
        context.end_graph_capture(1)
    assert context.replay_graph(1) is False
    with recorded(context, 1):
        compiled.commit_no_wait(FED)
    with pytest.raises(ost.CaptureError, match="without a begin"):
        context.end_graph_capture(1)
    assert context.replay_graph(1) is True


@pytest.mark.parametrize("key", ["1", None, 1.5, [1], {}])
def test_keys_are_ints(session, compiled, key):
    context = session.context
    context.begin_graph_capture()
    compiled.commit_no_wait(FED)
    for call in (context.end_graph_capture, context.replay_graph, context.reset_graph):
        with pytest.raises(ost.CaptureError, match="ints"):
            call(key)
    assert context.capturing
    context.end_graph_capture(1)
    assert context.replay_graph(1)


def test_cancelled_recordings_leave_nothing(session, compiled):
    context = session.context
    context.cancel_graph_capture()
    context.begin_graph_capture()
    compiled.commit_no_wait(FED)
    context.cancel_graph_capture()
    context.cancel_graph_capture()
    assert not context.capturing
    with pytest.raises(ost.CaptureError):
        context.end_graph_capture(1)
    assert not context.replay_graph(1)
    compiled.run(FED)
    assert compiled.read_output_row(0, 0) == 2
    assert total(compiled) == 1


def test_replays_inside_a_recording(session, compiled):
    context = session.context
    with recorded(context, 1):
        compiled.commit_no_wait(FED)
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match="replay_graph"):
        context.replay_graph(1)
    assert context.replay_graph(2) is False
    context.reset_graph(1)
    context.end_graph_capture(2)
    assert not context.replay_graph(1)
    assert total(compiled) == 0


# -- calls that do not fit -------------------------------------------------------------------------

#: By name, a call and a word that its error must have.
Calls = dict[str, tuple[Callable[..., Any], str]]

READING: Calls = {
    "run": (lambda s, c: c.run(FED), "run reads"),
    "run out": (lambda s, c: c.run(FED, out=[sentinels()]), "run reads"),
    "run_raw": (lambda s, c: c.run_raw(FED), "run_raw"),
    "run_slots": (lambda s, c: c.run_slots(ONES), "run_slots"),
    "run_typed": (lambda s, c: c.run_typed([("x", ONES.tobytes(), "f32")]), "run_typed"),
    "run_read_outputs": (lambda s, c: c.run_read_outputs(FED, [0]), "run_read_outputs"),
    "run_pipelined": (lambda s, c: c.run_pipelined([FED]), "run_pipelined"),
    "run_feed_handle": (lambda s, c: c.run_feed_handle(FED, "x", 0), "run_feed_handle"),
    "read_output_row": (lambda s, c: c.read_output_row(0, 0), "read_output_row"),
    "read_handle": (lambda s, c: c.read_handle("x"), "read_handle"),
    "read a state": (lambda s, c: c.read_handle("total"), "read_handle"),
    "copyout": (lambda s, c: c.plan.output_buffer().copyout(), "copyout"),
    "execute": (lambda s, c: c.plan.execute(), "execute"),
    "execute_profiled": (lambda s, c: c.plan.execute_profiled(), "execute"),
}

WAITING: Calls = {
    "sync_pending": (lambda s, c: c.sync_pending(), "sync_pending"),
    "synchronize": (lambda s, c: s.context.synchronize(), "synchronize"),
}

CHANGING: Calls = {
    "compile": (lambda s, c: s.compile(scaled_graph()), "compile"),
    "prepare": (lambda s, c: s.prepare(scaled_graph()), "compile"),
    "clone": (lambda s, c: c.clone(), "clone"),
    "empty": (lambda s, c: s.context.empty(TensorType(FLOAT32, (4,))), "allocates"),
    "upload": (lambda s, c: s.context.upload(ONES), "allocates"),
    "set_param": (lambda s, c: c.set_param("w", ONES), "set_params"),
    "set_params": (lambda s, c: c.set_params({"w": ONES}), "set_params"),
    "set_param_typed": (lambda s, c: c.set_param_typed("w", ONES.tobytes(), "f32"), "set_params"),
    "bind_handle": (lambda s, c: c.bind_handle("x", ONES), "bind_handle"),
    "write a state": (lambda s, c: c.bind_handle("total", ONES), "bind_handle"),
    "unbind_handle": (lambda s, c: c.unbind_handle("x"), "unbind_handle"),
    "set_handle_feed": (lambda s, c: c.set_handle_feed("x", 0), "set_handle_feed"),
    "copyin": (lambda s, c: c.plan.inputs["x"].copyin(ONES), "copyin"),
    "release": (lambda s, c: c.plan.release_all_buffers(), "release_all_buffers"),
    "discard": (lambda s, c: c.plan.release_intermediate_buffers(), "release_intermediate"),
    "allocate": (lambda s, c: c.plan.allocate(), "allocate"),
    "active extent": (lambda s, c: c.set_active_extent((2, 4)), "set_active_extent"),
}

ALL = {**READING, **WAITING, **CHANGING}


def kept_buffers(compiled: ost.CompiledGraph) -> dict[float, ost.Buffer]:
    """The buffers that are neither input nor output, by their value: the param, and the state."""
    plan = compiled.plan
    outside = {*plan.inputs.values(), *plan.outputs.values()}
    return {float(b.copyout()[0]): b for b in plan.buffers if b not in outside}


@pytest.mark.parametrize("name", ALL)
def test_refused_calls_name_themselves_and_leave_the_recording_whole(session, compiled, name):
    call, word = ALL[name]
    context, y = session.context, sentinels()
    bound = compiled.bind(FED, [y])
    compiled.plan.allocate()
    context.begin_graph_capture()
    bound()
    with pytest.raises(ost.CaptureError, match=word) as caught:
        call(session, compiled)
    assert "recording" in str(caught.value)
    bound()
    context.end_graph_capture(1)
    assert (y == SENTINEL).all()
    assert context.replay_graph(1)
    assert (y == 2).all()
    assert total(compiled) == 2
    assert (compiled.run(FED)[0] == 2).all()


@pytest.mark.parametrize("name", ALL)
def test_refused_calls_work_after_the_recording(session, compiled, name):
    context = session.context
    with recorded(context, 1):
        pass
    ALL[name][0](session, compiled)


def test_slow_paths_are_refused_as_well(session):
    """Once anything was queued or bound, runs take another way."""
    chain = session.compile(chain_graph())
    chain.commit_no_wait(FED)
    chain.bind_handle("x", ONES)
    session.context.begin_graph_capture()
    for run in (chain.run, chain.run_raw, lambda: chain.run_read_outputs({}, [0])):
        with pytest.raises(ost.CaptureError):
            run()
    chain.commit_no_wait()
    session.context.end_graph_capture(1)
    session.context.replay_graph(1)
    assert chain.read_output_row(0, 0) == 2


def test_params_and_states_are_not_written_through_their_buffers(session, compiled):
    kept = kept_buffers(compiled)
    session.context.begin_graph_capture()
    for buffer in (kept[0], kept[2]):
        with pytest.raises(ost.CaptureError, match="copyin"):
            buffer.copyin(9 * ONES)
    session.context.end_graph_capture(1)
    assert kept_buffers(compiled).keys() == {0, 2}
    kept[2].copyin(9 * ONES)
    assert kept_buffers(compiled).keys() == {0, 9}


def test_questions_may_be_asked_while_recording(session, compiled):
    session.context.begin_graph_capture()
    assert compiled.has_handle("total")
    assert not compiled.has_handle("x")
    assert compiled.device == session.device
    assert compiled.plan.num_outputs == 1
    assert "kernel" in compiled.explain()
    assert compiled.arena_ptr()
    compiled.bind(FED, [sentinels()])()
    session.context.end_graph_capture(1)


def test_an_empty_recording_does_nothing(session):
    with recorded(session.context, 1):
        pass
    assert session.context.replay_graph(1) is True


def test_contexts_can_be_patched(session, compiled, monkeypatch):
    """Tests of recording inject failures with this."""

    def broken(*_: object) -> None:
        raise ost.CaptureError("injected")

    for name in ("begin_graph_capture", "end_graph_capture", "replay_graph", "reset_graph"):
        monkeypatch.setattr(session.context, name, broken)
        with pytest.raises(ost.CaptureError, match="injected"):
            getattr(session.context, name)(1)


# -- devices without capture -----------------------------------------------------------------------
