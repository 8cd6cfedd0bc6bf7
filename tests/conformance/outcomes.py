"""A plugin of pytest: the outcome of each test as a line of JSON, at once, in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.devices.catalogue import REFUSED

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="the file that gets a line for each test")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("outcomes")
    if path is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_Outcomes(path))


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, _outcome(report), _reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file whose tests cannot be collected as one that failed."""
        if report.failed:
            self._write(report.nodeid or "the collection of tests", "failed", "")

    def _write(self, *outcome: str) -> None:
        with self._path.open("a") as file:
            print(json.dumps(outcome), file=file)


def _outcome(report: pytest.TestReport) -> str:
    return "refused" if _reason(report).startswith(REFUSED) else report.outcome


def _reason(report: pytest.TestReport) -> str:
    """The reason of a skip."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return ""
