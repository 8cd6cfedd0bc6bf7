"""The active extent: less work, and nothing defined may change by a bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.partial_launch import LeadingRows

UPPER = 24

Build = Callable[[ost.Graph, ost.Value], Mapping[str, ost.Value]]


def weight(g: ost.Graph, name: str, *shape: int) -> ost.Value:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) / 8
    return g.param(name, shape, value=values)


def mlp(g, x):
    hidden = g.gelu(g.matmul(x, weight(g, "w", 64, 256)))
    return {"y": g.softmax(g.layer_norm(g.matmul(hidden, weight(g, "v2", 256, 64)) + x))}


def elementwise(g, x):
    return {"y": g.exp(x) * 2 - x}


def rows_beside_each_other(g, x):
    return {"y": g.concat([g.relu(x), g.mean(x, axis=1, keepdims=True)], axis=1)}


def split_rows(g, x):
    heads = g.softmax(g.reshape(x, (UPPER * 4, 16)))
    return {"y": g.reshape(heads @ weight(g, "w", 16, 16), (UPPER, 64))}


def batched(g, x):
    queries = g.reshape(x, (UPPER, 2, 4, 8))
    return {"y": g.attention(queries, queries * 2, queries + 1)}


def products_of_each_row(g, x):
    a = g.reshape(x, (UPPER, 8, 8))
    return {"y": g.matmul(a, g.permute_dims(a, (0, 2, 1)))}


def convolution(g, x):
    image = g.reshape(x, (UPPER, 1, 8, 8))
    return {"y": g.max_pool(g.relu(g.conv(image, weight(g, "k", 5, 1, 3, 3))), 2)}


def images_with_their_channels_last(g, x):
    image = g.conv(g.reshape(x, (UPPER, 4, 4, 4)), weight(g, "k", 32, 4, 1, 1))
    each = g.conv(g.relu(image), weight(g, "each", 32, 1, 3, 3), padding=1, groups=32)
    both = g.concat([image, each], axis=1)
    wide = g.conv(both, weight(g, "wide", 16, 64, 3, 3), stride=2, padding=1)
    return {"y": g.conv(wide, weight(g, "last", 16, 16, 1, 1))}


def running_sums_of_each_row(g, x):
    return {"y": g.cumsum(x, axis=1)}


def one_long_chain_and_one_output_inside(g, x):
    h = g.relu(x @ weight(g, "w", 64, 64))
    return {"h": h, "y": g.tanh(h @ weight(g, "v2", 64, 32))}


def narrow_weights(g, x):
    rng = np.random.default_rng(0)
    w = g.constant(rng.integers(-127, 128, (64, 64)).astype(np.int8))
    codes = g.constant(rng.integers(0, 256, (32, 40)).astype(np.uint8))
    h = g.gelu(g.quantized_matmul(x, w, g.constant(np.full(64, 0.01, np.float32))))
    scales = g.constant(np.full((2, 40), 0.1, np.float32))
    return {"y": g.relu(g.int4_matmul(h, codes, scales, group=32))}


ROWWISE = [
    mlp, elementwise, rows_beside_each_other, split_rows, batched, products_of_each_row,
    convolution, images_with_their_channels_last, running_sums_of_each_row,
    one_long_chain_and_one_output_inside, narrow_weights,
]  # fmt: skip


def sum_of_rows(g, x):
    return {"total": g.sum(g.exp(x), axis=0), "y": g.tanh(x)}


def total_behind_products(g, x):
    h = g.matmul(x, weight(g, "w", 64, 64))
    return {"y": g.relu(h), "mean": g.mean(h @ weight(g, "v2", 64, 8), axis=0)}


def centred(g, x):
    return {"y": x - g.mean(x, axis=0, keepdims=True)}


def attention_between_rows(g, x):
    rows = g.reshape(x, (1, 1, UPPER, 64))
    return {"y": g.reshape(g.attention(rows, rows, rows), (UPPER, 64))}


def tiles_of_all_rows(g, x):
    """Each row's are its own, but they stand between those of others."""
    image = g.conv(g.reshape(x, (UPPER, 1, 8, 8)), weight(g, "k", 32, 1, 1, 1))
    return {"y": g.conv(image, weight(g, "tiles", 32, 32, 3, 3), padding=1)}


def row_after_row(g, x):
    return {"y": g.cumsum(x, axis=0)}


def backwards(g, x):
    return {"y": g.flip(g.exp(x), axis=0)}


def turned(g, x):
    return {"y": g.permute_dims(g.exp(x), (1, 0))}


def each_row_with_the_next(g, x):
    h = g.exp(x)
    return {"y": h + g.concat([h[1:], h[:1]], axis=0)}


def picked(g, x):
    last = g.constant(np.array([UPPER - 1, 0, 5]))
    return {"y": g.take(g.exp(x), last, axis=0)}


def every_row_with_every_row(g, x):
    return {"y": g.matmul(g.tanh(x), g.permute_dims(g.relu(x), (1, 0)))}


def rows_sorted_by_expert(g, x):
    """Each row's are its own, but its expert computes them beside those of others."""
    shapes = {"gate": (4, 64, 24), "up": (4, 64, 24), "down": (4, 24, 64)}
    matrices = [weight(g, name, *shape) for name, shape in shapes.items()]
    return {"y": g.relu(g.moe(g.tanh(x), weight(g, "router", 64, 4), *matrices, k=2) + x)}


MIXING = [
    sum_of_rows, total_behind_products, centred, attention_between_rows, tiles_of_all_rows,
    row_after_row, backwards, turned, each_row_with_the_next, picked, every_row_with_every_row,
    rows_sorted_by_expert,
]  # fmt: skip


def compiled_for(session: ost.Session, build: Build) -> ost.CompiledGraph:
    g = ost.Graph(build.__name__)
    g.set_outputs(build(g, g.input("x", (UPPER, 64))))
    return session.compile(g)


def rows(count: int) -> np.ndarray:
    """``count`` rows of numbers, the others zero."""
    x = np.zeros((UPPER, 64), np.float32)
    x[:count] = np.random.default_rng(count).standard_normal((count, 64))
    return x


def work(compiled: ost.CompiledGraph, actual: int) -> list[tuple[int, int]]:
    """Of every kernel, the steps that it takes for ``actual`` rows, and all that it has.

    A product may take all steps and fewer tiles of rows in each: that counts as fewer steps.
    """
    program = compiled._execution.executable.compilation.program
    found = []
    for call, launch in zip(
        program.calls, LeadingRows(program, UPPER).launches(actual), strict=True
    ):
        extent = call.kernel.extent
        done = extent if launch is None else launch.extent
        if launch is not None and done == extent and hasattr(call.kernel, "computed_rows"):
            computed, every = (call.kernel.computed_rows(rows) for rows in (actual, UPPER))
            done = -(-extent * computed // every)
        found.append((done, extent))
    return found


def assert_defined_results_are_equal(
    compiled: ost.CompiledGraph, actual: int, x: np.ndarray
) -> None:
    compiled.set_active_extent(None)
    compiled.run({"x": np.full_like(x, np.nan)})  # nothing of use is left in memory
    full = compiled.run({"x": x})
    compiled.run({"x": np.full_like(x, np.nan)})
    with compiled.active_extent(actual, UPPER):
        got = compiled.run({"x": x})
    for spec, a, b in zip(compiled.outputs.values(), got, full, strict=True):
        defined = actual if spec.shape[0] == UPPER else None
        np.testing.assert_array_equal(a[:defined], b[:defined], err_msg=spec.name)


@pytest.mark.parametrize("build", ROWWISE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("actual", [0, 1, 7, 8, 13, UPPER - 1, UPPER])
def test_the_rows_in_use_are_the_same_bits(build, actual, session):
    assert_defined_results_are_equal(compiled_for(session, build), actual, rows(actual))


@pytest.mark.parametrize("build", ROWWISE, ids=lambda f: f.__name__)
def test_what_lies_beyond_does_not_matter_to_rows(build, session):
    compiled = compiled_for(session, build)
    x = rows(5)
    (want, *_) = compiled.run({"x": x})
    x[5:] = np.nan
    with compiled.active_extent(5, UPPER):
        (got, *_) = compiled.run({"x": x})
    np.testing.assert_array_equal(got[:5], want[:5])


@pytest.mark.parametrize("build", MIXING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("actual", [1, 7, UPPER - 1])
def test_where_rows_meet_nothing_changes(build, actual, session):
    assert_defined_results_are_equal(compiled_for(session, build), actual, rows(UPPER))


@pytest.mark.parametrize("build", ROWWISE, ids=lambda f: f.__name__)
@pytest.mark.needs("llvm")
def test_work_shrinks_with_the_rows(build, session):
    compiled = compiled_for(session, build)
    assert all(done == 0 for done, _ in work(compiled, 0))
    for done, extent in work(compiled, UPPER // 2):
        # One step is a block of elements or of rows: small graphs may have just one.
        assert done <= -(-extent // 2) or extent <= 4
    assert all(done == extent for done, extent in work(compiled, UPPER))


@pytest.mark.needs("llvm")
def test_rows_of_a_product_shrink_by_tiles_not_by_blocks(session):
    compiled = compiled_for(session, mlp)
    calls = compiled._execution.executable.compilation.program.calls
    launches = LeadingRows(compiled._execution.executable.compilation.program, UPPER).launches(3)
    products = [
        (call.kernel, launch)
        for call, launch in zip(calls, launches, strict=True)
        if "matmul" in call.title
    ]
    assert len(products) == 2
    for kernel, launch in products:
        assert launch.masked_tail == UPPER - 3
        assert kernel.computed_rows(3) == kernel.rows < UPPER


@pytest.mark.needs("llvm")
def test_a_kernel_is_cut_only_if_everyone_behind_it_is(session):
    compiled = compiled_for(session, total_behind_products)
    calls = compiled._execution.executable.compilation.program.calls
    for (done, extent), call in zip(work(compiled, 1), calls, strict=True):
        assert done == extent, call.title


@pytest.mark.needs("row_limits")
def test_the_hint_stays_until_it_is_set_again(session):
    compiled = compiled_for(session, elementwise)
    out = np.full((UPPER, 64), -1.0, np.float32)
    x = np.zeros((UPPER, 64), np.float32)
    call = compiled.bind({"x": x}, [out])
    compiled.set_active_extent((0, UPPER))
    for run in (lambda: compiled.run({"x": x}, out=[out]), call):
        run()
        run()
        assert (out == -1).all()
    compiled.set_active_extent(None)
    call()
    assert (out == 2).all()


@pytest.mark.needs("row_limits")
def test_the_context_ends_with_exceptions_and_nests(session):
    compiled = compiled_for(session, elementwise)
    out = np.full((UPPER, 64), -1.0, np.float32)
    x = np.zeros((UPPER, 64), np.float32)
    compiled.set_active_extent((0, UPPER))
    with pytest.raises(RuntimeError, match="out of here"), compiled.active_extent(24, 24):
        raise RuntimeError("out of here")
    compiled.run({"x": x}, out=[out])
    assert (out == -1).all()
    compiled.set_active_extent(None)
    with pytest.raises(KeyError), compiled.active_extent(0, UPPER):
        raise KeyError
    compiled.run({"x": x}, out=[out])
    assert (out == 2).all()


@pytest.mark.needs("row_limits")
def test_clones_start_without_a_hint(session):
    compiled = compiled_for(session, elementwise)
    compiled.set_active_extent((0, UPPER))
    twin = compiled.clone()
    assert (twin.run({"x": np.zeros((UPPER, 64), np.float32)})[0] == 2).all()
    twin.set_active_extent((1, UPPER))
    out = np.full((UPPER, 64), -1.0, np.float32)
    compiled.run({"x": np.zeros((UPPER, 64), np.float32)}, out=[out])
    assert (out == -1).all()


@pytest.mark.parametrize(
    "extent",
    [(25, 24), (-1, 24), (3, 23), (3, 25), (3, 64), (0, 0), (1.0, 24), (True, 24), (3,), 3, "ab",
     (None, 24), (1, 2, 3), [1, 24], (10**30, 10**31)],
)  # fmt: skip
@pytest.mark.needs("row_limits")
def test_impossible_extents(extent, session):
    compiled = compiled_for(session, elementwise)
    compiled.set_active_extent((0, UPPER))
    with pytest.raises(ost.VariableError):
        compiled.set_active_extent(extent)
    out = np.full((UPPER, 64), -1.0, np.float32)
    compiled.run({"x": rows(3)}, out=[out])
    assert (out == -1).all(), "the hint is as before"


def test_graphs_of_variable_size_take_none(session):
    g = ost.Graph("variable")
    n = ost.Variable("n", 1, UPPER)
    g.set_outputs([g.exp(g.input("x", (n, 3)))])
    compiled = session.compile(g)
    with pytest.raises(ost.VariableError, match="no input was compiled for 24 leading rows"):
        compiled.set_active_extent((3, UPPER))


def test_states_are_updated_in_full(session):
    g = ost.Graph("state")
    x = g.input("x", (4, 2))
    s = g.state("s", (4, 2))
    g.assign(s, s + x)
    g.set_outputs([g.exp(x)])
    compiled = session.compile(g)
    with compiled.active_extent(1, 4):
        compiled.run({"x": np.ones((4, 2), np.float32)})
    assert (compiled.read_handle("s") == 1).all()
