"""Matmuls and convolutions on every dtype, at sizes that fill tiles and at those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.webgpu.kernel import Bindings
from ostinato.backends.webgpu.rules.matmul import FewRowsMatmul, TiledMatmul
from ostinato.backends.webgpu.target import WebGpuTarget
from ostinato.dtypes import DType
from tests.conformance.compare import assert_close

from .kernels import kernels_of

Array = np.ndarray[Any, Any]

SIZES = [(1, 1, 8), (1, 64, 64), (3, 17, 13), (8, 128, 40), (16, 33, 9)]
SIZES += [(37, 64, 128), (65, 130, 67)]

DTYPES = ["float32", "float16", "bfloat16", "int32", "int8", "uint16", "int64"]

RNG = np.random.default_rng(0)


def drawn(dtype: str, *shape: int) -> Array:
    parsed = DType.parse(dtype)
    if parsed.is_float:
        return RNG.standard_normal(shape).astype(parsed.numpy)
    return RNG.integers(-9 if parsed.is_signed else 0, 9, shape).astype(parsed.numpy)


def check(session: ost.Session, build: Callable[..., Any], *arrays: Array) -> ost.CompiledGraph:
    """The results of a graph are those of the oracle, optimised and not."""
    graph = ost.Graph("matmul")
    operands = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    made = build(graph, *operands)
    graph.set_outputs(made if isinstance(made, list) else [made])
    given = dict(zip(graph.inputs, arrays, strict=True))
    expected = ost.reference.evaluate(graph, given)
    for optimize in (False, True):
        compiled = session.compile(graph, options=ost.CompileOptions(optimize=optimize))
        for mine, truth in zip(compiled.run(given), expected, strict=True):
            depth = max(a.shape[-1] for a in arrays)
            assert_close(mine, truth, f"{[a.shape for a in arrays]}", scale=depth)
    return compiled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matmul(session: ost.Session, dtype: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    check(session, lambda g, a, b: g.matmul(a, b), drawn(dtype, m, k), drawn(dtype, k, n))
    check(
        session,
        lambda g, a, b: g.matmul(a, g.permute_dims(b, (1, 0))),
        drawn(dtype, m, k),
        drawn(dtype, n, k),
    )


def test_which_kernels_multiply() -> None:
    for rows, expected in ((4, FewRowsMatmul), (40, TiledMatmul)):
        graph = ost.Graph("matmul")
        graph.set_outputs([graph.matmul(graph.input("a", (rows, 64)), graph.input("b", (64, 32)))])
        (kernel,) = kernels_of(graph)
        assert isinstance(kernel, expected)


def test_tiles_of_large_results(session: ost.Session) -> None:
    check(
        session,
        lambda g, a, b: g.matmul(a, b),
        drawn("float32", 520, 70),
        drawn("float32", 70, 530),
    )


def test_batches_and_epilogues(session: ost.Session) -> None:
    a, b = drawn("float32", 2, 3, 19, 24), drawn("float32", 2, 3, 24, 33)
    check(session, lambda g, x, y: g.gelu(g.matmul(x, y)), a, b)
    check(
        session,
        lambda g, x, y, z: [g.relu(g.matmul(g.permute_dims(x, (0, 2, 1)), y) + z)],
        drawn("float32", 3, 24, 19),
        drawn("float32", 3, 24, 33),
        drawn("float32", 33),
    )


@pytest.mark.parametrize("columns", [64, 63])
def test_results_of_several_dtypes(session: ost.Session, columns: int) -> None:
    """Narrow results that fill words, and such that share the last word of a row."""
    check(
        session,
        lambda g, x, y: [g.cast(g.matmul(x, y), "float16"), g.cast(g.matmul(x, y), "int8")],
        drawn("float32", 70, 32),
        drawn("float32", 32, columns),
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(session: ost.Session, groups: int) -> None:
    image, filters = drawn("float32", 2, 8, 13, 11), drawn("float32", 20, 8 // groups, 3, 3)
    check(
        session,
        lambda g, x, w, b: g.relu(g.conv(x, w, b, 2, 1, 1, groups)),
        image,
        filters,
        drawn("float32", 20),
    )


@pytest.mark.parametrize(("rows", "depth"), [(1, 64), (5, 36), (3, 7)])
def test_bytes_four_at_a_time(session: ost.Session, rows: int, depth: int) -> None:
    """Few rows of int8 by columns that lie in one piece, extreme values among them."""
    a, b = drawn("int8", rows, depth), drawn("int8", 19, depth)
    a[0, :2], b[:, :2] = -128, -128
    check(session, lambda g, x, y: g.integer_matmul(x, g.permute_dims(y, (1, 0))), a, b)
    graph = ost.Graph("bytes")
    x, y = graph.input("x", a.shape, "int8"), graph.input("y", b.shape, "int8")
    graph.set_outputs([graph.integer_matmul(x, graph.permute_dims(y, (1, 0)))])
    (kernel,) = kernels_of(graph)
    source = kernel.shader(WebGpuTarget(), Bindings.apart(kernel)).source
    assert ("dot4I8Packed" in source) == (depth % 4 == 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(1, 5000), (3, 1000), (700, 40), (65, 129)])
def test_subgroups_reduce_as_workgroup_memory_does(
    session: ost.Session, dtype: str, shape: tuple[int, int]
) -> None:
    """The results with the adapter's subgroups are those without, and the oracle's."""
    x = drawn(dtype, *shape)
    graph = ost.Graph("reductions")
    value = graph.input("x", x.shape, dtype)
    results = [graph.any(value, axis=1)]
    if dtype != "bool":
        results = [graph.max(value, axis=1), graph.argmax(value, axis=1), graph.sum(value, axis=1)]
    graph.set_outputs(results)
    truth = ost.reference.evaluate(graph, {"x": x})
    for options in (ost.CompileOptions(), ost.CompileOptions(optimize=False)):
        compiled = session.compile(graph, options=options)
        used = any("subgroupShuffle" in kernel.source for kernel in compiled.plan.kernels)
        assert used <= options.optimize
        for mine, expected in zip(compiled.run({"x": x}), truth, strict=True):
            assert_close(mine, expected, f"{shape} {dtype}")
