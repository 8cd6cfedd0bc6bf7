"""Memory of open sizes: a run takes pages for the sizes that it has, not for their bounds."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from tests.devices.cuda_host.driver import HostDriver

WIDTH = 64
W = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
BOUND = 1 << 28  # rows; 64 GiB of float32 for each value
EXPECTED_PAGES = 64 << 10


def layers(session: ost.Session) -> ost.CompiledGraph:
    """Several values that live at once, all of open sizes."""
    g = ost.Graph("layers")
    n = ost.Variable("n", 1, BOUND)
    x = g.input("x", (n, WIDTH))
    y = g.matmul(x, g.param("w", (WIDTH, WIDTH), value=W))
    z = g.matmul(g.tanh(y), g.param("v", (WIDTH, WIDTH), value=W.T))
    g.set_outputs([g.sum(g.matmul(z, g.param("u", (WIDTH, WIDTH), value=W)) * y, axis=1)])
    return session.compile(g)


def expected(x: np.ndarray) -> np.ndarray:
    w = W.astype(np.float64)
    y = x @ w
    return (np.tanh(y) @ w.T @ w * y).sum(1)


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32) * 0.1


def check(compiled: ost.CompiledGraph, count: int) -> None:
    x = rows(count)
    np.testing.assert_allclose(compiled.run({"x": x})[0], expected(x), rtol=1e-3, atol=1e-4)


def test_a_run_takes_memory_for_its_own_sizes(session: ost.Session, driver: HostDriver) -> None:
    compiled = layers(session)
    assert compiled.plan.memory.arena_bytes > driver.memory_info()[1]
    check(compiled, 3)
    few = driver.allocated
    check(compiled, 300)
    more = driver.allocated
    assert few < more < 8 * 300 * WIDTH * 4 + EXPECTED_PAGES
    for count in (1, 17, 299, 300):
        check(compiled, count)
    assert driver.allocated == more


def test_memory_is_given_back(session: ost.Session, driver: HostDriver) -> None:
    before = driver.allocated
    compiled = layers(session)
    check(compiled, 40)
    compiled.plan.release_intermediate_buffers()
    held = driver.allocated
    check(compiled, 41)
    assert driver.allocated > held
    compiled.plan.release_all_buffers()
    del compiled
    assert driver.allocated <= before + EXPECTED_PAGES


def test_more_than_the_device_has(session: ost.Session, driver: HostDriver) -> None:
    compiled = layers(session)
    check(compiled, 5)
    driver.fail_next["map_pages"] = "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(ost.DeviceMemoryError, match=r"no [\d,]+ bytes for"):
        compiled.run({"x": rows(600)})
    check(compiled, 600)


def test_bound_calls_and_recordings_grow(session: ost.Session, driver: HostDriver) -> None:
    compiled = layers(session)
    for count in (4, 200):
        x, out = rows(count), np.empty(count, np.float32)
        call = compiled.bind({"x": x}, [out])
        for step in range(3):
            x[:] = rows(count) + 0.01 * step
            call()
            np.testing.assert_allclose(out, expected(x), rtol=1e-3, atol=1e-4)
        compiled.plan.release_intermediate_buffers()
        call()
        np.testing.assert_allclose(out, expected(x), rtol=1e-3, atol=1e-4)


def test_clones_have_pages_of_their_own(session: ost.Session) -> None:
    compiled = layers(session)
    check(compiled, 9)
    twin = compiled.clone()
    check(twin, 90)
    check(compiled, 8)


def test_values_that_runs_give_take_memory_for_their_own_sizes(session: ost.Session) -> None:
    """Inputs and outputs are of one size in all runs: later ones could be native."""
    n, g = ost.Variable("n", 1, BOUND), ost.Graph("given")
    row = g.input("row", (1, WIDTH))
    wide = g.tanh(g.matmul(g.broadcast_to(row, (n, WIDTH)), g.param("w", W.shape, value=W)))
    g.set_outputs([g.sum(g.matmul(wide, g.param("v", W.shape, value=W.T)), axis=0)])
    compiled = session.compile(g)
    x = rows(1)
    once = np.tanh(x.astype(np.float64) @ W) @ W.T
    for count in (1, 1, 1, 1, 2000, 3):
        (found,) = compiled.run({"row": x}, variables={"n": count})
        np.testing.assert_allclose(found, count * once[0], rtol=1e-3, atol=1e-3)
