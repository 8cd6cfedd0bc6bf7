"""Profiles of segments: the times of their parts, from logs of blocks."""

from __future__ import annotations

import numpy as np
import pytest
from bench import decoder_step

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.part_logs import part_times
from ostinato.backends.cuda.render.segment_layout import SegmentLayout
from ostinato.backends.cuda.rules.segment_assembly import Segment
from ostinato.backends.cuda.rules.stamped_segment import StampedSegment
from ostinato.backends.cuda.target import CudaTarget


def perceptron(layers: int = 2) -> ost.Graph:
    rng, g = np.random.default_rng(0), ost.Graph("perceptron")
    x = g.input("x", (1, 64))
    for i in range(layers):
        w = rng.standard_normal((64, 64), np.float32) / 8
        x = g.gelu(g.layer_norm(x, normalized_shape=(64,)) @ g.param(f"w{i}", w.shape, value=w))
    g.set_outputs([x])
    return g


def test_the_parts_of_a_segment_have_times(session: ost.Session) -> None:
    graph, x = perceptron(), np.linspace(-1, 1, 64, dtype=np.float32)[None]
    plan = session.compile(graph).plan
    (expected,) = ost.reference.evaluate(graph, {"x": x})
    (kernel,) = plan.kernels
    assert isinstance(kernel.kernel, Segment)
    for _ in range(2):
        plan.inputs["x"].copyin(x)
        (record,) = profile = plan.execute_profiled()
        (output,) = plan.outputs.values()
        np.testing.assert_allclose(output.copyout(), expected, rtol=1e-4, atol=1e-5)
        assert len(record.parts) == len(kernel.kernel.parts)
        assert sum(part.flops for part in record.parts) == record.flops
        products = [part for part in record.parts if part.name.startswith("matmul")]
        assert len(products) == 2
        for part in products:
            assert part.bytes > 64 * 64 * 4
            assert part.time.working > 0
            assert part.time.blocks > 0
        total = sum(part.elapsed for part in record.parts)
        spent = sum(p.time.working + p.time.waiting + p.time.fetching for p in record.parts)
        assert total == pytest.approx(spent)  # of the only block
        for part in record.parts:
            assert str(part) in str(profile)


def test_the_first_profile_of_a_plan_compiles_it(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, compiled = session.compile(perceptron(1)).plan, list[object]()
    toolchain = session._backend.toolchain
    compile_all = toolchain.compile
    monkeypatch.setattr(
        toolchain, "compile", lambda kernels: compiled.append(kernels) or compile_all(kernels)
    )
    plan.execute()
    for _ in range(3):
        plan.execute_profiled()
    assert [type(kernel) for kernels in compiled for kernel in kernels] == [StampedSegment]


@pytest.mark.slow  # seconds of the emulator's compiler
def test_parts_that_are_run_for_shares_have_one_time(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = decoder_step.Config(
        vocabulary=64, width=64, heads=4, key_heads=2, head_dim=16, hidden=96, layers=1
    )
    graph = decoder_step.decoder_graph(config, decoder_step.random_weights(config))
    compiled, other = session.compile(graph), session.compile(graph)
    for position, token in enumerate((1, 17)):
        values = {"token": token, "position": position, "kv_len": position + 1}
        profile = compiled.plan.execute_with_vars_profiled(values)
        (found,) = compiled.plan.outputs.values()
        np.testing.assert_array_equal(found.copyout(), other.run({}, variables=values)[0])
    segment = max(profile, key=lambda record: len(record.parts))
    (kernel,) = (k for k in compiled.plan.kernels if len(k.kernel.parts) == len(segment.parts))
    # What readers receive themselves is a part of theirs.
    own = {*SegmentLayout(kernel.kernel, session._backend.gpu.target, stamped=True).numbers}
    assert len(own) < len(segment.parts)
    for number, part in enumerate(segment.parts):
        time = part.time
        spent = time.working + time.waiting + time.fetching
        assert (spent > 0) is (number in own), part.name


def test_logs_as_times() -> None:
    """Two blocks, whose clocks have other starts and paces; the second begins 100 ns later."""
    logs = np.zeros((3, 4, 4), np.int64)
    logs[0] = [
        [1000, 5000, 3000, 6000],
        [1, 1400, 0, 200],
        [2, 2000, 300, 200],
        [3, 2800, 300, 200],
    ]
    logs[1] = [[10, 5100, 1010, 6100], [1, 110, 0, 0], [3, 810, 500, 100], [0, 0, 0, 0]]
    first, second, third = part_times(logs, [2, 1, 2])  # the third block did not run
    found = [[t.elapsed, t.working, t.waiting, t.fetching] for t in (first, second, third)]
    expected = [
        [200, (100 + 100) / 2, 0, 100 / 2],
        [300, 150 / 2, 150 / 2, 0],
        [400, (400 + 100) / 2, 500 / 2, 100 / 2],
    ]
    np.testing.assert_allclose(1e9 * np.array(found), expected)
    assert [time.blocks for time in (first, second, third)] == [2, 1, 2]
    assert part_times(np.zeros_like(logs), [1])[0].elapsed == 0


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_80", "sm_100"))]
)
def test_stamped_segments_compile(session: ost.Session, arch: str) -> None:
    (prepared,) = session.compile(perceptron(1)).plan.kernels
    kernel, target = prepared.kernel, CudaTarget.of_arch(arch)
    assert isinstance(kernel, Segment)
    stamped = StampedSegment.of(kernel)
    assert "log" not in kernel.source(target)
    assert stamped.launch(target).shared_bytes + 16 <= target.shared_bytes_per_block
    assert stamped.launch(target).grid == kernel.launch(target).grid
    assert compile_text(stamped.source(target), arch)
