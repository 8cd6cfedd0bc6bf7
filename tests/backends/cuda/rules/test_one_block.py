"""Segments that a single block runs, in the emulator, against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.target import CudaTarget
from tests.backends.cuda.rules.found_segments import segments_of
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaoneblock")


def router(d: Draw, tokens: int, width: int, experts: int, k: int) -> list[ost.Value]:
    """The weights and the ids of the experts of each token."""
    g, x = d.g, d.of((tokens, width), "float32")
    w = d.rng.standard_normal((width, experts), np.float32)
    scores = g.matmul(g.rms_norm(x, d.of((width,), "float32")), g.constant(w))
    values, ids = g.topk(scores, k)
    return [g.softmax(values, axis=1), ids, g.sum(g.sigmoid(scores), axis=1)]


@pytest.mark.parametrize(
    ("tokens", "width", "experts", "k"), [(1, 64, 8, 2), (5, 37, 3, 3), (2, 300, 301, 1)]
)
def test_a_router_is_one_kernel_of_one_block(
    session: ost.Session, tokens: int, width: int, experts: int, k: int
) -> None:
    d = Draw(ost.Graph("router"), np.random.default_rng(width))
    d.g.set_outputs(router(d, tokens, width, experts, k))
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])
    compiled = session.compile(d.g)
    if experts > 100:  # more bytes than one block reads in the time of a barrier
        alone = [segment for segment in segments_of(compiled) if segment.alone]
        assert not any(isinstance(part.kernel, Matmul) for s in alone for part in s.parts)
        return
    (kernel,) = segments_of(compiled)
    assert len(compiled.plan.kernels) == 1
    assert kernel.alone
    assert kernel.parts[-1].level > 1
    for arch, early in (("sm_80", False), ("sm_90", True)):
        target = CudaTarget.of_arch(arch)
        launch, text = kernel.launch(target), kernel.source(target)
        assert (launch.grid, launch.cooperative, launch.programmatic) == (1, False, early)
        assert "arrive" not in text
        main = text.split('extern "C"')[1]
        assert ("wait_for_earlier_kernels" in main) == early
        if early:  # what no run changes is requested before the wait
            assert main.index("ost::prefetch(") < main.index("wait_for_earlier_kernels")
        compile_text(text, arch)


def test_one_block_may_be_switched_off(session: ost.Session) -> None:
    d = Draw(ost.Graph("off"), np.random.default_rng(5))
    d.g.set_outputs(router(d, 1, 64, 8, 2))
    options = ost.CompileOptions(single_block_segments=False)
    check_against_oracle(d.g, d.arrays, [(session, options)])
    assert not any(s.alone for s in segments_of(session.compile(d.g, options=options)))


def test_parts_that_do_not_wait_for_one_another_have_blocks_of_their_own(
    session: ost.Session,
) -> None:
    d = Draw(ost.Graph("apart"), np.random.default_rng(3))
    x, y = (d.of((7, 50), "float32") for _ in range(2))
    d.g.set_outputs([d.g.sum(x, axis=1), d.g.sum(y, axis=1)])
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions())])
    (segment,) = segments_of(session.compile(d.g))
    assert not segment.alone


def test_states_and_variables_of_one_block(session: ost.Session) -> None:
    """Rows that one part writes and another one reads, at places that Variables give."""
    g, position = ost.Graph("state"), ost.Variable("position", 0, 7)
    cache, x = g.state("cache", (8, 16), "float32"), g.input("x", (1, 16))
    updated = g.dynamic_update_slice(cache, x * 2.0, (position, 0))
    g.assign(cache, updated)
    g.set_outputs([g.cumsum(g.softmax(updated, axis=0), axis=1)])
    compiled, state = session.compile(g), np.zeros((8, 16), np.float32)
    assert any(segment.alone for segment in segments_of(compiled))
    rng = np.random.default_rng(0)
    for place in (0, 7, 3, 3):
        row = rng.standard_normal((1, 16), np.float32)
        state[place] = 2 * row
        (found,) = compiled.run({"x": row}, variables={"position": place})
        shares = np.exp(state - state.max(0))
        np.testing.assert_allclose(found, np.cumsum(shares / shares.sum(0), 1), rtol=1e-5)
