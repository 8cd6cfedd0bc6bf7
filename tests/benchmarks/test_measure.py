"""Evaluation of times: medians, ratios, floors, the table; and one comparison for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.compare import report
from bench.compare.cli import main
from bench.compare.floors import Floors, Probe
from bench.compare.measure import Row, Times, differing
from bench.compare.worker import clock_named, turn
from bench.compare.workloads import Mlp


def times(*rounds: list[float]) -> Times:
    measured = Times()
    for one in rounds:
        measured.add(one)
    return measured


FLOORS = Floors(
    arithmetic_ms=0.5, memory_ms=0.25, call_ms=0.001, gflops=100.0, gbytes=20.0, usual_ms=0.6
)
ROW = Row(
    "mlp_b1",
    2,
    {
        "ostinato": times([1.0, 1.0, 9.0], [2.0], [1.0]),
        "onnxruntime": times([3.0], [3.0], [1.5]),
        "jax": times([2.0], [2.0], [2.0]),
    },
    [FLOORS, replace(FLOORS, usual_ms=1.0), replace(FLOORS, usual_ms=0.75)],
    {"torch": "torch is ill"},
)


def test_rounds_are_compared_with_each_other() -> None:
    assert ROW.ours is not None
    assert (ROW.ours.median, ROW.ours.least) == (1.0, 1.0)
    assert ROW.best_peer == "jax"
    assert ROW.ratio == 2.0  # of 2, 1 and 2
    assert ROW.ratio_of_least == 1.5  # the least time of all is another peer's
    assert ROW.reached == 0.5
    assert ROW.reached_in_rounds == 0.6  # of 0.6, 0.5 and 0.75


def test_a_row_without_us_has_no_ratio() -> None:
    row = Row("tiny", 1, {"jax": times([2.0])}, [FLOORS], {})
    assert row.ours is row.ratio is row.ratio_of_least is None
    assert row.reached is row.reached_in_rounds is None
    assert report.as_json(row)["ours_ms"] is None
    assert "nan" not in report.table([row])


def test_json_has_the_public_figures(tmp_path: Path) -> None:
    report.write_json([ROW], tmp_path / "rows.json")
    (found,) = json.loads((tmp_path / "rows.json").read_text())
    assert found["workload"] == "mlp_b1"
    assert found["threads"] == 2
    assert found["ours_ms"] == 1.0
    assert found["peers_ms"] == {"onnxruntime": 3.0, "jax": 2.0}
    assert found["best_peer"] == "jax"
    assert found["ratio"] == 2.0
    assert found["floor_ms"] == 0.5
    assert found["left_out"] == {"torch": "torch is ill"}


def test_the_table_shows_every_side() -> None:
    lines = report.table([ROW]).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:4] == ["mlp_b1", "2", "1.00 (1.00)", "3.00 (1.50)"]
    assert cells[4:6] == ["–", "–"]
    assert cells[6:] == ["**2.00 (2.00)**", "2.00", "1.50", "0.500", "50 %", "60 %"]
    assert "2.00" in lines[-1]


def test_whoever_is_off_the_majority_is_named() -> None:
    right, wrong = np.array([1.0, -2.0]), np.array([1.0, -1.9])
    outputs = {"a": [right], "b": [wrong], "c": [right + 1e-6]}
    assert list(differing(outputs, 1e-3)) == ["b"]
    assert not differing(outputs, 0.1)
    nan = {**outputs, "b": [np.array([np.nan, 1.0])]}
    assert list(differing(nan, 0.1)) == ["b"]


def test_a_side_of_another_shape_is_named() -> None:
    outputs = {"a": [np.zeros(2)], "b": [np.zeros((1, 2))], "c": [np.zeros(2)]}
    assert list(differing(outputs, 1e-3)) == ["b"]


def test_the_best_floors_win() -> None:
    other = replace(FLOORS, arithmetic_ms=0.4, memory_ms=0.3, gflops=90.0, gbytes=30.0)
    best = Floors.best([FLOORS, other])
    assert best == replace(FLOORS, arithmetic_ms=0.4, gbytes=30.0)
    assert best.floor_ms == 0.4


@pytest.mark.parametrize("threads", [1, 2])
def test_floors_of_this_machine(threads: int) -> None:
    floors = Probe(Mlp(64), threads).measure()
    assert 0 < floors.gflops < 10_000 * threads
    assert 0 < floors.gbytes < 10_000 * threads
    assert floors.floor_ms == max(floors.arithmetic_ms, floors.memory_ms)
    assert floors.usual_ms >= floors.floor_ms > floors.call_ms


@pytest.mark.parametrize("name", ["wall", "cpu"])
def test_turns_time_every_bunch(name: str) -> None:
    calls = []
    found = turn(lambda: calls.append(1), 0.01, 10, clock_named(name, 1))
    assert len(calls) == 10 * (len(found) + 1)  # the first bunch warms caches
    assert all(0 <= time < 10 for time in found)


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "tiny.json"
    options = ["--only", "tiny", "--threads", "1", "--runs", "2", "--peers", "onnxruntime"]
    main([*options, "--json", str(path)])
    (row,) = json.loads(path.read_text())
    assert row["best_peer"] == "onnxruntime"
    assert row["ours_ms"] > 0
    assert row["floor_ms"] > 0
    assert not row["left_out"]
    assert "| tiny | 1 |" in capsys.readouterr().out
    assert "| tiny | 1 |" in path.with_suffix(".md").read_text()
