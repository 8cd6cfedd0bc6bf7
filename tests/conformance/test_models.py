"""Whole models, compiled for each device, next to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ostinato as ost
from tests.devices.registered import open_session
from tests.frontends.onnx_suite import PASS, expected
from tests.peer_runtime import onnxruntime_session

VOICE_MODELS = Path(__file__).parents[3] / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_NAMES = sorted(path.stem for path in LIGHT.glob("*.onnx"))

#: The networks that run with random weights in the fast suite: residual blocks with batch
#: normalisation, fire modules and channel shuffles. Inception blocks take the longest to compile.
QUICK = {"light_resnet50", "light_squeezenet", "light_shufflenet"}


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device)


# -- convolutional networks ----------------------------------------------------------------------


def test_all_nine_are_in_the_suite() -> None:
    """With the weights that they come with, which are fills, the ONNX backend suite has them.

    Its fast part runs AlexNet, which the fast tests of random weights leave out.
    """
    assert len(LIGHT_NAMES) == 9
    outcomes = expected()
    assert {outcomes[f"test_{name.removeprefix('light_')}"] for name in LIGHT_NAMES} == {PASS}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in LIGHT_NAMES],
)
def test_random_weights(name: str, session: ost.Session) -> None:
    """With weights that make every element of every tensor matter."""
    model = with_random_weights(onnx.load(LIGHT / f"{name}.onnx"))
    data = model.SerializeToString()
    graph = ost.load_onnx(data)
    ((key, spec),) = graph.inputs.items()
    x = np.random.default_rng(1).standard_normal(spec.shape).astype(np.float32)
    (result,) = session.compile(graph).run({key: x})
    (wanted,) = onnxruntime_session(data).run(None, {key: x})
    largest = np.abs(wanted).max()
    assert np.isfinite(largest)
    assert wanted.std() > 1e-2 * largest
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-4 * largest)


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with random initializers in place of fills, up to its last Softmax."""
    rng = np.random.default_rng(0)
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            array = random_weight(rng, tuple(shapes[node.input[0]]))
            graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        else:
            kept.append(node)
    if kept[-1].op_type == "Softmax":
        last = kept.pop()
        kept.append(helper.make_node("Identity", [last.input[0]], [last.output[0]]))
    del graph.node[:]
    graph.node.extend(kept)
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    return model


def random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Filters that keep the variance of what passes; vectors around 1, which suit a variance."""
    if len(shape) < 2:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    scale = np.sqrt(2 / np.prod(shape[1:]))
    return (scale * rng.standard_normal(shape)).astype(np.float32)


# -- a transformer -------------------------------------------------------------------------------


def tokens(rng: np.random.Generator, batch: int, length: int) -> dict[str, np.ndarray]:
    """Token ids, and a mask whose rows end in padding."""
    lengths = rng.integers(1, length + 1, batch)
    lengths[0] = length
    return {
        "input_ids": rng.integers(0, 30522, (batch, length)),
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
    }


@pytest.mark.parametrize(
    ("batch", "length"),
    [(1, 1), pytest.param(1, 16, marks=pytest.mark.slow), (3, 33), (8, 128)],
)
def test_minilm(minilm: Path, session: ost.Session, batch: int, length: int) -> None:
    feeds = tokens(np.random.default_rng(length), batch, length)
    graph = ost.load_onnx(minilm, dims={"batch": batch, "seq": length})
    (result,) = session.compile(graph).run(feeds)
    (expected,) = onnxruntime_session(minilm).run(None, feeds)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


def test_minilm_with_sizes_that_vary(minilm: Path, session: ost.Session) -> None:
    graph = ost.load_onnx(minilm, dims={"batch": (1, 4), "seq": (1, 64)})
    compiled = session.compile(graph)
    reference = onnxruntime_session(minilm)
    rng = np.random.default_rng(0)
    for batch, length in [(1, 7), (4, 64), (2, 31), (1, 1)]:
        feeds = tokens(rng, batch, length)
        (result,) = compiled.run(feeds)
        np.testing.assert_allclose(result, reference.run(None, feeds)[0], rtol=0, atol=1e-5)


# -- voice activity detection --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"])
def test_voice_activity_detection(name: str, session: ost.Session) -> None:
    """50 chunks of a recording, each runtime fed the state that it returned itself."""
    path = VOICE_MODELS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    graph = ost.load_onnx(path, dims={"batch": 1, "sequence": 576}, constants={"sr": 16000})
    compiled = session.compile(graph)
    reference = onnxruntime_session(path)
    rate = np.array(16000)
    ours = theirs = np.zeros((2, 1, 128), np.float32)
    for chunk in recording(50):
        probability, ours = compiled.run({"input": chunk, "state": ours})
        feeds = {"input": chunk, "state": theirs, "sr": rate}
        expected, theirs = reference.run(None, feeds)
        np.testing.assert_allclose(probability, expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def recording(chunks: int) -> np.ndarray:
    """``[chunks, 1, 576]``: hums that swell and fade; chunks overlap by 64 samples."""
    rng = np.random.default_rng(0)
    time = np.arange(64 + 512 * chunks) / 16000
    hum = sum(np.sin(2 * np.pi * 140 * k * time + k) / k for k in range(1, 12))
    loudness = np.maximum(0, np.sin(2 * np.pi * 1.5 * time)) * 0.2
    sound = (loudness * hum + 0.01 * rng.standard_normal(time.shape)).astype(np.float32)
    return np.stack([sound[None, 512 * i : 512 * i + 576] for i in range(chunks)])
