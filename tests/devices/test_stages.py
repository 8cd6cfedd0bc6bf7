"""The command of the conformance suite: what it counts, and what it says of processes that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance import command
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
    stage = run(suite, "hangs", seconds=5)
    assert stage.problem == "stopped after 5 s"
    assert not stage.good


def test_no_test_is_no_problem(suite: str) -> None:
    stage = run(suite, "absent")
    assert stage.good
    assert stage.passed == 0


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
    assert outcome["refused"] == {}
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
