"""Products of the same rows in one kernel: the same results as one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.partial_launch import LeadingRows
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.multi_gemm import MultiGemm
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.lower.program import Call
from ostinato.passes.pipeline import run_passes
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]

K = 40
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}


class Block:
    """Projections of ``x``: queries, narrower keys and values, and a gated unit.

    Attributes:
        graph: its outputs are ``q``, ``k`` with its axes turned, ``v`` and ``unit``.
        params: its weights.
    """

    def __init__(self, shape: tuple[Any, ...], dtype: str = "float32", width: int = 70) -> None:
        self.graph = g = ost.Graph("block")
        self.rng = np.random.default_rng(width)
        self.dtype = ost.DType.parse(dtype).numpy
        x = g.input("x", shape, dtype)
        rank = len(shape)
        q = g.relu(g.matmul(x, self.weight("wq", K, width)) + self.weight("bq", width)) * 2
        k = g.matmul(x, self.weight("wk", K, width // 2))
        v = g.matmul(x, self.weight("wv", K, 33)) + g.input("residual", (*shape[:-1], 33), dtype)
        gate, up = (g.matmul(x, self.weight(name, K, 50)) for name in ("gate", "up"))
        turned = g.permute_dims(k, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else k
        unit = g.silu(gate + self.weight("bg", 50)) * up
        g.set_outputs({"q": q, "k": turned, "v": v, "unit": unit})

    def weight(self, name: str, *shape: int) -> ost.Value:
        values = self.rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)
        dtype = str(np.dtype(self.dtype))
        return self.graph.param(name, shape, dtype, value=values.astype(self.dtype))

    def feed(self, *lead: int) -> dict[str, Array]:
        """Inputs of these leading sizes."""
        sizes = {"x": (*lead, K), "residual": (*lead, 33)}
        return {n: self.rng.standard_normal(s).astype(self.dtype) for n, s in sizes.items()}


def joint_kernels(compiled: ost.CompiledGraph) -> list[MultiGemm]:
    kernels = (op.kernel.kernel for op in compiled.plan.prepared_kernels)
    return [kernel for kernel in kernels if isinstance(kernel, MultiGemm)]


def both(graph: ost.Graph, threads: int = 2, **options: Any) -> list[ost.CompiledGraph]:
    """The graph with products side by side, and with each one alone."""
    session = ost.Session("cpu", threads=threads)
    together, alone = (
        session.compile(graph, options=ost.CompileOptions(product_fusion=on, **options))
        for on in (True, False)
    )
    assert joint_kernels(together)
    assert not joint_kernels(alone)
    return [together, alone]


def assert_right(graph: ost.Graph, feed: Mapping[str, Array], tolerance: float) -> None:
    expected = ost.reference.evaluate(graph, feed)
    for compiled in both(graph):
        for actual, truth in zip(compiled.run(feed), expected, strict=True):
            a, b = actual.astype(np.float64), truth.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1 + abs(b).max()))


# -- right -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 150])
def test_every_instruction_set(lowered: Callable[..., Any], level: str, rows: int) -> None:
    block = Block((rows, K))
    program = lowered(block.graph, level)
    (kernel,) = (k for k in program.kernels if isinstance(k, MultiGemm))
    assert [len(segment) for segment in kernel.segments] == [1, 1, 1, 2]
    feed = block.feed(rows)
    expected = ost.reference.evaluate(block.graph, feed)
    for actual, truth in zip(program({**feed, **block.graph.param_values}), expected, strict=True):
        np.testing.assert_allclose(actual, truth, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "lead"), every_second(list(TOLERANCE), [(), (1,), (3, 5)]), ids=str
)
def test_every_float(dtype: str, lead: tuple[int, ...]) -> None:
    block = Block((*lead, K), dtype)
    assert_right(block.graph, block.feed(*lead), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "bool"])
def test_integers_to_the_bit(dtype: str) -> None:
    g = ost.Graph("integers")
    rng = np.random.default_rng(3)
    kind = ost.DType.parse(dtype)
    x = g.input("x", (9, K), dtype)
    weights = [
        g.param(f"w{n}", (K, n), dtype, value=rng.integers(0, 2, (K, n)).astype(kind.numpy))
        for n in (20, 31, 17)
    ]
    if kind.is_bool:
        x, *weights = (g.cast(value, "int32") for value in (x, *weights))
    g.set_outputs([g.matmul(x, w) for w in weights])
    assert_right(g, {"x": rng.integers(0, 2, (9, K)).astype(kind.numpy)}, 0)


@pytest.mark.parametrize("format", ["int8", "int4", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 20])
def test_narrow_weights(format: str, rows: int) -> None:
    g = ost.Graph("narrow")
    rng = np.random.default_rng(rows)
    x = g.input("x", (rows, 64))

    def times(name: str, n: int) -> ost.Value:
        value = rng.standard_normal((64, n)).astype(np.float32) / 8
        return g.matmul(x, g.param(name, (64, n), value=value))

    unit = g.silu(times("gate", 96)) * times("up", 96)
    bias = g.param("b", (128,), value=rng.standard_normal(128).astype(np.float32))
    g.set_outputs([times("q", 128) + bias, times("k", 64), unit])
    narrow = ost.quantize(g, format, min_elements=1)
    feed = {"x": rng.standard_normal((rows, 64)).astype(np.float32)}
    assert_right(narrow, feed, 2e-5)
    together, alone = (compiled.run(feed) for compiled in both(narrow))
    for mine, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_weights_of_several_forms_share_a_kernel() -> None:
    g = ost.Graph("forms")
    rng = np.random.default_rng(8)
    x = g.input("x", (3, K))
    wide = rng.standard_normal((K, 48)).astype(np.float32)
    half, brain = wide.astype(np.float16), wide.astype(ml_dtypes.bfloat16)
    weights = [
        g.param("wide", wide.shape, value=wide),
        g.cast(g.param("half", half.shape, "float16", value=half), "float32"),
        g.cast(g.param("brain", brain.shape, "bfloat16", value=brain), "float32"),
    ]
    g.set_outputs([g.matmul(x, w) for w in weights])
    assert_right(g, {"x": rng.standard_normal((3, K)).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_sums_that_meet_may_be_results_too(turned: bool) -> None:
    g = ost.Graph("results")
    rng = np.random.default_rng(6)
    x = g.input("x", (37, K))

    def times(name: str) -> ost.Value:
        value = rng.standard_normal((K, 50)).astype(np.float32)
        return g.matmul(x, g.param(name, (K, 50), value=value))

    gate, up = times("gate"), times("up")
    found = [gate, up, g.sigmoid(gate) * up + gate]
    g.set_outputs([g.permute_dims(y, (1, 0)) if turned else y for y in found])
    assert_right(g, {"x": rng.standard_normal((37, K)).astype(np.float32)}, 1e-5)


@pytest.mark.parametrize("batch", [1, 4, 40])
def test_symbolic_rows(batch: int) -> None:
    block = Block((ost.Variable("B", 1, 40), K))
    assert_right(block.graph, block.feed(batch), 2e-5)


def test_more_rows_than_caches_hold() -> None:
    g = ost.Graph("many")
    rng = np.random.default_rng(4)
    rows = max(523, TargetSpec.host().caches.second // (4 * 521) + 25)
    x = g.input("x", (rows, 521))
    g.set_outputs(
        [
            g.matmul(x, g.param(f"w{n}", (521, n), value=rng.random((521, n), np.float32)))
            for n in (101, 60)
        ]
    )
    results = []
    for threads in (1, 3):
        compiled, _ = both(g, threads)
        (kernel,) = joint_kernels(compiled)
        assert kernel.first.streams_rows
        assert kernel.panels_innermost
        results.append(compiled.run({"x": np.ones((rows, 521), np.float32)}))
    for one, other, name in zip(*results, g.params, strict=True):
        np.testing.assert_array_equal(one, other)
        sums = g.param_values[name].astype("f8").sum(axis=0)
        np.testing.assert_allclose(one, np.broadcast_to(sums, one.shape), rtol=1e-5)


def test_heads_of_attention_and_what_is_kept_of_them() -> None:
    g = ost.Graph("decoder")
    rng = np.random.default_rng(2)
    x = g.input("x", (1, 1, 64))

    def heads(name: str, count: int) -> ost.Value:
        value = rng.standard_normal((64, count * 16)).astype(np.float32) / 8
        w = g.param(name, (64, count * 16), value=value)
        return g.reshape(g.matmul(x, w), (1, count, 1, 16))

    cache = g.state("cache", (1, 2, 8, 16))
    whole = g.dynamic_update_slice(cache, heads("k", 2), (0, 0, 3, 0))
    g.assign(cache, whole)
    found = g.attention(heads("q", 4), whole, whole + heads("v", 2))
    g.set_outputs([found])
    data = [rng.standard_normal((1, 1, 64)).astype(np.float32) for _ in range(3)]
    together, alone = both(g)
    copy = together.clone()
    for compiled in (together, alone, copy):
        results = [compiled.run({"x": row})[0] for row in data]
        if compiled is together:
            first = results
        np.testing.assert_allclose(results, first, rtol=1e-5, atol=1e-6)


def test_tuned_cuts_give_the_same_bits() -> None:
    block = Block((33, K), width=128)
    feed = block.feed(33)
    tuned, _ = both(block.graph, tune=True, tune_seconds=2.0)
    plain, _ = both(block.graph)
    for mine, other in zip(tuned.run(feed), plain.run(feed), strict=True):
        np.testing.assert_array_equal(mine, other)


# -- memory and params -----------------------------------------------------------------------------


def test_weights_are_in_memory_once_and_written_one_by_one() -> None:
    block = Block((2, K), width=96)
    together, alone = both(block.graph)
    held = together.plan.memory.param_bytes
    matrices = sum(a.nbytes for a in block.graph.param_values.values() if a.ndim == 2)
    assert held < 2 * matrices
    assert held <= alone.plan.memory.param_bytes * 1.25
    feed = block.feed(2)
    twin = together.clone()
    before = together.run(feed)
    together.set_param("wk", block.graph.param_values["wk"] * 2)
    after = together.run(feed)
    np.testing.assert_array_equal(after[1], before[1] * 2)
    for position in (0, 2, 3):
        np.testing.assert_array_equal(after[position], before[position])
    for mine, other in zip(twin.run(feed), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    together.set_param("up", block.graph.param_values["up"] * 0)
    assert not together.run(feed)[3].any()


def test_a_weight_may_be_of_several_products() -> None:
    g = ost.Graph("shared")
    rng = np.random.default_rng(1)
    w = g.param("w", (K, K), value=rng.standard_normal((K, K)).astype(np.float32))
    x = g.input("x", (5, K))
    g.set_outputs([g.matmul(x, w), g.matmul(x, g.permute_dims(w, (1, 0))), w])
    assert_right(g, {"x": rng.standard_normal((5, K)).astype(np.float32)}, 1e-5)


def test_rows_out_of_use_are_left_out() -> None:
    block = Block((24, K))
    g = block.graph
    g.outputs.pop("k")  # whose rows are its columns
    compiled, _ = both(g)
    feed = block.feed(24)
    whole = compiled.run(feed)
    launches = LeadingRows(compiled._execution.executable.compilation.program, 24).launches(3)
    assert all(launch is not None for launch in launches)
    for rows in (0, 1, 7, 8, 23, 24):
        with compiled.active_extent(rows, 24):
            got = compiled.run(feed)
        for some, everything in zip(got, whole, strict=True):
            np.testing.assert_array_equal(some[:rows], everything[:rows])


# -- what shares a kernel --------------------------------------------------------------------------


def calls(build: Callable[[ost.Graph, ost.Value], list[ost.Value]], **options: Any) -> list[Call]:
    g = ost.Graph("graph")
    g.set_outputs(build(g, g.input("x", (8, 64))))
    chosen = lowering_options(ost.CompileOptions(**options), TargetSpec.named("sse2"))
    ready, _ = run_passes(g, capabilities=CAPABILITIES)
    return lower_for_cpu(ready, chosen)[0].calls


def products(some: list[Call]) -> list[int]:
    """The number of matmuls of each kernel that has some."""
    return [
        len(call.kernel.gemms) if isinstance(call.kernel, MultiGemm) else 1
        for call in some
        if isinstance(call.kernel, MultiGemm | Gemm)
    ]


def param(g: ost.Graph, name: str, *shape: int) -> ost.Value:
    return g.param(name, shape)


def gated(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
    return [g.silu(g.matmul(x, param(g, "a", 64, 64))) * g.matmul(x, param(g, "b", 64, 64))]


def test_a_gate_leaves_its_sums_to_what_it_lets_through() -> None:
    (call,) = calls(gated)
    assert products([call]) == [2]
    assert len(call.writes()) == 1
    assert len(call.nodes) == 4


@pytest.mark.parametrize("option", ["optimize", "product_fusion"])
def test_products_stay_alone_when_told_so(option: str) -> None:
    assert products(calls(gated, **{option: False})) == [1, 1]


def test_each_has_an_epilogue_if_none_are_wanted() -> None:
    assert products(calls(gated, epilogue_fusion=False)) == [2]
    assert len(calls(gated, epilogue_fusion=False)) == 2


def test_a_product_whose_epilogue_needs_another_comes_later() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        first = g.softmax(g.matmul(x, param(g, "a", 64, 64)))
        return [first, g.matmul(x, param(g, "b", 64, 64)) * first]

    assert products(calls(build)) == [1, 1]


def test_sets_of_products_do_not_wait_for_each_other() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        y = g.input("y", (8, 64))
        a1, b1 = g.matmul(x, param(g, "a1", 64, 64)), g.matmul(y, param(g, "b1", 64, 64))
        b2 = g.matmul(y, param(g, "b2", 64, 64)) + g.softmax(a1)
        a2 = g.matmul(x, param(g, "a2", 64, 64)) + g.softmax(b1)
        return [a2, b2]

    # Whichever pair is one kernel, the other one's halves come before and after it.
    assert sorted(products(calls(build))) == [1, 1, 2]


def test_a_weight_that_is_computed_in_a_run_is_packed_alone() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        varying = g.matmul(g.input("y", (64, 2)), g.input("z", (2, 64)))
        return [g.matmul(x, param(g, "a", 64, 64)), g.matmul(x, varying)]

    assert products(calls(build)) == [1, 1, 1]


def test_a_column_is_a_dot_product() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        return [g.matmul(x, param(g, "a", 64, 64)), g.matmul(x, param(g, "b", 64, 1))]

    assert products(calls(build)) == [1]


def test_many_products_are_several_kernels() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        return [g.matmul(x, param(g, f"w{i}", 64, 64)) for i in range(11)]

    assert products(calls(build)) == [8, 3]


def test_few_columns_are_not_padded_to_many() -> None:
    def build(g: ost.Graph, x: ost.Value) -> list[ost.Value]:
        return [g.matmul(x, param(g, f"w{n}", 64, n)) for n in (640, 8, 96, 80)]

    assert sorted(products(calls(build))) == [1, 3]
