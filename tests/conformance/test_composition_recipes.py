"""Methods made of several ops against the oracle, on fixed sizes and on Variables."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from tests.devices.registered import open_session

from .build import OPTIMISED, BuildCases, Case, cases_of
from .compare import assert_close, check_against_oracle
from .compositions import COMPOSITIONS
from .draw import Draw
from .test_sessions import SessionDraw


def make_case(
    name: str, dtype: str, seed: str = "", options: ost.CompileOptions = OPTIMISED
) -> Case:
    recipe, _ = COMPOSITIONS[name]
    graph = ost.Graph(name)
    draw = Draw(graph, np.random.default_rng(zlib.crc32(f"{name} {dtype}{seed}".encode())))
    made = recipe(draw, dtype)
    graph.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
    return Case(graph, draw.arrays, (options,))


@pytest.fixture(scope="module")
def session(device: str, build_cases: BuildCases) -> ost.Session:
    build_cases(make_case)
    return open_session(device, threads=2)


@pytest.mark.parametrize(("name", "dtype", "options"), cases_of(COMPOSITIONS))
def test_composition(
    name: str, dtype: str, options: ost.CompileOptions, session: ost.Session
) -> None:
    case = make_case(name, dtype, options=options)
    check_against_oracle(case.graph, case.inputs, [(session, options)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_sweep(name: str, seed: str) -> None:
    """More draws of operands than the quick test has."""
    session = ost.Session("cpu", threads=1)
    for dtype in COMPOSITIONS[name][1]:
        case = make_case(name, dtype, seed)
        check_against_oracle(case.graph, case.inputs, [(session, OPTIMISED)])


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_in_a_session(name: str) -> None:
    recipe, dtypes = COMPOSITIONS[name]
    case = make_case(name, dtypes[0])
    executor = ost.GraphExecutor("cpu")
    with executor.begin() as session:
        rng = np.random.default_rng(zlib.crc32(f"{name} {dtypes[0]}".encode()))
        made = recipe(SessionDraw(executor, session, rng), dtypes[0])
    buffers = made if isinstance(made, list | tuple) else [made]
    truths = ost.reference.evaluate(case.graph, case.inputs)
    for mine, truth in zip(buffers, truths, strict=True):
        assert_close(mine.copyout(), truth, name)


def _resized(g: ost.Graph, x: Value) -> list[Value]:
    height, width = x.shape[2:]
    return [
        g.resize(x, (7, 9), mode="bilinear"),
        g.resize(x, (2 * height, 2 * width)),
        g.resize(x, (width, height), mode="bicubic", align_corners=True),
        g.grid_sample(x, g.affine_grid(np.ones((2, 2, 3), np.float32), (2, 1, height, 4))),
    ]


def _pooled(g: ost.Graph, x: Value) -> list[Value]:
    best, places = g.max_pool(x, 3, 2, 1, ceil_mode=True, return_indices=True)
    return [
        best,
        g.max_unpool(best, places, x.shape[2:]),
        g.adaptive_avg_pool(x, (3, 1)),
        *g.adaptive_max_pool(x, (4, 3), return_indices=True),
        g.lp_pool(x, 2, ceil_mode=True),
    ]


def _trained(g: ost.Graph, x: Value) -> list[Value]:
    layer = g.native_layer_norm(x)
    results = g.attention(x, x, x, causal=True, return_logsumexp=True, scale=0.5)
    target = g.argmax(x, axis=1)
    return [
        *g.layer_norm_backward(g.sin(x), x, *layer[1:]),
        *g.batch_norm_training(x),
        *results,
        *g.attention_backward(g.sin(x), x, x, x, *results, causal=True, scale=0.5),
        g.cross_entropy(x, target, ignore_index=1, label_smoothing=0.1),
    ]


SYMBOLIC: dict[str, Callable[[ost.Graph, Value], list[Value]]] = {
    "resized": _resized,
    "pooled": _pooled,
    "trained": _trained,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_open_sizes(name: str) -> None:
    graph = ost.Graph(name)
    n, m = ost.Variable("n", 2, 12), ost.Variable("m", 2, 12)
    features = 4 if name == "trained" else m
    x = graph.input("x", (2, 3, n, features))
    graph.set_outputs(SYMBOLIC[name](graph, x))
    compiled = ost.Session().compile(graph)
    rng = np.random.default_rng(3)
    for rows, columns in ((2, 12), (7, 5), (12, 3)):
        sizes = (rows, 4 if name == "trained" else columns)
        inputs: dict[str, Any] = {"x": rng.standard_normal((2, 3, *sizes)).astype(np.float32)}
        expected = ost.reference.evaluate(graph, inputs)
        fixed = ost.Graph(name)
        fixed.set_outputs(SYMBOLIC[name](fixed, fixed.input("x", (2, 3, *sizes))))
        known = ost.reference.evaluate(fixed, inputs)
        for mine, truth, same in zip(compiled.run(inputs), expected, known, strict=True):
            assert_close(mine, truth, f"{name} {sizes}")
            assert_close(truth, same, f"{name} {sizes}, numbers")
