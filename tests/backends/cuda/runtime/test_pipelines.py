"""Many runs at once: the copies of one beside the kernels of another, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.driver import DriverFailure
from tests.devices.cuda_host.driver import HostDriver

#: Elements of arrays that are copied by themselves, and together with others.
SIZES = {"large": 40_000, "small": 5_000, "tiny": 8}


def accumulator(session: ost.Session, size: int) -> ost.CompiledGraph:
    """Adds its input to a state; gives the sum and twice the input."""
    g = ost.Graph("accumulator")
    x, total = g.input("x", (size,)), g.state("total", (size,))
    after = total + x
    g.assign(total, after)
    g.set_outputs([after * 1.0, x * 2.0])
    return session.compile(g)


def feeds(size: int, count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full(size, number + 1, np.float32)} for number in range(count)]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_results_are_those_of_one_run_after_the_other(
    session: ost.Session, size: int, count: int
) -> None:
    compiled = accumulator(session, size)
    for repeat in range(3):  # kernel by kernel, as graphs that are recorded, and that are there
        start = repeat * sum(range(1, count + 1))
        results = compiled.run_pipelined(feeds(size, count))
        assert len(results) == count
        for number, (total, doubled) in enumerate(results):
            assert (total == start + sum(range(1, number + 2))).all()
            assert (doubled == 2 * (number + 1)).all()


def test_inputs_are_copied_while_the_run_before_is_under_way(
    session: ost.Session, driver: HostDriver
) -> None:
    size = SIZES["large"]
    compiled = accumulator(session, size)
    for _ in range(3):
        compiled.run_pipelined(feeds(size, 4))
    first = len(driver.events)
    compiled.run_pipelined(feeds(size, 4))
    names = [name for name, _ in driver.events[first:] if name in ("launch_graph", "synchronize")]
    assert names[:4] == ["launch_graph", "launch_graph", "synchronize", "launch_graph"]


def test_a_failure_leaves_nothing_under_way(session: ost.Session, driver: HostDriver) -> None:
    size = SIZES["large"]
    compiled = accumulator(session, size)
    compiled.run_pipelined(feeds(size, 3))
    driver.fail_next["record"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises((ost.DeviceError, DriverFailure), match="injected"):
        compiled.run_pipelined(feeds(size, 3))
    results = compiled.run_pipelined(feeds(size, 2))
    assert (results[1][1] == 4).all()


def test_sizes_of_their_own(session: ost.Session) -> None:
    n = ost.Variable("n", 1, 40_000)
    g = ost.Graph("sized")
    g.set_outputs([g.input("x", (n,)) + 1.0])
    compiled = session.compile(g)
    sets = [{"x": np.arange(size, dtype=np.float32)} for size in (40_000, 3, 17_000, 1)]
    for given, (found,) in zip(sets, compiled.run_pipelined(sets), strict=True):
        np.testing.assert_array_equal(found, given["x"] + 1)
