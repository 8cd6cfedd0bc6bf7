"""Layers of experts on the CUDA device."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.rules.matmul import FewRowsMatmul
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from tests.conformance.compare import assert_close, check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session

TARGET = CudaTarget.of_arch("sm_90")


def test_matrices_are_read_as_they_are_stored() -> None:
    g = ost.Graph("experts")
    x, ids = g.input("x", (3, 16), "bfloat16"), g.input("ids", (3, 2), "int64")
    weights = g.input("weights", (3, 2), "bfloat16")
    up, gate = (g.param(name, (4, 16, 8), "bfloat16") for name in ("up", "gate"))
    down = g.param("down", (4, 8, 16), "bfloat16")
    g.set_outputs([g.expert_mlp(x, ids, weights, gate, up, down)])
    program, _ = lower_for_cuda(g, CudaLowering(templates=False))
    assert not program.prepare
    assert len(program.calls) == 2


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations(activation: str, gated: bool) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{activation} {gated}".encode()))
    d = Draw(ost.Graph("experts"), rng)
    tokens, experts, features, hidden = 9, 3, 7, 11
    x, ids = d.of((tokens, features), "float32"), d.ids((tokens, 2), experts, beyond=False)
    weights = d.of((tokens, 2), "float32")
    up = d.of((experts, features, hidden), "float32")
    gate = d.of((experts, features, hidden), "float32") if gated else None
    down = d.of((experts, hidden, 13), "float32")
    result = d.g.expert_mlp(x, ids, weights, gate, up, down, activation=activation)
    d.g.set_outputs([result * 2.0])
    session = open_session("cudaemu")
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_few_choices_are_matmuls_of_few_rows(tokens: int, dtype: str, gated: bool) -> None:
    """Each choice reads the matrix of its expert, with the elements of a column side by side."""
    d = Draw(ost.Graph("chosen"), np.random.default_rng(tokens))
    experts, features, hidden, width = 5, 48, 32, 24
    g = d.g

    def weight(*shape: int) -> ost.Value:
        array = d.rng.normal(0, 0.3, shape)
        return g.constant(array.astype(ost.DType.parse(dtype).numpy))

    x, ids = d.of((tokens, features), dtype), d.ids((tokens, 2), experts, beyond=False)
    up, down = weight(experts, features, hidden), weight(experts, hidden, width)
    gate = weight(experts, features, hidden) if gated else None
    result = g.expert_mlp(x, ids, d.of((tokens, 2), dtype), gate, up, down)
    g.set_outputs([g.relu(result)])
    session = open_session("cudaemu")
    options = [ost.CompileOptions(verify=True), ost.CompileOptions(optimize=False)]
    check_against_oracle(g, d.arrays, [(session, option) for option in options])
    compiled = session.compile(g)
    matmuls = [k.kernel for k in compiled.plan.kernels if isinstance(k.kernel, FewRowsMatmul)]
    paired = any(kernel.beside is not None for kernel in matmuls)
    assert len(matmuls) == 2 + gated - paired
    assert all("ost::vector" in kernel.source(TARGET) for kernel in matmuls)


@pytest.mark.parametrize(
    ("tokens", "features", "hidden", "width", "dtype"),
    [
        pytest.param(*sizes, dtype, marks=[] if (i + j) % 2 else [pytest.mark.slow])
        for i, sizes in enumerate([(1, 2048, 8, 1), (2, 1800, 16, 7), (2, 40, 2056, 13)])
        for j, dtype in enumerate(("float16", "bfloat16"))
    ],
)
def test_rows_of_chosen_experts_are_read_by_warps(
    tokens: int, features: int, hidden: int, width: int, dtype: str
) -> None:
    """Columns of whole loads, of some lanes' alone, and of more loads than are under way."""
    d = Draw(ost.Graph("rows"), np.random.default_rng(features))
    experts, g = 3, d.g

    def weight(*shape: int) -> ost.Value:
        array = d.rng.normal(0, shape[1] ** -0.5, shape)
        return g.constant(array.astype(ost.DType.parse(dtype).numpy))

    x, ids = d.of((tokens, features), dtype), d.ids((tokens, 2), experts, beyond=False)
    up, gate = (weight(experts, features, hidden) for _ in range(2))
    weights = d.of((tokens, 2), dtype)
    g.set_outputs([g.expert_mlp(x, ids, weights, gate, up, weight(experts, hidden, width))])
    session, apart = open_session("cudaemu"), ost.CompileOptions(product_fusion=False)
    verified = ost.CompileOptions(verify=True)
    one, two = (session.compile(g, options=o).run(d.arrays) for o in (verified, apart))
    assert_close(one[0], ost.reference.evaluate(g, d.arrays)[0], str(g))
    np.testing.assert_array_equal(one[0].view(np.uint16), two[0].view(np.uint16))
    kernels = [kernel.kernel for kernel in session.compile(g).plan.kernels]
    matmuls = [kernel for kernel in kernels if isinstance(kernel, FewRowsMatmul)]
    assert len(matmuls) == 2
    assert [kernel.beside is not None for kernel in matmuls] == [True, False]
    assert [kernel.complete for kernel in matmuls] == [False, True]
    for kernel in matmuls:
        text, older = (kernel.source(CudaTarget.of_arch(arch)) for arch in ("sm_90", "sm_80"))
        assert "columns_ahead" in text
        assert "wait_for_earlier_kernels" in text
        assert "wait_for_earlier_kernels" not in older
    for arch in ("sm_90", "sm_80"):  # both at once: most of the time is spent before the first
        target = CudaTarget.of_arch(arch)
        compile_text("\n".join(kernel.source(target) for kernel in matmuls), arch)


def test_any_number_of_tokens_up_to_few() -> None:
    g = ost.Graph("open")
    tokens = ost.Variable("tokens", 0, 4)
    rng = np.random.default_rng(0)
    x, ids = g.input("x", (tokens, 16)), g.input("ids", (tokens, 2), "int64")
    up, down = (g.constant(rng.normal(size=s).astype(np.float32)) for s in ((3, 16, 8), (3, 8, 5)))
    g.set_outputs([g.expert_mlp(x, ids, g.input("weights", (tokens, 2)), None, up, down)])
    compiled = open_session("cudaemu").compile(g)
    for count in (0, 1, 4):
        inputs = {
            "x": rng.normal(size=(count, 16)).astype(np.float32),
            "ids": rng.integers(0, 3, (count, 2)),
            "weights": rng.random((count, 2), np.float32),
        }
        (found,), (expected,) = compiled.run(inputs), ost.reference.evaluate(g, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("rows", [1, 7])
def test_few_rows_of_a_grouped_matmul(rows: int, dtype: str) -> None:
    d = Draw(ost.Graph("grouped"), np.random.default_rng(rows))
    g = d.g
    weights = d.rng.integers(-4, 5, (3, 40, 12)).astype(ost.DType.parse(dtype).numpy)
    x, ids = d.of((rows, 40), dtype), d.ids((rows,), 3, beyond=False)
    given = d.of((3, 40, 9), dtype)
    fixed = g.grouped_matmul(x, g.constant(weights), ids)
    g.set_outputs([g.abs(fixed), g.grouped_matmul(x, given, ids)])
    session = open_session("cudaemu")
    check_against_oracle(g, d.arrays, [(session, ost.CompileOptions(verify=True))])
    kernels = [k.kernel for k in session.compile(g).plan.kernels]
    assert sum(isinstance(kernel, FewRowsMatmul) for kernel in kernels) == 2


def test_the_matrices_of_experts_that_are_not_chosen_are_not_counted() -> None:
    g = ost.Graph("chosen")
    x, ids = g.input("x", (1, 64)), g.input("ids", (1, 2), "int64")
    rng = np.random.default_rng(0)
    up, down = (
        g.constant(rng.normal(size=s).astype(np.float32)) for s in ((16, 64, 96), (16, 96, 64))
    )
    g.set_outputs([g.expert_mlp(x, ids, g.input("weights", (1, 2)), None, up, down)])
    profile = open_session("cudaemu").compile(g).plan.execute_profiled()
    matrices = 2 * 64 * 96 * 4
    moved = [record.bytes for record in profile if record.flops > 1000]
    assert len(moved) == 2
    assert sum(record.flops for record in profile) == 2 * 2 * 2 * 64 * 96
    assert all(matrices <= count < matrices * 1.1 for count in moved)
