"""Top-k, positions of true elements, suppression and recurrence of the CUDA device."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session
from tests.pairwise import every_second

FLOATS = (
    "bfloat16",
    "float32",
    *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float16", "float64")),
)


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


def drawn(name: str) -> Draw:
    return Draw(ost.Graph("selection"), np.random.default_rng(zlib.crc32(name.encode())))


def check(session: ost.Session, draw: Draw, *outputs: object) -> None:
    draw.g.set_outputs(list(outputs))
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions(verify=True))])


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint64"])
@pytest.mark.parametrize(
    ("largest", "sizes"),
    every_second([True, False], [(5, 0), (1, 1), (7, 7), (300, 3), (300, 200), (4100, 5)]),
)
def test_ties(session: ost.Session, dtype: str, largest: bool, sizes: tuple[int, int]) -> None:
    size, k = sizes
    d = drawn(f"{dtype} {size} {k}")
    array = d.rng.integers(0, 4, (2, size, 3)).astype(ost.DType.parse(dtype).numpy)
    check(session, d, *d.g.topk(d.holding(array), k, 1, largest=largest))


def test_slices_with_fewer_elements_than_are_chosen(session: ost.Session) -> None:
    g = ost.Graph("slices")
    size = ost.Variable("size", 3, 10000)
    g.set_outputs([*g.topk(g.input("x", (size,), "float32"), 3)])
    compiled = session.compile(g)
    for length in (3, 4, 9, 10000):
        x = np.random.default_rng(length).integers(0, 9, length).astype(np.float32)
        values, places = compiled.run({"x": x})
        order = np.argsort(-x, kind="stable")[:3]
        np.testing.assert_array_equal(np.asarray(places), order)
        np.testing.assert_array_equal(np.asarray(values), x[order])


@pytest.mark.parametrize(
    ("dtype", "case"),
    every_second(
        ["bfloat16", "float32", "int8", "uint64", "float64"],
        [(1025, 1025, False), (5000, 700, True)],
    ),
)
def test_sorts_of_long_rows(session: ost.Session, dtype: str, case: tuple[int, int, bool]) -> None:
    size, k, largest = case
    d = drawn(f"sort {dtype} {size}")
    parsed = ost.DType.parse(dtype)
    array = d.rng.integers(0, 99, (2, size)).astype(parsed.numpy)
    if parsed.is_float:
        array[:, :9] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, np.nan]
    check(session, d, *d.g.topk(d.holding(array), k, 1, largest=largest))


def test_sorts_of_symbolic_rows(session: ost.Session) -> None:
    g = ost.Graph("sort")
    size = ost.Variable("size", 0, 9000)
    g.set_outputs([*g.sort(g.input("x", (size, 2), "int32"), 0)])
    compiled = session.compile(g)
    for length in (0, 1, 256, 257, 1030, 9000):
        x = np.random.default_rng(length).integers(0, 999, (length, 2), dtype=np.int32)
        values, places = compiled.run({"x": x})
        np.testing.assert_array_equal(np.asarray(values), np.sort(x, 0))
        np.testing.assert_array_equal(np.asarray(places), np.argsort(x, 0, kind="stable"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [9, 400, 5000])
def test_special_values(session: ost.Session, dtype: str, size: int) -> None:
    d = drawn(f"special {dtype} {size}")
    numbers = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8])
    array = d.rng.choice(numbers, (3, size)).astype(ost.DType.parse(dtype).numpy)
    x = d.holding(array)
    check(session, d, d.g.topk(x, 5, -1)[1], d.g.topk(x, 5, -1, largest=False)[1])


@pytest.mark.parametrize("length", [0, 1, 1023, 9000])
def test_positions_of_true_elements(session: ost.Session, length: int) -> None:
    g = ost.Graph("nonzero")
    (found,) = g.nonzero(g.input("mask", (length,), "bool"))
    g.set_outputs([found])
    compiled = session.compile(g)
    rng = np.random.default_rng(length)
    for share in (0.0, 0.3, 1.0):
        mask = rng.random(length) < share
        (result,) = compiled.run({"mask": mask})
        np.testing.assert_array_equal(np.asarray(result).ravel(), np.flatnonzero(mask))


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("boxes", [0, 1, 40, 300])
def test_suppression(session: ost.Session, boxes: int, centered: bool) -> None:
    d = drawn(f"boxes {boxes}")
    places = d.of((2, boxes, 4), "float32", 0, 3)
    scores = np.round(d.rng.random((2, 3, boxes)).astype(np.float32), 1)
    limit = np.int64(5)
    found = d.g.non_max_suppression(
        places, d.holding(scores), limit, np.float32(0.3), np.float32(0.2), centered=centered
    )
    check(session, d, found)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers(session: ost.Session, kind: str, dtype: str) -> None:
    d = drawn(f"{kind} {dtype}")
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    seq, batch, features, hidden = 5, 3, 4, 37
    x = d.of((seq, batch, features), dtype)
    w = d.of((2, gates * hidden, features), dtype, -0.5, 0.5)
    r = d.of((2, gates * hidden, hidden), dtype, -0.3, 0.3)
    lengths = d.holding(np.array([5, 0, 3], np.int32))
    layer = getattr(d.g, kind)
    check(session, d, *layer(x, w, r, direction="bidirectional", sequence_lens=lengths))
