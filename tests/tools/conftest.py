"""Small models on disk, and a way to call the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from ostinato.tools.cli import app

if TYPE_CHECKING:
    from typer.testing import Result

Cli = Callable[..., "Result"]


def value(name: str, shape: list[Any], type_: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type_, shape)


def save(path: Path, graph: onnx.GraphProto) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``y = relu(x @ w + b)`` with ``x: [rows, 4]``, and ``n``, the ids plus one."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node("Add", ["m", "b"], ["s"], name="sum"),
            helper.make_node("Relu", ["s"], ["y"], name="activation"),
            helper.make_node("Add", ["ids", "one"], ["n"], name="next"),
        ],
        "dense",
        [value("x", ["rows", 4]), value("ids", [2], TensorProto.INT64)],
        [value("y", ["rows", 3]), value("n", [2], TensorProto.INT64)],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.ones(3, np.float32), "b"),
            numpy_helper.from_array(np.array([1, 1]), "one"),
        ],
    )
    return save(tmp_path_factory.mktemp("models") / "dense.onnx", graph)


@pytest.fixture(scope="session")
def unsupported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes that Ostinato cannot express."""
    graph = helper.make_graph(
        [
            helper.make_node("ImageDecoder", ["x"], ["a"], name="first"),
            helper.make_node("ImageDecoder", ["y"], ["c"], name="second"),
        ],
        "images",
        [value(name, [9], TensorProto.UINT8) for name in ("x", "y")],
        [value(name, ["h", "w", 3], TensorProto.UINT8) for name in ("a", "c")],
    )
    return save(tmp_path_factory.mktemp("models") / "images.onnx", graph)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Calls the command line in this process; exceptions that escape it fail the test."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return call


def report(result: Result) -> dict[str, Any]:
    """The one JSON object on stdout, with nothing on stderr."""
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found
