"""The reports of commands, for machines and for people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ostinato as ost

from .conftest import Cli, report, save, value


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"ostinato {ost.__version__}\n"


def test_help_is_quick_and_loads_no_compiler() -> None:
    code = (
        "import sys; from ostinato.tools import cli; "
        "print(sorted({'numpy', 'onnx', 'llvmlite', 'rich'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


# -- inspect -------------------------------------------------------------------------------------


def test_inspect_for_machines(cli: Cli, dense: Path) -> None:
    found = report(cli("inspect", dense, "--dim", "rows=5", "--json"))
    assert found["graph"] == "dense"
    assert found["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [5, 4]},
        {"name": "ids", "dtype": "int64", "shape": [2]},
    ]
    assert found["outputs"][0] == {"name": "y", "dtype": "float32", "shape": [5, 3]}
    assert found["ops"] == {"add": 2, "matmul": 1, "relu": 1}
    assert found["nodes"] == 4
    assert found["params"] == {"tensors": 2, "elements": 15, "bytes": 60}
    assert found["flops"] == 2 * 5 * 4 * 3 + 2 * 5 * 3
    assert found["variables"] == {}
    assert found["kernels"]
    assert {"name", "nodes", "flops", "bytes"} == set(found["kernels"][0])
    assert "product" in {node for kernel in found["kernels"] for node in kernel["nodes"]}
    assert found["memory"]["param_bytes"] >= 60
    assert set(found["seconds"]) == {"load", "compile"}
    assert "explain" not in found


def test_inspect_with_sizes_that_vary(cli: Cli, dense: Path) -> None:
    found = report(cli("inspect", dense, "--dim", "rows=2..7", "--json", "--explain"))
    assert found["variables"] == {"rows": [2, 7]}
    assert found["inputs"][0]["shape"] == ["rows", 4]
    assert found["flops"] == 2 * 7 * 4 * 3 + 2 * 7 * 3
    assert "kernels" in found["explain"]


def test_inspect_without_compiling(cli: Cli, dense: Path) -> None:
    found = report(cli("inspect", dense, "--no-compile", "--json"))
    assert "kernels" not in found
    assert found["nodes"] == 4


def test_inspect_for_people(cli: Cli, dense: Path) -> None:
    text = cli("inspect", dense, "--dim", "x[0]=5", "--explain").stdout
    for word in (
        "dense",
        "float32",
        "5, 4",
        "matmul",
        "params",
        "FLOP",
        "Memory",
        "Compile report",
    ):
        assert word in text


# -- run -----------------------------------------------------------------------------------------


def test_run_with_a_file(cli: Cli, dense: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "out.npz"
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--input", "ids=7")
    found = report(cli("run", dense, *given, "--output", out, "--json"))
    graph = ost.load_onnx(dense, dims={"rows": 3})
    wanted = ost.reference.evaluate(graph, {"x": x, "ids": np.array([7, 7])}, {})
    with np.load(out) as written:
        assert sorted(written) == ["n", "y"]
        np.testing.assert_allclose(written["y"], wanted[0], rtol=1e-5)
        np.testing.assert_array_equal(written["n"], [8, 8])
        y = written["y"]
    first, second = found["outputs"]
    assert (first["name"], first["dtype"], first["shape"]) == ("y", "float32", [3, 3])
    assert first["max"] == pytest.approx(float(y.max()))
    assert first["mean"] == pytest.approx(float(y.mean()))
    assert first["non_finite"] == 0
    assert second["first"] == [8, 8]
    assert found["written"] == str(out)
    assert found["assumed_dims"] == {}


def test_random_inputs_repeat_with_their_seed(cli: Cli, dense: Path) -> None:
    def outputs(*arguments: object) -> object:
        return report(cli("run", dense, "--json", "--dim", "rows=4", *arguments))["outputs"]

    assert outputs() == outputs("--seed", 0)
    assert outputs() != outputs("--seed", 1)


def test_sizes_that_nobody_chose_are_one(cli: Cli, dense: Path) -> None:
    found = report(cli("run", dense, "--json"))
    assert found["assumed_dims"] == {"rows": 1}
    assert found["outputs"][0]["shape"] == [1, 3]
    assert "rows" in cli("run", dense).stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("source", "low", "high"),
    [("zeros", 1, 1), ("ones", 2, 2), ("41", 42, 42), ("random:3..5", 4, 6), ("random", 1, 2)],
)
def test_made_up_inputs(cli: Cli, dense: Path, source: str, low: int, high: int) -> None:
    found = report(cli("run", dense, "--json", "--input", f"ids={source}"))["outputs"][1]
    assert low <= found["min"] <= found["max"] <= high


def test_a_constant_input(cli: Cli, dense: Path) -> None:
    found = report(cli("run", dense, "--json", "--constant", "ids=4"))
    assert found["outputs"][1]["first"] == [5, 5]


def test_results_that_are_no_numbers(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "logs", [value("x", [3])], [value("y", [3])])
    path = save(tmp_path / "logs.onnx", graph)
    found = report(cli("run", path, "--json", "--input", "x=zeros"))["outputs"][0]
    assert found["non_finite"] == 3
    assert found["first"] == ["-inf"] * 3
    assert found["mean"] is None
    assert "not finite" in cli("run", path, "--input", "x=-1").stdout


def test_names_that_steer_terminals_or_look_like_markup(cli: Cli, tmp_path: Path) -> None:
    name, file = "[red]\x1b[31m/..", "file"
    nodes = [helper.make_node("Neg", ["x"], [name]), helper.make_node("Abs", ["x"], [file])]
    outputs = [value(name, [2]), value(file, [2])]
    path = save(tmp_path / "odd.onnx", helper.make_graph(nodes, "g", [value("x", [2])], outputs))
    out = tmp_path / "odd.npz"
    text = cli("run", path, "-o", out).stdout
    assert "\x1b" not in text
    assert "[red]" in text
    with np.load(out) as written:
        assert sorted(written) == sorted([name, file])


def test_run_with_one_thread_and_an_older_instruction_set(cli: Cli, dense: Path) -> None:
    found = report(cli("run", dense, "--json", "--threads", 1, "--target", "sse2"))
    assert found == found | {"device": "CPU:0"}


# -- bench ---------------------------------------------------------------------------------------


def test_bench_against_onnx_runtime(cli: Cli, dense: Path) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ("--vs", "onnxruntime", "--dim", "rows=4", "--runs", 7, "--tolerance", 1e-4)
    found = report(cli("bench", dense, *arguments, "--json"))
    assert set(found["engines"]) == {"ostinato", "onnxruntime"}
    for engine in found["engines"].values():
        assert engine["runs"] == 7
        assert 0 < engine["min_ms"] <= engine["median_ms"] <= engine["p90_ms"] <= engine["p99_ms"]
    medians = [found["engines"][name]["median_ms"] for name in ("onnxruntime", "ostinato")]
    assert found["ratio"] == pytest.approx(medians[0] / medians[1])
    assert set(found["difference"]["by_output"]) == {"y", "n"}
    assert found["difference"]["largest"] < 1e-5
    text = cli("bench", dense, *arguments).stdout
    assert "times as fast" in text
    assert "largest difference of y" in text


def test_bench_alone(cli: Cli, dense: Path) -> None:
    found = report(cli("bench", dense, "--seconds", 0.05, "--threads", 1, "--json"))
    assert found["threads"] == 1
    assert list(found["engines"]) == ["ostinato"]
    assert "ratio" not in found


def test_bench_tells_when_results_differ(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Erf", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", [64])], [value("y", [64])])
    path = save(tmp_path / "erf.onnx", graph)
    arguments = ("--vs", "onnxruntime", "--runs", 1, "--input", "x=random:-3..3")
    result = cli("bench", path, *arguments, "--tolerance", 0, code=3)
    assert "differ by more than 0" in result.stderr


# -- devices -------------------------------------------------------------------------------------


def test_devices(cli: Cli) -> None:
    found = report(cli("devices", "--json"))
    by_kind = {device["kind"]: device for device in found["devices"]}
    assert by_kind["cpu"] == {
        "kind": "cpu",
        "available": True,
        "names": ["CPU:0"],
        "package": "ostinato",
        "reason": None,
    }
    assert {"cuda", "rocm", "tpu", "metal", "vulkan", "webgpu", "mlx", "xla"} <= set(by_kind)
    for device in by_kind.values():
        assert device["available"] or device["reason"]
    assert found["cpu"]["threads"] >= 1
    assert "cpu" in cli("devices").stdout


def test_the_installed_command(dense: Path) -> None:
    """The entry point itself, in a process of its own."""
    command = Path(sys.executable).with_name("ostinato")
    if not command.exists():
        pytest.skip("ostinato is not installed beside this Python")
    found = subprocess.run([command, "run", dense], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    missing = subprocess.run(
        [command, "run", "absent.onnx"], capture_output=True, text=True, check=False
    )
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("error: cannot read the model 'absent.onnx'")
    assert missing.stderr.count("\n") == 1


def test_a_model_with_a_scalar_and_a_bool(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Where", ["flag", "x", "x"], ["y"])]
    inputs = [value("flag", [], TensorProto.BOOL), value("x", [])]
    path = save(tmp_path / "scalar.onnx", helper.make_graph(nodes, "g", inputs, [value("y", [])]))
    onnx.checker.check_model(str(path))
    assert report(cli("run", path, "--json", "--input", "x=2.5"))["outputs"][0]["first"] == [2.5]


def test_progress_is_shown_on_a_terminal_and_only_there(dense: Path) -> None:
    pty = pytest.importorskip("pty")
    command = [sys.executable, "-m", "ostinato.tools.cli", "run", str(dense), "--json"]
    terminal, stderr = pty.openpty()
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True, timeout=60
        )
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(stderr)
        os.close(terminal)
    assert json.loads(ended.stdout)["outputs"]
    assert "loading" in shown
