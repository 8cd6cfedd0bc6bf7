"""The classes of messages are those of ``onnx`` in either order, without its other modules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from onnx import TensorProto, helper

MODEL = """
import sys
import ostinato
path = sys.argv[1]
"""

#: Checks of the classes once ``onnx`` is imported, by either side.
SAME = """
from ostinato.frontends.onnx import messages
assert all(getattr(messages, name) is getattr(onnx, name) for name in messages.__all__)
assert onnx.onnx_ml_pb2.ModelProto is messages.ModelProto
assert onnx.AttributeProto.GRAPH == messages.AttributeProto.GRAPH == 5
graph = ostinato.load_onnx(onnx.load(path))
assert str(graph) == str(ostinato.load_onnx(path))
onnx.checker.check_model(messages.ModelProto.FromString(open(path, "rb").read()))
import pickle
assert type(pickle.loads(pickle.dumps(onnx.load(path)))) is messages.ModelProto
"""


@pytest.fixture
def path(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "model", [x], [y])
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    return file


def run(path, code: str, protobuf: str = "upb") -> None:
    env = {
        **os.environ,
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": protobuf,
        "OSTINATO_CACHE_DIR": str(path.parent),  # where this model was never loaded
    }
    command = [sys.executable, "-c", MODEL + code, str(path)]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protobuf", ["upb", "python"])
def test_models_are_read_without_the_package_which_shares_the_classes(path, protobuf):
    code = "ostinato.load_onnx(path)\nassert 'onnx' not in sys.modules\nimport onnx\n"
    run(path, code + SAME, protobuf)


@pytest.mark.parametrize("protobuf", ["upb", "python"])
def test_a_package_that_is_there_is_used(path, protobuf):
    run(path, f"import onnx\n{SAME}", protobuf)


def test_a_message_from_before_the_package_can_be_passed_to_it(path):
    code = """
from ostinato.frontends.onnx.source import open_model
proto = open_model(path).proto
assert "onnx" not in sys.modules
import onnx
assert isinstance(proto, onnx.ModelProto)
assert onnx.load(path) == proto
assert onnx.helper.make_model(proto.graph).graph == proto.graph
"""
    run(path, code)


@pytest.mark.parametrize(
    "unlike",
    [
        "machinery.PathFinder.find_spec = nothing",
        "machinery.PathFinder.find_spec = another",
        "api_implementation.Type = lambda: 'cpp'",
    ],
    ids=["no module of classes", "no classes in it", "protobuf of old"],
)
def test_a_package_unlike_the_known_ones_imports_itself(path, unlike):
    code = f"""
from importlib import machinery
from google.protobuf.internal import api_implementation
find = machinery.PathFinder.find_spec

def nothing(name, *args):
    alone = name == "onnx.onnx_ml_pb2" and "onnx" not in sys.modules
    return None if alone else find(name, *args)

def another(name, *args):
    alone = name == "onnx.onnx_ml_pb2" and "onnx" not in sys.modules
    return find("decimal") if alone else find(name, *args)

{unlike}
ostinato.load_onnx(path)
onnx = sys.modules["onnx"]
"""
    run(path, code + SAME)
