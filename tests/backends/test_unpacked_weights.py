"""Weights that kernels read in packed form are not kept in their own."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost

RNG = np.random.default_rng(11)
K, N = 300, 260
FEED = {"x": RNG.standard_normal((4, K)).astype(np.float32)}


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def product(*, extra: bool = False) -> ost.Graph:
    """A product with a packed weight; with ``extra``, one whose weight is also an output."""
    g = ost.Graph()
    w = g.param("w", (K, N), value=array(K, N))
    y = g.matmul(g.input("x", (4, K)), w) + g.param("b", (N,), value=array(N))
    g.set_outputs([y, w] if extra else [y])
    return g


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=1)


def test_memory_is_taken_for_the_packed_form_alone(session: ost.Session) -> None:
    packed = session.compile(product()).plan.memory.param_bytes
    assert 4 * K * N <= packed < 2 * 4 * K * N
    assert session.compile(product(extra=True)).plan.memory.param_bytes >= 2 * 4 * K * N


def test_the_plan_still_tells_what_a_param_holds(session: ost.Session) -> None:
    g = product()
    compiled = session.compile(g)
    buffer = compiled.plan.buffer(g.params["w"])
    np.testing.assert_array_equal(buffer.copyout(), g.param_values["w"])
    new = array(K, N)
    compiled.set_param("w", new)
    kept = new.copy()
    new[:] = 0
    np.testing.assert_array_equal(buffer.copyout(), kept)
    np.testing.assert_allclose(
        compiled.run(FEED)[0], FEED["x"] @ kept + g.param_values["b"], rtol=1e-4, atol=1e-4
    )
    buffer.copyin(kept * 2)
    np.testing.assert_array_equal(buffer.copyout(), kept * 2)


def test_it_holds_zeros_until_it_is_written(session: ost.Session) -> None:
    g = ost.Graph()
    g.set_outputs([g.matmul(g.input("x", (4, K)), g.param("w", (K, N)))])
    compiled = session.compile(g)
    assert not compiled.plan.buffer(g.params["w"]).copyout().any()
    with pytest.raises(ost.InputError, match="never set"):
        compiled.run(FEED)


def test_weights_prepared_together_can_be_written_apart(session: ost.Session) -> None:
    """Weights prepacked from two params are prepacked again when either changes."""
    g = ost.Graph()
    w, s = g.param("w", (K, N), value=array(K, N)), g.param("s", (N,), value=array(N))
    g.set_outputs([g.matmul(g.input("x", (4, K)), w * s)])
    compiled = session.compile(g)
    for name in ("s", "w", "s"):
        values = {"w": compiled.plan.buffer(w).copyout(), "s": compiled.plan.buffer(s).copyout()}
        values[name] = array(*values[name].shape)
        compiled.set_param(name, values[name])
        expected = FEED["x"] @ (values["w"] * values["s"])
        np.testing.assert_allclose(compiled.run(FEED)[0], expected, rtol=1e-3, atol=1e-3)


def test_clones_tell_their_own(session: ost.Session) -> None:
    g = product()
    one = session.compile(g)
    two = one.clone()
    two.set_param("w", array(K, N))
    np.testing.assert_array_equal(one.plan.buffer(g.params["w"]).copyout(), g.param_values["w"])
    assert (two.plan.buffer(g.params["w"]).copyout() != g.param_values["w"]).any()


def test_unaligned_arrays_are_packed_as_well(session: ost.Session) -> None:
    g = product()
    w = array(K, N)
    raw = bytearray(b"\0" + w.tobytes())
    given = np.frombuffer(raw, np.float32, offset=1).reshape(K, N)
    compiled = session.compile(g, {"w": given})
    expected = FEED["x"] @ w + g.param_values["b"]
    np.testing.assert_allclose(compiled.run(FEED)[0], expected, rtol=1e-4, atol=1e-4)
