"""Fixed slots of a program move to other memory, for bound calls and under running threads too."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from ostinato.backends.cpu import _core

LENGTH = 16
NBYTES = 8 * LENGTH


class Tracked(np.ndarray):
    """Memory whose end can be watched."""


def numbers(start: int) -> Tracked:
    return np.arange(start, start + LENGTH, dtype=np.int64).view(Tracked)


def adder(kernels, first, second):
    """external 0 = first + second + 0"""
    step = (kernels.add, ((0, 0), (1, 0), (2, 0)), LENGTH, 0, 4, 0)
    return _core.Program(_core.ThreadPool(1), [(NBYTES, True), first, second], [step], 1)


def test_later_runs_and_bound_calls_use_the_new_memory(kernels):
    first, second, third = numbers(0), numbers(100), numbers(1000)
    program = adder(kernels, first, second)
    out = np.zeros(LENGTH, np.int64)
    bound = program.bind((out,))
    bound()
    np.testing.assert_array_equal(out, first + second)
    program.move_slot(2, third)
    bound()
    np.testing.assert_array_equal(out, first + third)
    program.run((out,))
    np.testing.assert_array_equal(out, first + third)


def test_offsets_into_the_slot_are_kept(kernels):
    wide = np.arange(2 * LENGTH, dtype=np.int64)
    step = (kernels.add, ((0, 0), (1, 0), (1, NBYTES)), LENGTH, 0, 4, 0)
    program = _core.Program(_core.ThreadPool(1), [(NBYTES, True), wide], [step], 1)
    moved = wide * 10
    program.move_slot(1, moved)
    out = np.zeros(LENGTH, np.int64)
    program.run((out,))
    np.testing.assert_array_equal(out, moved[:LENGTH] + moved[LENGTH:])


def test_the_old_memory_is_let_go_and_the_new_one_held(kernels):
    first, second, third = numbers(0), numbers(100), numbers(1000)
    program = adder(kernels, first, second)
    program.move_slot(2, third)
    old, new = weakref.ref(second), weakref.ref(third)
    del second, third
    gc.collect()
    assert old() is None
    assert new() is not None
    del program
    gc.collect()
    assert new() is None


@pytest.mark.parametrize(
    ("slot", "buffer", "error"),
    [
        (0, np.zeros(LENGTH, np.int64), IndexError),  # external
        (3, np.zeros(LENGTH, np.int64), IndexError),
        (-1, np.zeros(LENGTH, np.int64), IndexError),
        (1, np.zeros(LENGTH - 1, np.int64), ValueError),
        (1, np.zeros(2 * LENGTH, np.int64)[::2], ValueError),
        (1, 7, ValueError),
        ("1", np.zeros(LENGTH, np.int64), TypeError),
    ],
)
def test_a_refused_move_changes_nothing(kernels, slot, buffer, error):
    first, second = numbers(0), numbers(100)
    program = adder(kernels, first, second)
    with pytest.raises(error):
        program.move_slot(slot, buffer)
    out = np.zeros(LENGTH, np.int64)
    program.run((out,))
    np.testing.assert_array_equal(out, first + second)


def test_moves_and_runs_on_many_threads(kernels):
    """Each run sees one memory or the other, whole; memory that was left is freed meanwhile."""
    length = 4096
    pool = _core.ThreadPool(2)
    step = (kernels.add, ((0, 0), (1, 0), (1, 0)), length, 0, 64, 0)
    slots = [(8 * length, True), np.zeros(length, np.int64)]
    program = _core.Program(pool, slots, [step], 1)
    wrong: list[np.ndarray] = []

    def run() -> None:
        out = np.zeros(length, np.int64)
        for _ in range(300):
            program.run((out,))
            if (out != out[0]).any():
                wrong.append(out.copy())

    def move() -> None:
        for i in range(300):
            program.move_slot(1, np.full(length, i, np.int64))

    threads = [threading.Thread(target=target) for target in (run, run, move, move)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
