"""Whole models: what the ONNX package ships, and real ones, through the reference evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = DATA / "light"
MODELS = Path(__file__).parents[3] / "shared" / "models"

#: Models whose evaluation in float64 takes seconds and gigabytes.
HEAVY = {"light_bvlc_alexnet", "light_densenet121", "light_vgg19", "light_zfnet512"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in HEAVY else [])
        for path in sorted(LIGHT.glob("*.onnx"))
    ],
)
def test_light_models(name: str) -> None:
    """Networks whose weights are fills, with their stored outputs."""
    graph = ost.load_onnx(LIGHT / f"{name}.onnx")
    expected = numpy_helper.to_array(onnx.load_tensor(str(LIGHT / f"{name}_output_0.pb")))
    ((key, value),) = graph.inputs.items()
    size = int(np.prod(value.shape))
    x = (np.arange(size).reshape(value.shape) / size).astype(np.float32)
    (result,) = ost.reference.evaluate(graph, {key: x}, {})
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-6)


#: Models that the package stores with inputs and outputs; most of the others are older than
#: operator set 7, or about sequences and strings.
STORED = sorted(
    path.parent
    for pattern in ("test_expand_*", "test_s[hi]*", "test_PixelShuffle")
    for path in DATA.glob(f"*/{pattern}/model.onnx")
)


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_models(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    inputs, outputs = (
        [
            numpy_helper.to_array(onnx.load_tensor(str(path)))
            for path in sorted(folder.glob(f"test_data_set_0/{kind}_*.pb"))
        ]
        for kind in ("input", "output")
    )
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, inputs, strict=False))
    shapes = {name: array for name, array in feeds.items() if array.dtype == np.int64}
    graph = ost.load_onnx(model, constants=shapes)
    results = ost.reference.evaluate(graph, {name: feeds[name] for name in graph.inputs}, {})
    for result, expected in zip(results, outputs, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-6)


# -- voice activity detection --------------------------------------------------------------------


def model_path(name: str) -> Path:
    path = MODELS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.mark.parametrize("name", ["silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"])
@pytest.mark.parametrize(
    ("dims", "constants", "batch", "length"),
    [
        ({"batch": 1, "sequence": 576}, {"sr": 16000}, 1, 576),
        ({"batch": 1, "sequence": 576}, {}, 1, 576),
        ({"batch": (1, 4), "sequence": 512}, {}, 3, 512),
    ],
)
def test_voice_activity_detectors(
    name: str, dims: dict[str, Any], constants: dict[str, Any], batch: int, length: int
) -> None:
    """Against ONNX Runtime over a few chunks, each side fed its own state."""
    path = model_path(name)
    graph = ost.load_onnx(path, dims=dims, constants=constants)
    session = onnxruntime_session(path)
    rng = np.random.default_rng(0)
    ours = theirs = np.zeros((2, batch, 128), np.float32)
    for _ in range(3):
        chunk = (rng.standard_normal((batch, length)) * 0.1).astype(np.float32)
        feeds = {"input": chunk, "sr": np.array(16000)}
        wanted, theirs = session.run(None, {**feeds, "state": theirs})
        live = {key: {**feeds, "state": ours}[key] for key in graph.inputs}
        result, ours = ost.reference.evaluate(graph, live, {})
        np.testing.assert_allclose(result, wanted, atol=1e-4)
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_rate_that_is_only_known_at_run_time() -> None:
    """The model without a fixed rate holds both networks, and the input chooses."""
    path = model_path("silero_vad_op18_ifless.onnx")
    graph = ost.load_onnx(path, dims={"batch": 1, "sequence": 288})
    session = onnxruntime_session(path)
    rng = np.random.default_rng(0)
    feeds = {
        "input": (rng.standard_normal((1, 288)) * 0.1).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
    }
    for rate in (8000, 16000):
        feeds["sr"] = np.array(rate)
        results = ost.reference.evaluate(graph, feeds, {})
        for result, wanted in zip(results, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(result, wanted, atol=1e-4)
