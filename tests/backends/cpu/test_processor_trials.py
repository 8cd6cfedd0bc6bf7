"""Trials of the processor: what they decide, when they are made, and that they are kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import processor_facts, processor_trials
from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm
from ostinato.backends.cpu.rules.prefetch import FEW_ROWS
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.cpu.rules.tiles import RegisterFile
from ostinato.dtypes import FLOAT32
from ostinato.records import replace
from ostinato.variables import axis

TARGET = TargetSpec.host()
LARGE = 1 << 30


def registers(answer: Callable[[], bool] | None) -> RegisterFile:
    return RegisterFile(64, 32, prefetches=True, few_rows_prefetch=answer)


def never() -> bool:
    raise AssertionError("no trial is needed here")


def product(rows: ost.Variable | int, depth: int = 300, columns: int = 200) -> ost.Graph:
    g = ost.Graph("product")
    g.set_outputs([g.matmul(g.input("x", (rows, depth)), g.param("w", (depth, columns)))])
    return g


def kernels(graph: ost.Graph, **options: Any) -> list[Any]:
    target = replace(TARGET, caches=CacheSizes(second=8 << 10))
    program, _ = lower_for_cpu(graph, lowering_options(ost.CompileOptions(**options), target))
    return [k for k in program.kernels if isinstance(k, (Gemm, GroupedGemm))]


# -- what they measure -----------------------------------------------------------------------------


def test_less_work_is_faster() -> None:
    little = processor_trials._gemm(TARGET, rows=1, vectors=2, a=FLOAT32)
    much = processor_trials._gemm(TARGET, rows=8, vectors=2, a=FLOAT32)
    assert processor_trials._faster(little, much, 1 << 20, TARGET)
    assert not processor_trials._faster(much, little, 1 << 20, TARGET)


def test_a_trial_without_memory_changes_nothing() -> None:
    gemm = processor_trials._gemm(TARGET, rows=1, vectors=1, a=FLOAT32)
    assert not processor_trials._faster(gemm, gemm, 1 << 60, TARGET)


@pytest.mark.parametrize(("least", "slow"), [(0, True), (1 << 30, False)])
def test_memory_is_slow_from_some_multiply_adds_on(
    least: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_trials, "_SLOW", least)
    assert processor_trials.slow_memory(TARGET) == slow
    monkeypatch.setattr(processor_trials, "_MEMORY_BYTES", 1 << 60)
    assert not processor_trials.slow_memory(TARGET)


def test_trials_come_to_a_result() -> None:
    assert processor_facts.few_rows_prefetch() in (True, False)
    assert processor_facts.slow_memory() in (True, False)
    assert processor_facts.strips_are_faster() in (True, False)
    assert processor_facts.row_strips_are_faster() in (True, False)
    if TARGET.has_bfloat16_dots:
        assert processor_facts.bfloat16_dots_are_fast() in (True, False)


@pytest.mark.parametrize("result", [True, False])
def test_results_are_kept(result: bool) -> None:
    made = []

    def trial(target: TargetSpec) -> bool:
        made.append(target)
        return result

    name = uuid.uuid4().hex
    assert [processor_facts.measured(name, trial) for _ in range(2)] == [result] * 2
    assert made == [TARGET]


# -- what they decide ------------------------------------------------------------------------------


@pytest.fixture
def whole_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No panels in strips, whatever this machine would find."""
    for trial in ("strips_are_faster", "row_strips_are_faster"):
        monkeypatch.setattr(processor_facts, trial, lambda: False)


@pytest.mark.parametrize("rows", [FEW_ROWS, 4, 6])
def test_few_rows_prefetch_where_it_pays(rows: int) -> None:
    for answer, least in ((True, FEW_ROWS), (False, 7)):
        fetch = registers(lambda answer=answer: answer).prefetch_for(rows, LARGE)  # type: ignore[misc]
        assert fetch is not None
        assert fetch.least_rows == least


def test_one_row_of_widened_weights_prefetches_where_few_rows_do() -> None:
    for answer, least in ((True, 1), (False, 5)):
        fetch = registers(lambda answer=answer: answer).prefetch_for(1, LARGE, unpacks=True)  # type: ignore[misc]
        assert fetch is not None
        assert fetch.of_widened_weights.least_rows == least


def test_one_row_of_packed_weights_prefetches_where_few_rows_do() -> None:
    for answer, least in ((True, 1), (False, 3)):
        fetch = registers(lambda answer=answer: answer).prefetch_for(1, LARGE, unpacks=True)  # type: ignore[misc]
        assert fetch is not None
        assert fetch.of_packed_weights.least_rows == least


def test_symbolic_rows_may_be_few() -> None:
    fetch = registers(lambda: True).prefetch_for(axis("rows", 100) + 1, LARGE)
    assert fetch is not None
    assert fetch.least_rows == FEW_ROWS


@pytest.mark.parametrize(("rows", "nbytes"), [(1, LARGE), (7, LARGE), (4, 1000)])
def test_there_is_no_trial_without_need(rows: int, nbytes: int) -> None:
    fetch = registers(never).prefetch_for(rows, nbytes)
    assert fetch == registers(None).prefetch_for(rows, nbytes)


def test_nothing_prefetches_against_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_facts, "few_rows_prefetch", never)
    (gemm,) = kernels(product(4), prefetch=False)
    assert gemm.fetch is None


@pytest.mark.usefixtures("whole_panels")
@pytest.mark.parametrize("pays", [True, False])
def test_kernels_of_few_rows(monkeypatch: pytest.MonkeyPatch, pays: bool) -> None:
    monkeypatch.setattr(processor_facts, "few_rows_prefetch", lambda: pays)
    (gemm,) = kernels(product(4))
    assert (gemm.fetch is not None) == pays
    g = ost.Graph("experts")
    x, ids = g.input("x", (6, 300)), g.input("ids", (6,), "int64")
    g.set_outputs([g.grouped_matmul(x, g.param("w", (3, 300, 200)), ids)])
    (grouped,) = kernels(g)
    assert grouped.prefetch.least_rows == (FEW_ROWS if pays else 7)


@pytest.mark.usefixtures("whole_panels")
@pytest.mark.parametrize("rows", [2, 3, 5, 6])
def test_same_bits(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 600)).astype(np.float32)
    w = rng.standard_normal((600, 1000)).astype(np.float32)
    found = []
    for pays in (True, False):
        monkeypatch.setattr(processor_facts, "few_rows_prefetch", lambda pays=pays: pays)
        options = ost.CompileOptions(stored_programs=False)
        session = ost.Session("cpu", threads=1)
        compiled = session.compile(product(rows, *w.shape), params={"w": w}, options=options)
        assert ("prefetch" in compiled.plan.kernels[-1].loops) == pays
        found.append(compiled.run({"x": x})[0])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], x @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("whole_panels")
def test_programs_are_kept_apart_by_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another result, measured after the first was lost, must not meet programs of the first."""
    w = np.ones((500, 900), np.float32)
    for pays in (True, False, True):
        monkeypatch.setattr(processor_facts, "few_rows_prefetch", lambda pays=pays: pays)
        monkeypatch.setattr(processor_facts, "known", lambda pays=pays: f"few {pays}, whole panels")
        compiled = ost.Session("cpu", threads=1).compile(product(4, *w.shape), params={"w": w})
        assert ("prefetch" in compiled.plan.kernels[-1].loops) == pays


def test_what_is_known_is_what_was_measured() -> None:
    fact = processor_facts.few_rows_prefetch()
    assert f"prefetching for few rows: {fact:d}" in processor_facts.known()
