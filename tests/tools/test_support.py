"""The support of nodes, and the sizes that commands choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from .conftest import Cli, report, save

FLOAT = TensorProto.FLOAT


def graph(nodes: list[Any], shape: list[Any], **stored: np.ndarray[Any, Any]) -> Any:
    return helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )


@pytest.fixture
def resizing(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Identity", ["scales"], ["s"], name="copy"),
        helper.make_node("Resize", ["x", "", "s"], ["r"], mode="linear", name="bigger"),
        helper.make_node("Softmax", ["r"], ["p"], name="share"),
        helper.make_node("Exp", ["p"], ["y"], name="power"),
    ]
    scales = np.array([1, 1, 1.3], np.float32)  # no multiple of 1 / 64
    return save(tmp_path / "resizing.onnx", graph(nodes, ["n", 2, "the length"], scales=scales))


def test_each_node_has_a_status(cli: Cli, resizing: Path) -> None:
    found = report(cli("inspect", resizing, "--support", "--json"))
    status = {node["name"]: node["status"] for node in found["nodes"]}
    assert status == {
        "copy": "folded",
        "bigger": "specialised",
        "share": "rewritten",
        "power": "native",
    }
    assert found["support"] == dict.fromkeys(("folded", "specialised", "rewritten", "native"), 1)
    text = cli("inspect", resizing, "--support").stdout
    assert "4 nodes:" in text
    assert "bigger" in text
    assert "power" not in text


def test_given_sizes_need_no_others(cli: Cli, resizing: Path) -> None:
    found = report(cli("inspect", resizing, "--support", "--json", "--dim", "the length=8"))
    assert "specialised" not in found["support"]


def test_nodes_without_an_equivalent(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="fine"),
        helper.make_node("Whatever", ["a"], ["b"], name="strange", domain="far.away"),
        helper.make_node("Relu", ["b"], ["y"], name="behind"),
    ]
    path = save(tmp_path / "strange.onnx", graph(nodes, ["n"]))
    found = report(cli("inspect", path, "--support", "--json"))
    status = {node["name"]: node["status"] for node in found["nodes"]}
    assert status == {"fine": "native", "strange": "unsupported", "behind": "not reached"}
    (strange,) = (node for node in found["nodes"] if node["name"] == "strange")
    assert strange["op"] == "far.away.Whatever"
    assert "unknown operator domain" in strange["detail"]


def test_commands_choose_sizes_that_fit(cli: Cli, resizing: Path, tmp_path: Path) -> None:
    found = report(cli("inspect", resizing, "--json"))
    assert found["assumed_dims"] == {"n": 1, "the_length": 64}
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")]
    reflected = graph(nodes, ["n", "m"], pads=np.array([0, 100, 0, 100]))
    path = save(tmp_path / "reflected.onnx", reflected)
    ran = report(cli("run", path, "--json"))
    assert ran["assumed_dims"] == {"m": 256, "n": 1}
    assert ran["outputs"][0]["shape"] == [1, 456]
    ran = report(cli("run", path, "--json", "--dim", "m=120"))
    assert ran["assumed_dims"] == {"n": 1}
