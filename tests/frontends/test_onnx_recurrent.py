"""Recurrent layers with all that ONNX has for them, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

SEQ, BATCH, INPUT, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
COUNTS = {"LSTM": 3, "GRU": 2, "RNN": 1}


def check(
    kind: str,
    *,
    lengths: tuple[int, ...] = (),
    states: bool = False,
    peepholes: bool = False,
    **attributes: Any,
) -> None:
    """Compare all outputs of a layer, optimised, unoptimised and by the oracle."""
    rng = np.random.default_rng(0)
    scans = 2 if attributes.get("direction") == "bidirectional" else 1
    stacked = GATES[kind] * HIDDEN
    x = rng.standard_normal((SEQ, BATCH, INPUT)).astype(np.float32)
    weights = {
        "w": rng.standard_normal((scans, stacked, INPUT)) * 0.5,
        "r": rng.standard_normal((scans, stacked, HIDDEN)) * 0.5,
        "b": rng.standard_normal((scans, 2 * stacked)) * 0.5,
    }
    names = ["x", "w", "r", "b", "", ""]
    if lengths:
        names[4] = "n"
    if states:
        names[5:] = ["h0", "c0"][: 2 if kind == "LSTM" else 1]
        for name in names[5:]:
            weights[name] = rng.standard_normal((scans, BATCH, HIDDEN))
    if peepholes:
        names += [""] * (7 - len(names)) + ["p"]
        weights["p"] = rng.standard_normal((scans, 3 * HIDDEN)) * 0.5
    stored = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    if lengths:
        stored.append(numpy_helper.from_array(np.int32(lengths), "n"))
    results = ["y", "h", "c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, results, hidden_size=HIDDEN, **attributes)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", [info], empty, stored)
    opsets = [helper.make_opsetid("", 14)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    expected = onnxruntime_session(data).run(None, {"x": x})
    loaded = ost.load_onnx(data)
    runs = [
        ost.Session("cpu").compile(loaded, options=ost.CompileOptions(optimize=o)).run({"x": x})
        for o in (True, False)
    ]
    for found in (*runs, ost.reference.evaluate(loaded, {"x": x})):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("name", "alpha", "beta"),
    [
        ("Affine", 0.5, 0.1),
        ("LeakyRelu", 0.1, None),
        ("LeakyRelu", None, None),
        ("ThresholdedRelu", 0.3, None),
        ("ScaledTanh", 1.5, 0.7),
        ("HardSigmoid", 0.3, 0.4),
        ("HardSigmoid", None, None),
        ("Elu", 0.8, None),
        ("Softsign", None, None),
        ("Softplus", None, None),
        ("Relu", None, None),
    ],
)
def test_activations(kind, name, alpha, beta) -> None:
    count = COUNTS[kind]
    lists: dict[str, Any] = {"activations": [name] * count}
    if alpha is not None:
        lists["activation_alpha"] = [alpha] * count
    if beta is not None:
        lists["activation_beta"] = [beta] * count
    clip = {} if name not in ("Affine", "Softplus") else {"clip": 0.9}
    check(kind, **lists, **clip)


def test_parameters_belong_to_the_activations_that_have_them() -> None:
    check(
        "LSTM",
        direction="bidirectional",
        activations=["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"],
        activation_alpha=[0.2, 0.3, 0.7],
        activation_beta=[0.45],
    )


@pytest.mark.parametrize("lengths", [(), (SEQ, 2, 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("peepholes", [False, True])
def test_coupled_gates(direction, lengths, peepholes) -> None:
    check("LSTM", input_forget=1, direction=direction, lengths=lengths, peepholes=peepholes)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_empty_sequences_end_in_zeros(kind, direction) -> None:
    check(kind, direction=direction, lengths=(0, SEQ, 1), states=True)
