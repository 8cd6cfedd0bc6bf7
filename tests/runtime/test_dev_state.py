"""The variable block: token, position and kv_len on the device, one recording for every step."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from tests.devices.registered import open_session

from .capture import SENTINEL, recorded, sentinels

pytestmark = pytest.mark.needs("capture")

Array = np.ndarray[Any, Any]
LENGTH, WIDTH = 8, 3


def variables(length: int = LENGTH) -> tuple[ost.Variable, ost.Variable]:
    return ost.Variable("position", 0, length - 1), ost.Variable("kv_len", 1, length)


def cache_graph(length: int = LENGTH) -> ost.Graph:
    """Writes a row into a cache at ``position``; the sum of the rows so far, and those rows."""
    position, kv_len = variables(length)
    g = ost.Graph("cache")
    row = g.input("row", (1, WIDTH))
    cache = g.state("cache", (length, WIDTH))
    filled = g.dynamic_update_slice(cache, row, (position, 0))
    g.assign(cache, filled)
    rows = g.slice(filled, (0, 0), (kv_len, WIDTH))
    g.set_outputs({"sum": g.sum(rows, axis=0), "rows": rows * 1})
    return g


def masked_graph() -> ost.Graph:
    """An input of live size, and a Variable that no name makes special."""
    _, kv_len = variables()
    n = ost.Variable("n", 1, 4)
    g = ost.Graph("masked")
    mask, x = g.input("mask", (kv_len,)), g.input("x", (n,))
    g.set_outputs({"y": g.sum(mask) + x, "mask": mask * 2})
    return g


def row(value: float) -> dict[str, Array]:
    return {"row": np.full((1, WIDTH), value, np.float32)}


@pytest.fixture
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def context(session: ost.Session) -> Any:
    session.context.set_dev_state_mode(True)
    return session.context


@pytest.fixture
def cached(session: ost.Session) -> ost.CompiledGraph:
    return session.compile(cache_graph())


# -- the block -------------------------------------------------------------------------------------


def test_the_block_holds_token_position_and_length(session):
    context = session.context
    assert context.decode_state == {"token": 0, "position": 0, "kv_len": 1}
    context.set_decode_state(17, 4)
    assert context.decode_state == {"token": 17, "position": 4, "kv_len": 5}
    context.set_decode_state(np.int64(3), np.array(2))
    assert context.decode_state == {"token": 3, "position": 2, "kv_len": 3}
    assert not context.dev_state_mode


@pytest.mark.parametrize(
    "wrong",
    [(-1, 0), (0, -1), (1.0, 0), (0, "1"), (None, 0), (0, 1 << 63), (True, 0), (np.zeros(2), 0)],
)
def test_wrong_states_change_nothing(session, wrong):
    session.context.set_decode_state(5, 6)
    with pytest.raises(ost.VariableError, match=r"token|step"):
        session.context.set_decode_state(*wrong)
    assert session.context.decode_state == {"token": 5, "position": 6, "kv_len": 7}


def test_contexts_have_blocks_of_their_own(session, device):
    other = open_session(device, threads=1)
    other.context.set_decode_state(1, 2)
    other.context.set_dev_state_mode(True)
    assert session.context.decode_state["position"] == 0
    assert not session.context.dev_state_mode


# -- every way to run ------------------------------------------------------------------------------


def test_runs_follow_the_block(context, cached):
    for step in range(LENGTH):
        context.set_decode_state(0, step)
        total, rows = cached.run(row(step))
        assert (total == sum(range(step + 1))).all()
        assert rows.shape == (step + 1, WIDTH)
        assert (rows == np.arange(step + 1)[:, None]).all()


@pytest.mark.parametrize("way", ["run", "out", "raw", "slots", "read", "typed", "pipelined"])
def test_all_ways_to_run_follow_the_block(context, cached, way):
    context.set_decode_state(0, 2)
    feed, out = row(7), [sentinels(WIDTH), sentinels(3, WIDTH)]
    (array,) = feed.values()
    if way == "slots":
        (_, sums), (offset, count) = cached.run_slots(array)
        assert (sums, count) == (WIDTH, 3 * WIDTH)
        rows = np.frombuffer(cached.arena, np.float32, count, offset).reshape(3, WIDTH)
    elif way == "typed":
        data, _ = cached.run_typed([("row", array.tobytes(), "f32")])[1]
        rows = np.frombuffer(data, np.float32).reshape(3, WIDTH)
    else:
        rows = {
            "run": lambda: cached.run(feed)[1],
            "out": lambda: cached.run(feed, out=out)[1],
            "raw": lambda: cached.run_raw(feed)[1],
            "read": lambda: cached.run_read_outputs(feed, [1])[0],
            "pipelined": lambda: cached.run_pipelined([feed])[0][1],
        }[way]()
    assert rows.shape == (3, WIDTH)
    assert (rows == np.array([0, 0, 7])[:, None]).all()
    assert cached.read_output_row(1, 2)[0] == 7
    assert cached.read_output_row(1, 3) is None


def test_wrong_outputs_are_refused_by_their_live_shape(context, cached):
    context.set_decode_state(0, 2)
    with pytest.raises(ost.InputError, match=r"\(3, 3\) here"):
        cached.run(row(1), out=[sentinels(WIDTH), sentinels(4, WIDTH)])


def test_queued_runs_keep_the_state_of_their_commit(context, cached):
    for step in range(LENGTH):
        context.set_decode_state(0, step)
        cached.commit_no_wait(row(step + 1))
    cached.sync_pending()
    assert (cached.read_handle("cache") == np.arange(1, LENGTH + 1)[:, None]).all()


def test_plans_follow_the_block(session, context):
    plan = session.prepare(cache_graph())
    for step in range(3):
        context.set_decode_state(0, step)
        plan.inputs["row"].copyin(row(step)["row"])
        plan.execute()
        assert plan.output_buffer_at(1).shape == (step + 1, WIDTH)
        assert (plan.output_buffer().copyout() == sum(range(step + 1))).all()
    assert plan.execute_profiled()
    for name in ("position", "kv_len"):
        with pytest.raises(ost.VariableError, match="set_decode_state"):
            plan.execute_with_vars({name: 1})
    context.set_decode_state(0, LENGTH)
    with pytest.raises(ost.VariableError, match="position"):
        plan.execute()


def test_plans_take_values_of_their_own_again_outside_of_the_mode(session, context):
    plan = session.prepare(cache_graph())
    plan.execute()
    context.set_dev_state_mode(False)
    with pytest.raises(ost.VariableError, match="no value yet for position, kv_len"):
        plan.execute()
    plan.execute_with_vars({"position": 4, "kv_len": 5})
    assert plan.output_buffer_at(1).shape == (5, WIDTH)
    context.set_dev_state_mode(True)
    plan.execute()
    assert plan.output_buffer_at(1).shape == (1, WIDTH)
    context.set_dev_state_mode(False)
    plan.execute()
    assert plan.output_buffer_at(1).shape == (5, WIDTH)


def test_without_the_mode_the_error_says_what_to_do(session, cached):
    for call in (
        lambda: cached.run(row(1)),
        lambda: cached.bind(row(1), [sentinels(WIDTH), sentinels(LENGTH, WIDTH)]),
    ):
        with pytest.raises(ost.VariableError, match=r"position, kv_len.*set_dev_state_mode"):
            call()
    cached.commit_no_wait(row(1))
    with pytest.raises(ost.VariableError, match="set_dev_state_mode"):
        cached.sync_pending()


def test_values_out_of_bounds_run_nothing(context, cached):
    context.set_decode_state(0, LENGTH)
    out = [sentinels(WIDTH), sentinels(LENGTH, WIDTH)]
    for call in (
        lambda: cached.run(row(1)),
        lambda: cached.run(row(1), out=out),
        lambda: cached.bind(row(1), out),
    ):
        with pytest.raises(ost.VariableError, match=r"'position' is bounded by 0\.\.7, got 8"):
            call()
    assert not cached.read_handle("cache").any()


def test_sizes_of_inputs_must_agree_with_the_block(session, context):
    compiled = session.compile(masked_graph())
    x = np.zeros(2, np.float32)
    context.set_decode_state(0, 2)
    y, mask = compiled.run({"mask": np.ones(3, np.float32), "x": x})
    assert y.tolist() == [3, 3]
    assert mask.shape == (3,)
    with pytest.raises(ost.VariableError, match="the variable block"):
        compiled.run({"mask": np.ones(4, np.float32), "x": x})
    with pytest.raises(ost.VariableError, match="'n'"):
        compiled.run({"mask": np.ones(3, np.float32), "x": np.zeros(5, np.float32)})
    context.set_dev_state_mode(False)
    assert compiled.run({"mask": np.ones(4, np.float32), "x": x})[1].shape == (4,)


def test_graphs_without_such_variables_do_not_care(session, context):
    g = ost.Graph("plain")
    n = ost.Variable("n", 1, 4)
    g.set_outputs([g.input("x", (n,)) + 1])
    compiled = session.compile(g)
    assert compiled.run({"x": np.zeros(3, np.float32)})[0].shape == (3,)


# -- bound calls and recordings --------------------------------------------------------------------


def test_one_recording_serves_every_step(context, cached):
    feed, total, rows = row(0), sentinels(WIDTH), sentinels(LENGTH, WIDTH)
    bound = cached.bind(feed, [total, rows])
    with recorded(context, 1):
        bound()
    for step in range(LENGTH):
        feed["row"][:] = step + 1
        context.set_decode_state(0, step)
        assert context.replay_graph(1)
        assert (total == sum(range(step + 2))).all()
        assert (rows[: step + 1] == np.arange(1, step + 2)[:, None]).all()
        assert (rows[step + 1 :] == SENTINEL).all(), "rows beyond kv_len were written"


def test_a_step_out_of_bounds_replays_nothing(session, context, cached):
    """Two graphs in one recording: the second one's bounds keep the first from running, too."""
    longer = session.compile(cache_graph(2 * LENGTH))
    out = [sentinels(WIDTH), sentinels(2 * LENGTH, WIDTH)]
    with recorded(context, 1):
        longer.bind(row(1), out)()
        cached.commit_no_wait(row(1))
    context.set_decode_state(0, LENGTH)
    with pytest.raises(ost.VariableError, match=r"bounded by 0\.\.7"):
        context.replay_graph(1)
    assert (out[0] == SENTINEL).all()
    assert not longer.read_handle("cache").any()
    context.set_decode_state(0, LENGTH - 1)
    assert context.replay_graph(1)
    assert longer.read_handle("cache")[LENGTH - 1, 0] == 1


def test_arrays_too_small_for_a_step_replay_nothing(context, cached):
    out = [sentinels(WIDTH), sentinels(4, WIDTH)]
    bound = cached.bind(row(1), out)
    with recorded(context, 1):
        bound()
    context.set_decode_state(0, 3)
    bound()
    context.set_decode_state(0, 4)
    out[1][:] = SENTINEL
    for call in (bound, lambda: context.replay_graph(1)):
        with pytest.raises(ost.VariableError, match=r"kv_len 5.*60 bytes in an array that has 48"):
            call()
    assert (out[1] == SENTINEL).all()
    with pytest.raises((ost.InputError, ost.VariableError)):
        cached.bind(row(1), out)


def test_bound_inputs_may_have_room_to_grow(session, context):
    compiled = session.compile(masked_graph())
    mask, x = np.ones(LENGTH, np.float32), np.zeros(2, np.float32)
    y, doubled = sentinels(2), sentinels(LENGTH)
    with recorded(context, 1):
        compiled.bind({"mask": mask, "x": x}, [y, doubled])()
    for step in (0, 7, 3):
        context.set_decode_state(0, step)
        context.replay_graph(1)
        assert (y == step + 1).all()
    for wrong in (np.ones(LENGTH + 1, np.float32), np.ones(3, np.float32)):
        with pytest.raises((ost.InputError, ost.VariableError)):
            compiled.bind({"mask": wrong, "x": x}, [y, doubled])
    with pytest.raises(ost.InputError):
        compiled.bind({"mask": mask, "x": x}, [sentinels(3), doubled])


def test_calls_bound_in_the_mode_need_it(context, cached):
    bound = cached.bind(row(1), [sentinels(WIDTH), sentinels(LENGTH, WIDTH)])
    with recorded(context, 1):
        bound()
    context.set_dev_state_mode(False)
    with pytest.raises(ost.VariableError, match=r"set_dev_state_mode\(True\)"):
        bound()
    context.set_decode_state(0, 5)
    assert context.replay_graph(1)  # what was recorded in the mode stays in it
    assert cached.read_handle("cache")[5, 0] == 1


def test_calls_bound_before_the_mode_follow_it(session):
    compiled, context = session.compile(masked_graph()), session.context
    mask, x = np.ones(LENGTH, np.float32), np.zeros(2, np.float32)
    y = sentinels(2)
    bound = compiled.bind({"mask": mask, "x": x}, [y, sentinels(LENGTH)])
    for mode, expected in ((False, LENGTH), (True, 4), (False, LENGTH)):
        context.set_dev_state_mode(mode)
        context.set_decode_state(0, 3)
        bound()
        assert (y == expected).all()


def test_recorded_commits_follow_the_block(context, cached):
    feed = row(1)
    with recorded(context, 1):
        cached.commit_no_wait(feed)
    for step in (0, 4, 2):
        feed["row"][:] = step + 10
        context.set_decode_state(0, step)
        context.replay_graph(1)
        assert cached.read_output_row(1, step)[0] == step + 10
        assert cached.read_output_row(1, step + 1) is None


def test_feeds_whose_size_follows_the_block_are_not_recorded(session, context):
    _, kv_len = variables()
    g = ost.Graph("growing")
    x = g.input("x", (kv_len,))
    g.set_outputs([x + 1])
    compiled = session.compile(g)
    compiled.bind_handle("x", np.zeros(1, np.float32))
    compiled.set_handle_feed("x", 0)
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match="variable block"):
        compiled.commit_no_wait()
    context.cancel_graph_capture()


def test_the_state_is_written_inside_a_recording_and_no_part_of_it(context, cached):
    context.begin_graph_capture()
    context.set_decode_state(0, 3)
    cached.commit_no_wait(row(5))
    context.end_graph_capture(1)
    assert context.decode_state["position"] == 3
    context.set_decode_state(0, 6)
    context.replay_graph(1)
    assert cached.read_handle("cache")[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 5, 0]


def test_the_token_comes_from_the_block(session, context):
    token = ost.Variable("token", 0, 9)
    g = ost.Graph("embed")
    table = g.constant(np.arange(20, dtype=np.float32).reshape(10, 2))
    g.set_outputs([g.dynamic_slice(table, (token, 0), (1, 2))])
    y = sentinels(1, 2)
    bound = session.compile(g).bind({}, [y])
    with recorded(context, 1):
        bound()
    for chosen in (9, 0, 4):
        context.set_decode_state(chosen, 0)
        context.replay_graph(1)
        assert y.tolist() == [[2 * chosen, 2 * chosen + 1]]
    context.set_decode_state(10, 0)
    with pytest.raises(ost.VariableError, match="'token' is bounded"):
        context.replay_graph(1)


def test_states_and_replays_of_many_threads(context, cached):
    """A replay reads one step's position and kv_len, never a mix of two steps."""
    total, rows = sentinels(WIDTH), sentinels(LENGTH, WIDTH)
    with recorded(context, 1):
        cached.bind(row(1), [total, rows])()
    stop = threading.Event()

    def write():
        step = 0
        while not stop.is_set():
            step = (step + 1) % LENGTH
            context.set_decode_state(0, step)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert context.replay_graph(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert cached.read_handle("cache").max() == 1


def test_buffers_of_the_context_do_not_mind(context):
    buffer = context.empty(TensorType(FLOAT32, (2,)))
    assert buffer.copyout().tolist() == [0, 0]
