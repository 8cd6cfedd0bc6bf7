"""``ostinato bench --llm``: the report, alone and next to a program in the place of llama-bench."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.synthetic_llama import Shape, write_llama
from typer.testing import CliRunner

from ostinato.tools import bench_llm
from ostinato.tools.cli import app

SHAPE = Shape(layers=2, width=64, heads=4, kv_heads=2, hidden=96, vocabulary=320, context=128)

STAND_IN = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt, tokens = int(options["-p"]), int(options["-n"])
print(json.dumps([
    {{"n_prompt": prompt, "n_gen": 0, "avg_ts": 1000.0}},
    {{"n_prompt": 0, "n_gen": tokens, "avg_ts": 100.0}},
]))
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is read for a moment only."""
    for name in ("_READING", "_STEPPING"):
        monkeypatch.setattr(bench_llm, name, 1e-4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_llama(path, "q4_0", SHAPE)
    return path


def bench(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", *arguments])
    return done.exit_code, done.output


def test_the_report(model: Path) -> None:
    sizes = ("-p", "8", "-n", "3", "-b", "1,2", "--runs", "2", "--threads", "1")
    code, output = bench(str(model), "--llm", *sizes, "--json")
    assert code == 0, output
    report = json.loads(output)
    assert list(report["tests"]) == ["pp8", "tg3", "tg3 b2"]
    assert report["rounds"] == 2
    assert report["weight_bytes"] > 0
    test = report["tests"]["tg3 b2"]
    reads = test["tokens_per_second"] / 2 * report["weight_bytes"]
    assert test["bandwidth"] == pytest.approx(reads)
    assert report["tests"]["pp8"]["bandwidth"] is None
    assert "share" not in report["tests"]["pp8"]
    assert report["read_bandwidth"] > 0
    assert test["share"] > 0
    code, output = bench(str(model), "--llm", *sizes)
    assert code == 0, output
    assert "tg3 b2" in output


def test_next_to_llama_cpp(model: Path, tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    common = (str(model), "--llm", "-p", "8", "-n", "3", "--runs", "1", "--threads", "1")
    versus = ("--vs", "llama.cpp", "--llama-bench", str(program))
    code, output = bench(*common, *versus, "--json")
    assert code == 0, output
    report = json.loads(output)
    assert report["llama_bench"]["features"] == []
    for name, rate in (("pp8", 1000.0), ("tg3", 100.0)):
        test = report["tests"][name]
        assert test["llama_cpp"] == rate
        assert test["ratio"] == pytest.approx(test["tokens_per_second"] / rate)
    code, output = bench(*common, *versus)
    assert "ratio" in output
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no model')\n")
    code, output = bench(*common, *versus)
    assert code == 1
    assert "llama-bench failed: no model" in output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--llm", "--vs", "onnxruntime"), "llama.cpp"),
        (("--vs", "llama.cpp"), "onnxruntime"),
        (("--llm", "--vs", "llama.cpp", "--llama-bench", "/absent"), "no program '/absent'"),
        (("--llm", "-b", "1,x"), "no list of numbers"),
        (("--llm", "-b", "0"), "positive numbers"),
        (("--llm", "-p", "0"), "-p"),
    ],
)
def test_what_is_wrong_is_said(model: Path, arguments: tuple[str, ...], problem: str) -> None:
    code, output = bench(str(model), *arguments)
    assert code != 0
    assert problem in output.replace("\n", " ")
