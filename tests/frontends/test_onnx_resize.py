"""``Resize`` of axes whose sizes are open: positions and weights are computed in the run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

FLOAT = TensorProto.FLOAT
MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "half_pixel_symmetric",
)
IMAGES = [(1, 2, 3, 5), (2, 2, 8, 4), (1, 2, 1, 1), (1, 2, 7, 6)]


def image_model(nodes: list[Any], **stored: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 2, "h", "w"])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opset = helper.make_opsetid("", 19)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9, producer_name="test")


def scaled(scale: tuple[float, float], **attributes: Any) -> onnx.ModelProto:
    """A resize by factors."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], name="resize", **attributes)
    return image_model([node], scales=np.array([1, 1, *scale], np.float32))


def sized(**attributes: Any) -> onnx.ModelProto:
    """A resize to another image's size: 3 more rows, and as many columns as rows."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "from"], ["chosen"]),
        helper.make_node("Add", ["chosen", "more"], ["sizes"]),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="resize", **attributes),
    ]
    return image_model(nodes, **{"from": np.array([0, 1, 2, 2]), "more": np.array([0, 0, 3, 0])})


def check(proto: onnx.ModelProto, *, open: bool = True, tolerance: float = 1e-5) -> None:
    """Compare with ONNX Runtime, and with the graph that is built for numbers."""
    graph = ost.load_onnx(proto)
    assert graph.specialization is not None
    assert graph.specialization.needed != open
    compiled = ost.Session("cpu", threads=1).compile(graph)
    peer = onnxruntime_session(proto)
    for seed, shape in enumerate(IMAGES):
        x = np.random.default_rng(seed).standard_normal(shape, np.float32)
        (wanted,) = peer.run(None, {"x": x})
        (found,) = compiled.run({"x": x})
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
        fixed = ost.load_onnx(proto, dims={"x": shape})
        (known,) = ost.reference.evaluate(fixed, {"x": x}, {})
        np.testing.assert_allclose(found, known, rtol=1e-6, atol=1e-6)
    if open:
        assert len(compiled.specializations) == 1


@pytest.mark.parametrize(("mode", "coordinates"), list(itertools.product(MODES, COORDINATES)))
def test_open_sizes(mode: str, coordinates: str) -> None:
    check(sized(mode=mode, coordinate_transformation_mode=coordinates))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [(2.0, 0.5), (1.5, 1.0)])
def test_scales(mode: str, scale: tuple[float, float]) -> None:
    check(scaled(scale, mode=mode, coordinate_transformation_mode="half_pixel"))


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(rounding: str) -> None:
    check(sized(mode="nearest", nearest_mode=rounding))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str) -> None:
    """The number of taps follows from the scale, which has to be a number."""
    check(scaled((2.0, 0.5), mode=mode, antialias=1))
    check(sized(mode=mode, antialias=1), open=False)


def test_cubic_without_what_is_outside() -> None:
    check(sized(mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5))


def test_scales_that_round_differently_in_each_precision() -> None:
    """``10 * 0.7`` is 7 in float32, and less in float64 with the scale rounded to float32; the
    middle of two positions moves likewise.
    """
    proto = scaled((0.7, 0.6), mode="nearest")
    peer = onnxruntime_session(proto)
    compiled = ost.Session("cpu", threads=1).compile(ost.load_onnx(proto))
    for size in range(2, 24):
        x = np.random.default_rng(size).standard_normal((1, 2, size, size), np.float32)
        np.testing.assert_array_equal(compiled.run({"x": x})[0], peer.run(None, {"x": x})[0])
