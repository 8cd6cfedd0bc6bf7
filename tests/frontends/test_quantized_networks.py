"""Networks from ONNX Runtime's own quantiser, in each of its forms, next to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench.quantized_models import bert, mobilenet, quantized, resnet

import ostinato as ost
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from tests.peer_runtime import onnxruntime_session

Array = np.ndarray[Any, Any]

NETWORKS: dict[str, Callable[[], Any]] = {
    "resnet": lambda: resnet(33, 16, (1, 2)),
    "mobilenet": lambda: mobilenet(33, ((1, 16, 1, 1), (6, 24, 2, 2))),
    "bert": lambda: bert(17, 32, 1, 4),
}

FORMS = [("qdq", "uint8"), ("qdq", "int8"), ("qoperator", "uint8"), ("qoperator", "int8"),
         ("dynamic", "uint8")]  # fmt: skip


def by_onnx_runtime(model: bytes, x: Array) -> Array:
    """The result, each op by itself."""
    (result,) = onnxruntime_session(model, rewrites=False).run(None, {"x": x})
    return np.asarray(result)


def is_exact(activations: str) -> bool:
    """Whether ONNX Runtime adds products of bytes without loss.

    On x86 without VNNI, it adds two products of an unsigned and a signed byte in 16 bits, and what
    is beyond them is cut off.
    """
    return activations == "int8" or TargetSpec.host().has_byte_dots


def ops(compiled: ost.CompiledGraph) -> set[str]:
    """The names of the ops of all kernels."""
    names = (profile.name for profile in compiled.plan.execute_profiled())
    return {op for name in names for op in name.split("+")}


@pytest.mark.parametrize(
    ("name", "form", "activations"),
    [
        pytest.param(name, *form, marks=[] if (n + m) % 2 == 0 else [pytest.mark.slow])
        for n, name in enumerate(NETWORKS)
        for m, form in enumerate(FORMS)
    ],
)
def test_results_are_those_of_onnx_runtime(name: str, form: str, activations: str) -> None:
    """Within two steps of the output, or of the oracle's where ONNX Runtime's is not exact.

    ``optimize=False`` computes what the file spells out.

    Other options are for one signedness of each form: they differ in what is left of its nodes.
    """
    model = quantized(NETWORKS[name](), form, activations=activations)
    graph = ost.load_onnx(model)
    shape = graph.inputs["x"].shape
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    exact = (
        by_onnx_runtime(model, x)
        if is_exact(activations)
        else ost.reference.evaluate(graph, {"x": x})[0]
    )
    plain = (
        ost.CompileOptions(disabled_passes=("integer_arithmetic",)),
        ost.CompileOptions(optimize=False),
    )
    for options in (ost.CompileOptions(verify=True), *(plain if activations == "uint8" else ())):
        compiled = ost.Session("cpu", threads=2).compile(graph, options=options)
        (actual,) = compiled.run({"x": x})
        step = np.abs(exact).max() * (2 / 128 if form != "dynamic" else 1e-3)
        np.testing.assert_allclose(actual, exact, rtol=0, atol=2 * step)
        assert np.abs(actual - exact).mean() <= step / 4


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_matmuls_and_convolutions_are_of_integers(name: str, form: str) -> None:
    """None of them is left in floats but a dynamic network's attention, which is not quantised."""
    graph = ost.load_onnx(quantized(NETWORKS[name](), form))
    found = ops(ost.Session("cpu", threads=1).compile(graph))
    assert "integer_matmul" in found
    assert ("integer_conv" in found) == (name != "bert")
    assert found.isdisjoint({"conv", "matmul", "attention"} if form != "dynamic" else {"conv"})
