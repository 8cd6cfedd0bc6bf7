"""The benchmark of panels: every format is measured, and shares follow from rates."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from bench import panel_pipeline


def test_every_format_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_pipeline, "COLUMNS", {"cache": 16, "memory": 16})
    formats = list(panel_pipeline.FORMATS)
    found = panel_pipeline._measured(1, [1, 8], formats, 0.01, time.perf_counter)
    assert len(found) == 2 * 2 * len(formats)
    for result in found:
        assert result.gflops > 0
        assert result.without > 0
        assert result.share == result.gflops / result.ceiling


def test_the_page_names_the_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = panel_pipeline.Result("f32", 8, "memory", 1, 90.0, 22.5, 80.0, 100.0, 0.85)
    monkeypatch.setattr(panel_pipeline, "_measured", lambda *_: [result])
    monkeypatch.setattr(panel_pipeline.os, "sched_setaffinity", lambda *_: None)
    page = tmp_path / "page.json"
    monkeypatch.setattr(sys, "argv", ["panel_pipeline", "--threads", "1", "--json", str(page)])
    panel_pipeline.main()
    assert "90 %" in capsys.readouterr().out
    written = json.loads(page.read_text())
    assert written["processor"]
    assert written["results"][0]["share"] == 0.9
