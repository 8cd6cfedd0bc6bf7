"""Giving memory back: pages that are needed no more, programs that will never run again."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from ostinato.backends.cpu import _core
from tests.allocations import blocks_gathered, resident_bytes

LENGTH = 16


@pytest.fixture
def pool():
    return _core.ThreadPool(2)


def discard(pool, buffer, offset: int, nbytes: int, slot_bytes: int) -> None:
    step = (_core.discard_kernel, ((0, offset),), nbytes, 0, nbytes or 1, 0, False)
    _core.Program(pool, [(slot_bytes, True)], [step], 0).run([buffer])


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 0), (0, 20_000), (1, 4095), (5000, 10_000), (4096, 8192), (100, 7)]
)
def test_discarded_bytes_are_zero_and_others_stay(pool, offset, nbytes):
    arena = _core.Arena(20_000)
    view = np.frombuffer(arena, np.uint8)
    view[:] = 7
    discard(pool, arena, offset, nbytes, 20_000)
    expected = np.full(20_000, 7, np.uint8)
    expected[offset : offset + nbytes] = 0
    np.testing.assert_array_equal(view, expected)
    view[:] = 9
    assert (view == 9).all()


def test_discarding_gives_pages_back_to_the_system(pool):
    nbytes = 64 << 20
    arena = _core.Arena(nbytes)
    np.frombuffer(arena, np.uint8)[:] = 1
    before = resident_bytes()
    discard(pool, arena, 0, nbytes, nbytes)
    assert before - resident_bytes() > nbytes * 0.9


class Held(np.ndarray):
    """An array that can be referred to weakly."""


@pytest.fixture
def stopped(pool, kernels):
    """A program on a fixed array, a bound call of it, and a weak reference to the array."""
    memory = np.zeros(LENGTH, np.int64).view(Held)
    counted = np.zeros(1, np.int64)
    step = (kernels.count, ((0, 0), (1, 0)), LENGTH, 0, 4, 0)
    program = _core.Program(pool, [memory, (8, True)], [step], 0)
    return program, program.bind([counted]), weakref.ref(memory), counted


def test_stopped_programs_raise_and_let_memory_go(stopped):
    program, bound, memory, counted = stopped
    bound()
    gc.collect()
    assert memory() is not None
    program.stop(LookupError("memory is gone"))
    assert memory() is None
    before = counted.copy()
    for run in (bound, lambda: program.run([counted]), lambda: program.run_profiled([counted])):
        with pytest.raises(LookupError, match="memory is gone"):
            run()
    np.testing.assert_array_equal(counted, before)


def test_the_first_error_stays(stopped):
    program, bound, *_ = stopped
    program.stop(LookupError("first"))
    program.stop(ValueError("second"))
    with pytest.raises(LookupError, match="first"):
        bound()


def test_only_exceptions_stop(stopped):
    program, bound, *_ = stopped
    for wrong in (None, "gone", ValueError, KeyboardInterrupt()):
        with pytest.raises(TypeError, match="stop"):
            program.stop(wrong)
    bound()


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="asan delays every free")
def test_raising_again_and_again_gathers_nothing(stopped):
    program, bound, *_ = stopped
    program.stop(LookupError("gone"))

    def refused() -> None:
        try:  # leaner than pytest.raises, whose records are cycles
            bound()
        except LookupError:
            return
        raise AssertionError("it ran")

    for _ in range(100):
        refused()
    assert blocks_gathered(refused, 1000) < 50


def test_stopping_waits_for_the_run_in_progress(pool, kernels):
    """Were the memory let go at once, the kernel would write to another owner's."""
    for _ in range(20):
        arena = _core.Arena(8 * LENGTH)
        steps = [
            (kernels.dawdle, (), 20, 0, 1, 0),
            (kernels.step_state, ((0, 0),), 50, 0, 50, 0, False),
        ]
        program = _core.Program(pool, [arena], steps, 0)
        del arena
        errors: list[Exception] = []

        def work(program=program, errors=errors):
            try:
                while True:
                    program.run()
            except LookupError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        program.run()
        program.stop(LookupError("gone"))
        for thread in threads:
            thread.join()
        assert len(errors) == 3
