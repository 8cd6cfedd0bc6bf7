"""Steps of the native core that bind sizes and check them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu import _core


@pytest.fixture
def pool() -> _core.ThreadPool:
    return _core.ThreadPool(1)


def bind(**changes: Any) -> tuple[Any, ...]:
    """A step that gives variable 0 the first number of slot 0, and copies that to the second."""
    step = {
        "kernel": None,
        "args": ((0, 0), (0, 8)),
        "variable": 0,
        "least": 1,
        "greatest": 4,
        "greatest_address": 0,
        "problem": "a count is 1 to 4",
    }
    return tuple((step | changes).values())


def test_a_number_within_its_bounds_is_kept(pool):
    arena = _core.Arena(16)
    numbers = np.frombuffer(arena, np.int64)
    program = _core.Program(pool, [arena], [bind(), bind(least=0)], 1)
    for count in (1, 4, 3):
        numbers[:] = count, 0
        program.run()
        assert numbers[1] == count
    for count in (0, 5, -(1 << 62)):
        numbers[:] = count, 7
        with pytest.raises(ValueError, match=f"a count is 1 to 4, got {count}"):
            program.run()
        with pytest.raises(ValueError, match=f"got {count}"):
            program.bind()()
        assert numbers[1] == 7


def test_steps_behind_a_refused_number_do_not_run(pool):
    arena = _core.Arena(32)
    numbers = np.frombuffer(arena, np.int64)
    copy = (_core.memcpy_kernel, ((0, 24), (0, 0)), 8, 0, 8, 0)
    program = _core.Program(pool, [arena], [bind(), copy], 1)
    numbers[:] = 9, 0, 0, 0
    with pytest.raises(ValueError, match="got 9"):
        program.run()
    assert numbers[3] == 0
    numbers[0] = 2
    assert len(program.run_profiled()) == 2
    assert numbers[3] == 2


def test_a_check_of_a_constant(pool):
    good = (None, (), -1, 0, 0, 0, "fine")
    bad = (None, (), -1, 0, -3, 0, "a difference")
    _core.Program(pool, [], [good], 0).run()
    with pytest.raises(ValueError, match="a difference, got -3"):
        _core.Program(pool, [], [good, bad], 0).run()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"variable": 1}, IndexError, "there is no variable 1"),
        ({"variable": -2}, ValueError, "variable is -2"),
        ({"args": ((0, 0),)}, ValueError, "a size has 1 arguments, not 2"),
        ({"args": ((0, 0), (0, 9))}, ValueError, "a size takes 8 bytes"),
        ({"args": ((0, 0), (1, 0))}, IndexError, "argument 1 is in slot 1"),
        ({"least": -1}, ValueError, "least is -1"),
        ({"greatest": "4"}, TypeError, "greatest must be an int"),
        ({"greatest_address": -1}, ValueError, "greatest_address is -1"),
        ({"problem": 5}, TypeError, "problem must be a str"),
    ],
)
def test_bad_steps(pool, changes, error, message):
    with pytest.raises(error, match=message):
        _core.Program(pool, [_core.Arena(16)], [bind(**changes)], 1)
