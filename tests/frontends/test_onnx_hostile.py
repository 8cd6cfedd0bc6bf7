"""Damaged and hostile files: an error of ours, whatever is wrong with them."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from ostinato.frontends.onnx import importer
from ostinato.frontends.onnx.file_tensors import FileTensor


def small_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    then = helper.make_graph(
        [helper.make_node("Relu", ["h"], ["a"])], "then", [], [value("a", [2, 3])]
    )
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["b"])], "else", [], [value("b", [2, 3])]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "bias"], ["h"], name="sum"),
        helper.make_node("If", ["flag"], ["c"], then_branch=then, else_branch=otherwise),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", [2, 4])],
        [value("y", [3, 2])],
        [
            numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
            helper.make_tensor("bias", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
            numpy_helper.from_array(np.array(True), "flag"),
            numpy_helper.from_array(np.array([3, 2]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def value(name: str, shape: list[Any] | None, type_: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type_, shape)


def test_the_small_model_itself_loads() -> None:
    graph = ost.load_onnx(small_model().SerializeToString(), name="renamed")
    assert graph.name == "renamed"
    assert sorted(graph.params) == ["bias", "w"]


@pytest.mark.parametrize("cut", [0, 1, 5, 40, 120, -1])
def test_truncated_files(cut: int) -> None:
    with pytest.raises(ost.OstinatoError):
        ost.load_onnx(small_model().SerializeToString()[:cut])


@pytest.mark.parametrize("data", [b"", b"hello, world", b"\x00" * 64, b"PK\x03\x04" * 9, b"\x80"])
def test_files_of_another_kind(data: bytes) -> None:
    with pytest.raises(ost.ModelFormatError):
        ost.load_onnx(data)


@pytest.mark.parametrize("source", [None, 5, 1.5, ["a"], object()])
def test_sources_of_another_kind(source: Any) -> None:
    with pytest.raises(ost.ModelFormatError, match="a path, bytes or"):
        ost.load_onnx(source)


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path, str(tmp_path / "a\0b.onnx")):
        with pytest.raises(ost.ModelFormatError, match="cannot read"):
            ost.load_onnx(path)


@pytest.mark.parametrize("seed", range(8))
def test_random_damage(seed: int) -> None:
    """Flipped, overwritten, removed and repeated bytes: an error of ours, or a graph."""
    original = small_model().SerializeToString()
    rng = random.Random(seed)
    for _ in range(150):
        data = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at] = rng.randrange(256)
            elif kind == 2:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = data[at : at + rng.randrange(1, 9)]
        with contextlib.suppress(ost.OstinatoError):
            ost.load_onnx(bytes(data))


def test_versions_from_the_future() -> None:
    proto = small_model()
    proto.ir_version = 99
    with pytest.raises(ost.ModelFormatError, match=r"format version 99, newer"):
        ost.load_onnx(proto)
    proto = small_model()
    proto.opset_import[0].version = 999
    with pytest.raises(ost.ModelFormatError, match=r"operator set 999, newer"):
        ost.load_onnx(proto)


def test_versions_that_never_were() -> None:
    proto = small_model()
    proto.opset_import[0].version = 0
    with pytest.raises(ost.ModelFormatError, match=r"operator set 0; the oldest is 1"):
        ost.load_onnx(proto)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([4, 4], "48"),
        ([-4, -3], "negative"),
        ([2**50, 4], "bytes"),
        ([2**62, 4], "impossibly large"),
        ([0, 2**62], "impossibly large"),
        ([3], "bytes"),
    ],
)
def test_tensors_of_the_wrong_size(dims: list[int], message: str) -> None:
    proto = small_model()
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(dims)
    with pytest.raises(ost.ModelFormatError, match=message):
        ost.load_onnx(proto)


def test_ranks_that_no_array_has() -> None:
    proto = small_model()
    proto.graph.initializer[0].dims.extend([1] * 70)
    with pytest.raises(ost.ModelFormatError, match=r"tensor 'w' has 72 dims; at most 64"):
        ost.load_onnx(proto)
    proto = small_model()
    proto.graph.input[0].type.tensor_type.shape.dim.extend(
        [onnx.TensorShapeProto.Dimension(dim_value=1)] * 70
    )
    with pytest.raises(ost.ModelFormatError, match=r"input 'x' has 72 dims; at most 64"):
        ost.load_onnx(proto)


@pytest.mark.parametrize("dims", [[2**40, 2**40]])
def test_inputs_of_impossible_size(dims: list[int]) -> None:
    proto = small_model()
    for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        dim.dim_value = size
    with pytest.raises(ost.ModelFormatError, match="input 'x'"):
        ost.load_onnx(proto)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 0.0, -1.0])
def test_scales_of_no_size(scale: float) -> None:
    proto = node_model("Resize", TensorProto.FLOAT)
    proto.graph.node[0].input.extend(["", "scales"])
    scales = np.array([1, 1, 2, scale], np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    with pytest.raises(ost.ModelFormatError, match="should be positive and finite"):
        ost.load_onnx(proto)


def test_a_fill_of_impossible_size() -> None:
    for size in ([2**40, 2**40], [-3]):
        nodes = [helper.make_node("ConstantOfShape", ["s"], ["y"])]
        graph = helper.make_graph(
            nodes, "g", [], [value("y", None)], [numpy_helper.from_array(np.array(size), "s")]
        )
        with pytest.raises(ost.OstinatoError):
            ost.load_onnx(helper.make_model(graph))


def test_a_huge_fill_is_not_written_out() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["big"]),
        helper.make_node("Add", ["big", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", [1])],
        [value("y", None)],
        [numpy_helper.from_array(np.array([2**20, 2**20]), "s")],
    )
    loaded = ost.load_onnx(helper.make_model(graph))
    assert loaded.outputs["y"].shape == (2**20, 2**20)


def test_cycles() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", [2])], [value("b", [2])])
    with pytest.raises(ost.ModelFormatError, match="cycle"):
        ost.load_onnx(helper.make_model(graph))


def test_nodes_out_of_order_are_sorted() -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Neg", ["x"], ["a"]),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", [2])], [value("y", [2])])
    loaded = ost.load_onnx(helper.make_model(graph))
    x = np.array([-1.0, 2.0], np.float32)
    np.testing.assert_array_equal(ost.reference.evaluate(loaded, {"x": x}, {})[0], [1.0, 0.0])


def damaged(change: Any) -> onnx.ModelProto:
    proto = small_model()
    change(proto.graph)
    return proto


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.node[0].input.__setitem__(0, "nothing"), "'nothing', which nothing"),
        (lambda g: g.node[1].output.__setitem__(0, "m"), "defines 'm' twice"),
        (lambda g: g.node[1].output.__setitem__(0, "x"), "'h', which nothing"),
        (lambda g: g.output[0].__setattr__("name", "z"), "'z', which nothing defines"),
        (lambda g: g.output.append(g.output[0]), "output 'y' twice"),
        (lambda g: g.input.append(g.input[0]), "an input twice"),
        (lambda g: g.initializer.append(g.initializer[0]), "defines 'w' twice"),
        (lambda g: g.ClearField("output"), "no outputs"),
        (lambda g: g.node[0].input.pop(), "operand 1 is missing"),
        (lambda g: g.node[4].attribute[0].__setattr__("type", 1), "'axis' should be an int"),
        (lambda g: g.node[2].ClearField("attribute"), "'then_branch' is missing"),
        (lambda g: g.node[4].attribute[0].__setattr__("ref_attr_name", "a"), "of a function"),
        (lambda g: g.input[0].ClearField("type"), "has no type"),
        (lambda g: g.initializer[0].__setattr__("name", ""), "no name"),
    ],
)
def test_broken_rules(change: Any, message: str) -> None:
    with pytest.raises(ost.ModelFormatError, match=message):
        ost.load_onnx(damaged(change))


def node_model(op_type: str, *dtypes: int, opset: int = 24, **attributes: Any) -> onnx.ModelProto:
    """One node over operands of shape ``[1, 4, 2, 2]``."""
    operands = [value(f"i{i}", [1, 4, 2, 2], dtype) for i, dtype in enumerate(dtypes)]
    node = helper.make_node(op_type, [o.name for o in operands], ["y"], **attributes)
    graph = helper.make_graph([node], "g", operands, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize(
    ("op_type", "types", "attributes", "message"),
    [
        *(
            (op_type, ("FLOAT", "INT64"), {}, "same element type: operand 0 has float32")
            for op_type in ("Add", "Div", "Mod", "Equal", "Max", "Mean", "Clip", "MatMul", "PRelu")
        ),
        ("Where", ("BOOL", "FLOAT", "DOUBLE"), {}, "same element type: operand 1 has float32"),
        ("Concat", ("INT8", "UINT8"), {"axis": 0}, "same element type: operand 0 has int8"),
        ("BitShift", ("UINT8", "UINT16"), {"direction": "LEFT"}, "same element type"),
        ("Concat", ("INT8",), {"axis": 4}, "axis 4"),
        ("Split", ("FLOAT",), {"num_outputs": 1 << 62}, "parts, expected 1 to"),
        ("Mod", ("FLOAT", "FLOAT"), {"fmod": 2}, "fmod should be 0 or 1, got 2"),
        ("ReduceSum", ("FLOAT",), {"keepdims": 2}, "keepdims should be 0 or 1, got 2"),
        ("Hardmax", ("FLOAT",), {"axis": 4}, "axis 4"),
        ("Softplus", ("INT32",), {}, "expected floats, got i32"),
        ("Cast", (), {"to": 1}, "operand 0 is missing"),
        ("CastLike", ("FLOAT",), {}, "operand 1 is missing"),
        ("DepthToSpace", ("FLOAT",), {"blocksize": 2, "mode": "A"}, "one of DCR, CRD, got 'A'"),
        ("Attention", ("FLOAT",) * 3, {"qk_matmul_output_mode": 9}, "0, 1, 2 or 3, got 9"),
    ],
)
def test_operands_and_attributes_that_an_op_does_not_take(
    op_type: str, types: tuple[str, ...], attributes: dict[str, Any], message: str
) -> None:
    proto = node_model(op_type, *(TensorProto.DataType.Value(t) for t in types), **attributes)
    if op_type == "Attention":
        proto.graph.node[0].output.extend(["", "", "scores"])
    with pytest.raises((ost.ModelFormatError, ost.GraphError), match=message):
        ost.load_onnx(proto)


# -- external data -------------------------------------------------------------------------------


def external_model(**entries: str) -> onnx.ModelProto:
    proto = small_model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return proto


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


WEIGHT = np.arange(12, dtype=np.float32)


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(b"1234" + WEIGHT.tobytes() + b"tail")
    proto = external_model(location="sub/weights.bin", offset="4", length="48")
    graph = ost.load_onnx(save(proto, tmp_path))
    np.testing.assert_array_equal(graph.param_values["w"], WEIGHT.reshape(4, 3))
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(ost.ModelFormatError, match="base_dir"):
            ost.load_onnx(source)
        assert "w" in ost.load_onnx(source, base_dir=tmp_path).params


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "must lie in"),
        ({"location": ""}, "must lie in"),
        ({"location": "/etc/passwd"}, "must lie in"),
        ({"location": "../secret.bin"}, "must lie in"),
        ({"location": "sub/../../secret.bin"}, "must lie in"),
        ({"location": "..\\secret.bin"}, "must lie in"),
        ({"location": "C:\\secret.bin"}, "must lie in"),
        ({"location": "link.bin"}, "link out of"),
        ({"location": "sublink/secret.bin"}, "link out of"),
        ({"location": "w\0.bin"}, "must lie in"),
        ({"location": "absent.bin"}, "does not exist"),
        ({"location": "x" * 300}, "bad location"),
        ({"location": "."}, "does not exist"),
        ({"location": "w.bin", "offset": "4"}, "44"),
        ({"location": "w.bin", "offset": "4", "length": "48"}, "lie outside"),
        ({"location": "w.bin", "offset": "-4"}, "no byte count"),
        ({"location": "w.bin", "offset": "0x4"}, "no byte count"),
        ({"location": "w.bin", "length": "9" * 30}, "no byte count"),
        ({"location": "w.bin", "length": "40"}, "40"),
    ],
)
def test_external_data_stays_in_its_folder(
    tmp_path: Path, entries: dict[str, str], message: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "sublink").symlink_to(tmp_path)
    with pytest.raises(ost.ModelFormatError, match=message):
        ost.load_onnx(save(external_model(**entries), folder))


def test_a_download_cache_of_links_works(tmp_path: Path) -> None:
    """A folder of links into a folder of blobs, as hubs lay out their caches."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    model = save(external_model(location="w.bin"), blobs).rename(blobs / "abc")
    (blobs / "def").write_bytes(WEIGHT.tobytes())
    (snapshot / "model.onnx").symlink_to(model)
    (snapshot / "w.bin").symlink_to(blobs / "def")
    assert "w" in ost.load_onnx(snapshot / "model.onnx").params


def test_large_external_data_stays_in_its_file(tmp_path: Path) -> None:
    """Three gigabytes without a block on the disk, of which loading reads none."""
    rows = 3 << 20
    with (tmp_path / "huge.bin").open("wb") as huge:
        huge.truncate(rows * 1024)
        huge.seek(1020)
        huge.write(np.float32(7).tobytes())
    proto = external_model(location="huge.bin")
    proto.graph.initializer[0].dims[:] = [rows, 256]
    gather = helper.make_node("Gather", ["w", "i"], ["y"])
    del proto.graph.node[:], proto.graph.initializer[1:], proto.graph.input[:]
    proto.graph.node.append(gather)
    proto.graph.input.append(value("i", [2], TensorProto.INT64))
    graph = ost.load_onnx(save(proto, tmp_path))
    stored = graph.param_values.sources["w"]
    assert isinstance(stored, FileTensor)
    assert stored.range.file.reads == 0
    proto.graph.initializer[0].dims[:] = [3]
    with pytest.raises(ost.ModelFormatError, match="should hold 12 bytes and holds 3221225472"):
        ost.load_onnx(save(proto, tmp_path))


def test_external_data_that_changes_after_loading(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(1 << 20))
    proto = external_model(location="w.bin")
    proto.graph.initializer[0].dims[:] = [4, 1 << 16]
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(1), "bias"))
    del proto.graph.node[2:]
    proto.graph.output[0].name = "h"
    graph = ost.load_onnx(save(proto, tmp_path))
    (tmp_path / "w.bin").write_bytes(bytes(1 << 10))
    with pytest.raises(ost.ModelFormatError, match="'w'"):
        ost.Session("cpu", threads=1).compile(graph)


def test_a_subgraph_has_initializers_of_its_own(tmp_path: Path) -> None:
    """A large one of the model's graph of the same name is another tensor."""
    proto = small_model()
    proto.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((4, 1 << 16), np.float32), "w")
    )
    inner = proto.graph.node[2].attribute[1].g  # then_branch
    inner.initializer.append(numpy_helper.from_array(np.full((2, 3), 5, np.float32), "w"))
    inner.node[0].CopyFrom(helper.make_node("Identity", ["w"], ["a"]))
    proto.graph.node[0].CopyFrom(helper.make_node("Identity", ["x"], ["m"]))
    proto.graph.node[1].CopyFrom(helper.make_node("Identity", ["m"], ["h"]))
    graph = ost.load_onnx(save(proto, tmp_path))
    x = np.zeros((2, 4), np.float32)
    values = {name: graph.param_values[name] for name in graph.params}
    (result,) = ost.reference.evaluate(graph, {"x": x}, values)
    np.testing.assert_allclose(result, np.full((3, 2), 0.5))


# -- growth -------------------------------------------------------------------------------------


def test_a_function_that_calls_itself() -> None:
    node = helper.make_node("Loop", ["a"], ["b"], domain="mine")
    function = helper.make_function(
        "mine", "Loop", ["a"], ["b"], [node], [helper.make_opsetid("mine", 1)]
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["x"], ["y"], domain="mine")],
        "g",
        [value("x", [2])],
        [value("y", [2])],
    )
    proto = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )
    with pytest.raises(ost.ModelFormatError, match="nest too deep"):
        ost.load_onnx(proto)


@pytest.mark.parametrize("most", [3_000, pytest.param(None, marks=pytest.mark.slow)])
def test_functions_that_double_at_every_level(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a limit that is soon reached, and by the importer's own, which takes seconds."""
    if most is not None:
        monkeypatch.setattr(importer, "_MOST_NODES_IN_FUNCTIONS", most)
    levels = 30
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    functions = []
    for level in range(levels):
        callee = {"op_type": f"F{level + 1}", "domain": "mine"}
        if level == levels - 1:
            callee = {"op_type": "Relu", "domain": ""}
        nodes = [
            helper.make_node(inputs=["a"], outputs=["m"], **callee),
            helper.make_node(inputs=["m"], outputs=["b"], **callee),
        ]
        functions.append(helper.make_function("mine", f"F{level}", ["a"], ["b"], nodes, imports))
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain="mine")],
        "g",
        [value("x", [2])],
        [value("y", [2])],
    )
    proto = helper.make_model(graph, functions=functions, opset_imports=imports)
    with pytest.raises(ost.ModelFormatError, match="multiply without end"):
        ost.load_onnx(proto)


def test_sizes_that_square_at_every_node() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["n0"], keepdims=0),
        *(helper.make_node("Mul", [f"n{i}", f"n{i}"], [f"n{i + 1}"]) for i in range(40)),
        helper.make_node("Cast", ["n40"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", ["a", "b", "c"])], [value("y", [])])
    loaded = ost.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert len(loaded.nodes) < 100


@pytest.mark.parametrize("consumer", ["Reshape", "Expand", "NonZero", "Compress", "Tile"])
def test_huge_known_operands(consumer: str) -> None:
    """A few bytes that stand for a petabyte, where an op wants to read them."""
    operands = {"NonZero": ["big"], "Compress": ["x", "big"]}.get(consumer, ["x", "big"])
    fill = helper.make_tensor("v", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["big"], value=fill),
        helper.make_node(consumer, operands, ["y"]),
    ]
    size = numpy_helper.from_array(np.array([2**50]), "s")
    graph = helper.make_graph(nodes, "g", [value("x", [1])], [value("y", None)], [size])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises((ost.OstinatoError, MemoryError)):
        ost.Session("cpu", threads=1).compile(ost.load_onnx(proto))


def model_of(node: onnx.NodeProto, inputs: list[Any], opset: int = 22) -> onnx.ModelProto:
    graph = helper.make_graph([node], "g", inputs, [value(o, None) for o in node.output])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets)


def test_a_depth_of_two_numbers() -> None:
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"])
    inputs = [value("i", [3], TensorProto.INT64), value("depth", [2]), value("values", [2])]
    with pytest.raises(ost.ModelFormatError, match=r"its depth is f32\[2\], expected one number"):
        ost.load_onnx(model_of(node, inputs))


def test_angles_without_a_row_for_each_position() -> None:
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])
    inputs = [value("x", [2, 4, 3, 8]), value("cos", [50, 4]), value("sin", [50, 4])]
    with pytest.raises(ost.ModelFormatError, match="does not hold rows of angles"):
        ost.load_onnx(model_of(node, inputs, 23))


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("nodes_falsenodeids", [0, 0], "nodes_falsenodeids has 2 entries, expected 1"),
        ("leaf_targetids", [0, 3], "a target is not between 0 and 0"),
        ("nodes_modes", [9], "a mode is unknown"),
    ],
)
def test_trees_whose_tables_disagree(name: str, entries: list[int], message: str) -> None:
    tables: dict[str, Any] = {
        "nodes_featureids": [0],
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "leaf_targetids": [0, 0],
        "tree_roots": [0],
        "nodes_modes": [0],
    }
    tables[name] = entries
    modes = np.array(tables.pop("nodes_modes"), np.uint8)
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_modes=numpy_helper.from_array(modes),
        nodes_splits=numpy_helper.from_array(np.zeros(1, np.float32)),
        leaf_weights=numpy_helper.from_array(np.ones(2, np.float32)),
        **tables,
    )
    with pytest.raises(ost.ModelFormatError, match=message):
        ost.load_onnx(model_of(node, [value("x", [2, 1])]))


@pytest.mark.parametrize("op_type", ["Elu", "Gelu", "LeakyRelu", "Swish", "LpNormalization"])
def test_integers_where_an_op_takes_floats(op_type: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], name="act")
    proto = model_of(node, [value("x", [2, 3], TensorProto.INT32)], 24)
    with pytest.raises(ost.ModelFormatError, match=rf"{op_type} 'act'.*floats, got i32\[2,3\]"):
        ost.load_onnx(proto)


@pytest.mark.parametrize("op_type", ["CumSum", "CumProd", "TopK", "DFT"])
@pytest.mark.parametrize("count", [0, 2])
def test_vectors_where_an_op_takes_one_number(op_type: str, count: int) -> None:
    node = helper.make_node(op_type, ["x", "n"], ["y", "z"] if op_type == "TopK" else ["y"])
    proto = model_of(node, [value("x", [3, 2])], 26)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(count, np.int64), "n"))
    with pytest.raises(ost.ModelFormatError, match=f"should be a single number, got {count}"):
        ost.load_onnx(proto)


def test_a_shape_of_more_sizes_than_tensors_have_dims() -> None:
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], name="fill")
    proto = model_of(node, [value("shape", [1 << 31], TensorProto.INT64)])
    with pytest.raises(ost.ModelFormatError, match=r"'fill'.*2,147,483,648 sizes, .* at most 128"):
        ost.load_onnx(proto)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"rho": [1.0, 2.0]}, "rho has 2 numbers, expected one"),
        ({"rho": [1.0], "support_vectors": [1.0] * 3}, "3 numbers for 2 support vectors"),
    ],
)
def test_support_vectors_that_disagree(attributes: dict[str, Any], message: str) -> None:
    node = helper.make_node(
        "SVMRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_supports=2, **attributes
    )
    with pytest.raises(ost.ModelFormatError, match=message):
        ost.load_onnx(model_of(node, [value("x", [2, 2])]))


@pytest.mark.parametrize("op_type", ["Momentum", "Adagrad"])
def test_rates_that_are_integers(op_type: str) -> None:
    node = helper.make_node(
        op_type, list("rtxgv"), ["y", "w"], name="step", domain="ai.onnx.preview.training"
    )
    inputs = [value("r", [], TensorProto.INT32), value("t", [], TensorProto.INT64)]
    proto = model_of(node, [*inputs, *(value(name, [2]) for name in "xgv")])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    with pytest.raises(ost.ModelFormatError, match=r"'step': expected floats, got i32"):
        ost.load_onnx(proto)


def test_a_mask_of_integers() -> None:
    node = helper.make_node("Attention", ["q", "q", "q", "mask"], ["y"], name="attend")
    inputs = [value("q", [1, 2, 4, 8]), value("mask", [4, 2], TensorProto.INT64)]
    with pytest.raises(ost.ModelFormatError, match=r"'attend': its mask is i64\[4,2\], expected"):
        ost.load_onnx(model_of(node, inputs, 24))


def test_two_versions_of_a_domain() -> None:
    proto = small_model()
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 9))
    with pytest.raises(ost.ModelFormatError, match="operator sets 17 and 9, expected one"):
        ost.load_onnx(proto)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_recurrent_weights_of_the_wrong_rank(op_type: str) -> None:
    node = helper.make_node(op_type, ["x", "w", "r"], ["y"], name="cell", hidden_size=6)
    inputs = [value("x", [3, 4, 5]), value("w", []), value("r", [])]
    with pytest.raises(ost.ModelFormatError, match=r"'cell': operand 1 is f32\[\], expected"):
        ost.load_onnx(model_of(node, inputs))


def test_a_range_of_two_types() -> None:
    node = helper.make_node("Range", ["a", "b", "c"], ["y"], name="steps")
    inputs = [value("a", []), value("b", []), value("c", [], TensorProto.INT32)]
    with pytest.raises(ost.ModelFormatError, match=r"'steps': its operands .* different types"):
        ost.load_onnx(model_of(node, inputs))


def test_labels_of_strings_for_numbers() -> None:
    words = helper.make_tensor("k", TensorProto.STRING, [2], [b"a", b"b"])
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_tensor=words,
        values_int64s=[1, 2],
    )
    with pytest.raises(ost.ModelFormatError, match="its keys are strings, and its operand is f32"):
        ost.load_onnx(model_of(node, [value("x", [3])]))


@pytest.mark.parametrize("lengths", [(-100, 2), (0, 1), (3, 2)])
def test_ngrams_of_no_length(lengths: tuple[int, int]) -> None:
    node = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TF",
        min_gram_length=lengths[0],
        max_gram_length=lengths[1],
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=[0, 1],
        pool_int64s=[2, 3],
    )
    proto = model_of(node, [value("x", [6], TensorProto.INT32)])
    with pytest.raises(ost.ModelFormatError, match=f"n-grams of {lengths[0]} to {lengths[1]}"):
        ost.load_onnx(proto)
