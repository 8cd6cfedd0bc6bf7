"""Matrix products cut in every way that tuning may choose, and what tuning chooses and keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import tuner as tuning
from ostinato.backends.cpu.backend import CpuBackend
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.tiles import TileSizes, tile_choices
from ostinato.backends.cpu.tuner import Tuner
from ostinato.backends.device import Device
from ostinato.cache.objects import ObjectCache
from ostinato.dtypes import FLOAT32
from ostinato.errors import DeviceUnavailableError
from ostinato.reference import evaluate

LEVELS = ("avx512", "avx2", "sse2")
SIZES = [
    (2, 1, 17),
    (7, 13, 31),
    (9, 64, 48),
    (17, 129, 97),
    (33, 40, 65),
    (64, 31, 10),
    (73, 5, 1),
]


def product(m: int, k: int, n: int) -> tuple[ost.Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(m * 10_007 + k * 101 + n)
    g = ost.Graph()
    x = g.input("x", (m, k))
    w = g.param("w", (k, n), value=rng.standard_normal((k, n)).astype(np.float32))
    bias = g.param("b", (n,), value=rng.standard_normal(n).astype(np.float32))
    g.set_outputs([g.tanh(g.matmul(x, w) + bias)])
    return g, {"x": rng.standard_normal((m, k)).astype(np.float32)}


def target(level: str) -> TargetSpec:
    try:
        return TargetSpec.named(level)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_cut_is_right(level: str, size: tuple[int, int, int]) -> None:
    m, _, n = size
    spec = target(level)
    backend = CpuBackend(Device.parse("cpu"), 1)
    options = ost.CompileOptions(target=level)
    registers = lowering_options(options, spec).registers
    g, feed = product(*size)
    (expected,) = evaluate(g, feed)
    tiles = tile_choices(registers.vector_bytes, registers.count, FLOAT32, m, n)
    # One tile, two or all of the rows at once, another number with each tile and size.
    for number, tile in enumerate(sorted({*tiles[:3], tiles[-1]}), start=SIZES.index(size)):
        count = (1, 2, -(-m // tile[0]))[number % 3]
        cut = TileSizes(tile, tile[0] * count)
        lowering = lowering_options(options, spec, lambda _, cut=cut: cut)
        executable = backend._executable(g, g.param_values.sources, options, lowering)
        out = np.empty((m, n), np.float32)
        executable.run([feed["x"]], [out], ())
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5, err_msg=str(cut))


@pytest.mark.parametrize("level", LEVELS)
def test_tuned_graphs_give_the_same_bits(level: str) -> None:
    target(level)
    session = ost.Session("cpu", threads=1)
    g, feed = product(37, 53, 71)
    plain = session.compile(g, options=ost.CompileOptions(target=level))
    tuned = session.compile(g, options=ost.CompileOptions(target=level, tune=True))
    assert plain.run(feed)[0].tobytes() == tuned.run(feed)[0].tobytes()


def test_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ost.Session("cpu", threads=1)
    options = ost.CompileOptions(tune=True)
    g, feed = product(41, 59, 67)
    first = session.compile(g, options=options).run(feed)[0]
    monkeypatch.setattr(Tuner, "_search", lambda *_: pytest.fail("measured again"))
    assert session.compile(g, options=options).run(feed)[0].tobytes() == first.tobytes()


def test_without_time_nothing_is_measured_and_nothing_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = ObjectCache(tmp_path)  # without measurements
    monkeypatch.setattr(tuning, "process_cache", lambda: cache)
    session = ost.Session("cpu", threads=1)
    g, feed = product(43, 61, 79)
    plain = session.compile(g).run(feed)[0]
    late = session.compile(g, options=ost.CompileOptions(tune=True, tune_seconds=0.0))
    assert late.run(feed)[0].tobytes() == plain.tobytes()
    searched = []
    search = Tuner._search
    monkeypatch.setattr(Tuner, "_search", lambda *a: searched.append(1) or search(*a))
    session.compile(g, options=ost.CompileOptions(tune=True))
    assert searched


def test_graphs_without_such_products_compile_as_ever() -> None:
    g = ost.Graph()
    n = ost.Variable("n", 1, 9)
    x, y = g.input("x", (n, 8)), g.input("y", (8, 5))
    w = g.param("w", (8,), value=np.ones(8, np.float32))
    g.set_outputs([g.matmul(x, y), g.matmul(x, w)])
    compiled = ost.Session("cpu", threads=1).compile(g, options=ost.CompileOptions(tune=True))
    feed = {"x": np.ones((3, 8), np.float32), "y": np.ones((8, 5), np.float32)}
    assert [out.tolist() for out in compiled.run(feed)] == [[[8.0] * 5] * 3, [8.0] * 3]


def test_prefetching_is_measured_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[TileSizes] = []

    def last(self: Tuner, product: object, sizes: list[TileSizes]) -> TileSizes:
        tried.extend(sizes)
        return sizes[-1]

    monkeypatch.setattr(Tuner, "_fastest", last)
    cache = ObjectCache(tmp_path)  # without measurements
    monkeypatch.setattr(tuning, "process_cache", lambda: cache)
    g, feed = product(8, 513, 700)
    for switch, expected in ((True, {None, True, False}), (False, {None})):
        options = ost.CompileOptions(tune=True, prefetch=switch)
        session = ost.Session("cpu", threads=1)
        (tuned,) = session.compile(g, options=options).run(feed)
        assert {sizes.prefetch for sizes in tried} == expected
        (plain,) = session.compile(g).run(feed)
        assert tuned.tobytes() == plain.tobytes()
        tried.clear()
