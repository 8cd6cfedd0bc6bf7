"""The ONNX package's own backend tests: every node test of every op that has a converter."""

from __future__ import annotations

import functools
import re
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto
from onnx.numpy_helper import to_array

import ostinato as ost
from ostinato.frontends.onnx.converters import converters, find_converter
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Cases of ops with a converter that cannot be expressed, and what the error says.
UNSUPPORTED = {
    "test_batchnorm_epsilon_training_mode": "training mode",
    "test_batchnorm_example_training_mode": "training mode",
    "test_maxpool_with_argmax_2d_precomputed_pads": "positions of the maxima",
    "test_maxpool_with_argmax_2d_precomputed_strides": "positions of the maxima",
    "test_not_2d": "operator set 1, older",
    "test_not_3d": "operator set 1, older",
    "test_not_4d": "operator set 1, older",
    "test_training_dropout": "training mode",
    "test_training_dropout_default": "training mode",
    "test_training_dropout_default_mask": "training mode",
    "test_training_dropout_mask": "training mode",
}


@functools.cache
def node_cases() -> dict[str, Any]:
    """Every node test by name. Collecting them takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


@functools.cache
def cases_by_op() -> dict[str, list[Any]]:
    """Cases by the op that they are about; ``"several"`` for those with more than one node."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for case in node_cases().values():
        nodes = case.model.graph.node
        key = nodes[0].op_type if len(nodes) == 1 and not nodes[0].domain else "several"
        groups[key].append(case)
    return groups


def load_case(case: Any, inputs: dict[str, Any]) -> ost.Graph:
    """Load a case's model, keeping as many of its inputs for run time as it allows.

    A node test gives everything as an input, also shapes and axes, which real models store.
    """
    names = [value.name for value in case.model.graph.input if value.name in inputs]
    for fixed in ([], names[1:]):
        try:
            return ost.load_onnx(case.model, constants={name: inputs[name] for name in fixed})
        except (ost.UnsupportedOpError, ost.GraphError):
            pass
    return ost.load_onnx(case.model, constants={name: inputs[name] for name in names})


def run_case(case: Any) -> None:
    """Load, evaluate, compare with the stored outputs."""
    for stored_inputs, expected in case.data_sets:
        declared = (value.name for value in case.model.graph.input)
        arrays = [to_array(a) if isinstance(a, TensorProto) else a for a in stored_inputs]
        inputs = dict(zip(declared, arrays, strict=False))
        graph = load_case(case, inputs)
        live = {name: inputs[name] for name in graph.inputs}
        results = ost.reference.evaluate(graph, live, {})
        outputs = case.model.graph.output
        for result, stored, value in zip(results, expected, outputs, strict=True):
            wanted = to_array(stored) if isinstance(stored, TensorProto) else np.asarray(stored)
            compare(result, wanted, value, case)


def compare(result: Any, wanted: Any, value: Any, case: Any) -> None:
    """Shapes, dtypes and everything but floats exactly; floats as closely as their dtype holds."""
    dtype = ELEMENT_TYPES[value.type.tensor_type.elem_type].numpy
    assert (result.shape, result.dtype) == (wanted.shape, dtype), value.name
    if dtype.kind in "biu":
        np.testing.assert_array_equal(result, wanted.astype(dtype), err_msg=value.name)
        return
    rtol, atol = (case.rtol, case.atol) if dtype.itemsize > 2 else (1e-2, 1e-2)
    np.testing.assert_allclose(
        result.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol
    )


def expected_refusal(case: Any) -> str | None:
    """Part of the message with which a case must be refused; ``None`` if it must work."""
    graph = case.model.graph
    for value in (*graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return ""
        if value.type.tensor_type.elem_type not in ELEMENT_TYPES:
            return "elements|casts to"
    missing = {op for op in op_types(graph) if find_converter("", op) is None}
    if missing:
        return "no converter|input"
    return UNSUPPORTED.get(case.name)


def op_types(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from op_types(attribute.g)


def check(case: Any) -> str:
    """A description of the defect of a case; none if it works, or is refused as it must be."""
    refusal = expected_refusal(case)
    try:
        run_case(case)
    except ost.UnsupportedOpError as error:
        if refusal is not None and re.search(refusal, str(error)):
            return ""
        return f"{case.name}: {error}"
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {error}"
    return f"{case.name} works, against expectation" if case.name in UNSUPPORTED else ""


@pytest.mark.parametrize("op_type", [*sorted(converters("")), "several"])
def test_node_cases(op_type: str) -> None:
    failures = [failure for case in cases_by_op().get(op_type, []) if (failure := check(case))]
    assert not failures, "\n".join(failures)


def test_ops_without_a_converter_are_refused() -> None:
    """Unless the standard defines them as a function of ops that have one."""
    known = {*converters(""), "several"}
    others = [op for op in cases_by_op() if op not in known]
    failures = [failure for op in others for c in cases_by_op()[op] if (failure := check(c))]
    assert not failures, "\n".join(failures)
