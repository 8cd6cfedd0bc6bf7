"""Recording bound calls and replaying them, and the block of variables that calls read."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref

import numpy as np
import pytest

from ostinato.backends.cpu import _core

LENGTH = 8


class CaptureTrouble(Exception):
    """Stands in for the error of the layer above."""


class VariableTrouble(Exception):
    """Stands in for the error of the layer above."""


class Held(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.fixture
def pool():
    return _core.ThreadPool(1)


@pytest.fixture
def queue():
    return _core.CommandQueue(CaptureTrouble, VariableTrouble)


def adder(pool, kernels, queue, resident=()):
    """``out = a + b + vars[0]`` over as many elements as ``vars[0]`` says."""
    size = kernels.eight_bytes_each
    step = (kernels.add, ((0, 0), (1, 0), (2, 0)), LENGTH, kernels.first_variable, 4, 0)
    slots = [(8 * LENGTH, True, size), (8 * LENGTH, False, size), (8 * LENGTH, False, size)]
    return _core.Program(pool, slots, [step], 1, queue=queue, resident=resident)


def arrays(length: int = LENGTH) -> list[np.ndarray]:
    out = np.full(length, -1, np.int64)
    return [out, np.arange(length), np.arange(length) * 10]


# -- recording -------------------------------------------------------------------------------------


def test_recorded_calls_run_when_they_are_replayed(pool, kernels, queue):
    program = adder(pool, kernels, queue)
    buffers = arrays()
    call = program.bind(buffers, [3])
    queue.begin(False)
    assert queue.recording
    call()
    call()
    recording = queue.end()
    assert not queue.recording
    assert recording.n_calls == 2
    np.testing.assert_array_equal(buffers[0], -1)
    recording.replay()
    np.testing.assert_array_equal(buffers[0][:3], [3, 14, 25])
    np.testing.assert_array_equal(buffers[0][3:], -1)
    buffers[1][:] = 0
    recording.replay()
    np.testing.assert_array_equal(buffers[0][:3], [3, 13, 23])


def test_calls_follow_one_another_in_the_order_in_which_they_were_made(pool, kernels, queue):
    """state = 3 state + 1, and a copy, by turns."""
    state, copy = np.zeros(1, np.int64), np.zeros(1, np.int64)
    stepping = _core.Program(
        pool, [state], [(kernels.step_state, ((0, 0),), 1, 0, 1, 0)], 0, queue=queue
    ).bind()
    copying = _core.Program(
        pool,
        [(8, True), state],
        [(_core.memcpy_kernel, ((0, 0), (1, 0)), 8, 0, 8, 0)],
        0,
        queue=queue,
    ).bind([copy])
    queue.begin(False)
    for call in (stepping, stepping, copying, stepping):
        call()
    recording = queue.end()
    recording.replay()
    assert (state[0], copy[0]) == (13, 4)
    recording.replay()
    assert (state[0], copy[0]) == (364, 121)


def test_a_call_without_variables_of_its_own_follows_those_of_its_program(pool, kernels, queue):
    program = adder(pool, kernels, queue)
    buffers = arrays()
    call = program.bind(buffers)
    queue.begin(False)
    call()
    recording = queue.end()
    for count in (2, 5):
        program.set_vars([count])
        buffers[0][:] = -1
        recording.replay()
        assert (buffers[0] >= 0).sum() == count


def test_programs_of_no_queue_run_while_one_records(pool, kernels, queue):
    buffers = arrays()
    call = adder(pool, kernels, None).bind(buffers, [8])
    queue.begin(False)
    call()
    assert queue.end().n_calls == 0
    assert buffers[0][7] == 7 + 70 + 8


def test_runs_are_refused_while_recording(pool, kernels, queue):
    program = adder(pool, kernels, queue)
    queue.begin(False)
    for run in (program.run, program.run_profiled):
        with pytest.raises(CaptureTrouble, match="reads its results back"):
            run(arrays(), [1])
    with pytest.raises(CaptureTrouble):
        queue.begin(False)
    assert queue.end().n_calls == 0
    program.run(arrays(), [1])
    with pytest.raises(CaptureTrouble):
        queue.end()


def test_cancelled_recordings_are_gone(pool, kernels, queue):
    buffers = arrays()
    call = adder(pool, kernels, queue).bind(buffers, [2])
    queue.cancel()
    queue.begin(False)
    call()
    queue.cancel()
    assert not queue.recording
    np.testing.assert_array_equal(buffers[0], -1)
    call()
    assert buffers[0][0] == 2


def test_nothing_recorded_replays_as_nothing(queue):
    queue.begin(False)
    recording = queue.end()
    recording.replay()
    assert recording.n_calls == 0
    assert not recording.uses(queue)


def test_many_calls(pool, kernels, queue):
    counted, pieces = np.zeros(1, np.int64), np.zeros(1, np.int64)
    step = (kernels.count, ((0, 0), (1, 0)), 1, 0, 1, 0)
    call = _core.Program(pool, [counted, pieces], [step], 0, queue=queue).bind()
    queue.begin(False)
    for _ in range(1000):
        call()
    recording = queue.end()
    for _ in range(3):
        recording.replay()
    assert counted[0] == 3000


# -- what lives, and what is let go ----------------------------------------------------------------


def test_a_recording_keeps_arrays_and_programs(pool, kernels, queue):
    out, *rest = arrays()
    held = out.view(Held)
    gone, call = weakref.ref(held), adder(pool, kernels, queue).bind([held, *rest], [4])
    queue.begin(False)
    call()
    recording = queue.end()
    del call, held
    gc.collect()
    assert gone() is not None
    recording.replay()
    assert out[3] == 3 + 30 + 4
    del recording
    gc.collect()
    assert gone() is None


def test_what_is_being_recorded_is_let_go_with_the_queue(pool, kernels):
    queue = _core.CommandQueue(CaptureTrouble, VariableTrouble)
    held = np.zeros(LENGTH, np.int64).view(Held)
    gone = weakref.ref(held)
    call = adder(pool, kernels, queue).bind([held, *arrays()[1:]], [4])
    queue.begin(False)
    call()  # the queue has the call, which has the program, which has the queue
    del queue, call, held
    gc.collect()
    assert gone() is None


def test_cycles_through_recordings_are_collected(pool, kernels, queue):
    class Holder(list):
        pass

    holder = Holder()
    step = (kernels.nothing, (), 1, 0, 1, 0)
    call = _core.Program(pool, [], [step], 0, owner=holder, queue=queue).bind()
    queue.begin(False)
    call()
    holder.append(queue.end())
    gone = weakref.ref(holder)
    del holder, call
    gc.collect()
    assert gone() is None


def test_uses_tells_programs_and_memory(pool, kernels, queue):
    fixed, stranger = _core.Arena(64), _core.Arena(64)
    step = (_core.memcpy_kernel, ((1, 0), (0, 0)), 8, 0, 8, 0)
    program = _core.Program(pool, [fixed, (8, True)], [step], 0, queue=queue)
    out = np.zeros(1, np.int64)
    call = program.bind([out])
    queue.begin(False)
    call()
    recording = queue.end()
    assert all(map(recording.uses, (program, fixed, out)))
    assert not any(map(recording.uses, (stranger, np.zeros(1), queue, None)))
    assert program.uses(fixed)
    assert not program.uses(out)


def test_stopped_programs_are_neither_recorded_nor_replayed(pool, kernels, queue):
    before = _core.Program(
        pool, [np.zeros(1, np.int64)], [(kernels.step_state, ((0, 0),), 1, 0, 1, 0)], 0, queue=queue
    )
    memory = np.zeros(1, np.int64)
    counting = _core.Program(
        pool, [memory], [(kernels.step_state, ((0, 0),), 1, 0, 1, 0)], 0, queue=queue
    ).bind()
    call = before.bind()
    queue.begin(False)
    counting()
    call()
    recording = queue.end()
    before.stop(LookupError("gone"))
    with pytest.raises(LookupError, match="gone"):
        recording.replay()
    assert memory[0] == 0, "part of the recording ran"
    queue.begin(False)
    with pytest.raises(LookupError, match="gone"):
        call()
    assert queue.end().n_calls == 0


def test_moved_slots_are_followed(pool, kernels, queue):
    first, second = np.zeros(1, np.int64), np.zeros(1, np.int64)
    program = _core.Program(
        pool, [first], [(kernels.step_state, ((0, 0),), 1, 0, 1, 0)], 0, queue=queue
    )
    call = program.bind()
    queue.begin(False)
    call()
    recording = queue.end()
    program.move_slot(0, second)
    recording.replay()
    assert (first[0], second[0]) == (0, 1)


# -- the block -------------------------------------------------------------------------------------

POSITION = [(0, 1, 0, LENGTH)]


def test_the_block_begins_as_for_step_0(queue):
    assert queue.block == (0, 0, 1)
    assert not queue.from_block
    queue.block = (7, 8, 9)
    assert queue.block == (7, 8, 9)


@pytest.mark.parametrize("wrong", [(1, 2), (1, 2, 3, 4), (1, 2, "3"), 5, (1 << 63, 0, 0)])
def test_wrong_blocks_change_nothing(queue, wrong):
    with pytest.raises((TypeError, ValueError)):
        queue.block = wrong
    with pytest.raises(TypeError):
        del queue.block
    assert queue.block == (0, 0, 1)


def test_calls_read_the_block(pool, kernels, queue):
    program = adder(pool, kernels, queue, POSITION)
    buffers = arrays()
    call = program.bind(buffers, [2])
    queue.from_block = True
    for position in (3, 8, 0):
        queue.block = (0, position, 0)
        buffers[0][:] = -1
        call()
        assert (buffers[0] >= 0).sum() == position
    queue.from_block = False
    call()
    assert (buffers[0] >= 0).sum() == 2


def test_what_was_recorded_with_the_block_reads_it_for_good(pool, kernels, queue):
    program = adder(pool, kernels, queue, POSITION)
    buffers = arrays()
    own = program.bind(buffers, [2])
    queue.begin(False)
    own()
    fixed = queue.end()
    queue.from_block = True
    queue.begin(False)
    own()
    following = queue.end()
    queue.block = (0, 5, 0)
    for recording, count in ((fixed, 2), (following, 5)):
        for mode in (True, False):
            queue.from_block = mode
            buffers[0][:] = -1
            recording.replay()
            assert (buffers[0] >= 0).sum() == count


@pytest.mark.parametrize("position", [-1, LENGTH + 1, 1 << 40])
def test_values_out_of_bounds_run_nothing(pool, kernels, queue, position):
    program = adder(pool, kernels, queue, POSITION)
    first, second = arrays(), arrays()
    calls = [adder(pool, kernels, queue).bind(first, [1]), program.bind(second, [1])]
    queue.from_block = True
    queue.begin(False)
    for call in calls:
        call()
    recording = queue.end()
    queue.block = (0, position, 0)
    for run in (calls[1], recording.replay):
        with pytest.raises(VariableTrouble, match=r"'position' is bounded by 0\.\.8"):
            run()
    assert (first[0] == -1).all()
    assert (second[0] == -1).all()


def test_buffers_too_small_for_the_block_run_nothing(pool, kernels, queue):
    program = adder(pool, kernels, queue, POSITION)
    queue.from_block = True
    buffers = arrays(4)
    call = program.bind(buffers, [1])
    queue.block = (0, 4, 0)
    call()
    queue.block = (0, 5, 0)
    buffers[0][:] = -1
    with pytest.raises(VariableTrouble, match="needs 40 bytes in an array that has 32"):
        call()
    assert (buffers[0] == -1).all()


def test_calls_bound_to_the_block_need_it(pool, kernels, queue):
    program = adder(pool, kernels, queue, POSITION)
    queue.from_block = True
    call = program.bind(arrays(), [1])
    queue.from_block = False
    with pytest.raises(VariableTrouble, match="dev-state mode"):
        call()
    queue.begin(False)
    with pytest.raises(VariableTrouble, match="dev-state mode"):
        call()
    assert queue.end().n_calls == 0


def test_calls_without_values_of_resident_variables_need_the_block(pool, kernels, queue):
    buffers = arrays()
    call = adder(pool, kernels, queue, POSITION).bind(buffers)
    with pytest.raises(VariableTrouble, match="dev-state mode"):
        call()
    queue.from_block = True
    queue.block = (0, 3, 0)
    call()
    assert (buffers[0] >= 0).sum() == 3


# -- wrong arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resident",
    [
        [(1, 0, 0, 1)],
        [(0, 3, 0, 1)],
        [(-1, 0, 0, 1)],
        [(0, 0, 0)],
        [(0, 0, 0, 1)] * 4,
        [5],
        5,
        [(0, 0, "0", 1)],
    ],
)
def test_wrong_resident_variables(pool, kernels, queue, resident):
    with pytest.raises((TypeError, ValueError, IndexError)):
        adder(pool, kernels, queue, resident)


def test_wrong_queues(pool, kernels):
    with pytest.raises(TypeError, match="CommandQueue"):
        adder(pool, kernels, "queue")
    with pytest.raises(ValueError, match="without a queue"):
        adder(pool, kernels, None, POSITION)
    for wrong in ((ValueError,), (int, ValueError), (ValueError, "error")):
        with pytest.raises(TypeError):
            _core.CommandQueue(*wrong)
    with pytest.raises(TypeError):
        _core.Recording()


# -- threads and forks -----------------------------------------------------------------------------


def test_replays_on_many_threads(kernels, queue):
    pool = _core.ThreadPool(2)
    state = np.zeros(1, np.int64)
    step = (kernels.count, ((0, 0), (1, 0)), 1, 0, 1, 0)
    program = _core.Program(pool, [state, np.zeros(1, np.int64)], [step], 0, queue=queue)
    call = program.bind()
    queue.begin(False)
    for _ in range(10):
        call()
    recording = queue.end()

    def work():
        for _ in range(200):
            recording.replay()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state[0] == 4 * 200 * 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads
def test_a_child_replays_what_its_parent_recorded(kernels, queue):
    pool = _core.ThreadPool(2)
    shared = multiprocessing.RawArray("q", 1)
    memory = np.frombuffer(shared, np.int64)
    step = (kernels.step_state, ((0, 0),), 1, 0, 1, 0)
    call = _core.Program(pool, [memory], [step], 0, queue=queue).bind()
    queue.begin(False)
    call()
    recording = queue.end()
    recording.replay()

    def child():
        recording.replay()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert memory[0] == 4
