"""Weights that stay in the model's file until they are used."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from ostinato.ir.stored import StoredTensor
from ostinato.reference import evaluate

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 200)).astype(np.float32)
WEIGHT = RNG.standard_normal((200, 300)).astype(np.float32)
BIAS = RNG.standard_normal(300).astype(np.float32)


def model(weight: np.ndarray = WEIGHT, dims: tuple[int, ...] | None = None) -> onnx.ModelProto:
    stored = numpy_helper.from_array(weight, "w")
    if dims is not None:
        del stored.dims[:]
        stored.dims.extend(dims)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 200])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 300])],
        [numpy_helper.from_array(BIAS, "bias"), stored],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "large.onnx")
    return tmp_path / "large.onnx"


def expected() -> np.ndarray:
    return X @ WEIGHT + BIAS


def test_only_large_weights_stay_in_the_file(path: Path) -> None:
    graph = ost.load_onnx(path)
    sources = graph.param_values.sources
    assert isinstance(sources["w"], StoredTensor)
    assert isinstance(sources["bias"], np.ndarray)
    np.testing.assert_array_equal(graph.param_values["w"], WEIGHT)
    assert not graph.param_values["w"].flags.writeable


def test_they_are_what_runs_and_the_oracle_read(path: Path) -> None:
    graph = ost.load_onnx(path)
    compiled = ost.Session("cpu", threads=1).compile(graph)
    np.testing.assert_allclose(compiled.run({"x": X})[0], expected(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(evaluate(graph, {"x": X})[0], expected(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(compiled.plan.buffer(graph.params["w"]).copyout(), WEIGHT)


def test_the_file_may_vanish_or_be_replaced(path: Path) -> None:
    graph = ost.load_onnx(path)
    onnx.save(model(WEIGHT * 2), path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    np.testing.assert_array_equal(graph.param_values["w"], WEIGHT)
    path.unlink()
    np.testing.assert_array_equal(graph.param_values["w"], WEIGHT)


@pytest.mark.parametrize("size", [0, 1000, None])
def test_a_file_written_since_is_noticed(path: Path, size: int | None) -> None:
    graph = ost.load_onnx(path)
    with path.open("r+b") as file:
        if size is None:
            file.seek(2000)
            file.write(b"other")
        else:
            file.truncate(size)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ost.ModelFormatError, match=r"'w'.*large\.onnx"):
        ost.Session("cpu", threads=1).compile(graph)


def test_as_many_bytes_as_the_shape_says(path: Path) -> None:
    onnx.save(model(dims=(200, 301)), path)
    with pytest.raises(ost.ModelFormatError, match="'w' should hold 240800 bytes"):
        ost.load_onnx(path)


def test_bools_become_zero_and_one(path: Path) -> None:
    flags = RNG.integers(0, 2, (400, 400)).astype(bool)
    graph = helper.make_graph(
        [helper.make_node("And", ["x", "w"], ["y"])],
        "flags",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [400, 400])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [400, 400])],
        [numpy_helper.from_array(flags, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    (result,) = evaluate(ost.load_onnx(path), {"x": np.ones((400, 400), bool)})
    np.testing.assert_array_equal(result, flags)


def test_a_graph_in_two_parts_is_merged_by_the_parser(path: Path) -> None:
    whole = model()
    first, rest = onnx.ModelProto(), onnx.ModelProto()
    first.CopyFrom(whole)
    rest.graph.initializer.append(first.graph.initializer.pop())
    path.write_bytes(first.SerializeToString() + rest.SerializeToString())
    graph = ost.load_onnx(path)
    np.testing.assert_array_equal(graph.param_values["w"], WEIGHT)


def test_data_given_twice_counts_as_the_parser_has_it(path: Path) -> None:
    tensor = numpy_helper.from_array(WEIGHT, "w").SerializeToString()
    again = TensorProto(raw_data=(WEIGHT * 3).tobytes()).SerializeToString()
    parsed = TensorProto.FromString(tensor + again)
    whole = model()
    whole.graph.initializer[1].CopyFrom(parsed)
    data = whole.SerializeToString()
    twice = data.replace(parsed.SerializeToString(), parsed.SerializeToString())
    path.write_bytes(twice)
    np.testing.assert_array_equal(ost.load_onnx(path).param_values["w"], WEIGHT * 3)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_raise_errors_of_ours(path: Path, seed: int) -> None:
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    structure = [i for i in range(len(data)) if i < 400 or i > len(data) - 400 or i in (1300, 1301)]
    for _ in range(chance.randint(1, 4)):
        data[chance.choice(structure)] = chance.randrange(256)
    if seed % 3 == 0:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    try:
        graph = ost.load_onnx(path)
        ost.Session("cpu", threads=1).compile(graph)
    except ost.OstinatoError:
        pass
