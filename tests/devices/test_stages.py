"""The command of the conformance suite: what it counts, and what it says of processes that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance import command, stages
from tests.conformance.stages import Settings, Stage, Suites

SUITE = """
import os, time
import pytest
from ostinato.errors import UnsupportedOpError

def test_passes(device):
    pass

def test_fails(device):
    assert device == "nothing"

@pytest.mark.slow
def test_slow(device):
    pass

@pytest.mark.needs("capture")
def test_records(device):
    pass

def test_crashes(device):
    os._exit(7)

def test_hangs(device):
    time.sleep(600)
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "test_stage.py"
    path.write_text(SUITE)
    return str(path)


def run(suite: str, keyword: str, logs: Path | None = None, seconds: float = 300) -> Stage:
    settings = Settings("loops", keyword=keyword, seconds=seconds, logs=logs)
    return Suites(settings).pytest("stage", [suite])


def test_outcomes_are_counted(suite: str, tmp_path: Path) -> None:
    stage = run(suite, "not crashes and not hangs", logs=tmp_path / "logs")
    assert (stage.passed, stage.failed, stage.refused, stage.skipped) == (2, 1, 0, 1)
    (failure,) = stage.failures
    assert failure.endswith("test_fails[loops]")
    assert stage.reasons == {"loops lacks capture": 1}
    assert not stage.good
    assert not stage.problem
    assert "1 failed, 2 passed" in (tmp_path / "logs" / "stage.log").read_text()


def test_a_crash_is_the_failure_of_one_test(suite: str) -> None:
    stage = run(suite, "crashes or passes or slow")
    assert (stage.passed, stage.failed) == (2, 1)
    (failure,) = stage.failures
    assert failure.endswith("test_crashes[loops]")
    assert not stage.good


def test_a_file_without_its_tests_is_a_failure(suite: str) -> None:
    Path(suite).write_text("import ostinato.nothing\n" + SUITE)
    stage = run(suite, "passes")
    assert (stage.passed, stage.failed) == (0, 1)
    assert not stage.good


def test_a_process_that_hangs(suite: str) -> None:
    stage = run(suite, "hangs", seconds=2)
    assert stage.problem == "stopped after 2 s"
    assert not stage.good


def test_no_test_is_no_problem(suite: str) -> None:
    stage = run(suite, "absent")
    assert stage.good
    assert stage.passed == 0


def test_random_graphs_from_a_seed_on_in_several_processes(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(stages, "_HUNT", 2)
    settings = Settings("loops", graphs=5, first=7, workers=2, logs=tmp_path)
    stage = Suites(settings).fuzz()
    assert stage.good
    assert stage.passed == 5
    seeds = [line for line in (tmp_path / "fuzz.log").read_text().split("\n") if "seed" in line]
    assert seeds == [f"seed {number}" for number in range(7, 12)]


def test_random_graphs_whose_process_crashes_or_is_late(monkeypatch) -> None:
    endings = {0: ("seed 0\nseed 1\n", True), 25: ("seed 25\nseed 26\n", False)}
    suites = Suites(Settings("loops", graphs=50, seconds=9))
    monkeypatch.setattr(suites, "_hunt", lambda first, last, start: endings[first])
    stage = suites.fuzz()
    assert (stage.passed, stage.failed) == (2, 0)
    assert stage.problem == "a process of the seeds 0 to 24 crashed at seed 1"


class Fake(Suites):
    """Stages that end at once, one of them badly."""

    def stages(self):
        return {
            "good": lambda: Stage("good", passed=3, skipped=1, reasons={"it lacks wings": 1}),
            "bad": lambda: Stage("bad", passed=1, failed=1, failures=["test_flight"]),
        }


@pytest.mark.parametrize(("stages", "status"), [("good", 0), ("good,bad", 1), (None, 1)])
def test_the_table_and_the_outcome(stages, status, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(command._SUITES, "loops", Fake)
    path = tmp_path / "outcome.json"
    chosen = [] if stages is None else ["--stages", stages]
    assert command.main(["--device", "loops", "--json", str(path), *chosen]) == status
    outcome = json.loads(path.read_text())
    assert outcome["device"] == "loops"
    assert set(outcome["refused"]) == {"scaled_matmul"}  # of 8-bit floats, which it refuses
    assert "single_ops" in outcome["abilities"]
    assert [stage["name"] for stage in outcome["stages"]] == (stages or "good,bad").split(",")
    text = capsys.readouterr().out
    assert "1 skipped: it lacks wings" in text
    assert ("test_flight" in text) == bool(status)


def test_names_that_make_no_sense() -> None:
    with pytest.raises(SystemExit, match="--device: unknown device NOWHERE:0"):
        command.main(["--device", "nowhere"])
    with pytest.raises(SystemExit, match=r"--device: .* names no device"):
        command.main(["--device", "no where"])
    with pytest.raises(SystemExit, match="--stages: 'opps' is none of ops, shapes"):
        command.main(["--device", "loops", "--stages", "opps"])


def test_a_device_that_is_not_here_is_skipped(tmp_path, capsys) -> None:
    path = tmp_path / "outcome.json"
    assert command.main(["--device", "rocm", "--json", str(path)]) == 0
    assert "skipped: ROCM:0 is not available" in capsys.readouterr().out
    assert "ROCM:0" in json.loads(path.read_text())["skipped"]
